//! Messages that nobody wants are taken and thrown away, so that those who sent them are not left waiting.

use crate::request::Request;
use crate::transport::{Posted, UcxTransport};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use ucx_sys::*;

/// The bits of a tag that [`Tag::pack`](rankwise_schedule::Tag::pack) gives to the communicator.
const COMMUNICATOR: u64 = 0xffff << 32;

/// Messages of communicators that are given up.
#[derive(Default)]
pub(crate) struct Discarded {
    pub(crate) any: Cell<bool>,
    communicators: RefCell<Vec<u16>>,
    /// Requests that throw data away.
    pub(crate) under_way: RefCell<Vec<*mut c_void>>,
}

impl UcxTransport {
    /// From now on what arrives for a communicator and is not received is thrown away. This lets ranks go that send to one which has given up.
    pub fn abandon(&self, communicator: u16) {
        self.discarded.communicators.borrow_mut().push(communicator);
        self.discarded.any.set(true);
    }

    /// Takes [`UcxTransport::abandon`] back, before the number is used again.
    pub fn adopt(&self, communicator: u16) {
        self.discarded.communicators.borrow_mut().retain(|abandoned| *abandoned != communicator);
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
        let communicators = self.discarded.communicators.borrow();
        // SAFETY: requests of this worker, freed by the test that says they are done, and removed then.
        under_way.retain(|request| unsafe { self.worker.test(*request) }.is_none());
        let mut moved = false;
        for communicator in communicators.iter() {
            let tag = u64::from(*communicator) << 32;
            loop {
                let mut info = ucp_tag_recv_info_t { sender_tag: 0, length: 0 };
                // SAFETY: the worker; the info is a place of ours.
                let message =
                    unsafe { self.worker.ucx.ucp_tag_probe_nb(self.worker.worker, tag, COMMUNICATOR, 1, &mut info) };
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
        self.discarded.any.set(!communicators.is_empty() || !under_way.is_empty());
        moved
    }
}
