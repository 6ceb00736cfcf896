//! Posts, meets and the reuse of slots: what a rank reads after a meet is what was posted for that call.

use super::{Rank, explore};
use crate::ctl::SLOTS;
use crate::sync::Payload;

/// Marks the post of a refused call in the first word.
const REJECTED: u64 = 0xff;

/// Preemptions explored with two and with three ranks.
const TWO: usize = 4;
const THREE: usize = 1;

/// What a rank does in each call: `true` calls, `false` is refused above the backend and does not meet.
type Calls = &'static [bool];

fn value(rank: usize, seq: u64) -> u64 {
    100 * seq + rank as u64
}

fn fill(payload: &Payload, value: u64) {
    // SAFETY: loom checks the access.
    payload.0.with_mut(|cell| unsafe { *cell = value });
}

/// The calls of one rank, as `Comm::slot_is_free`, `post` and `meet` make them. `reuse_after` is `SLOTS - 1` in the protocol.
fn calls(rank: &Rank, plan: [Calls; 3], reuse_after: u64) {
    let mut met = 0;
    for (call, wants) in (1..).zip(plan[rank.me]) {
        let needed = (call as u64).saturating_sub(reuse_after);
        if met < needed {
            for (_, ctl) in rank.others() {
                rank.until(|| ctl.has_posted(needed));
            }
            met = needed;
        }
        let seq = call as u64;
        let word = |wants: bool| if wants { 1 } else { REJECTED };
        rank.own().post(seq, [word(*wants), seq, 0], |payload| fill(payload, value(rank.me, seq)));
        rank.published();
        if !wants {
            continue;
        }
        for (_, ctl) in rank.others() {
            rank.until(|| ctl.has_posted(seq));
        }
        met = seq;
        for (q, ctl) in rank.others() {
            assert_eq!(ctl.words(seq), [word(plan[q][call - 1]), seq, 0], "words of rank {q} in call {seq}");
            // SAFETY: loom checks the access.
            let found = ctl.slot(seq).payload.0.with(|cell| unsafe { *cell });
            assert_eq!(found, value(q, seq), "payload of rank {q} in call {seq}");
        }
    }
}

/// More calls than slots, the last of them in reused slots.
const PLAIN: Calls = &[true; SLOTS as usize + 1];
/// A rank whose calls are all refused runs ahead until the reuse rule stops it.
const REFUSED: Calls = &[false; SLOTS as usize + 2];
const LONG: Calls = &[true; SLOTS as usize + 2];
const MIXED: Calls = &[true, false, false, true, true, false];

#[test]
fn two_ranks_meet_and_reuse_slots() {
    explore(2, TWO, || (), |rank, ()| calls(&rank, [PLAIN, PLAIN, &[]], SLOTS - 1));
}

#[test]
fn three_ranks_meet_and_reuse_slots() {
    explore(3, THREE, || (), |rank, ()| calls(&rank, [PLAIN, PLAIN, PLAIN], SLOTS - 1));
}

#[test]
fn a_refused_rank_does_not_overwrite_what_is_read() {
    explore(2, TWO, || (), |rank, ()| calls(&rank, [REFUSED, LONG, &[]], SLOTS - 1));
}

#[test]
fn refusals_on_both_sides_keep_the_slots_apart() {
    explore(2, TWO, || (), |rank, ()| calls(&rank, [MIXED, REFUSED, &[]], SLOTS - 1));
}

#[test]
fn one_refused_rank_of_three_does_not_overwrite_what_is_read() {
    explore(3, THREE, || (), |rank, ()| calls(&rank, [REFUSED, LONG, LONG], SLOTS - 1));
}

/// Without the rule a refused rank overwrites a slot that a slow peer still reads.
#[test]
#[should_panic(expected = "words of rank 0 in call 1")]
fn mutant_without_the_reuse_rule() {
    explore(2, TWO, || (), |rank, ()| calls(&rank, [REFUSED, LONG, &[]], u64::MAX));
}

/// A post of `s - 4` says nothing about the reads of `s - 4`.
#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_with_the_reuse_rule_one_call_short() {
    explore(2, TWO, || (), |rank, ()| calls(&rank, [REFUSED, LONG, &[]], SLOTS));
}
