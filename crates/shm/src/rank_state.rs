//! What the communicators of one joined rank share.

use crate::outstanding::Outstanding;
use rankwise_core::{Group, Result, Settings};
use rankwise_world::{Attachment, World};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One joined rank.
pub(crate) struct RankState {
    pub(crate) world: World,
    pub(crate) settings: Settings,
    /// Global ranks found dead, and their number for a cheap look.
    lost: Mutex<Vec<usize>>,
    lost_count: AtomicUsize,
    /// Shared with the rank's other joins.
    pub(crate) outstanding: Arc<Outstanding>,
}

impl RankState {
    pub(crate) fn new(world: World, settings: Settings) -> RankState {
        RankState {
            outstanding: Outstanding::of(&world),
            world,
            settings,
            lost: Mutex::default(),
            lost_count: AtomicUsize::new(0),
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
        if !self.outstanding.any() {
            return exchange();
        }
        std::thread::scope(|scope| {
            let exchange = scope.spawn(exchange);
            while !exchange.is_finished() {
                self.outstanding.progress(None);
                std::thread::sleep(Duration::from_micros(200));
            }
            exchange.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
