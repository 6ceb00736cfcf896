//! Faults of waiting: barriers, deadlines, abort, goodbye.

use super::Mutant;
use super::wrapped::{Fault, Seat};
use crate::case::Need;
use rankwise_core::backend::RawCall;
use rankwise_core::{OpKind, Result};
use std::sync::Arc;
use std::time::Duration;

const BARRIER: &[Need] = &[Need::Kind(OpKind::Barrier)];

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("barrier-that-does-not-wait", "a barrier returns at once", &["RT-104", "RT-105"], || {
        Arc::new(NoBarrier)
    })
    .needs(BARRIER),
    Mutant::new("late-deadline", "a deadline is six seconds late", &["TM-3"], || {
        deadline(|deadline| deadline + Duration::from_secs(6))
    })
    .needs(BARRIER),
    Mutant::new("early-deadline", "a deadline passes after half its time", &["TM-1", "TM-3"], || {
        deadline(|deadline| deadline / 2)
    })
    .needs(BARRIER),
    Mutant::new("ignored-abort", "abort does nothing", &["TM-136", "TM-137"], || Arc::new(NoAbort)).needs(BARRIER),
    Mutant::new("lonely-goodbye", "finalize does not wait for the others", &["TM-138"], || Arc::new(NoGoodbye))
        .needs(BARRIER),
];

struct NoBarrier;

impl Fault for NoBarrier {
    fn answer(&self, _: &Arc<Seat>, calls: &[RawCall<'_>]) -> Option<Result<()>> {
        calls.iter().all(|call| call.kind == OpKind::Barrier).then_some(Ok(()))
    }
}

fn deadline(change: fn(Duration) -> Duration) -> Arc<dyn Fault> {
    Arc::new(Deadline(change))
}

struct Deadline(fn(Duration) -> Duration);

impl Fault for Deadline {
    fn deadline(&self, deadline: Duration) -> Duration {
        (self.0)(deadline)
    }
}

struct NoAbort;

impl Fault for NoAbort {
    fn abort(&self, _: &Seat) {}
}

struct NoGoodbye;

impl Fault for NoGoodbye {
    fn finalize(&self, _: &Seat, _: Duration) -> Result<()> {
        Ok(())
    }
}
