//! Collective allocations: memory that peers read without copies.

use crate::comm::Comm;
use crate::segment::Segment;
use rankwise_core::MemorySpace;
use rankwise_core::backend::{RawBuf, RawSegment};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// One collective allocation as this rank sees it: every member's part.
pub(crate) struct Allocation {
    /// Unique in the process.
    id: u64,
    /// Position among the communicator's allocations, the same on all members; from 1.
    pub(crate) index: u64,
    bytes: usize,
    me: usize,
    parts: Box<[Arc<Segment>]>,
}

impl Allocation {
    pub(crate) fn new(index: u64, bytes: usize, me: usize, parts: Box<[Arc<Segment>]>) -> Allocation {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Allocation { id: NEXT.fetch_add(1, Ordering::Relaxed), index, bytes, me, parts }
    }

    /// An address in a member's part; `None` when `bytes` from `offset` are not all inside.
    pub(crate) fn at(&self, member: usize, offset: u64, bytes: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(bytes)?;
        // SAFETY: within the part, whose length was checked when it was mapped.
        (end <= self.bytes).then(|| unsafe { self.parts[member].base().add(offset) })
    }
}

// SAFETY: the own part is mapped writable and held by `parts`; ids come from one counter.
unsafe impl RawSegment for Allocation {
    fn ptr(&self) -> *mut u8 {
        self.parts[self.me].base()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    fn id(&self) -> u64 {
        self.id
    }
}

/// The live allocations of a communicator.
#[derive(Default)]
pub(crate) struct Allocations {
    live: Vec<Weak<Allocation>>,
    made: u64,
}

impl Allocations {
    /// The index of the next allocation.
    pub(crate) fn next_index(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub(crate) fn add(&mut self, allocation: &Arc<Allocation>) {
        self.live.retain(|known| known.strong_count() > 0);
        self.live.push(Arc::downgrade(allocation));
    }

    fn find(&self, id: u64) -> Option<Arc<Allocation>> {
        self.live.iter().filter_map(Weak::upgrade).find(|allocation| allocation.id == id)
    }
}

/// Where a buffer lies, as posted to peers; index 0 when in no allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Place {
    pub(crate) index: u64,
    pub(crate) offset: u64,
}

impl Comm {
    /// The allocation a buffer lies in, and where.
    pub(crate) fn place(&self, buffer: &RawBuf) -> (Place, Option<Arc<Allocation>>) {
        let Some((id, offset)) = buffer.segment else { return (Place::default(), None) };
        let found = self.allocations.lock().unwrap_or_else(|e| e.into_inner()).find(id);
        match found {
            Some(allocation) => (Place { index: allocation.index, offset: offset as u64 }, Some(allocation)),
            None => (Place::default(), None),
        }
    }
}
