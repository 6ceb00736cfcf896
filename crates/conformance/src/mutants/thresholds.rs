//! Faults exactly where the backend changes its way of working: the last element just above a threshold is lost.

use super::Mutant;
use super::wrapped::{Fault, Finished, Seat};
use crate::case::Need;
use rankwise_core::{OpKind, Result};
use std::sync::Arc;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("off-by-one-at-first-threshold", "all-reduce just above the first threshold", &["TH-1"], || {
        Arc::new(Above { kind: OpKind::AllReduce, threshold: 0 })
    })
    .thresholds(1),
    Mutant::new("off-by-one-at-second-threshold", "all-reduce just above the second threshold", &["TH-1"], || {
        Arc::new(Above { kind: OpKind::AllReduce, threshold: 1 })
    })
    .thresholds(2),
    Mutant::new("off-by-one-in-all-gather", "all-gather just above the third threshold", &["TH-2"], || {
        Arc::new(Above { kind: OpKind::AllGather, threshold: 2 })
    })
    .thresholds(3)
    .needs(&[Need::Kind(OpKind::AllGather)]),
    Mutant::new("off-by-one-in-reduce-scatter", "reduce-scatter just above the third threshold", &["TH-1"], || {
        Arc::new(Above { kind: OpKind::ReduceScatter, threshold: 2 })
    })
    .thresholds(3)
    .needs(&[Need::Kind(OpKind::ReduceScatter)]),
    Mutant::new("off-by-one-in-all-to-all", "all-to-all just above the second threshold", &["TH-2"], || {
        Arc::new(Above { kind: OpKind::AllToAll, threshold: 1 })
    })
    .thresholds(2)
    .needs(&[Need::Kind(OpKind::AllToAll)]),
    Mutant::new(
        "off-by-one-in-uneven-scatter",
        "uneven reduce-scatter just above the second threshold",
        &["TH-3"],
        || Arc::new(Above { kind: OpKind::ReduceScatterV, threshold: 1 }),
    )
    .thresholds(2),
    Mutant::new("off-by-one-in-broadcast", "broadcast just above the first threshold", &["TH-2"], || {
        Arc::new(Above { kind: OpKind::Broadcast, threshold: 0 })
    })
    .thresholds(1)
    .needs(&[Need::Kind(OpKind::Broadcast)]),
    Mutant::new("off-by-one-in-recv", "a message just above the second threshold", &["TH-4"], || {
        Arc::new(Above { kind: OpKind::Recv, threshold: 1 })
    })
    .thresholds(2)
    .needs(&[Need::Kind(OpKind::Send), Need::Kind(OpKind::Recv)]),
];

struct Above {
    kind: OpKind,
    /// Its place in the capability table.
    threshold: usize,
}

impl Fault for Above {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        let Some(threshold) = seat.inner.capabilities().thresholds().get(self.threshold) else { return Ok(()) };
        // One rank's contribution; who only receives is lent as much as was sent.
        let bytes = if finished.src.is_empty() { dst.len() } else { finished.src.len() } as u64;
        let size = finished.call.elem_size;
        let is_just_above = bytes > threshold.bytes && bytes <= threshold.bytes + (size * seat.members()) as u64;
        if finished.is(self.kind) && is_just_above && dst.len() >= size {
            let tail = dst.len() - size;
            dst[tail..].copy_from_slice(&finished.before[tail..]);
        }
        Ok(())
    }
}
