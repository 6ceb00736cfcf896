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

/// A descriptor with a short payload. Its memory is ours, since UCX may use it longer than the call that made it.
#[repr(C, align(64))]
pub(crate) struct Staging {
    pub(crate) bytes: [u8; HEAD + TOGETHER],
}

impl Staging {
    pub(crate) fn new() -> Box<Staging> {
        Box::new(Staging { bytes: [0; HEAD + TOGETHER] })
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
    pub(crate) peer: usize,
    pub(crate) sends: bool,
    pub(crate) tag: u64,
    pub(crate) lent: Lent,
    /// The descriptor, on the first message of a call.
    pub(crate) words: Option<Words>,
    /// The message with the descriptor. Null when there is none or it is done.
    pub(crate) head: *mut c_void,
    /// Its memory, until it is done.
    pub(crate) staging: Option<Box<Staging>>,
    /// The payload, as above.
    pub(crate) body: *mut c_void,
    /// A payload of another call follows, to be thrown away.
    pub(crate) discards: bool,
    /// When the end was asked for.
    pub(crate) cancelled: Option<Duration>,
    /// Told when both messages are done.
    pub(crate) error: Option<Error>,
}

// SAFETY: requests of UCX belong to a worker, not to a thread; they are given to the transport only, which one thread at a time uses.
unsafe impl Send for Request {}

impl Request {
    pub(crate) fn new(peer: usize, sends: bool, tag: u64, lent: Lent, words: Option<Words>) -> Request {
        Request {
            peer,
            sends,
            tag,
            lent,
            words,
            head: null_mut(),
            staging: None,
            body: null_mut(),
            discards: false,
            cancelled: None,
            error: None,
        }
    }

    /// Whether both messages are done.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.head.is_null() && self.body.is_null()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.head.is_null() {
            std::mem::forget(self.staging.take());
        }
    }
}
