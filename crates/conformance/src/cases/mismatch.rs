//! Ranks that call with different descriptors: one field at a time.

use crate::case::{Case, CaseResult, Failure, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use rankwise_core::{Call, Communicator, DType, Error, ErrorKind, OpKind, Part, ReduceOp};
use std::time::Duration;

const MANY: usize = usize::MAX;
const REDUCE: &[Need] = &[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F32)];
const TWO_OPERATORS: &[Need] =
    &[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F32), Need::Reduce(ReduceOp::Max, DType::F32)];
const TWO_TYPES: &[Need] =
    &[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F32), Need::Reduce(ReduceOp::Sum, DType::I32)];

pub(super) const CASES: &[Case] = &[
    Case::must("MM-35", "mismatch: the reduce operator", |ctx| {
        differs(ctx, |comm, odd, buffers| reduce(comm, buffers, if odd { ReduceOp::Max } else { ReduceOp::Sum }))
    })
    .needs(TWO_OPERATORS)
    .ranks(2, MANY),
    Case::must("MM-350", "mismatch: the factor of a scaled sum", |ctx| {
        let op = |odd| ReduceOp::PreMulSum(if odd { 0.25 } else { 0.5 });
        differs(ctx, |comm, odd, buffers| reduce(comm, buffers, op(odd)))
    })
    .offered(&[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::PreMulSum(0.5), DType::F32)])
    .ranks(2, MANY),
    Case::must("MM-36", "mismatch: the count, 8 and 4", |ctx| {
        differs(ctx, |comm, odd, (src, dst)| {
            let count = if odd { 4 } else { 8 };
            comm.all_reduce(&src[..count], &mut dst[..count], ReduceOp::Sum)
        })
    })
    .needs(REDUCE)
    .ranks(2, MANY),
    Case::must("MM-361", "mismatch: a large count", |ctx| {
        differs(ctx, |comm, odd, _| {
            let count = if odd { 100_000 } else { 200_000 };
            comm.all_reduce_in_place(&mut vec![1.0_f32; count], ReduceOp::Sum)
        })
    })
    .needs(REDUCE)
    .ranks(2, 8),
    Case::must("MM-37", "mismatch: the type, f32 and i32 of equal bytes", |ctx| {
        differs(ctx, |comm, odd, (src, dst)| match odd {
            true => comm.all_reduce::<i32>(bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst), ReduceOp::Sum),
            false => comm.all_reduce(src, dst, ReduceOp::Sum),
        })
    })
    .needs(TWO_TYPES)
    .ranks(2, MANY),
    Case::must("MM-371", "mismatch: the type, bf16 and f16", |ctx| {
        differs(ctx, |comm, odd, _| match odd {
            true => comm.all_reduce_in_place(&mut [half::bf16::ONE; 8], ReduceOp::Sum),
            false => comm.all_reduce_in_place(&mut [half::f16::ONE; 8], ReduceOp::Sum),
        })
    })
    .needs(&[
        Need::Kind(OpKind::AllReduce),
        Need::Reduce(ReduceOp::Sum, DType::BF16),
        Need::Reduce(ReduceOp::Sum, DType::F16),
    ])
    .ranks(2, MANY),
    Case::must("MM-38", "mismatch: the kind, all_gather among all_reduce", |ctx| {
        differs(ctx, |comm, odd, (src, dst)| match odd {
            true => comm.all_gather(&src[..1], &mut vec![0.0; comm.size()]),
            false => comm.all_reduce(src, dst, ReduceOp::Sum),
        })
    })
    .needs(&[Need::Kind(OpKind::AllReduce), Need::Kind(OpKind::AllGather)])
    .ranks(2, MANY),
    Case::must("MM-381", "mismatch: the kind, barrier among all_reduce", |ctx| {
        differs(ctx, |comm, odd, (src, dst)| match odd {
            true => comm.barrier(),
            false => comm.all_reduce(src, dst, ReduceOp::Sum),
        })
    })
    .needs(&[Need::Kind(OpKind::AllReduce), Need::Kind(OpKind::Barrier)])
    .ranks(2, MANY),
    Case::must("MM-39", "mismatch: two calls swapped on one rank", swapped).needs(TWO_OPERATORS).ranks(2, MANY),
    Case::must("MM-62", "mismatch: all_gather with different counts", |ctx| {
        differs(ctx, |comm, odd, _| {
            let count = if odd { 3 } else { 2 };
            comm.all_gather(&vec![1_u16; count], &mut vec![0; count * comm.size()])
        })
    })
    .needs(&[Need::Kind(OpKind::AllGather)])
    .ranks(2, MANY),
    Case::must("MM-77", "mismatch: all_to_all with different counts", |ctx| {
        differs(ctx, |comm, odd, _| {
            let count = if odd { 3 } else { 2 } * comm.size();
            comm.all_to_all(&vec![1_u16; count], &mut vec![0; count])
        })
    })
    .needs(&[Need::Kind(OpKind::AllToAll)])
    .ranks(2, MANY),
    Case::must("MM-78", "mismatch: reduce_scatter with different counts", |ctx| {
        differs(ctx, |comm, odd, _| {
            let count = if odd { 3 } else { 2 };
            comm.reduce_scatter(&vec![1.0_f32; count * comm.size()], &mut vec![0.0; count], ReduceOp::Sum)
        })
    })
    .needs(&[Need::Kind(OpKind::ReduceScatter)])
    .ranks(2, MANY),
    Case::must("MM-88", "mismatch: token counts that differ between ranks", |ctx| {
        differs(ctx, |comm, odd, _| {
            let members = comm.size();
            let mut counts = vec![2; members];
            // The same for the odd rank itself and in sum.
            if odd && members > 2 {
                let others: Vec<usize> = (0..members).filter(|rank| *rank != comm.rank()).collect();
                (counts[others[0]], counts[others[1]]) = (1, 3);
            } else if odd {
                counts[1 - comm.rank()] = 3;
            }
            let total: usize = counts.iter().sum();
            comm.token_all_gather(&[1.0_f32; 2], &mut vec![0.0; total], 1, &counts)
        })
    })
    .needs(&[Need::Kind(OpKind::AllGatherV)])
    .ranks(2, MANY),
    Case::must("MM-89", "mismatch: scatter counts that differ between ranks", |ctx| {
        differs(ctx, |comm, odd, _| {
            let members = comm.size();
            let mut counts = vec![2; members];
            if odd {
                counts[(comm.rank() + 1) % members] = 5;
            }
            let total: usize = counts.iter().sum();
            comm.token_reduce_scatter(&vec![1.0_f32; total], &mut [0.0; 2], 1, &counts, ReduceOp::Sum)
        })
    })
    .needs(&[Need::Kind(OpKind::ReduceScatterV)])
    .ranks(2, MANY),
    Case::must("MM-97", "mismatch: the width of a row", |ctx| {
        differs(ctx, |comm, odd, _| {
            let width = if odd { 6 } else { 3 };
            let counts = vec![2; comm.size()];
            let total = 2 * comm.size() * width;
            comm.token_all_gather(&vec![1.0_f32; 2 * width], &mut vec![0.0; total], width, &counts)
        })
    })
    .needs(&[Need::Kind(OpKind::AllGatherV)])
    .ranks(2, MANY),
    Case::must("MM-99", "mismatch: the root of a broadcast", |ctx| {
        let last = ctx.size() - 1;
        differs(ctx, |comm, odd, (_, dst)| comm.broadcast(dst, if odd { last } else { 0 }))
    })
    .needs(&[Need::Kind(OpKind::Broadcast)])
    .ranks(2, MANY),
    Case::must("MM-991", "mismatch: the root of a reduce", |ctx| {
        let last = ctx.size() - 1;
        differs(ctx, |comm, odd, (src, dst)| {
            let root = if odd { last } else { 0 };
            let out = (comm.rank() == root).then_some(dst);
            comm.reduce(src, out, ReduceOp::Sum, root)
        })
    })
    .needs(&[Need::Kind(OpKind::Reduce)])
    .ranks(2, MANY),
    Case::must("MM-993", "mismatch: the root of a gather", |ctx| {
        let last = ctx.size() - 1;
        differs(ctx, |comm, odd, (src, _)| {
            let root = if odd { last } else { 0 };
            let mut out = vec![0.0; 8 * comm.size()];
            let out = (comm.rank() == root).then_some(&mut out[..]);
            comm.gather(src, out, root)
        })
    })
    .needs(&[Need::Kind(OpKind::Gather)])
    .ranks(2, MANY),
    Case::must("MM-994", "mismatch: the root of a scatter", |ctx| {
        let last = ctx.size() - 1;
        differs(ctx, |comm, odd, (_, dst)| {
            let root = if odd { last } else { 0 };
            let all = vec![1.0; 8 * comm.size()];
            comm.scatter((comm.rank() == root).then_some(&all[..]), dst, root)
        })
    })
    .needs(&[Need::Kind(OpKind::Scatter)])
    .ranks(2, MANY),
    Case::must("MM-995", "mismatch: counts of an uneven gather and scatter", |ctx| {
        let counts = |comm: &Communicator, odd: bool| -> Vec<usize> {
            // The same for the ranks themselves, but not for somebody else.
            let other = if comm.rank() == 0 { comm.size() - 1 } else { 0 };
            (0..comm.size()).map(|rank| if odd && rank == other { 5 } else { 2 }).collect()
        };
        differs(ctx, |comm, odd, _| {
            let counts = counts(comm, odd);
            let mut out = vec![0_u16; counts.iter().sum()];
            comm.all_gather_v(&[1_u16; 2], &mut out, &counts)
        })?;
        differs(ctx, |comm, odd, _| {
            let counts = counts(comm, odd);
            let all = vec![1.0_f32; counts.iter().sum()];
            comm.reduce_scatter_v(&all, &mut [0.0; 2], &counts, ReduceOp::Sum)
        })
    })
    .needs(&[Need::Kind(OpKind::AllGatherV), Need::Kind(OpKind::ReduceScatterV)])
    .ranks(2, MANY),
    Case::must("MM-40", "mismatch: the number of tensors in one call", |ctx| {
        differs(ctx, |comm, odd, (src, dst)| {
            let (first, second) = dst.split_at_mut(4);
            let mut parts =
                vec![Part::new(&src[..4], first, ReduceOp::Sum), Part::new(&src[4..], second, ReduceOp::Sum)];
            parts.truncate(if odd { 1 } else { 2 });
            comm.all_reduce_many(&mut parts)
        })
    })
    .needs(REDUCE)
    .ranks(2, MANY),
    Case::must("MM-401", "mismatch: the order of tensors in one call", |ctx| {
        differs(ctx, |comm, odd, (src, dst)| {
            let (first, second) = dst.split_at_mut(if odd { 3 } else { 5 });
            let split = first.len();
            let mut parts =
                [Part::new(&src[..split], first, ReduceOp::Sum), Part::new(&src[split..], second, ReduceOp::Sum)];
            comm.all_reduce_many(&mut parts)
        })
    })
    .needs(REDUCE)
    .ranks(2, MANY),
    Case::must("MM-402", "mismatch: two ranks of many call differently, and both are named", two_odd)
        .needs(REDUCE)
        .ranks(5, MANY),
    Case::must("MM-403", "mismatch: started calls", started)
        .offered(&[Need::Nonblocking, Need::Kind(OpKind::AllReduce)])
        .ranks(2, MANY),
    Case::must("MM-992", "mismatch: a broadcast of bytes among plain broadcasts", |ctx| {
        differs(ctx, |comm, odd, _| match odd {
            true => comm.broadcast_bytes(&mut vec![1; 8], 0),
            false => comm.broadcast(&mut [1_u64], 0),
        })
    })
    .needs(&[Need::Kind(OpKind::Broadcast)])
    .ranks(2, MANY),
];

type Pair<'a> = (&'a [f32], &'a mut [f32]);

fn reduce(comm: &mut Communicator, (src, dst): Pair<'_>, op: ReduceOp) -> Result<(), Error> {
    comm.all_reduce(src, dst, op)
}

/// One rank calls differently: everybody must learn it, at this call or the next, with the odd rank named.
fn differs(ctx: &mut Ctx<'_>, call: impl Fn(&mut Communicator, bool, Pair<'_>) -> Result<(), Error>) -> CaseResult {
    let last = ctx.size() - 1;
    // With three or more the majority decides, so the first rank can be the odd one too.
    let choices = if ctx.size() > 2 { vec![last, 0] } else { vec![last] };
    for odd in choices {
        let mut comm = ctx.communicator()?;
        one_odd(ctx, &mut comm, odd, &call).map_err(|f| f.within(&format!("odd rank {odd}")))?;
    }
    Ok(())
}

fn one_odd(
    ctx: &mut Ctx<'_>,
    comm: &mut Communicator,
    odd: usize,
    call: &impl Fn(&mut Communicator, bool, Pair<'_>) -> Result<(), Error>,
) -> CaseResult {
    let src: Vec<f32> = (0..8).map(|i| (i + comm.rank()) as f32).collect();
    let mut dst = [7.0_f32; 8];
    let is_odd = comm.rank() == odd;
    ctx.note(|| format!("a call that rank {odd} makes differently"));
    ctx.pause();
    let first = call(comm, is_odd, (&src, &mut dst));
    ensure!(first.is_ok() || dst == [7.0; 8], "the destination of a mismatched call was changed");
    let learned = match first {
        Ok(()) => {
            ctx.note(|| "the call after a mismatched one".into());
            comm.barrier()
        }
        first => first,
    };
    let error = match learned {
        Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?,
        learned => expect_error(learned, &ErrorKind::Mismatch, Some(&[odd]))?,
    };
    ensure!(error.peers() == [odd], "names {:?}: {error}", error.peers());
    ensure!(error.to_string().contains(&odd.to_string()), "the odd rank is not in the text: {error}");
    ctx.known_answer_elsewhere(comm)
}

fn two_odd(ctx: &mut Ctx<'_>) -> CaseResult {
    let odd = [1, ctx.size() - 1];
    let mut comm = ctx.communicator()?;
    let op = if odd.contains(&comm.rank()) { ReduceOp::Min } else { ReduceOp::Max };
    let mut data = [comm.rank() as i32; 6];
    ctx.note(|| "a call that two ranks make differently".into());
    let error = match comm.all_reduce_in_place(&mut data, op) {
        Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?,
        result => expect_error(result, &ErrorKind::Mismatch, Some(&odd))?,
    };
    ensure!(error.peers() == odd, "names {:?} instead of {odd:?}: {error}", error.peers());
    ensure!(data == [comm.rank() as i32; 6], "a mismatched call changed its buffer");
    ctx.known_answer_elsewhere(&mut comm)
}

fn started(ctx: &mut Ctx<'_>) -> CaseResult {
    let odd = ctx.size() - 1;
    let mut comm = ctx.communicator()?;
    let good = comm.start(Call::all_reduce_in_place(vec![1_i64; 5], ReduceOp::Sum))?;
    let op = if comm.rank() == odd { ReduceOp::Max } else { ReduceOp::Sum };
    let bad = comm.start(Call::all_reduce_in_place(vec![3_i64; 5], op))?;
    ctx.note(|| "wait for a started call that one rank made differently".into());
    let learned = bad.wait().map(drop).map_err(rankwise_core::WorkError::into_error);
    let error = match learned {
        Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?,
        learned => expect_error(learned, &ErrorKind::Mismatch, Some(&[odd]))?,
    };
    ensure!(error.peers() == [odd], "names {:?}: {error}", error.peers());
    // The call before was the same everywhere: its result is right, if it gives one.
    if let Ok(sums) = good.wait() {
        let want = comm.size() as i64;
        ensure!(sums.iter().all(|v| *v == want), "the good call before gave {sums:?}");
    }
    ctx.known_answer_elsewhere(&mut comm)
}

/// The first cause below a `Poisoned`.
pub(crate) fn root_cause(error: &Error) -> CaseResult<Error> {
    let source = std::error::Error::source(error);
    let cause = source.and_then(|source| source.downcast_ref::<Error>()).cloned();
    cause.ok_or_else(|| Failure::error(format!("no first cause behind: {error}")))
}

/// Equal shapes, but the calls of one rank come in the other order: found by the kind.
fn swapped(ctx: &mut Ctx<'_>) -> CaseResult {
    let odd = ctx.size() - 1;
    let mut comm = ctx.communicator()?;
    comm.set_timeout(Duration::from_secs(10));
    let data = [comm.rank() as f32 + 1.0, 2.0, -3.0, 4.0];
    let mut sums = data;
    let mut results = Vec::new();
    for step in 0..2 {
        let reduces = (step == 0) != (comm.rank() == odd);
        ctx.note(|| format!("call {step} of two swapped ones"));
        results.push(match reduces {
            true => comm.all_reduce_in_place(&mut sums, ReduceOp::Sum),
            false => comm.all_reduce_in_place(&mut sums, ReduceOp::Max),
        });
    }
    ensure!(sums == data, "a mismatched call changed its buffer");
    let error = match results.swap_remove(0) {
        Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?,
        first => expect_error(first, &ErrorKind::Mismatch, Some(&[odd]))?,
    };
    ensure!(error.peers() == [odd], "names {:?}: {error}", error.peers());
    ctx.known_answer_elsewhere(&mut comm)
}
