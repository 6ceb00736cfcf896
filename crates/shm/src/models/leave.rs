//! Leaving: who sees that a peer left also sees the last thing it posted.

use super::{Rank, explore};

fn value(rank: &Rank) -> u64 {
    // SAFETY: loom checks the access.
    rank.ctls[0].slot(1).payload.0.with(|cell| unsafe { *cell })
}

/// Rank 0 posts call 1 and leaves; rank 1 waits for call 1 and fails with `PeerLeft` only if it will never come.
fn leave(rank: &Rank, looks_again: bool) {
    if rank.me == 0 {
        // SAFETY: loom checks the access.
        rank.own().post(1, [0; 3], |payload| payload.0.with_mut(|cell| unsafe { *cell = 5 }));
        rank.own().leave();
        return;
    }
    let peer = &rank.ctls[0];
    if !peer.has_posted(1) {
        if !peer.has_left() {
            return;
        }
        // As in `Comm::wait_while`: what is complete stays complete.
        assert!(looks_again && peer.has_posted(1), "the peer left before its last post was seen");
    }
    assert_eq!(value(rank), 5);
}

#[test]
fn the_last_post_is_seen_before_the_leaving() {
    explore(2, 5, || (), |rank, ()| leave(&rank, true));
}

#[test]
#[should_panic(expected = "the peer left before")]
fn mutant_that_does_not_look_again() {
    explore(2, 5, || (), |rank, ()| leave(&rank, false));
}
