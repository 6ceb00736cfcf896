//! Owned bytes on a cache line boundary.

#![allow(unsafe_code)]

use crate::error::{Error, ErrorKind, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of tensors and segments: a cache line, and the widest vector.
pub(crate) const ALIGNMENT: usize = 64;

/// Zeroed bytes, aligned to [`ALIGNMENT`].
pub(crate) struct AlignedBytes {
    first: NonNull<u8>,
    layout: Layout,
}

// SAFETY: owns its bytes as a `Vec<u8>` does.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only hands out the address.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `NoMemory` when the system has none.
    pub(crate) fn zeroed(len: usize) -> Result<AlignedBytes> {
        let none = || {
            Error::new(
                ErrorKind::NoMemory { need: len as u64, limit: 0 },
                "memory for a result could not be allocated; use a smaller tensor",
            )
        };
        let layout = Layout::from_size_align(len, ALIGNMENT).map_err(|_| none())?;
        if len == 0 {
            // Aligned and never dereferenced.
            let first = NonNull::new(std::ptr::without_provenance_mut(ALIGNMENT)).ok_or_else(none)?;
            return Ok(AlignedBytes { first, layout });
        }
        // SAFETY: the layout is not empty.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(none)?;
        Ok(AlignedBytes { first, layout })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: valid and initialised for the layout's size.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.layout.size()) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated with this layout in `zeroed`.
            unsafe { dealloc(self.first.as_ptr(), self.layout) };
        }
    }
}
