//! Short messages outside every call: what members of a communicator tell each other when something goes wrong.

use crate::request::Staging;
use crate::transport::UcxTransport;
use rankwise_core::Result;
use rankwise_core::descriptor::Words;
use rankwise_schedule::Tag;
use std::ffi::c_void;
use ucx_sys::*;

/// The lane of these messages; their communicator is 0, which no communicator has.
const LANE: u8 = 14;

/// The bits of a tag that say so.
const LANE_BITS: u64 = 0xf << 12;

const FIELDS: usize = 6;

/// One message, as it is sent: what the fields mean is the receiver's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The other side.
    pub peer: usize,
    /// What is said.
    pub fields: [u64; FIELDS],
}

/// A word on its way, and the memory it is in.
pub(crate) struct UnderWay(*mut c_void, Box<[u8; 8 * FIELDS]>);

impl UcxTransport {
    /// Sends a word and returns at once. It is on its way as long as the transport is progressed.
    pub fn tell(&self, word: Word) -> Result<()> {
        let mut bytes = Box::new([0; 8 * FIELDS]);
        for (place, field) in bytes.chunks_exact_mut(8).zip(word.fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let tag = Tag { communicator: 0, sequence: 0, lane: LANE, round: 0 }.pack(self.world().rank() as u16);
        // SAFETY: the memory is kept until the request is done.
        let request = unsafe { self.post_send(word.peer, tag, bytes.as_ptr(), bytes.len()) }?;
        let mut words = self.words.borrow_mut();
        words.retain_mut(|word| !self.is_over(word));
        if !request.is_null() {
            words.push(UnderWay(request, bytes));
        }
        Ok(())
    }

    /// Whether all words have been sent.
    pub fn is_said(&self) -> bool {
        let mut words = self.words.borrow_mut();
        words.retain_mut(|word| !self.is_over(word));
        words.is_empty()
    }

    fn is_over(&self, word: &mut UnderWay) -> bool {
        // SAFETY: a request of this worker, freed by the test that says it is done, and set to null then.
        let over = unsafe { self.worker.test(word.0) }.is_some();
        if over {
            word.0 = std::ptr::null_mut();
        }
        over
    }

    /// The first message of a collective call up to `sequence` that has arrived and that no receive waits for: its sender, number and descriptor. It is taken out,
    /// and what else comes of that call is thrown away. Once a member has ended a call there is none, unless others have called something else.
    pub fn leftover(&self, communicator: u16, sequence: u64) -> Option<(usize, u64, Words)> {
        let mut info = ucp_tag_recv_info_t { sender_tag: 0, length: 0 };
        let tag = u64::from(communicator) << 32 | 0xfff;
        let bits = 0xffff << 32 | 1 << 15 | 0xfff;
        // SAFETY: the worker; the info is a place of ours; the message is only looked at.
        let found = unsafe { self.worker.ucx.ucp_tag_probe_nb(self.worker.worker, tag, bits, 0, &mut info) };
        if found.is_null() {
            return None;
        }
        let age = (sequence as u16).wrapping_sub((info.sender_tag >> 16) as u16);
        if age >= 1 << 15 || u64::from(age) >= sequence {
            return None;
        }
        // SAFETY: as above; the message is taken out.
        let message =
            unsafe { self.worker.ucx.ucp_tag_probe_nb(self.worker.worker, info.sender_tag, u64::MAX, 1, &mut info) };
        if message.is_null() {
            return None;
        }
        let (peer, number) = ((info.sender_tag >> 48) as usize, sequence - u64::from(age));
        let mut staging = Staging::new();
        let param = self.sends;
        // SAFETY: received once, into memory that lives until the request is done.
        let request = unsafe {
            let (into, length) = (staging.bytes.as_mut_ptr().cast(), staging.bytes.len());
            self.worker.ucx.ucp_tag_msg_recv_nbx(self.worker.worker, into, length, message, &param)
        };
        if UCS_PTR_IS_PTR(request) {
            // SAFETY: a request of this worker, freed by the test that says it is done.
            while unsafe { self.worker.test(request) }.is_none() {
                self.worker.progress();
            }
        }
        self.abandon_call(communicator, number);
        Some((peer, number, staging.head().0))
    }

    /// A word that has arrived.
    pub fn heard(&self) -> Option<Word> {
        let mut info = ucp_tag_recv_info_t { sender_tag: 0, length: 0 };
        let tag = u64::from(LANE) << 12;
        // SAFETY: the worker; the info is a place of ours.
        let message = unsafe { self.worker.ucx.ucp_tag_probe_nb(self.worker.worker, tag, LANE_BITS, 1, &mut info) };
        if message.is_null() {
            return None;
        }
        let mut bytes = Box::new([0_u8; 8 * FIELDS]);
        let param = self.sends;
        // SAFETY: a message that was taken out of the queue, received once, into memory that lives until the request is done.
        let request = unsafe {
            let (into, length) = (bytes.as_mut_ptr().cast(), bytes.len());
            self.worker.ucx.ucp_tag_msg_recv_nbx(self.worker.worker, into, length, message, &param)
        };
        if UCS_PTR_IS_PTR(request) {
            // Words are short enough to have arrived whole.
            // SAFETY: a request of this worker, freed by the test that says it is done.
            while unsafe { self.worker.test(request) }.is_none() {
                self.worker.progress();
            }
        }
        let mut fields = [0; FIELDS];
        for (field, place) in fields.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *field = u64::from_le_bytes(*place);
        }
        (info.length == bytes.len()).then_some(Word { peer: (info.sender_tag >> 48) as usize, fields })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // UCX may still read it.
            std::mem::forget(std::mem::replace(&mut self.1, Box::new([0; 8 * FIELDS])));
        }
    }
}
