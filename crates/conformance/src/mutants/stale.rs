//! Faults that mix up calls: results of earlier calls, and of other communicators.

use super::Mutant;
use super::wrapped::{Fault, Finished, Seat, lock};
use crate::case::Need;
use rankwise_core::{OpKind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new(
        "stale-result",
        "a call as long as an earlier one of its kind gives the earlier result",
        &["AR-28", "AR-31", "DT"],
        || Arc::<Stale>::default(),
    ),
    Mutant::new("repeated-message", "a message as long as the one before is the one before", &["PP"], || {
        Arc::new(Stale { kind: OpKind::Recv, last: Mutex::default() })
    })
    .needs(&[Need::Kind(OpKind::Send), Need::Kind(OpKind::Recv)]),
    Mutant::new("cross-talk", "communicators with equal members get each other's results", &["GR-114"], || {
        Arc::new(CrossTalk)
    }),
];

/// Gives the result of the last call of one kind and length.
struct Stale {
    kind: OpKind,
    last: Mutex<HashMap<usize, Vec<u8>>>,
}

impl Default for Stale {
    fn default() -> Stale {
        Stale { kind: OpKind::AllReduce, last: Mutex::default() }
    }
}

impl Fault for Stale {
    fn spoil(&self, _: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        if finished.is(self.kind)
            && let Some(earlier) = lock(&self.last).insert(dst.len(), dst.to_vec())
        {
            dst.copy_from_slice(&earlier);
        }
        Ok(())
    }
}

struct CrossTalk;

impl Fault for CrossTalk {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        if !finished.is(OpKind::AllReduce) {
            return Ok(());
        }
        let mine = (seat.tag, dst.to_vec());
        let last = lock(&seat.last_of_group).insert(seat.inner.group().clone(), mine);
        if let Some((tag, result)) = last
            && tag != seat.tag
            && result.len() == dst.len()
        {
            dst.copy_from_slice(&result);
        }
        Ok(())
    }
}
