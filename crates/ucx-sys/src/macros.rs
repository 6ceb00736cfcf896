//! What the headers have as macros and inline functions.

#![allow(non_snake_case)]

use crate::layout::{ucp_datatype_t, ucp_dt_type, ucs_status_ptr_t, ucs_status_t};
use std::ffi::c_schar;

/// Whether what an nbx function returned is an error instead of a request.
#[inline]
pub fn UCS_PTR_IS_ERR(pointer: ucs_status_ptr_t) -> bool {
    pointer as usize >= ucs_status_t::UCS_ERR_LAST.0 as usize
}

/// Whether what an nbx function returned is a request: not null, which is success, and no error.
#[inline]
pub fn UCS_PTR_IS_PTR(pointer: ucs_status_ptr_t) -> bool {
    (pointer as usize).wrapping_sub(1) < (ucs_status_t::UCS_ERR_LAST.0 as usize).wrapping_sub(1)
}

/// The status in what an nbx function returned, when it is not a request.
#[inline]
pub fn UCS_PTR_RAW_STATUS(pointer: ucs_status_ptr_t) -> ucs_status_t {
    ucs_status_t(pointer as isize as c_schar)
}

/// Contiguous elements of so many bytes.
#[inline]
pub const fn ucp_dt_make_contig(bytes: usize) -> ucp_datatype_t {
    (bytes as ucp_datatype_t) << ucp_dt_type::UCP_DATATYPE_SHIFT | ucp_dt_type::UCP_DATATYPE_CONTIG as ucp_datatype_t
}

/// Bytes: the datatype where none is given.
pub const UCP_DT_BYTE: ucp_datatype_t = ucp_dt_make_contig(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null_mut, without_provenance_mut};

    #[test]
    fn pointers_are_success_requests_or_errors() {
        let error = |status: ucs_status_t| without_provenance_mut(status.0 as isize as usize);
        assert!(!UCS_PTR_IS_ERR(null_mut()) && !UCS_PTR_IS_PTR(null_mut()));
        assert_eq!(UCS_PTR_RAW_STATUS(null_mut()), ucs_status_t::UCS_OK);
        let request = Box::into_raw(Box::new(0_u64));
        assert!(!UCS_PTR_IS_ERR(request.cast()) && UCS_PTR_IS_PTR(request.cast()));
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(request) });
        for status in [ucs_status_t::UCS_ERR_NO_MESSAGE, ucs_status_t::UCS_ERR_CANCELED, ucs_status_t::UCS_ERR_LAST] {
            assert!(UCS_PTR_IS_ERR(error(status)) && !UCS_PTR_IS_PTR(error(status)), "{status:?}");
            assert_eq!(UCS_PTR_RAW_STATUS(error(status)), status);
        }
        assert_eq!((UCP_DT_BYTE, ucp_dt_make_contig(4)), (8, 32));
    }
}
