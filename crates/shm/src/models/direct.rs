//! Direct calls: peers read a rank's own buffer. Data that a failed rank's caller overwrites is never `Ok`.
//!
//! The buffer is relaxed atomics where a failed rank may overwrite it while it is read, as the bytes in shared memory are;
//! it is a cell where the exit meet must order the two.

use super::{Rank, explore};
use crate::ctl::{Ctl, Poison, PoisonKind, Progress, recheck_fence};
use crate::sync::{AtomicU64, Ordering};
use loom::cell::UnsafeCell;

const ORIGINAL: u64 = 7;
const OVERWRITTEN: u64 = 8;

fn gave_up(seq: u32) -> Poison {
    Poison { kind: PoisonKind::Timeout, culprit: 2, seq }
}

/// As `Comm::recheck`.
fn recheck(ctls: &[Ctl], seq: u64) -> bool {
    recheck_fence();
    unfenced_recheck(ctls, seq)
}

fn unfenced_recheck(ctls: &[Ctl], seq: u64) -> bool {
    !ctls.iter().any(|ctl| ctl.poisoned().is_some_and(|poison| poison.concerns(seq)))
}

type Buffer = [AtomicU64; 2];

fn buffer() -> Buffer {
    [AtomicU64::new(ORIGINAL), AtomicU64::new(ORIGINAL)]
}

fn read(buffer: &Buffer) -> [u64; 2] {
    // The last byte first: a reader need not read in the order of writing.
    let last = buffer[1].load(Ordering::Relaxed);
    [buffer[0].load(Ordering::Relaxed), last]
}

fn overwrite(buffer: &Buffer) {
    for word in buffer {
        word.store(OVERWRITTEN, Ordering::Relaxed);
    }
}

/// Rank 0 fails in call 1 and gives its buffer back to its caller; rank 1 reads it.
fn fail_while_read(rank: &Rank, buffer: &Buffer, poison_first: bool, recheck: fn(&[Ctl], u64) -> bool) {
    if rank.me == 0 {
        if poison_first {
            rank.own().poison(gave_up(1));
            overwrite(buffer);
        } else {
            overwrite(buffer);
            rank.own().poison(gave_up(1));
        }
    } else {
        let found = read(buffer);
        if recheck(&rank.ctls, 1) {
            assert_eq!(found, [ORIGINAL; 2], "overwritten data passed for good");
        }
    }
}

#[test]
fn overwritten_data_is_never_ok() {
    explore(2, 5, buffer, |rank, buffer| fail_while_read(&rank, buffer, true, recheck));
}

#[test]
fn overwritten_data_is_never_ok_on_two_readers() {
    explore(3, 3, buffer, |rank, buffer| fail_while_read(&rank, buffer, true, recheck));
}

/// The whole end of a direct call: rank 0 has read everything and said so, gives up waiting for the others, and its caller
/// overwrites the buffer; the others see every member's `done` and must still not return `Ok` with what they read.
#[test]
fn a_failure_in_the_exit_meet_is_seen_behind_it() {
    explore(3, 3, buffer, |rank, buffer| {
        if rank.me == 0 {
            rank.own().advance(Progress::Done, 1);
            rank.own().poison(gave_up(1));
            overwrite(buffer);
            return;
        }
        let found = read(buffer);
        rank.own().advance(Progress::Done, 1);
        let all_done = rank.others().all(|(_, ctl)| ctl.has_reached(Progress::Done, 1));
        if all_done && recheck(&rank.ctls, 1) {
            assert_eq!(found, [ORIGINAL; 2], "overwritten data passed for good");
        }
    });
}

struct Cell(UnsafeCell<u64>);

// SAFETY: loom checks every access.
unsafe impl Sync for Cell {}
// SAFETY: a number.
unsafe impl Send for Cell {}

fn cell() -> Cell {
    Cell(UnsafeCell::new(ORIGINAL))
}

/// After the exit meet of call 1 rank 0 may write its buffer, and a failure of call 2 does not make call 1 fail.
fn exit_meet(rank: &Rank, buffer: &Cell, waits: bool) {
    let others_done = || rank.others().all(|(_, ctl)| ctl.has_reached(Progress::Done, 1));
    if rank.me == 0 {
        rank.own().advance(Progress::Done, 1);
        rank.published();
        if waits {
            rank.until(others_done);
        }
        // SAFETY: loom checks the access.
        buffer.0.with_mut(|cell| unsafe { *cell = OVERWRITTEN });
        rank.own().poison(gave_up(2));
    } else {
        // SAFETY: loom checks the access.
        let found = buffer.0.with(|cell| unsafe { *cell });
        rank.own().advance(Progress::Done, 1);
        rank.published();
        rank.until(others_done);
        assert!(recheck(&rank.ctls, 1), "a later failure made a finished call fail");
        assert_eq!(found, ORIGINAL);
    }
}

#[test]
fn the_exit_meet_gives_the_buffer_back() {
    explore(3, 2, cell, |rank, buffer| exit_meet(&rank, buffer, true));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn mutant_without_the_exit_meet() {
    explore(3, 2, cell, |rank, buffer| exit_meet(&rank, buffer, false));
}

#[test]
#[should_panic(expected = "overwritten data passed for good")]
fn mutant_that_poisons_after_the_caller_got_its_buffer() {
    explore(2, 5, buffer, |rank, buffer| fail_while_read(&rank, buffer, false, recheck));
}

#[test]
#[should_panic(expected = "overwritten data passed for good")]
fn mutant_without_the_fence_before_the_recheck() {
    explore(2, 5, buffer, |rank, buffer| fail_while_read(&rank, buffer, true, unfenced_recheck));
}

#[test]
#[should_panic(expected = "overwritten data passed for good")]
fn mutant_without_the_recheck() {
    explore(2, 5, buffer, |rank, buffer| fail_while_read(&rank, buffer, true, |_, _| true));
}
