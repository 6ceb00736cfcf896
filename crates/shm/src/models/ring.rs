//! The rings: a chunk is never overwritten before everybody has read it, over wrap-around and across calls.
//!
//! The rings are shorter than the backend's so that they wrap within few steps. There is no meet between the calls: the
//! counters alone must keep them apart.

use super::{Rank, explore};
use crate::ctl::Progress::{self, Done, Ready, Reduced};
use loom::cell::UnsafeCell;

/// Preemptions explored with two ranks.
const BOUND: usize = 3;

/// Steps of the rings here. Two is the least that the pipeline of an all-reduce can work with.
const RING: u64 = 2;

struct Ring([UnsafeCell<u64>; RING as usize]);

impl Ring {
    fn new() -> Ring {
        Ring([UnsafeCell::new(0), UnsafeCell::new(0)])
    }

    fn write(&self, step: u64, value: u64) {
        // SAFETY: loom checks the access.
        self.0[(step % RING) as usize].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, step: u64) -> u64 {
        // SAFETY: loom checks the access.
        self.0[(step % RING) as usize].with(|cell| unsafe { *cell })
    }
}

/// The rings of one rank.
struct Rings {
    incoming: Ring,
    outgoing: Ring,
}

// SAFETY: loom checks every access.
unsafe impl Sync for Rings {}
// SAFETY: numbers.
unsafe impl Send for Rings {}

fn rings(members: usize) -> impl Fn() -> Vec<Rings> + Send + Sync + 'static {
    move || (0..members).map(|_| Rings { incoming: Ring::new(), outgoing: Ring::new() }).collect()
}

/// Which step of the protocol a twin leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Twin {
    Faithful,
    OverwritesInRing,
    OverwritesOutRing,
    ReadsBeforeReady,
    ReusesOneStepEarly,
    SaysReducedBeforeReading,
}

struct Member<'a> {
    rank: &'a Rank,
    rings: &'a [Rings],
    twin: Twin,
}

fn source(rank: usize, step: u64) -> u64 {
    10 * (step + 1) + rank as u64
}

impl Member<'_> {
    fn advance(&self, progress: Progress, value: u64) {
        self.rank.own().advance(progress, value);
        self.rank.published();
    }

    fn all_reach(&self, progress: Progress, value: u64) {
        for (_, ctl) in self.rank.others() {
            self.rank.until(|| ctl.has_reached(progress, value));
        }
    }

    /// What a counter must have reached before a slot may be written for step `step`.
    fn reusable(&self, step: u64) -> u64 {
        let early = u64::from(self.twin == Twin::ReusesOneStepEarly);
        (step + 1).saturating_sub(RING + early)
    }

    fn copy_in(&self, step: u64) {
        if self.twin != Twin::OverwritesInRing {
            self.all_reach(Reduced, self.reusable(step));
        }
        self.rings[self.rank.me].incoming.write(step, source(self.rank.me, step));
        self.advance(Ready, step + 1);
    }

    fn read_all(&self, step: u64) -> u64 {
        let others: u64 = self.rank.others().map(|(q, _)| self.rings[q].incoming.read(step)).sum();
        others + source(self.rank.me, step)
    }

    fn total(&self, step: u64) -> u64 {
        (0..self.rings.len()).map(|q| source(q, step)).sum()
    }

    fn fold(&self, step: u64) {
        if self.twin != Twin::ReadsBeforeReady {
            self.all_reach(Ready, step + 1);
        }
        if self.twin != Twin::OverwritesOutRing {
            self.all_reach(Done, (step + 1).saturating_sub(RING));
        }
        if self.twin == Twin::SaysReducedBeforeReading {
            self.advance(Reduced, step + 1);
        }
        let sum = self.read_all(step);
        assert_eq!(sum, self.total(step), "a chunk of step {step} was overwritten");
        self.rings[self.rank.me].outgoing.write(step, sum);
        self.advance(Reduced, step + 1);
    }

    fn pull(&self, step: u64) {
        self.all_reach(Reduced, step + 1);
        for (q, _) in self.rank.others() {
            assert_eq!(self.rings[q].outgoing.read(step), self.total(step), "a piece of step {step} was overwritten");
        }
        self.advance(Done, step + 1);
    }

    /// The pipeline of `Comm::all_reduce_chunked`.
    fn all_reduce(&self, base: u64, rounds: u64) -> u64 {
        for i in 0..rounds + 2 {
            if i < rounds {
                self.copy_in(base + i);
            }
            if (1..=rounds).contains(&i) {
                self.fold(base + i - 1);
            }
            if i >= 2 {
                self.pull(base + i - 2);
            }
        }
        base + rounds
    }

    fn consumed(&self, steps: u64) {
        self.advance(Reduced, steps);
        self.advance(Done, steps);
    }

    /// `Comm::stream_whole` of a broadcast from rank 0, which takes no part in the reading and says so at once.
    fn broadcast(&self, base: u64, rounds: u64) -> u64 {
        if self.rank.me == 0 {
            self.consumed(base + rounds);
            (base..base + rounds).for_each(|step| self.copy_in(step));
        } else {
            for step in base..base + rounds {
                self.rank.until(|| self.rank.ctls[0].has_reached(Ready, step + 1));
                assert_eq!(
                    self.rings[0].incoming.read(step),
                    source(0, step),
                    "a chunk of step {step} was overwritten"
                );
                self.consumed(step + 1);
            }
        }
        base + rounds
    }
}

fn all_reduces(rank: &Rank, rings: &[Rings], rounds: &[u64], twin: Twin) {
    let member = Member { rank, rings, twin };
    rounds.iter().fold(0, |base, rounds| member.all_reduce(base, *rounds));
}

#[test]
fn an_all_reduce_wraps_around_both_rings() {
    explore(2, BOUND, rings(2), |rank, rings| all_reduces(&rank, rings, &[4], Twin::Faithful));
}

#[test]
fn two_all_reduces_share_the_rings() {
    explore(2, BOUND, rings(2), |rank, rings| all_reduces(&rank, rings, &[1, 2], Twin::Faithful));
}

#[test]
fn three_ranks_share_the_rings() {
    explore(3, 1, rings(3), |rank, rings| all_reduces(&rank, rings, &[3], Twin::Faithful));
}

#[test]
fn calls_of_different_kinds_share_the_rings() {
    explore(2, 2, rings(2), |rank, rings| {
        let member = Member { rank: &rank, rings, twin: Twin::Faithful };
        let base = member.broadcast(0, 3);
        let base = member.all_reduce(base, 2);
        member.broadcast(base, 1);
    });
}

#[test]
fn a_broadcast_to_two_wraps_around() {
    explore(3, 1, rings(3), |rank, rings| {
        Member { rank: &rank, rings, twin: Twin::Faithful }.broadcast(0, 4);
    });
}

macro_rules! mutants {
    ($($name:ident: $twin:ident, $message:literal;)*) => {$(
        #[test]
        #[should_panic(expected = $message)]
        fn $name() {
            explore(2, BOUND, rings(2), |rank, rings| all_reduces(&rank, rings, &[4], Twin::$twin));
        }
    )*};
}

mutants! {
    mutant_that_overwrites_the_in_ring: OverwritesInRing, "Causality violation";
    mutant_that_overwrites_the_out_ring: OverwritesOutRing, "Causality violation";
    mutant_that_reads_before_ready: ReadsBeforeReady, "a chunk of step 0 was overwritten";
    mutant_that_reuses_a_step_early: ReusesOneStepEarly, "Causality violation";
    mutant_that_says_reduced_before_reading: SaysReducedBeforeReading, "Causality violation";
}
