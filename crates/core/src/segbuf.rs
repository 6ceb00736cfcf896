//! [`SegBuf`]: memory from a collective allocation, and the table that finds it by address.

#![allow(unsafe_code)]

use crate::backend::RawSegment;
use crate::buffer::Side;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::Generation;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer that operations on the communicator it came from can use without copies.
///
/// From [`Communicator::alloc`](crate::Communicator::alloc). It owns its mapping and outlives the communicator; used
/// with another communicator it is ordinary memory. Dereferences to `[T]`.
pub struct SegBuf<T: Pod> {
    first: *mut T,
    len: usize,
    segment: ManuallyDrop<Arc<dyn RawSegment>>,
    table: Arc<SegmentTable>,
    generation: Generation,
    elements: PhantomData<T>,
}

// SAFETY: owns its elements as a `Vec<T>` does; the segment and the table are Send and Sync.
unsafe impl<T: Pod + Send> Send for SegBuf<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Pod + Sync> Sync for SegBuf<T> {}

impl<T: Pod> SegBuf<T> {
    /// Takes over a fresh segment of at least `len` elements: zeroes it and makes it known to `table`.
    pub(crate) fn new(segment: Arc<dyn RawSegment>, len: usize, table: &Arc<SegmentTable>) -> Result<SegBuf<T>> {
        let first = segment.ptr();
        let bytes = len.checked_mul(size_of::<T>());
        if bytes.is_none_or(|bytes| bytes > segment.bytes()) || !first.cast::<T>().is_aligned() {
            return Err(Error::new(
                ErrorKind::Engine {
                    library: "backend".into(),
                    code: 0,
                    text: format!("{} bytes at {first:p} for {len} elements", segment.bytes()),
                },
                "the backend returned a segment that is too small or not aligned; report this to its authors",
            ));
        }
        // SAFETY: a RawSegment is valid for writes for its whole length; checked above. Nobody else knows it yet.
        unsafe { first.write_bytes(0, bytes.unwrap_or(0)) };
        table.add(first as usize, segment.bytes(), segment.id());
        Ok(SegBuf {
            first: first.cast(),
            len,
            segment: ManuallyDrop::new(segment),
            table: table.clone(),
            generation: Generation::current(),
            elements: PhantomData,
        })
    }

    pub(crate) fn side(&self) -> Side {
        Side { ptr: self.first.cast(), len: self.len, present: true }
    }
}

impl<T: Pod> Deref for SegBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked size and alignment and initialised the memory; it lives as long as the segment. An
        // engine writes it only inside a call, which holds the buffer or a `&mut` to it.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T: Pod> DerefMut for SegBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and engines read it only inside a call, which holds a borrow.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T: Pod> Drop for SegBuf<T> {
    fn drop(&mut self) {
        // In a forked child another thread may have held the table's lock.
        if self.generation.is_current() {
            self.table.remove(self.segment.id());
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.segment) };
        }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for SegBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The live segments of one communicator on this rank.
#[derive(Default)]
pub(crate) struct SegmentTable {
    /// Changes with every addition and removal; 0 while there never was one.
    version: AtomicU64,
    live: Mutex<Vec<Range>>,
}

#[derive(Clone, Copy)]
struct Range {
    start: usize,
    bytes: usize,
    id: u64,
}

impl SegmentTable {
    fn add(&self, start: usize, bytes: usize, id: u64) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.push(Range { start, bytes, id });
        // Release pairs with the acquire in SegmentView::find, though the lock there would do.
        self.version.fetch_add(1, Ordering::Release);
    }

    fn remove(&self, id: u64) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|range| range.id != id);
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// A caller's copy of a [`SegmentTable`], so that a call takes no lock.
#[derive(Default)]
pub(crate) struct SegmentView {
    version: u64,
    live: Vec<Range>,
}

impl SegmentView {
    /// The segment that holds all of `bytes` at `ptr`, and the offset in it.
    #[inline]
    pub(crate) fn find(&mut self, table: &SegmentTable, ptr: *const u8, bytes: usize) -> Option<(u64, usize)> {
        let version = table.version.load(Ordering::Acquire);
        if version != self.version {
            self.refresh(table);
        }
        if self.live.is_empty() { None } else { self.search(ptr as usize, bytes) }
    }

    fn search(&self, start: usize, bytes: usize) -> Option<(u64, usize)> {
        self.live.iter().find_map(|range| {
            let offset = start.checked_sub(range.start)?;
            (bytes > 0 && offset < range.bytes && bytes <= range.bytes - offset).then_some((range.id, offset))
        })
    }

    #[cold]
    fn refresh(&mut self, table: &SegmentTable) {
        let live = table.live.lock().unwrap_or_else(PoisonError::into_inner);
        self.live.clone_from(&live);
        // Changes happen under the lock, so that this version belongs to the copy.
        self.version = table.version.load(Ordering::Relaxed);
    }
}
