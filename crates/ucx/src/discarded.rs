//! Messages that nobody wants are taken and thrown away, so that those who sent them are not left waiting.

use crate::request::Request;
use crate::transport::{Posted, UcxTransport};
use rankwise_schedule::Tag;
use rankwise_schedule::transport::PAIR_LANE;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use ucx_sys::*;

/// The bits of a tag that [`Tag::pack`] gives to the communicator.
const COMMUNICATOR: u64 = 0xffff << 32;
/// And to the call.
const SEQUENCE: u64 = 0xffff << 16;
/// Those of both, and of the lane the one that all lanes of collectives lack.
const CALL: u64 = COMMUNICATOR | SEQUENCE | 1 << 15;

/// Messages of communicators and calls that are given up.
#[derive(Default)]
pub(crate) struct Discarded {
    pub(crate) any: Cell<bool>,
    /// Tags and the bits of them that count.
    tags: RefCell<Vec<(u64, u64)>>,
    /// Requests that throw data away.
    pub(crate) under_way: RefCell<Vec<*mut c_void>>,
}

impl UcxTransport {
    /// From now on what arrives for a communicator and is not received is thrown away. This lets ranks go that send to one which has given up.
    pub fn abandon(&self, communicator: u16) {
        self.discard_tag(u64::from(communicator) << 32, COMMUNICATOR);
    }

    /// As [`UcxTransport::abandon`], of one collective call.
    pub fn abandon_call(&self, communicator: u16, sequence: u64) {
        self.discard_tag(u64::from(communicator) << 32 | (sequence & 0xffff) << 16, CALL);
    }

    /// As [`UcxTransport::abandon_call`], of one message of a pair, sent by `from`.
    pub fn abandon_message(&self, from: usize, communicator: u16, sequence: u64) {
        let tag = Tag { communicator, sequence, lane: PAIR_LANE, round: 0 };
        self.discard_tag(tag.pack(from as u16), !0xfff);
    }

    /// Takes [`UcxTransport::abandon_call`] and [`UcxTransport::abandon_message`] back for numbers that come again.
    pub fn forget_call(&self, communicator: u16, sequence: u64) {
        let call = u64::from(communicator) << 32 | (sequence & 0xffff) << 16;
        let is_other = |(tag, bits): &(u64, u64)| *bits == COMMUNICATOR || tag & (COMMUNICATOR | SEQUENCE) != call;
        self.discarded.tags.borrow_mut().retain(is_other);
    }

    fn discard_tag(&self, tag: u64, bits: u64) {
        let mut tags = self.discarded.tags.borrow_mut();
        if !tags.contains(&(tag, bits)) {
            tags.push((tag, bits));
        }
        self.discarded.any.set(true);
    }

    /// Takes [`UcxTransport::abandon`] back, before the number is used again.
    pub fn adopt(&self, communicator: u16) {
        let given_up = u64::from(communicator) << 32;
        self.discarded.tags.borrow_mut().retain(|(tag, _)| tag & COMMUNICATOR != given_up);
    }

    /// Takes the payload of another call out of the way, when it comes.
    #[cold]
    pub(crate) fn discard_body(&self, request: &mut Request) {
        if std::mem::take(&mut request.discards) {
            // SAFETY: no memory.
            if let Posted::UnderWay(body) = unsafe { self.post_receive(request.tag, null_mut(), 0) } {
                self.discarded.under_way.borrow_mut().push(body);
                self.discarded.any.set(true);
            }
        }
    }

    /// Throws away what has arrived for communicators that are given up.
    #[cold]
    pub(crate) fn discard(&self) -> bool {
        let mut under_way = self.discarded.under_way.borrow_mut();
        let tags = self.discarded.tags.borrow();
        // SAFETY: requests of this worker, freed by the test that says they are done, and removed then.
        under_way.retain(|request| unsafe { self.worker.test(*request) }.is_none());
        let mut moved = false;
        for (tag, bits) in tags.iter() {
            loop {
                let mut info = ucp_tag_recv_info_t { sender_tag: 0, length: 0 };
                // SAFETY: the worker; the info is a place of ours.
                let message =
                    unsafe { self.worker.ucx.ucp_tag_probe_nb(self.worker.worker, *tag, *bits, 1, &mut info) };
                if message.is_null() {
                    break;
                }
                moved = true;
                // SAFETY: a message that was taken out of the queue, received once, into no memory.
                let request = unsafe {
                    self.worker.ucx.ucp_tag_msg_recv_nbx(self.worker.worker, null_mut(), 0, message, &self.sends)
                };
                under_way.extend(UCS_PTR_IS_PTR(request).then_some(request));
            }
        }
        self.discarded.any.set(!tags.is_empty() || !under_way.is_empty());
        moved
    }
}
