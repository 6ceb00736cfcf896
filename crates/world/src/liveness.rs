//! Which ranks are still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a rank is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStatus {
    /// It runs, or is stopped, or has not joined yet.
    Alive,
    /// It has exited, was killed, or panicked. Nobody comes back from this.
    Gone,
}

/// Tells living ranks from dead ones, from the kernel where ranks are processes; never from what a peer claims.
pub trait Liveness: Send + Sync {
    /// The status of a global rank, in less than two microseconds for a living one; never blocks. A rank outside the
    /// world is `Gone`.
    fn status(&self, rank: usize) -> PeerStatus;
}

/// Ranks that are threads: a flag each, raised when the rank's function returns or unwinds.
#[derive(Clone)]
pub(crate) struct ThreadLiveness {
    gone: Arc<[AtomicBool]>,
}

impl ThreadLiveness {
    pub(crate) fn new(size: usize) -> ThreadLiveness {
        ThreadLiveness { gone: (0..size).map(|_| AtomicBool::new(false)).collect() }
    }

    pub(crate) fn mark_gone(&self, rank: usize) {
        // Release pairs with the acquire in `status`: who sees the flag sees everything the rank did before.
        self.gone[rank].store(true, Ordering::Release);
    }
}

impl Liveness for ThreadLiveness {
    fn status(&self, rank: usize) -> PeerStatus {
        match self.gone.get(rank) {
            Some(gone) if !gone.load(Ordering::Acquire) => PeerStatus::Alive,
            _ => PeerStatus::Gone,
        }
    }
}

/// Ranks of other hosts: a flag each, raised when the hub tells that the rank has ended.
#[cfg(target_os = "linux")]
#[derive(Clone)]
pub(crate) struct Departed(Arc<[AtomicBool]>);

#[cfg(target_os = "linux")]
impl Departed {
    pub(crate) fn none_of(size: usize) -> Departed {
        Departed((0..size).map(|_| AtomicBool::new(false)).collect())
    }

    pub(crate) fn mark(&self, rank: usize) {
        if let Some(flag) = self.0.get(rank) {
            // Release pairs with the acquire in `status`.
            flag.store(true, Ordering::Release);
        }
    }
}

#[cfg(target_os = "linux")]
impl Liveness for Departed {
    fn status(&self, rank: usize) -> PeerStatus {
        match self.0.get(rank) {
            Some(gone) if !gone.load(Ordering::Acquire) => PeerStatus::Alive,
            _ => PeerStatus::Gone,
        }
    }
}
