//! Faults of the capability table: a no where the backend could, and a yes where it can't.

use super::Mutant;
use super::wrapped::{Fault, Seat};
use crate::case::Need;
use rankwise_core::backend::{RawCall, Refusal};
use rankwise_core::{Capabilities, DType, DTypeSet, OpKind, ReduceOp, Result};
use std::sync::Arc;
use std::time::Duration;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("lost-operation", "the table has no all-to-all any more", &["TB-153"], || Arc::new(LostOperation))
        .needs(&[Need::Kind(OpKind::AllToAll)]),
    Mutant::new("lost-type", "the table has no sum of f32 any more", &["TB-153"], || Arc::new(LostType))
        .needs(&[Need::Reduce(ReduceOp::Sum, DType::F32)]),
    Mutant::new(
        "empty-claim",
        "the table offers every operator on every type, and the rest does nothing",
        &["TB"],
        || Arc::new(EmptyClaim),
    )
    .needs(&[Need::Kind(OpKind::AllReduce)]),
    Mutant::new(
        "refusal-after-a-meeting",
        "a refused call waits for the others before it says so",
        &["TB-148"],
        || Arc::new(MeetingRefusal),
    ),
];

struct LostOperation;

impl Fault for LostOperation {
    fn table(&self, table: Capabilities) -> Capabilities {
        table.without_kind(OpKind::AllToAll)
    }
}

struct LostType;

impl Fault for LostType {
    fn table(&self, table: Capabilities) -> Capabilities {
        let kept: Vec<DType> = table.reduces(ReduceOp::Sum).iter().filter(|dtype| *dtype != DType::F32).collect();
        table.with_reduce(ReduceOp::Sum, DTypeSet::of(&kept))
    }
}

struct MeetingRefusal;

impl Fault for MeetingRefusal {
    fn reject(&self, seat: &Seat, refusal: &Refusal<'_>) {
        let barrier = RawCall::new(OpKind::Barrier, DType::U8, 0);
        // SAFETY: a barrier has no buffers.
        let _ = unsafe { seat.inner.run(&[barrier], Duration::from_secs(6)) };
        seat.inner.reject(refusal);
    }
}

struct EmptyClaim;

impl Fault for EmptyClaim {
    fn table(&self, table: Capabilities) -> Capabilities {
        ReduceOp::ALL.into_iter().fold(table, |table, op| table.with_reduce(op, DTypeSet::NUMERIC))
    }

    fn answer(&self, seat: &Arc<Seat>, calls: &[RawCall<'_>]) -> Option<Result<()>> {
        let table = seat.inner.capabilities();
        let is_claimed = |call: &RawCall<'_>| call.op.is_some_and(|op| !table.reduces(op).contains(call.dtype));
        calls.iter().any(is_claimed).then_some(Ok(()))
    }
}
