//! Detection of a processor mode in which subnormal numbers become zero.
//!
//! Programs set it for speed, often through a library built with `-ffast-math`. Sums of subnormals are then wrong by
//! the contract and may differ between ranks, so that callers want to name it in a warning.

/// Names the flush-to-zero mode that is set in the calling thread: `FTZ`, `DAZ` or both on x86-64, `FZ` on aarch64.
///
/// `None` when subnormals are kept, or on an architecture where this is not known. Costs a few nanoseconds.
pub fn flush_mode() -> Option<&'static str> {
    imp::flush_mode()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    const DENORMALS_ARE_ZERO: u32 = 1 << 6;
    const FLUSH_TO_ZERO: u32 = 1 << 15;

    pub(super) fn flush_mode() -> Option<&'static str> {
        let mut mxcsr = 0u32;
        // SAFETY: `stmxcsr` is part of SSE, which every x86-64 has; it writes four bytes to a live local.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
        name(mxcsr)
    }

    pub(super) fn name(mxcsr: u32) -> Option<&'static str> {
        match (mxcsr & FLUSH_TO_ZERO != 0, mxcsr & DENORMALS_ARE_ZERO != 0) {
            (true, true) => Some("FTZ and DAZ"),
            (true, false) => Some("FTZ"),
            (false, true) => Some("DAZ"),
            (false, false) => None,
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod imp {
    const FLUSH_TO_ZERO: u64 = 1 << 24;

    pub(super) fn flush_mode() -> Option<&'static str> {
        let fpcr: u64;
        // SAFETY: FPCR is readable from user space on every aarch64 and reading it changes nothing.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        (fpcr & FLUSH_TO_ZERO != 0).then_some("FZ")
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod imp {
    pub(super) fn flush_mode() -> Option<&'static str> {
        None
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_fresh_thread_keeps_subnormals() {
        assert_eq!(super::flush_mode(), None);
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn set_bits_are_named() {
        let default = 0x1F80;
        for (bits, wanted) in
            [(0, None), (1 << 15, Some("FTZ")), (1 << 6, Some("DAZ")), (1 << 15 | 1 << 6, Some("FTZ and DAZ"))]
        {
            assert_eq!(super::imp::name(default | bits), wanted);
        }
    }
}
