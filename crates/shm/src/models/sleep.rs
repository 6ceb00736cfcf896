//! Sleeping and waking: no wake is lost. A sleeper has no time limit here, so that a lost one is a deadlock.

use super::{Rank, explore};
use crate::ctl::{Ctl, Progress};
use loom::sync::{Condvar, Mutex};

/// What the kernel does: looks at the word and falls asleep in one step with respect to wakes.
struct Futex {
    bucket: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    fn new() -> Futex {
        Futex { bucket: Mutex::new(()), sleepers: Condvar::new() }
    }

    fn wait(&self, ctl: &Ctl, expected: u32) {
        let bucket = self.bucket.lock().unwrap();
        if ctl.bell_value() == expected {
            drop(self.sleepers.wait(bucket).unwrap());
        }
    }

    fn wake_all(&self) {
        let _bucket = self.bucket.lock().unwrap();
        self.sleepers.notify_all();
    }
}

type Futexes = Vec<Futex>;

fn futexes(members: usize) -> impl Fn() -> Futexes + Send + Sync + 'static {
    move || (0..members).map(|_| Futex::new()).collect()
}

/// Which step of the protocol a twin leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Twin {
    Faithful,
    NoRecheck,
    BellReadLate,
    BellNotChanged,
    OnlyLastCounterRings,
}

/// As `Comm::ring`.
fn ring(rank: &Rank, futexes: &Futexes, twin: Twin) {
    if rank.others().any(|(_, ctl)| ctl.sleeps_on(rank.me)) {
        if twin != Twin::BellNotChanged {
            rank.own().change_bell();
        }
        futexes[rank.me].wake_all();
    }
}

/// As `Comm::sleep` in the loop of `Comm::wait_while`.
fn wait(rank: &Rank, member: usize, futexes: &Futexes, twin: Twin, condition: impl Fn(&Ctl) -> bool) {
    let ctl = &rank.ctls[member];
    while !condition(ctl) {
        let mut bell = rank.own().prepare_sleep(member, ctl);
        if twin == Twin::NoRecheck || !condition(ctl) {
            if twin == Twin::BellReadLate {
                bell = ctl.bell_value();
            }
            futexes[member].wait(ctl, bell);
        }
        rank.own().finish_sleep();
    }
}

/// Rank 0 publishes two calls, rank 1 waits for both.
fn two_posts(rank: Rank, futexes: &Futexes, twin: Twin) {
    for seq in 1..=2 {
        match rank.me {
            0 => {
                rank.own().post(seq, [0; 3], |_| {});
                ring(&rank, futexes, twin);
            }
            _ => wait(&rank, 0, futexes, twin, |ctl| ctl.has_posted(seq)),
        }
    }
}

/// As `Comm::consumed`: two counters, one ring.
fn two_counters(rank: Rank, futexes: &Futexes, twin: Twin) {
    match rank.me {
        0 if twin == Twin::OnlyLastCounterRings => {
            rank.own().advance(Progress::Done, 1);
            ring(&rank, futexes, twin);
            rank.own().advance(Progress::Reduced, 1);
        }
        0 => {
            rank.own().advance(Progress::Reduced, 1);
            rank.own().advance(Progress::Done, 1);
            ring(&rank, futexes, twin);
        }
        _ => wait(&rank, 0, futexes, twin, |ctl| ctl.has_reached(Progress::Reduced, 1)),
    }
}

/// Both post, then sleep until the other has.
fn both_sleep(rank: Rank, futexes: &Futexes) {
    rank.own().post(1, [0; 3], |_| {});
    ring(&rank, futexes, Twin::Faithful);
    wait(&rank, 1 - rank.me, futexes, Twin::Faithful, |ctl| ctl.has_posted(1));
}

#[test]
fn no_wake_is_lost() {
    explore(2, 5, futexes(2), |rank, futexes| two_posts(rank, futexes, Twin::Faithful));
}

#[test]
fn one_ring_serves_two_counters() {
    explore(2, 5, futexes(2), |rank, futexes| two_counters(rank, futexes, Twin::Faithful));
}

#[test]
fn two_ranks_that_sleep_on_each_other_both_wake() {
    explore(2, 5, futexes(2), both_sleep);
}

#[test]
fn two_sleepers_on_one_bell_both_wake() {
    explore(3, 3, futexes(3), |rank, futexes| match rank.me {
        0 => {
            rank.own().post(1, [0; 3], |_| {});
            ring(&rank, futexes, Twin::Faithful);
        }
        _ => wait(&rank, 0, futexes, Twin::Faithful, |ctl| ctl.has_posted(1)),
    });
}

#[test]
fn a_rank_sleeps_on_one_member_after_another() {
    explore(3, 3, futexes(3), |rank, futexes| match rank.me {
        0 => {
            for member in 1..=2 {
                wait(&rank, member, futexes, Twin::Faithful, |ctl| ctl.has_posted(1));
            }
        }
        _ => {
            rank.own().post(1, [0; 3], |_| {});
            ring(&rank, futexes, Twin::Faithful);
        }
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_without_the_recheck() {
    explore(2, 5, futexes(2), |rank, futexes| two_posts(rank, futexes, Twin::NoRecheck));
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_that_reads_the_bell_after_the_recheck() {
    explore(2, 5, futexes(2), |rank, futexes| two_posts(rank, futexes, Twin::BellReadLate));
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_that_wakes_without_changing_the_bell() {
    explore(2, 5, futexes(2), |rank, futexes| two_posts(rank, futexes, Twin::BellNotChanged));
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_that_rings_before_the_last_counter() {
    explore(2, 5, futexes(2), |rank, futexes| two_counters(rank, futexes, Twin::OnlyLastCounterRings));
}
