//! What the communicators of one joined rank share.

use crate::comm::Comm;
use rankwise_core::{Group, Result, Settings};
use rankwise_world::{Attachment, World};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};
use std::time::Duration;

/// One joined rank.
pub(crate) struct RankState {
    pub(crate) world: World,
    pub(crate) settings: Settings,
    /// Global ranks found dead, and their number for a cheap look.
    lost: Mutex<Vec<usize>>,
    lost_count: AtomicUsize,
    /// Communicators with started calls, and how many calls that are.
    busy: Mutex<Vec<Weak<Comm>>>,
    outstanding: AtomicUsize,
}

impl RankState {
    pub(crate) fn new(world: World, settings: Settings) -> RankState {
        RankState {
            world,
            settings,
            lost: Mutex::default(),
            lost_count: AtomicUsize::new(0),
            busy: Mutex::default(),
            outstanding: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(crate) fn lost_count(&self) -> usize {
        self.lost_count.load(Ordering::Relaxed)
    }

    pub(crate) fn add_lost(&self, rank: usize) {
        let mut lost = self.lost.lock().unwrap_or_else(|e| e.into_inner());
        if !lost.contains(&rank) {
            lost.push(rank);
            self.lost_count.store(lost.len(), Ordering::Relaxed);
        }
    }

    pub(crate) fn lost_among(&self, group: &Group) -> Option<usize> {
        let lost = self.lost.lock().unwrap_or_else(|e| e.into_inner());
        lost.iter().copied().find(|rank| group.contains(*rank))
    }

    /// Whether any communicator of this rank has started calls.
    #[inline]
    pub(crate) fn has_outstanding(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) != 0
    }

    /// A call was started on `comm`.
    pub(crate) fn add_outstanding(&self, comm: &std::sync::Arc<Comm>) {
        let mut busy = self.busy.lock().unwrap_or_else(|e| e.into_inner());
        busy.retain(|known| known.strong_count() > 0);
        if !busy.iter().any(|known| std::ptr::eq(known.as_ptr(), &**comm)) {
            busy.push(std::sync::Arc::downgrade(comm));
        }
        self.outstanding.fetch_add(1, Ordering::Release);
    }

    /// Started calls ended, one way or another.
    pub(crate) fn remove_outstanding(&self, calls: usize) {
        self.outstanding.fetch_sub(calls, Ordering::Release);
    }

    /// [`rankwise_world::Store::exchange`], during which started calls go on: peers may come only after one of them.
    pub(crate) fn exchange(
        &self,
        key: &str,
        what: &str,
        members: &Group,
        payload: &[u8],
        attachment: Attachment,
        deadline: Duration,
    ) -> Result<Vec<(Vec<u8>, Attachment)>> {
        let exchange = || self.world.store().exchange(key, what, members, payload, attachment, deadline);
        if !self.has_outstanding() {
            return exchange();
        }
        std::thread::scope(|scope| {
            let exchange = scope.spawn(exchange);
            while !exchange.is_finished() {
                self.progress_others(None);
                std::thread::sleep(Duration::from_micros(200));
            }
            exchange.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Progresses the started calls of all communicators whose queue is free, but for the caller's own.
    pub(crate) fn progress_others(&self, except: Option<&Comm>) {
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
