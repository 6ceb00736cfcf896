//! The first message of a call between two ranks: it carries the call's descriptor.

use crate::request::{HEAD, Request, Staging, TOGETHER};
use crate::transport::{Posted, UcxTransport, other_length};
use rankwise_core::descriptor::Words;
use rankwise_core::{Error, Result};
use rankwise_schedule::{Envelope, Lent, mismatch};
use ucx_sys::ucs_status_t;

impl UcxTransport {
    fn staging(&self) -> Box<Staging> {
        self.spare.borrow_mut().pop().unwrap_or_else(Staging::new)
    }

    /// The first message of a call.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    pub(crate) unsafe fn send_first(
        &self,
        to: Envelope,
        words: Words,
        tag: u64,
        data: Lent,
    ) -> Result<Option<Request>> {
        let mut request = Request::new(to.peer, true, tag, data);
        let mut staging = self.staging();
        staging.set_head(words, data.bytes);
        let together = data.bytes <= TOGETHER;
        let behind = if together { data.bytes } else { 0 };
        // SAFETY: readable by the caller's promise, and the staging memory has the room.
        unsafe { std::ptr::copy_nonoverlapping(data.ptr, staging.bytes[HEAD..].as_mut_ptr(), behind) };
        // SAFETY: the request keeps the staging memory until it is done.
        staging.head = unsafe { self.post_send(to.peer, tag, staging.bytes.as_ptr(), HEAD + behind) }?;
        if staging.head.is_null() {
            self.spare.borrow_mut().push(staging);
        } else {
            request.staging = Some(staging);
        }
        if !together {
            // SAFETY: the caller's promise.
            match unsafe { self.post_send(to.peer, tag, data.ptr, data.bytes) } {
                Ok(body) => request.body = body,
                // Told once the first message is done.
                Err(error) => request.error = Some(error),
            }
        }
        self.under_way(request)
    }

    /// As [`UcxTransport::send_first`], at the other end.
    ///
    /// # Safety
    ///
    /// As [`Transport::receive`].
    pub(crate) unsafe fn receive_first(&self, from: Envelope, tag: u64, data: Lent) -> Result<Option<Request>> {
        let mut request = Request::new(from.peer, false, tag, data);
        let mut staging = self.staging();
        staging.words = from.words.unwrap_or_default();
        let (memory, room) = (staging.bytes.as_mut_ptr(), staging.bytes.len());
        // SAFETY: the request keeps the staging memory until it is done.
        match unsafe { self.post_receive(tag, memory, room) } {
            Posted::UnderWay(head) => {
                staging.head = head;
                request.staging = Some(staging);
            }
            Posted::Ended(status, length) => self.head_ended(&mut request, staging, status, length),
        }
        if data.bytes > TOGETHER && request.error.is_none() {
            // SAFETY: the caller's promise.
            match unsafe { self.post_receive(tag, data.ptr, data.bytes) } {
                Posted::UnderWay(body) => request.body = body,
                Posted::Ended(status, length) => self.body_ended(&mut request, status, length),
            }
        }
        self.under_way(request)
    }

    /// Looks whether the first message of a call has arrived or left.
    #[inline]
    pub(crate) fn test_first(&self, request: &mut Request) {
        if let Some(staging) = &mut request.staging
            && let Some((status, length)) = self.poll(&mut staging.head, request.sends)
            && let Some(staging) = request.staging.take()
        {
            self.head_ended(request, staging, status, length);
        }
    }

    /// Takes up the first message of a call, with its descriptor.
    fn head_ended(&self, request: &mut Request, staging: Box<Staging>, status: ucs_status_t, length: usize) {
        self.judge(request, &staging, status, length);
        self.spare.borrow_mut().push(staging);
    }

    fn judge(&self, request: &mut Request, staging: &Staging, status: ucs_status_t, length: usize) {
        if status != ucs_status_t::UCS_OK {
            if !request.is_cancelled() {
                let error = match status {
                    ucs_status_t::UCS_ERR_MESSAGE_TRUNCATED => other_length(request.peer(), None, request.lent.bytes),
                    _ => self.ended(request.peer(), status),
                };
                self.fail(request, error, false);
            }
            return;
        }
        if request.sends {
            return;
        }
        if length < HEAD {
            return self.fail(request, other_length(request.peer(), Some(length as u64), request.lent.bytes), false);
        }
        let (theirs, told) = staging.head();
        let body_follows = told > TOGETHER as u64;
        let ours = staging.words;
        let payload = length - HEAD;
        if theirs != ours {
            self.fail(request, mismatch(request.peer(), theirs, ours), body_follows);
        } else if told != request.lent.bytes as u64 || (!body_follows && payload != request.lent.bytes) {
            self.fail(request, other_length(request.peer(), Some(told), request.lent.bytes), body_follows);
        } else if !body_follows {
            // SAFETY: lent for writing and as long as the payload, which is within the staging memory.
            unsafe { std::ptr::copy_nonoverlapping(staging.bytes[HEAD..].as_ptr(), request.lent.ptr, payload) };
        }
    }

    /// Ends a receive with an error, once UCX has let go of its memory. A sender that waits to have its payload taken is let go.
    #[cold]
    fn fail(&self, request: &mut Request, error: Error, body_follows: bool) {
        request.error.get_or_insert(error);
        request.discards = body_follows;
        if request.body.is_null() {
            self.discard_body(request);
        } else {
            // Unless the payload is in the middle of arriving.
            self.cancel_receive(request.body);
        }
    }
}
