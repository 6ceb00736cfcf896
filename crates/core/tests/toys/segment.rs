//! Memory of a collective allocation: for threads, memory of this process.

use rankwise_core::backend::{RawBuf, RawSegment};
use rankwise_core::{Error, ErrorKind, MemorySpace, Result};
use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Segment {
    ptr: *mut u8,
    layout: Layout,
    id: u64,
}

// SAFETY: the address belongs to this value alone; what is done with the memory is the business of who holds the segment.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    pub(crate) fn new(bytes: usize) -> Result<Segment> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let none = || Error::new(ErrorKind::NoMemory { need: bytes as u64, limit: 0 }, "ask for a smaller segment");
        let layout = Layout::from_size_align(bytes.max(1), 64).map_err(|_| none())?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        if ptr.is_null() {
            return Err(none());
        }
        // Relaxed: only uniqueness matters.
        Ok(Segment { ptr, layout, id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }

    /// How a buffer in this segment is named; `None` for one that is not in it.
    pub(crate) fn place(&self, buf: &RawBuf) -> Option<(u64, usize)> {
        let offset = (buf.ptr as usize).checked_sub(self.ptr as usize)?;
        (buf.bytes > 0 && offset + buf.bytes <= self.layout.size()).then_some((self.id, offset))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.ptr, self.layout) };
    }
}

// SAFETY: the memory is this value's own and lives as long; the number comes from a counter.
unsafe impl RawSegment for Segment {
    fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    fn id(&self) -> u64 {
        self.id
    }
}
