//! Messages under way.

use rankwise_core::Error;
use rankwise_core::descriptor::Words;
use rankwise_schedule::Lent;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

/// A call's first message carries its descriptor: payloads up to this many bytes travel behind it, longer ones in a message of their own.
pub(crate) const TOGETHER: usize = 4096;

/// Bytes of a descriptor on its way: three words, and the length of the payload.
pub(crate) const HEAD: usize = 32;

/// A descriptor with a short payload on its way. Its memory is ours, since UCX may use it longer than the call that made it.
#[repr(C, align(64))]
pub(crate) struct Staging {
    pub(crate) bytes: [u8; HEAD + TOGETHER],
    /// UCX's request.
    pub(crate) head: *mut c_void,
    /// The descriptor that a receiver expects.
    pub(crate) words: Words,
}

impl Staging {
    pub(crate) fn new() -> Box<Staging> {
        Box::new(Staging { bytes: [0; HEAD + TOGETHER], head: null_mut(), words: [0; 3] })
    }

    pub(crate) fn set_head(&mut self, words: Words, payload: usize) {
        let fields = words.into_iter().chain([payload as u64]);
        for (place, field) in self.bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
    }

    /// Descriptor, and length of the payload as the sender tells it.
    pub(crate) fn head(&self) -> (Words, u64) {
        let field = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.bytes[8 * index..8 * index + 8]);
            u64::from_le_bytes(bytes)
        };
        ([field(0), field(1), field(2)], field(3))
    }
}

/// A message under way, in one or two of UCX's requests.
///
/// Not tested to its end, it leaves the lent memory lent, and its own memory is never freed.
pub struct Request {
    /// The payload or the whole, as UCX's request. Null when there is none or it is done.
    pub(crate) body: *mut c_void,
    pub(crate) lent: Lent,
    /// The message with the descriptor, until it is done.
    pub(crate) staging: Option<Box<Staging>>,
    /// Told when both messages are done.
    pub(crate) error: Option<Error>,
    pub(crate) tag: u64,
    /// Its end was asked for.
    pub(crate) cancelled: bool,
    /// When, and after how many empty passes of progress, the death of the other side was known.
    pub(crate) dead: Option<(Duration, u64)>,
    pub(crate) peer: u32,
    pub(crate) sends: bool,
    /// A payload of another call follows, to be thrown away.
    pub(crate) discards: bool,
}

// SAFETY: requests of UCX belong to a worker, not to a thread; they are given to the transport only, which one thread at a time uses.
unsafe impl Send for Request {}

impl Request {
    #[inline]
    pub(crate) fn new(peer: usize, sends: bool, tag: u64, lent: Lent) -> Request {
        let peer = peer as u32;
        Request {
            body: null_mut(),
            lent,
            staging: None,
            error: None,
            tag,
            cancelled: false,
            dead: None,
            peer,
            sends,
            discards: false,
        }
    }

    /// Whether both messages are done.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.staging.is_none() && self.body.is_null()
    }

    #[inline]
    pub(crate) fn peer(&self) -> usize {
        self.peer as usize
    }

    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // UCX still uses it.
        std::mem::forget(self.staging.take());
    }
}
