//! Reduce-scatter through the typed interface, even and uneven.

use super::all_gather::uneven_counts;
use super::all_reduce::offered;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, inputs, verify, verify_with};
use crate::values::Pattern;
use rankwise_core::{DType, ErrorKind, OpKind, ReduceOp};

const REDUCE_SCATTER: &[Need] = &[Need::Kind(OpKind::ReduceScatter)];

pub(super) const CASES: &[Case] =
    &[
        Case::must("RS-65", "reduce-scatter: sum of every type and size, both forms", |ctx| {
            operators(ctx, &[ReduceOp::Sum])
        })
        .needs(REDUCE_SCATTER),
        Case::must("RS-66", "reduce-scatter: the other operators", |ctx| operators(ctx, &ReduceOp::ALL[1..]))
            .needs(REDUCE_SCATTER),
        Case::must("RS-67", "reduce-scatter: lengths that do not fit are refused", wrong_length).needs(REDUCE_SCATTER),
        Case::must("RS-71", "reduce-scatter: all_gather(reduce_scatter(x)) equals all_reduce(x)", composition)
            .needs(&[Need::Kind(OpKind::ReduceScatter), Need::Kind(OpKind::AllGather), Need::Kind(OpKind::AllReduce)]),
        Case::must("RS-72", "reduce-scatter: the same with rounding, bit for bit", rounded_composition).offered(&[
            Need::Fixed,
            Need::Kind(OpKind::ReduceScatter),
            Need::Kind(OpKind::AllGather),
            Need::Kind(OpKind::AllReduce),
        ]),
        Case::must("RS-73", "reduce-scatter: uneven counts with zeros", uneven)
            .needs(&[Need::Kind(OpKind::ReduceScatterV)]),
    ];

fn operators(ctx: &mut Ctx<'_>, ops: &[ReduceOp]) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let pairs = offered(ctx, ops);
    let sizes = ctx.sizes_per_rank();
    for row in ctx.sample(&[pairs.len(), sizes.len(), 2, 2]) {
        let (op, dtype) = pairs[row[0]];
        let mut operation = Operation::reducing(OpKind::ReduceScatter, dtype, op, sizes[row[1]].elements(dtype));
        operation.in_place = row[2] == 1;
        operation.offset = row[3];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn wrong_length(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    let mut out = [7_i32; 3];
    for length in [3 * members + 1, 3 * members - 1, 0, 2 * members] {
        let source = vec![1; length];
        expect_error(comm.reduce_scatter(&source, &mut out, ReduceOp::Sum), &ErrorKind::InvalidArgument, None)?;
        ensure!(out == [7; 3], "a refused call wrote its destination");
    }
    if members > 1 {
        let mut indivisible = vec![1; members + 1];
        let refused = comm.reduce_scatter_in_place(&mut indivisible, ReduceOp::Sum);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    }
    ctx.known_answer(&mut comm)
}

fn composition(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    compose(ctx, &mut comm, Pattern::Exact)
}

fn rounded_composition(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fixed_backend()?;
    compose(ctx, &mut backend.world()?, Pattern::Rounding)
}

fn compose(ctx: &mut Ctx<'_>, comm: &mut rankwise_core::Communicator, pattern: Pattern) -> CaseResult {
    for count in [1, 8, 333, 5000] {
        let scatter =
            Operation { pattern, ..Operation::reducing(OpKind::ReduceScatter, DType::F32, ReduceOp::Sum, count) };
        let whole = Operation { kind: OpKind::AllReduce, count: count * comm.size(), ..scatter.clone() };
        let inputs = inputs(&whole, ctx.next_seed(), comm.size());
        let reduced = verify_with(ctx, comm, &whole, &inputs)?;
        let part = verify_with(ctx, comm, &scatter, &inputs)?;
        let mut gathered = vec![0_u8; reduced.len()];
        comm.all_gather(&part, &mut gathered)?;
        ensure!(gathered == reduced, "{count} elements a rank: the composition differs from all_reduce");
    }
    Ok(())
}

fn uneven(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let pairs = offered(ctx, &[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg]);
    let most = [1, 3, 200, 5000];
    for row in ctx.sample(&[pairs.len(), most.len(), 3]) {
        let (op, dtype) = pairs[row[0]];
        let mut operation = Operation::reducing(OpKind::ReduceScatterV, dtype, op, 0);
        operation.counts = uneven_counts(ctx, comm.size(), most[row[1]]);
        operation.offset = row[2];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}
