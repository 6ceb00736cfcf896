//! Moving bytes between buffers: the one place to tune copies for all backends.

/// Copies `len` bytes from `src` to `dst`. No alignment needed.
///
/// At present `memcpy`, which the C library already dispatches by processor and size.
///
/// # Safety
///
/// `src` is readable and `dst` writable for `len` bytes, and the two do not overlap. Bytes that another process writes
/// meanwhile arrive in an unspecified state; a write from within this process is a data race and must not happen.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: exactly the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn moves_exactly_the_bytes_asked_for() {
        let src: Vec<u8> = (0..=255).collect();
        for len in 0..=200 {
            let mut dst = vec![0xA5u8; 256];
            // SAFETY: both vectors hold 256 bytes and `3 + 200`, `7 + 200` stay inside.
            unsafe { super::copy(dst.as_mut_ptr().add(3), src.as_ptr().add(7), len) };
            assert_eq!(dst[3..3 + len], src[7..7 + len]);
            assert!(dst[..3].iter().chain(&dst[3 + len..]).all(|&byte| byte == 0xA5));
        }
    }
}
