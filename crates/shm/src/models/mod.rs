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
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One rank of a model: its position and every member's control part.
#[derive(Clone)]
struct Rank {
    me: usize,
    ctls: Arc<[Ctl]>,
}

impl Rank {
    fn own(&self) -> &Ctl {
        &self.ctls[self.me]
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Ctl)> {
        self.ctls.iter().enumerate().filter(|(q, _)| *q != self.me)
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
        // Relaxed: one model run at a time.
        counted.fetch_add(1, Ordering::Relaxed);
        let ctls: Arc<[Ctl]> = (0..members).map(|_| Ctl::new()).collect();
        let shared = Arc::new(shared());
        let rank = |me| Rank { me, ctls: ctls.clone() };
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

/// Waits by looking again and again.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        loom::thread::yield_now();
    }
}
