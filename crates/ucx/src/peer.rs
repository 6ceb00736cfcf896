//! The way to one other rank: an endpoint, made when it is first needed.

use crate::log::listen;
use crate::worker::Worker;
use rankwise_core::Result;
use std::cell::Cell;
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::null_mut;
use ucx_sys::*;

/// Whether UCX watches a connection itself.
///
/// Shared memory can't be watched: asking for it makes UCX use TCP instead, or fail when it may not. So ranks of one host are not watched by
/// UCX, but by [`World::liveness`](rankwise_world::World::liveness).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watching {
    /// `UCP_ERR_HANDLING_MODE_NONE`.
    Ours,
    /// `UCP_ERR_HANDLING_MODE_PEER`.
    Ucx,
}

/// Another rank. Does not move once it has an endpoint, which refers to it.
pub(crate) struct Peer {
    address: Box<[u8]>,
    pub(crate) watching: Watching,
    pub(crate) near: bool,
    endpoint: Cell<ucp_ep_h>,
    /// What UCX told about the connection's end.
    broken: Cell<ucs_status_t>,
    /// Its requests end by themselves.
    closed: Cell<bool>,
}

impl Peer {
    pub(crate) fn new(address: Box<[u8]>, watching: Watching, near: bool) -> Peer {
        Peer {
            address,
            watching,
            near,
            endpoint: Cell::new(null_mut()),
            broken: Cell::new(ucs_status_t::UCS_OK),
            closed: Cell::new(false),
        }
    }

    /// Why the connection has ended, if UCX said so.
    #[inline]
    pub(crate) fn broken(&self) -> Option<ucs_status_t> {
        Some(self.broken.get()).filter(|status| *status != ucs_status_t::UCS_OK)
    }

    /// The endpoint. Making it may block for a moment (a connection is opened, never waited for).
    #[inline]
    pub(crate) fn endpoint(&self, worker: &Worker) -> Result<ucp_ep_h> {
        let endpoint = self.endpoint.get();
        if endpoint.is_null() { self.connect(worker) } else { Ok(endpoint) }
    }

    #[cold]
    fn connect(&self, worker: &Worker) -> Result<ucp_ep_h> {
        // SAFETY: zeros are valid in this structure of numbers and pointers.
        let mut params: ucp_ep_params_t = unsafe { zeroed() };
        use ucp_ep_params_field as field;
        params.field_mask =
            u64::from(field::UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | field::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
        params.address = self.address.as_ptr().cast();
        params.err_mode = ucp_err_handling_mode_t::UCP_ERR_HANDLING_MODE_NONE;
        if self.watching == Watching::Ucx {
            params.field_mask |= u64::from(field::UCP_EP_PARAM_FIELD_ERR_HANDLER);
            params.err_mode = ucp_err_handling_mode_t::UCP_ERR_HANDLING_MODE_PEER;
            params.err_handler = ucp_err_handler { cb: Some(broke), arg: (&raw const *self).cast_mut().cast() };
        }
        let mut endpoint = null_mut();
        // SAFETY: the address is one that UCX made, and complete; the handler's argument stays where it is until the worker is gone.
        let (status, said) = listen(|| unsafe { worker.ucx.ucp_ep_create(worker.worker, &params, &mut endpoint) });
        if status != ucs_status_t::UCS_OK {
            return Err(worker.failure("reaching another rank over UCX", status, &said));
        }
        self.endpoint.set(endpoint);
        Ok(endpoint)
    }

    /// Begins to close the endpoint. The request, if any, is done when it is closed. With `force` nothing is waited for, and all requests end;
    /// UCX has that only for connections that it watches.
    pub(crate) fn close(&self, worker: &Worker, force: bool) -> Option<*mut c_void> {
        let endpoint = self.endpoint.replace(null_mut());
        if endpoint.is_null() {
            return None;
        }
        self.closed.set(true);
        // SAFETY: zeros are valid in this structure of numbers and pointers.
        let mut param: ucp_request_param_t = unsafe { zeroed() };
        if force && self.watching == Watching::Ucx {
            param.op_attr_mask = ucp_op_attr_t::UCP_OP_ATTR_FIELD_FLAGS;
            param.flags = ucp_ep_close_flags_t::UCP_EP_CLOSE_FLAG_FORCE;
        }
        // SAFETY: an endpoint of this worker that is used no more.
        let (request, _) = listen(|| unsafe { worker.ucx.ucp_ep_close_nbx(endpoint, &param) });
        UCS_PTR_IS_PTR(request).then_some(request)
    }

    /// Whether the endpoint was closed; there is no other for this peer.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

/// UCX's error handler: runs inside `ucp_worker_progress`, on the thread that uses the worker.
unsafe extern "C" fn broke(peer: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    // SAFETY: the argument given in `connect`.
    let peer = unsafe { &*peer.cast::<Peer>() };
    peer.broken.set(status);
}
