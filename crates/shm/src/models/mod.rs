//! Loom models of the protocol core, see `docs/design/protocol.md`, section 8. Run by `ci/loom`.
//!
//! The models run the real [`Ctl`] and stand in for what is above it (`comm`, `waiting`, `ops`): the order in which a rank
//! posts, waits, reads and reuses. Memory that the protocol protects is loom's cells, so that an unordered access fails the
//! model. Each model has twins that leave out one step of the protocol and must fail.
//!
//! Not modelled: that `store_then_fence` is one sequentially consistent swap outside loom, which takes the orderings of
//! accesses for acquire-release at most; death, deadlines and the timed sleep.

mod abort;
mod direct;
mod leave;
mod mail;
mod meet;
mod ring;
mod sleep;

use crate::ctl::Ctl;
use loom::sync::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One rank of a model: its position and every member's control part.
#[derive(Clone)]
struct Rank {
    me: usize,
    ctls: Arc<[Ctl]>,
    /// One a member; `None` where waiting ranks spin.
    seats: Option<Arc<[Seat]>>,
}

/// Where a rank waits when more than one other rank may be waiting too: loom would explore ever longer exchanges of turns
/// between two that spin. A seat orders memory by itself, but only for those who sat down; where the rank finds what it
/// looks for at once, the protocol alone does.
struct Seat {
    taken: Mutex<()>,
    call: Condvar,
}

impl Rank {
    fn own(&self) -> &Ctl {
        &self.ctls[self.me]
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Ctl)> {
        self.ctls.iter().enumerate().filter(|(q, _)| *q != self.me)
    }

    /// Waits for what a peer publishes.
    fn until(&self, condition: impl Fn() -> bool) {
        while !condition() {
            let Some(seats) = &self.seats else {
                loom::thread::yield_now();
                continue;
            };
            let seat = &seats[self.me];
            let taken = seat.taken.lock().unwrap();
            if !condition() {
                drop(seat.call.wait(taken).unwrap());
            }
        }
    }

    /// To be called after something was published that a peer may wait for.
    fn published(&self) {
        for (q, seat) in self.seats.iter().flat_map(|seats| seats.iter().enumerate()) {
            if q != self.me {
                let _taken = seat.taken.lock().unwrap();
                seat.call.notify_one();
            }
        }
    }
}

/// Runs `body` on `members` ranks under every interleaving with at most `preemptions` preemptions. `shared` makes what the
/// ranks share beyond their control parts.
fn explore<S: Send + Sync + 'static>(
    members: usize,
    preemptions: usize,
    shared: impl Fn() -> S + Send + Sync + 'static,
    body: impl Fn(Rank, &S) + Copy + Send + Sync + 'static,
) {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let counted = runs.clone();
    builder.check(move || {
        // Relaxed: one interleaving at a time.
        counted.fetch_add(1, Ordering::Relaxed);
        let ctls: Arc<[Ctl]> = (0..members).map(|_| Ctl::new()).collect();
        let seat = |_| Seat { taken: Mutex::new(()), call: Condvar::new() };
        let seats: Option<Arc<[Seat]>> = (members > 2).then(|| (0..members).map(seat).collect());
        let shared = Arc::new(shared());
        let rank = |me| Rank { me, ctls: ctls.clone(), seats: seats.clone() };
        let threads: Vec<_> = (1..members)
            .map(|me| {
                let (rank, shared) = (rank(me), shared.clone());
                loom::thread::spawn(move || body(rank, &shared))
            })
            .collect();
        body(rank(0), &shared);
        for thread in threads {
            thread.join().unwrap();
        }
    });
    let name = std::thread::current().name().unwrap_or("model").to_string();
    println!("{name}: {members} ranks, preemption bound {preemptions}, {} interleavings", runs.load(Ordering::Relaxed));
}
