//! Abort from another thread against calls that are just completing.

use super::{Rank, explore};
use crate::ctl::{Poison, PoisonKind, recheck_fence};
use crate::sync::{AtomicU64, Ordering};

/// Rank 0 and rank 1 call; "rank" 2 is a second thread of rank 0 that aborts.
const CALLERS: usize = 2;

fn concerned(rank: &Rank, seq: u64) -> Option<Poison> {
    recheck_fence();
    rank.ctls[..CALLERS].iter().find_map(|ctl| ctl.poisoned().filter(|poison| poison.concerns(seq)))
}

/// One call as `Comm::post`, `meet`, `recheck` make it, given up when somebody is poisoned. Whether it was `Ok`.
fn call(rank: &Rank, seq: u64, looks_at_poison: bool) -> bool {
    let peer = &rank.ctls[1 - rank.me];
    // SAFETY: loom checks the access.
    rank.own().post(seq, [0; 3], |payload| payload.0.with_mut(|cell| unsafe { *cell = seq }));
    rank.published();
    rank.until(|| peer.has_posted(seq) || looks_at_poison && concerned(rank, seq).is_some());
    // SAFETY: loom checks the access; the payload is read only when it was posted.
    let found = peer.has_posted(seq).then(|| peer.slot(seq).payload.0.with(|cell| unsafe { *cell }));
    let good = concerned(rank, seq).is_none();
    assert!(!good || found == Some(seq));
    good
}

/// Two calls on two ranks, with an abort on rank 0 at any time. Both ranks end, `Ok` is right, and a rank that fails knows
/// why.
fn abort(rank: &Rank, current: &AtomicU64, looks_at_poison: bool) {
    if rank.me == CALLERS {
        // The number may be that of the call before: it concerns the running one as well.
        let seq = current.load(Ordering::Relaxed) as u32;
        rank.ctls[0].poison(Poison { kind: PoisonKind::Aborted, culprit: 0, seq });
        rank.published();
        return;
    }
    for seq in 1..=2 {
        if rank.me == 0 {
            current.store(seq, Ordering::Relaxed);
        }
        if !call(rank, seq, looks_at_poison) {
            let cause = concerned(rank, seq).unwrap();
            assert_eq!((cause.kind, cause.culprit), (PoisonKind::Aborted, 0));
            return;
        }
    }
}

#[test]
fn an_abort_ends_the_calls_of_both_ranks() {
    explore(3, 2, || AtomicU64::new(0), |rank, current| abort(&rank, current, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_that_waits_without_looking_at_poison() {
    explore(3, 2, || AtomicU64::new(0), |rank, current| abort(&rank, current, false));
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
