//! Faults of what ranks tell each other: mismatches, refusals, poison, who is to blame.

use super::Mutant;
use super::wrapped::{Fault, Seat};
use rankwise_core::backend::{RawCall, Refusal};
use rankwise_core::{Error, ErrorKind, Result};
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new(
        "swallowed-mismatch",
        "a call that another rank made differently, and later ones, say Ok",
        &["MM"],
        || on_error(|_, error, _| if cause(&error) == ErrorKind::Mismatch { Ok(()) } else { Err(error) }),
    ),
    Mutant::new("written-in-failure", "a call that fails writes its destination", &["MM", "ER"], || {
        on_error(|_, error, destinations| {
            destinations.iter_mut().for_each(|dst| dst.fill(0));
            Err(error)
        })
    }),
    Mutant::new("forgotten-poison", "calls after an error that must poison say Ok", &["MM"], || {
        Arc::<Forgotten>::default()
    }),
    Mutant::new("wrong-peer-named", "errors name the member after the one to blame", &["MM", "ER"], || {
        on_error(|seat, error, _| {
            let next = |rank: &usize| {
                let position = seat.inner.group().position(*rank)?;
                seat.inner.group().global((position + 1) % seat.members())
            };
            let named: Vec<usize> = error.peers().iter().filter_map(next).collect();
            Err(error.with_peers(named))
        })
    }),
    Mutant::new("nobody-named", "errors name nobody", &["MM", "TM-1"], || {
        on_error(|_, error, _| Err(error.with_peers([])))
    }),
    Mutant::new("swallowed-refusal", "a call that a peer refused says Ok", &["ER"], || {
        on_error(|_, error, _| if error.kind() == &ErrorKind::PeerRejected { Ok(()) } else { Err(error) })
    }),
    Mutant::new("untold-refusal", "peers do not learn of a refused call", &["ER"], || Arc::new(Untold)),
    Mutant::new("poisoning-refusal", "a refused call makes the communicator unusable", &["ER"], || Arc::new(Poisoning)),
];

type OnError = fn(&Seat, Error, &mut [&mut [u8]]) -> Result<()>;

/// What an error of the engine becomes is decided by this function of (seat, error, destinations).
fn on_error(change: OnError) -> Arc<dyn Fault> {
    Arc::new(Explained(change))
}

struct Explained(OnError);

impl Fault for Explained {
    fn explain(&self, seat: &Seat, error: Error, destinations: &mut [&mut [u8]]) -> Result<()> {
        (self.0)(seat, error, destinations)
    }
}

/// The kind of the first cause.
fn cause(error: &Error) -> ErrorKind {
    let first = error.source().and_then(|source| source.downcast_ref::<Error>()).unwrap_or(error);
    first.kind().clone()
}

/// Whether an error has happened that poisons.
#[derive(Default)]
struct Forgotten(AtomicBool);

impl Fault for Forgotten {
    fn answer(&self, _: &Arc<Seat>, _: &[RawCall<'_>]) -> Option<Result<()>> {
        // Relaxed: collectives are issued by one thread at a time.
        self.0.load(Ordering::Relaxed).then_some(Ok(()))
    }

    fn explain(&self, _: &Seat, error: Error, _: &mut [&mut [u8]]) -> Result<()> {
        self.0.store(error.kind().poisons() || error.kind() == &ErrorKind::Poisoned, Ordering::Relaxed);
        Err(error)
    }
}

struct Untold;

impl Fault for Untold {
    fn reject(&self, _: &Seat, _: &Refusal<'_>) {}
}

struct Poisoning;

impl Fault for Poisoning {
    fn reject(&self, seat: &Seat, refusal: &Refusal<'_>) {
        seat.inner.reject(refusal);
        seat.inner.abort();
    }
}
