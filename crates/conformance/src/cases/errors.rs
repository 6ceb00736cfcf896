//! Calls that are refused on one rank, on all ranks, or at any time, and what stays usable.

use crate::case::{Case, CaseResult, Failure, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Buffers, Operation, inputs, perform};
use rankwise_core::{Communicator, DType, Error, ErrorKind, OpKind, ReduceOp};

const MANY: usize = usize::MAX;

pub(super) const CASES: &[Case] = &[
    Case::must("ER-1", "errors: a call refused on one rank reaches its peers as PeerRejected, for every kind", |ctx| {
        rejected(ctx, ctx.size() - 1)
    })
    .ranks(2, MANY),
    Case::must("ER-2", "errors: the same when the first rank is the one", |ctx| rejected(ctx, 0)).ranks(2, MANY),
    Case::must("ER-3", "errors: refusals on changing ranks among good calls", interleaved).ranks(2, MANY),
    Case::must("ER-4", "errors: several ranks refuse the same call for reasons of their own", several).ranks(3, MANY),
    Case::must("ER-5", "errors: lengths beyond every limit are refused, nothing wraps", overflow),
    Case::must("ER-6", "errors: say what failed, where, and what to do", context).ranks(2, MANY),
    Case::must("ER-7", "errors: calls after finalize are Closed", finalized),
];

/// A small good call of this kind, and whether the suite can make a bad one of it.
fn good(ctx: &Ctx<'_>, kind: OpKind) -> Option<Operation> {
    let usable = ctx.capabilities().has_kind(kind) && !matches!(kind, OpKind::Barrier | OpKind::Send | OpKind::Recv);
    let mut operation = Operation { count: 4, ..Operation::new(kind, DType::F32) };
    if matches!(kind, OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV) {
        operation.counts = vec![2; ctx.size()];
    } else if kind == OpKind::AllToAllV {
        operation.counts = vec![1; ctx.size() * ctx.size()];
    }
    usable.then_some(operation)
}

/// Makes the good call, or with `bad` one that must be refused here.
fn call(comm: &mut Communicator, operation: &Operation, bad: bool) -> CaseResult<Result<(), Error>> {
    let (me, members) = (comm.rank(), comm.size());
    let input = &inputs(operation, 3, members)[me];
    if bad {
        // The source too long, or no such root: no kind takes that.
        let mut operation = operation.clone();
        if operation.kind.has_root() {
            operation.root = members;
        }
        let operation = &operation;
        let mut src = crate::frame::Frame::new(DType::F32, operation.src_count(me, members) + 1, 0);
        let mut dst = crate::frame::Frame::new(DType::F32, operation.dst_count(me, members), 0);
        let before = (src.bytes().to_vec(), dst.bytes().to_vec());
        let result = perform(comm, operation, &mut src, &mut dst);
        ensure!(src.bytes() == before.0 && dst.bytes() == before.1, "a refused call wrote a buffer");
        return Ok(result);
    }
    let mut buffers = Buffers::new(operation, input, me, members);
    let result = perform(comm, operation, &mut buffers.src, &mut buffers.dst);
    if result.is_err() {
        buffers.check_untouched(operation, input, me)?;
    }
    Ok(result)
}

fn rejected(ctx: &mut Ctx<'_>, odd: usize) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for kind in OpKind::DATA {
        let Some(mut operation) = good(ctx, kind) else { continue };
        operation.root = if kind.has_root() { (odd + 1) % comm.size() } else { 0 };
        ctx.note(|| format!("{kind}, refused on rank {odd}"));
        ctx.pause();
        let me = comm.rank();
        let result = call(&mut comm, &operation, me == odd)?;
        let wrong = |f: Failure| f.within(&format!("{kind}, refused on rank {odd}"));
        if comm.rank() == odd {
            expect_error(result, &ErrorKind::InvalidArgument, None).map_err(wrong)?;
        } else if !kind.has_root() {
            expect_error(result, &ErrorKind::PeerRejected, Some(&[odd])).map_err(wrong)?;
        } else if let Err(error) = result {
            // A rank that needs nothing of the odd one may have returned already.
            expect_error::<()>(Err(error), &ErrorKind::PeerRejected, Some(&[odd])).map_err(wrong)?;
        }
        ctx.known_answer(&mut comm).map_err(wrong)?;
    }
    Ok(())
}

fn interleaved(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let mut random = ctx.shared_random();
    let Some(operation) = good(ctx, OpKind::AllReduce) else { return Ok(()) };
    for round in 0..40 {
        let odd = (random.below(2) == 0).then(|| random.below(comm.size()));
        ctx.note(|| format!("round {round}, refused on {odd:?}"));
        let me = comm.rank();
        let result = call(&mut comm, &operation, odd == Some(me))?;
        match odd {
            None => result?,
            Some(odd) if odd == comm.rank() => drop(expect_error(result, &ErrorKind::InvalidArgument, None)?),
            Some(odd) => drop(expect_error(result, &ErrorKind::PeerRejected, Some(&[odd]))?),
        }
    }
    ctx.known_answer(&mut comm)
}

fn several(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let Some(operation) = good(ctx, OpKind::AllReduce) else { return Ok(()) };
    for round in 0..5 {
        let odd = [round % comm.size(), (round + 1) % comm.size()];
        let me = comm.rank();
        let result = if me == odd[0] {
            // A reason of its own: the operator has no meaning for the type.
            comm.all_reduce_in_place(&mut [1_i32; 4], ReduceOp::Avg)
        } else {
            call(&mut comm, &operation, me == odd[1])?
        };
        if me == odd[0] {
            expect_error(result, &ErrorKind::UnsupportedOp, None)?;
        } else if me == odd[1] {
            expect_error(result, &ErrorKind::InvalidArgument, None)?;
        } else {
            let error = expect_error(result, &ErrorKind::PeerRejected, None)?;
            let named = error.peers();
            ensure!(
                !named.is_empty() && named.iter().all(|rank| odd.contains(rank)),
                "names {named:?}, not of {odd:?}"
            );
        }
        ctx.known_answer(&mut comm)?;
    }
    Ok(())
}

fn overflow(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    let mut out = [7_u8; 4];
    let refused = |result: Result<(), Error>| -> CaseResult {
        let kind = result.as_ref().err().map(|error| error.kind().clone());
        let fine = matches!(kind, Some(ErrorKind::InvalidArgument | ErrorKind::CountTooLarge));
        if fine { Ok(()) } else { Err(Failure::wrong(format!("gave {result:?}"))) }
    };
    for huge in [usize::MAX, usize::MAX / 2 + 1, 1 << 62] {
        let counts = vec![huge; members];
        refused(comm.all_gather_v(&[1_u8; 4], &mut out, &counts))?;
        refused(comm.reduce_scatter_v(&[1_u8; 4], &mut out, &counts, ReduceOp::Sum))?;
        refused(comm.token_all_gather(&[1_u8; 4], &mut out, huge, &vec![4; members]))?;
        refused(comm.token_all_gather(&[1_u8; 4], &mut out, 2, &counts))?;
    }
    ensure!(out == [7; 4], "a refused call wrote its destination");
    ctx.known_answer(&mut comm)
}

fn context(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let me = comm.rank();
    let result = comm.all_reduce(&[1.0_f32; 3], &mut vec![0.0; if me == 1 { 4 } else { 3 }], ReduceOp::Sum);
    let error = match result {
        Err(error) => error,
        Ok(()) => return Err(Failure::wrong("Ok although rank 1 refused".into())),
    };
    ensure!(error.operation() == Some(OpKind::AllReduce), "operation: {:?}", error.operation());
    ensure!(error.group() == Some(comm.group()), "group: {:?}", error.group());
    ensure!(error.rank() == Some(ctx.rank()), "rank: {:?}", error.rank());
    let text = error.to_string();
    ensure!(text.contains("all_reduce") && text.contains(error.kind().name()), "{text}");
    if me == 1 {
        ensure!(text.contains('3') && text.contains('4'), "the lengths are not in the text: {text}");
    } else {
        ensure!(text.contains("rank 1") || text.contains("ranks 1"), "rank 1 is not in the text: {text}");
    }
    ctx.known_answer(&mut comm)
}

fn finalized(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let group = rankwise_core::Group::world(ctx.size());
    let mut second = backend.communicator(&group)?;
    let first = backend.communicator(&group)?;
    ctx.note(|| "finalize".into());
    first.finalize()?;
    expect_error(second.barrier(), &ErrorKind::Closed, None)?;
    expect_error(second.all_reduce_in_place(&mut [1_i32], ReduceOp::Sum), &ErrorKind::Closed, None)?;
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)
}
