//! send and recv: a fragment is read whole before its slot is reused. As `ops/mail.rs`, with two slots for a pair.

use super::{Rank, explore};
use crate::sync::{AtomicU64, Ordering, store_then_fence};
use loom::cell::UnsafeCell;

const SLOTS: u64 = 2;
const FRAGMENTS: u64 = 4;

struct Slot {
    seq: AtomicU64,
    data: UnsafeCell<u64>,
}

struct Mail {
    slots: [Slot; SLOTS as usize],
    acknowledged: AtomicU64,
}

// SAFETY: loom checks every access.
unsafe impl Sync for Mail {}
// SAFETY: numbers.
unsafe impl Send for Mail {}

fn mail() -> Mail {
    let slot = || Slot { seq: AtomicU64::new(0), data: UnsafeCell::new(0) };
    Mail { slots: [slot(), slot()], acknowledged: AtomicU64::new(0) }
}

impl Mail {
    fn slot(&self, fragment: u64) -> &Slot {
        &self.slots[(fragment % SLOTS) as usize]
    }

    fn send(&self, rank: &Rank, fragment: u64, window: u64) {
        rank.until(|| self.acknowledged.load(Ordering::Acquire) >= (fragment + 1).saturating_sub(window));
        // SAFETY: loom checks the access.
        self.slot(fragment).data.with_mut(|cell| unsafe { *cell = fragment + 100 });
        store_then_fence(&self.slot(fragment).seq, fragment + 1);
    }

    fn receive(&self, rank: &Rank, fragment: u64, early: bool) {
        rank.until(|| self.slot(fragment).seq.load(Ordering::Acquire) > fragment);
        if early {
            store_then_fence(&self.acknowledged, fragment + 1);
        }
        // SAFETY: loom checks the access.
        let found = self.slot(fragment).data.with(|cell| unsafe { *cell });
        assert_eq!(found, fragment + 100, "another fragment in the slot");
        store_then_fence(&self.acknowledged, fragment + 1);
    }
}

fn exchange(window: u64, acknowledges_early: bool) {
    explore(2, 5, mail, move |rank, mail| {
        for fragment in 0..FRAGMENTS {
            match rank.me {
                0 => mail.send(&rank, fragment, window),
                _ => mail.receive(&rank, fragment, acknowledges_early),
            }
        }
    });
}

#[test]
fn fragments_arrive_in_order_and_whole() {
    exchange(SLOTS, false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_that_sends_one_fragment_too_far_ahead() {
    exchange(SLOTS + 1, false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_that_acknowledges_before_reading() {
    exchange(SLOTS, true);
}
