//! The capability table against what the backend does, cell by cell.

use super::all_reduce::offered;
use crate::case::{Case, CaseResult, Failure, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, verify};
use rankwise_core::{DType, ErrorKind, OpKind, ReduceOp};

pub(super) const REDUCING: [OpKind; 4] =
    [OpKind::AllReduce, OpKind::ReduceScatter, OpKind::Reduce, OpKind::ReduceScatterV];
const MOVING: [OpKind; 8] = [
    OpKind::AllGather,
    OpKind::AllToAll,
    OpKind::Broadcast,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllGatherV,
    OpKind::GatherV,
    OpKind::ScatterV,
];

pub(super) const CASES: &[Case] = &[
    Case::must("TB-149", "table: every reducing cell that is offered works", reducing_cells),
    Case::must("TB-150", "table: every moving cell that is offered works", moving_cells),
    Case::must("TB-151", "table: mean and bitwise operators without a meaning are UnsupportedOp", without_meaning),
    Case::must("TB-152", "table: all ranks hold the same table", same_table),
    Case::must("TB-153", "table: everything that was promised is offered", promised_cells).about_promise(),
];

pub(super) fn small(ctx: &Ctx<'_>, kind: OpKind, dtype: DType, op: Option<ReduceOp>, count: usize) -> Operation {
    let mut operation = match op {
        Some(op) => Operation::reducing(kind, dtype, op, count),
        None => Operation { count, ..Operation::new(kind, dtype) },
    };
    if matches!(kind, OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV) {
        operation.counts = (0..ctx.size()).map(|rank| (rank + count) % 7).collect();
    }
    if kind == OpKind::AllToAllV {
        operation.counts = (0..ctx.size() * ctx.size()).map(|pair| (pair + count) % 5).collect();
    }
    operation
}

fn reducing_cells(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for (op, dtype) in offered(ctx, &ReduceOp::ALL) {
        for kind in REDUCING {
            if ctx.capabilities().has_kind(kind) {
                let operation = small(ctx, kind, dtype, Some(op), 19);
                verify(ctx, &mut comm, &operation)?;
            }
        }
    }
    Ok(())
}

fn moving_cells(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types: Vec<DType> = ctx.capabilities().moves().iter().collect();
    for dtype in types {
        for kind in MOVING.into_iter().chain([OpKind::AllToAllV]) {
            if ctx.capabilities().has_kind(kind) {
                let operation = small(ctx, kind, dtype, None, 19);
                verify(ctx, &mut comm, &operation)?;
            }
        }
    }
    Ok(())
}

fn without_meaning(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    if !ctx.capabilities().has_kind(OpKind::AllReduce) {
        return Ok(());
    }
    let kind = &ErrorKind::UnsupportedOp;
    expect_error(comm.all_reduce_in_place(&mut [3_i32, 4], ReduceOp::Avg), kind, None)?;
    expect_error(comm.all_reduce_in_place(&mut [3_u8], ReduceOp::PreMulSum(2.0)), kind, None)?;
    expect_error(comm.all_reduce_in_place(&mut [3.0_f32], ReduceOp::BAnd), kind, None)?;
    expect_error(comm.all_reduce_in_place(&mut [half::bf16::ONE], ReduceOp::BXor), kind, None)?;
    // Length 0 makes no difference.
    expect_error(comm.all_reduce_in_place::<i64>(&mut [], ReduceOp::Avg), kind, None)?;
    ctx.known_answer(&mut comm)
}

fn promised_cells(ctx: &mut Ctx<'_>) -> CaseResult {
    let comm = ctx.communicator()?;
    let Some(promise) = ctx.promise() else { return Ok(()) };
    let missing = promise.missing_from(comm.capabilities());
    ensure!(missing.is_empty(), "promised, but the table says no: {}", missing.join(", "));
    Ok(())
}

fn same_table(ctx: &mut Ctx<'_>) -> CaseResult {
    let mine = ctx.capabilities().to_bytes();
    let all = ctx.meet(&mine)?;
    ensure!(all.iter().all(|other| *other == mine), "ranks hold different tables");
    let comm = ctx.communicator()?;
    ensure!(comm.capabilities().to_bytes() == mine, "a fresh communicator of the same ranks has another table");
    for threshold in ctx.capabilities().thresholds() {
        ensure!(!threshold.name.is_empty(), "a threshold has no name");
    }
    let distinct = ctx.capabilities().thresholds().len();
    let met = ctx.meet(&[distinct.min(255) as u8])?;
    let agree = met.iter().all(|other| usize::from(other[0]) == distinct.min(255));
    if agree { Ok(()) } else { Err(Failure::wrong("ranks hold different thresholds".into())) }
}
