//! The started calls of a rank, so that a wait in one communicator moves those of all, whichever join of the backend they
//! are from: two libraries of one program may each join, and their ranks wait in different orders.

use crate::comm::Comm;
use rankwise_world::World;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Of one rank of one job.
#[derive(Default)]
pub(crate) struct Outstanding {
    /// Communicators that had started calls.
    busy: Mutex<Vec<Weak<Comm>>>,
    calls: AtomicUsize,
}

/// Job, rank, and what its joins share.
type Joined = (u128, usize, Weak<Outstanding>);

impl Outstanding {
    /// The same for all joins of the rank.
    pub(crate) fn of(world: &World) -> Arc<Outstanding> {
        static JOINED: Mutex<Vec<Joined>> = Mutex::new(Vec::new());
        let mut joined = JOINED.lock().unwrap_or_else(|e| e.into_inner());
        joined.retain(|(.., known)| known.strong_count() > 0);
        let same = |(job, rank, _): &&Joined| (*job, *rank) == (world.job(), world.rank());
        if let Some(known) = joined.iter().find(same).and_then(|(.., known)| known.upgrade()) {
            return known;
        }
        let new = Arc::<Outstanding>::default();
        joined.push((world.job(), world.rank(), Arc::downgrade(&new)));
        new
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.calls.load(Ordering::Acquire) != 0
    }

    /// A call was started on `comm`.
    pub(crate) fn add(&self, comm: &Arc<Comm>) {
        let mut busy = self.busy.lock().unwrap_or_else(|e| e.into_inner());
        busy.retain(|known| known.strong_count() > 0);
        if !busy.iter().any(|known| std::ptr::eq(known.as_ptr(), &**comm)) {
            busy.push(Arc::downgrade(comm));
        }
        self.calls.fetch_add(1, Ordering::Release);
    }

    /// Started calls ended, one way or another.
    pub(crate) fn remove(&self, calls: usize) {
        self.calls.fetch_sub(calls, Ordering::Release);
    }

    /// Progresses the started calls of all communicators whose queue is free, but for the caller's own.
    pub(crate) fn progress(&self, except: Option<&Comm>) {
        let comms: Vec<_> = {
            let Ok(busy) = self.busy.try_lock() else { return };
            busy.iter().filter_map(Weak::upgrade).collect()
        };
        for comm in comms {
            if except.is_none_or(|own| !std::ptr::eq(&*comm, own))
                && let Some(mut queue) = comm.try_queue()
            {
                queue.progress(&comm);
            }
        }
    }
}
