//! Token operations: rows of a width, a number of rows per rank.

use super::all_gather::uneven_counts;
use super::all_reduce::offered;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, inputs, verify, verify_with};
use rankwise_core::{Communicator, DType, ErrorKind, OpKind, ReduceOp};

const GATHER: &[Need] = &[Need::Kind(OpKind::AllGatherV)];
const SCATTER: &[Need] = &[Need::Kind(OpKind::ReduceScatterV)];
const BOTH: &[Need] = &[Need::Kind(OpKind::AllGatherV), Need::Kind(OpKind::ReduceScatterV)];

pub(super) const CASES: &[Case] = &[
    Case::must("TK-81", "token: gather of 3, 0, 1 rows", |ctx| pattern(ctx, OpKind::AllGatherV, &[3, 0, 1]))
        .needs(GATHER),
    Case::must("TK-82", "token: no rows anywhere", |ctx| {
        pattern(ctx, OpKind::AllGatherV, &[0])?;
        pattern(ctx, OpKind::ReduceScatterV, &[0])
    })
    .needs(BOTH),
    Case::must("TK-83", "token: one rank owns every row", one_owner).needs(BOTH),
    Case::must("TK-85", "token: fewer rows than announced are refused", |ctx| wrong_rows(ctx, -1)).needs(BOTH),
    Case::must("TK-86", "token: more rows than announced are refused, not truncated", |ctx| wrong_rows(ctx, 1))
        .needs(BOTH),
    Case::must("TK-87", "token: counts of the wrong length or size are refused", wrong_counts).needs(BOTH),
    Case::must("TK-89", "token: scatter of 3, 0, 1 rows", |ctx| pattern(ctx, OpKind::ReduceScatterV, &[3, 0, 1]))
        .needs(SCATTER),
    Case::must("TK-93", "token: widths 1, 7, 8, 4097 and uneven rows", widths).needs(BOTH),
    Case::must("TK-94", "token: operators and types of the scatter", scatter_operators).needs(SCATTER),
    Case::must("TK-95", "token: gather(scatter(x)) equals all_reduce(x)", composition).needs(&[
        Need::Kind(OpKind::AllGatherV),
        Need::Kind(OpKind::ReduceScatterV),
        Need::Kind(OpKind::AllReduce),
    ]),
    Case::must("TK-96", "token: a group of one validates and copies", alone).needs(BOTH),
];

fn token(kind: OpKind, dtype: DType, width: usize, counts: Vec<usize>) -> Operation {
    Operation { token: true, width, counts, ..Operation::new(kind, dtype) }
}

fn repeated(counts: &[usize], members: usize) -> Vec<usize> {
    counts.iter().copied().cycle().take(members).collect()
}

fn pattern(ctx: &mut Ctx<'_>, kind: OpKind, counts: &[usize]) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for width in [1, 5] {
        for shift in 0..counts.len() {
            let mut rows = repeated(counts, comm.size() + shift);
            rows.drain(..shift);
            verify(ctx, &mut comm, &token(kind, DType::F32, width, rows))?;
        }
    }
    Ok(())
}

fn one_owner(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for owner in 0..comm.size() {
        let mut counts = vec![0; comm.size()];
        counts[owner] = 200;
        verify(ctx, &mut comm, &token(OpKind::AllGatherV, DType::BF16, 9, counts.clone()))?;
        verify(ctx, &mut comm, &token(OpKind::ReduceScatterV, DType::F32, 9, counts))?;
    }
    Ok(())
}

/// This rank's rows differ from what the counts say, on every rank.
fn wrong_rows(ctx: &mut Ctx<'_>, difference: isize) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    let width = 3;
    // Different counts, so that a row too many is still below the largest count on most ranks.
    let counts: Vec<usize> = (0..members).map(|r| r + 1).collect();
    let total: usize = counts.iter().sum();
    let rows = counts[comm.rank()].saturating_add_signed(difference);
    let mut gathered = vec![7.0_f32; total * width];
    let refused = comm.token_all_gather(&vec![1.0; rows * width], &mut gathered, width, &counts);
    expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    ensure!(gathered.iter().all(|v| *v == 7.0), "a refused gather wrote its destination");
    let mut scattered = vec![7.0_f32; counts[comm.rank()] * width];
    let source = vec![1.0; total.saturating_add_signed(difference) * width];
    let refused = comm.token_reduce_scatter(&source, &mut scattered, width, &counts, ReduceOp::Sum);
    expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    ensure!(scattered.iter().all(|v| *v == 7.0), "a refused scatter wrote its destination");
    ctx.known_answer(&mut comm)
}

fn wrong_counts(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    let data = vec![1_u8; 2];
    let refuse = |comm: &mut Communicator, counts: &[usize], width: usize| -> CaseResult {
        let mut out = vec![7; 2 * members];
        let gathered = comm.token_all_gather(&data, &mut out, width, counts);
        let scattered = comm.token_reduce_scatter(&out.clone(), &mut out[..2], width, counts, ReduceOp::Max);
        for result in [gathered, scattered] {
            let kind = result.as_ref().err().map(|error| error.kind().clone());
            ensure!(
                matches!(kind, Some(ErrorKind::InvalidArgument | ErrorKind::CountTooLarge)),
                "counts {counts:?} of width {width} gave {result:?}"
            );
        }
        ensure!(out.iter().all(|v| *v == 7), "a refused call wrote its destination");
        Ok(())
    };
    refuse(&mut comm, &[], 2)?;
    refuse(&mut comm, &vec![1; members + 1], 2)?;
    refuse(&mut comm, &vec![usize::MAX; members], 2)?;
    refuse(&mut comm, &vec![usize::MAX / 2; members], 4)?;
    let mut overflowing = vec![1; members];
    overflowing[members - 1] = usize::MAX;
    if members > 1 {
        refuse(&mut comm, &overflowing, 1)?;
    }
    ctx.known_answer(&mut comm)
}

fn widths(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for width in [1, 7, 8, 4097] {
        for most in [1, 4, 20] {
            let counts = uneven_counts(ctx, comm.size(), if width > 4000 { most.min(4) } else { most });
            let mut gather = token(OpKind::AllGatherV, DType::F16, width, counts.clone());
            gather.offset = most % 3;
            verify(ctx, &mut comm, &gather)?;
            verify(ctx, &mut comm, &token(OpKind::ReduceScatterV, DType::F32, width, counts))?;
        }
    }
    Ok(())
}

fn scatter_operators(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for (op, dtype) in offered(ctx, &ReduceOp::ALL) {
        let mut operation = Operation::reducing(OpKind::ReduceScatterV, dtype, op, 0);
        operation.counts = uneven_counts(ctx, comm.size(), 6);
        (operation.token, operation.width) = (true, 11);
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn composition(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for most in [1, 5, 64] {
        let counts = uneven_counts(ctx, comm.size(), most);
        let scatter = token(OpKind::ReduceScatterV, DType::F32, 6, counts.clone());
        let whole = Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, counts.iter().sum::<usize>() * 6);
        let inputs = inputs(&whole, ctx.next_seed(), comm.size());
        let reduced = verify_with(ctx, &mut comm, &whole, &inputs)?;
        let part = verify_with(ctx, &mut comm, &scatter, &inputs)?;
        let mut gathered = vec![0_u8; reduced.len()];
        comm.token_all_gather(&part, &mut gathered, 24, &counts)?;
        ensure!(gathered == reduced, "{counts:?} rows: the composition differs from all_reduce");
    }
    Ok(())
}

fn alone(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.backend.communicator(&rankwise_core::Group::new([ctx.rank()])?)?;
    verify(ctx, &mut comm, &token(OpKind::AllGatherV, DType::F32, 3, vec![4]))?;
    verify(ctx, &mut comm, &token(OpKind::ReduceScatterV, DType::F32, 3, vec![4]))?;
    verify(ctx, &mut comm, &token(OpKind::ReduceScatterV, DType::F32, 3, vec![0]))?;
    let mut out = [0.0_f32; 6];
    expect_error(comm.token_all_gather(&[1.0; 6], &mut out, 3, &[1]), &ErrorKind::InvalidArgument, None)?;
    expect_error(comm.token_all_gather(&[1.0; 6], &mut out, 3, &[2, 0]), &ErrorKind::InvalidArgument, None)?;
    ensure!(out == [0.0; 6], "a refused call wrote its destination");
    Ok(())
}
