//! Abort from another thread against calls that are just completing.

use super::explore;
use super::{Rank, until};
use crate::ctl::{Poison, PoisonKind, recheck_fence};
use crate::sync::{AtomicU64, Ordering};

/// Rank 0 and rank 1 call; "rank" 2 is a second thread of rank 0 that aborts.
const CALLERS: usize = 2;

fn concerned(rank: &Rank, seq: u64) -> Option<Poison> {
    recheck_fence();
    rank.ctls[..CALLERS].iter().find_map(|ctl| ctl.poisoned().filter(|poison| poison.concerns(seq)))
}

/// One call as `Comm::post`, `meet`, `recheck` make it, given up when somebody is poisoned. Whether it was `Ok`.
fn call(rank: &Rank, seq: u64) -> bool {
    let peer = &rank.ctls[1 - rank.me];
    // SAFETY: loom checks the access.
    rank.own().post(seq, [0; 3], |payload| payload.0.with_mut(|cell| unsafe { *cell = seq }));
    until(|| peer.has_posted(seq) || concerned(rank, seq).is_some());
    // SAFETY: loom checks the access; the payload is read only when it was posted.
    let found = peer.has_posted(seq).then(|| peer.slot(seq).payload.0.with(|cell| unsafe { *cell }));
    let good = concerned(rank, seq).is_none();
    assert!(!good || found == Some(seq));
    good
}

fn abort(rank: &Rank, current: &AtomicU64) {
    // The sequence number may be one call late: an earlier one concerns the call as well.
    let seq = current.load(Ordering::Relaxed) as u32;
    rank.ctls[0].poison(Poison { kind: PoisonKind::Aborted, culprit: 0, seq });
}

/// Nobody hangs, `Ok` is right, and a rank that failed does not take part in the next call: its peer learns of the abort.
#[test]
fn an_abort_ends_calls_on_both_ranks() {
    explore(
        3,
        2,
        || AtomicU64::new(0),
        |rank, current| {
            if rank.me == CALLERS {
                return abort(&rank, current);
            }
            for seq in 1..=2 {
                if rank.me == 0 {
                    current.store(seq, Ordering::Relaxed);
                }
                if !call(&rank, seq) {
                    let cause = concerned(&rank, seq).unwrap();
                    assert_eq!((cause.kind, cause.culprit), (PoisonKind::Aborted, 0));
                    return;
                }
            }
        },
    );
}

/// A second poison does not replace the first, nor mix with it.
#[test]
fn the_first_poison_stays() {
    explore(
        2,
        3,
        || AtomicU64::new(0),
        |rank, wins| {
            let poisons = [
                Poison { kind: PoisonKind::Aborted, culprit: 0, seq: 1 },
                Poison { kind: PoisonKind::Lost, culprit: 9, seq: 2 },
            ];
            let first = rank.ctls[0].poison(poisons[rank.me]);
            if first {
                assert_eq!(wins.fetch_add(1, Ordering::Relaxed), 0, "two first poisons");
            }
            let found = rank.ctls[0].poisoned().unwrap();
            assert!(found == poisons[rank.me] || !first && found == poisons[1 - rank.me]);
        },
    );
}

/// A number that is later than the call lets the peer return `Ok` after an abort that it could see.
#[test]
#[should_panic(expected = "the abort was not seen")]
fn mutant_whose_poison_concerns_later_calls_only() {
    explore(
        2,
        2,
        || (),
        |rank, ()| {
            if rank.me == 0 {
                rank.own().poison(Poison { kind: PoisonKind::Aborted, culprit: 0, seq: 2 });
            } else if rank.ctls[0].poisoned().is_some() {
                assert!(concerned(&rank, 1).is_some(), "the abort was not seen");
            }
        },
    );
}
