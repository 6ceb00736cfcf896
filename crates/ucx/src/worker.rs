//! A UCX context with its worker.

use crate::library::{failure, succeeded};
use crate::log::listen;
use crate::settings::Transports;
use rankwise_core::{Error, Result};
use std::ffi::{CString, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use ucx_sys::*;

/// The worker of one rank, and the context it belongs to. One thread at a time may use it.
pub(crate) struct Worker {
    pub(crate) ucx: &'static Ucx,
    context: ucp_context_h,
    pub(crate) worker: ucp_worker_h,
    pub(crate) transports: Transports,
}

impl Worker {
    /// For a world of `ranks`, `local` of which are on this host.
    pub(crate) fn create(
        ucx: &'static Ucx,
        ranks: usize,
        local: usize,
        transports: Transports,
        threads: ucs_thread_mode_t::Type,
    ) -> Result<Worker> {
        let fails = |what: &str, status, said: &[String]| {
            let set: Vec<_> = transports.0.iter().map(|(name, value)| (*name, *value)).collect();
            failure(ucx, what, status, said, &set)
        };
        let mut config = null_mut();
        // SAFETY: no prefix and no file; the result is a place of ours.
        let (status, said) = listen(|| unsafe { ucx.ucp_config_read(std::ptr::null(), std::ptr::null(), &mut config) });
        succeeded(status, || fails("reading the settings of UCX", status, &said))?;
        for (name, value) in &transports.0 {
            let texts = CString::new(*name).and_then(|name| Ok((name, CString::new(*value)?)));
            let (name_text, value_text) = texts.map_err(|_| Error::config("a setting of UCX contains a zero byte"))?;
            // SAFETY: the config was read above; the texts end with zeros.
            let modify = || unsafe { ucx.ucp_config_modify(config, name_text.as_ptr(), value_text.as_ptr()) };
            let (status, said) = listen(modify);
            if status != ucs_status_t::UCS_OK {
                // SAFETY: read above, used no more.
                unsafe { ucx.ucp_config_release(config) };
                return Err(fails(&format!("setting {name} of UCX to {value}"), status, &said));
            }
        }
        // SAFETY: zeros are valid in this structure of numbers and pointers.
        let mut params: ucp_params_t = unsafe { zeroed() };
        use ucp_params_field as field;
        params.field_mask = u64::from(
            field::UCP_PARAM_FIELD_FEATURES
                | field::UCP_PARAM_FIELD_TAG_SENDER_MASK
                | field::UCP_PARAM_FIELD_MT_WORKERS_SHARED
                | field::UCP_PARAM_FIELD_ESTIMATED_NUM_EPS
                | field::UCP_PARAM_FIELD_ESTIMATED_NUM_PPN,
        );
        params.features = u64::from(ucp_feature::UCP_FEATURE_TAG);
        params.tag_sender_mask = 0xffff << 48;
        params.estimated_num_eps = ranks;
        params.estimated_num_ppn = local;
        let mut context = null_mut();
        let (status, said) = listen(|| {
            // SAFETY: the parameters' mask names the fields that are set; the result is a place of ours.
            let status = unsafe { ucx.ucp_init_version(OLDEST.0, OLDEST.1, &params, config, &mut context) };
            // SAFETY: read above, used no more.
            unsafe { ucx.ucp_config_release(config) };
            status
        });
        succeeded(status, || fails("starting UCX", status, &said))?;
        // From here on dropped as a whole.
        let mut this = Worker { ucx, context, worker: null_mut(), transports };
        // SAFETY: zeros are valid in this structure of numbers and pointers.
        let mut params: ucp_worker_params_t = unsafe { zeroed() };
        params.field_mask = u64::from(ucp_worker_params_field::UCP_WORKER_PARAM_FIELD_THREAD_MODE);
        params.thread_mode = threads;
        // SAFETY: as above.
        let (status, more) = listen(|| unsafe { ucx.ucp_worker_create(context, &params, &mut this.worker) });
        let said = [said, more].concat();
        if status != ucs_status_t::UCS_OK {
            return Err(this.failure("making a worker of UCX", status, &said));
        }
        for line in said {
            tracing::warn!("UCX: {line}");
        }
        Ok(this)
    }

    /// The error for a function that failed.
    #[cold]
    pub(crate) fn failure(&self, what: &str, status: ucs_status_t, said: &[String]) -> Error {
        failure(self.ucx, what, status, said, &self.transports.0)
    }

    /// What others need to reach it.
    pub(crate) fn address(&self) -> Result<Vec<u8>> {
        let (mut address, mut length) = (null_mut(), 0);
        // SAFETY: a worker; the results are places of ours.
        let (status, said) =
            listen(|| unsafe { self.ucx.ucp_worker_get_address(self.worker, &mut address, &mut length) });
        succeeded(status, || self.failure("asking UCX for the address of a worker", status, &said))?;
        // SAFETY: the address has this length, and is released after it was copied.
        unsafe {
            let bytes = std::slice::from_raw_parts(address.cast::<u8>(), length).to_vec();
            self.ucx.ucp_worker_release_address(self.worker, address);
            Ok(bytes)
        }
    }

    /// Moves messages. True when something moved.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        // SAFETY: a worker, used by one thread at a time.
        unsafe { self.ucx.ucp_worker_progress(self.worker) != 0 }
    }

    /// The status of a request; when it is done, the request is freed.
    ///
    /// # Safety
    ///
    /// A request of this worker that has not been freed.
    #[inline]
    pub(crate) unsafe fn test(&self, request: *mut c_void) -> Option<ucs_status_t> {
        // SAFETY: the caller's promise.
        let status = unsafe { self.ucx.ucp_request_check_status(request) };
        if status == ucs_status_t::UCS_INPROGRESS {
            return None;
        }
        // SAFETY: done, and not used again.
        unsafe { self.ucx.ucp_request_free(request) };
        Some(status)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // What UCX finds unfinished it reports as warnings, about which nobody can do anything any more.
        let ((), said) = listen(|| {
            // SAFETY: made in `create` and used no more. Without a worker there is none to destroy.
            unsafe {
                if !self.worker.is_null() {
                    self.ucx.ucp_worker_destroy(self.worker);
                }
                self.ucx.ucp_cleanup(self.context);
            }
        });
        for line in said {
            tracing::debug!("UCX, closing: {line}");
        }
    }
}
