//! Atomics of the protocol core, replaceable by loom's, and the two fences it needs.

#[cfg(not(loom))]
mod real {
    use std::cell::UnsafeCell;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// Bytes of payload in a call slot.
    pub(crate) const PAYLOAD: usize = 480;

    /// The payload of a call slot: plain memory, ordered by the slot's sequence number.
    #[repr(C)]
    pub(crate) struct Payload(UnsafeCell<[u8; PAYLOAD]>);

    impl Payload {
        /// First byte. Writing needs a writable mapping and the slot not to be published.
        pub(crate) fn as_ptr(&self) -> *mut u8 {
            self.0.get().cast()
        }
    }

    // SAFETY: access goes through raw pointers, by the owner before publication and by readers after it.
    unsafe impl Sync for Payload {}

    /// Stores with release ordering, and so that later loads of this thread, relaxed ones too, can't come before it.
    #[inline]
    pub(crate) fn store_then_fence(word: &AtomicU64, value: u64) {
        if cfg!(target_arch = "x86_64") {
            // `xchg` is a full barrier there, cheaper than a store and `mfence`; the swap's acquire half keeps the
            // compiler from moving later loads up.
            word.swap(value, Ordering::SeqCst);
        } else {
            word.store(value, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// The payload of a call slot: a cell whose unsynchronised use fails the model.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) struct Payload(pub(crate) loom::cell::UnsafeCell<u64>);

    // SAFETY: loom checks every access.
    unsafe impl Sync for Payload {}

    /// As on every processor but x86-64.
    pub(crate) fn store_then_fence(word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
pub(crate) use modelled::*;
#[cfg(not(loom))]
pub(crate) use real::*;
