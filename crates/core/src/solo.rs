//! A group of one: the same checks, then a copy. No engine is involved.

#![allow(unsafe_code)]

use crate::backend::{RawCall, RawSegment};
use crate::bytes::AlignedBytes;
use crate::dtype::DType;
use crate::error::Result;
use crate::fp8;
use crate::mem::MemorySpace;
use crate::op::ReduceOp;
use half::{bf16, f16};
use std::sync::atomic::{AtomicU64, Ordering};

/// Does what the call says in a group of one.
///
/// # Safety
///
/// The call passed the checks and its buffers are valid.
pub(crate) unsafe fn run(call: &RawCall<'_>) {
    // With one member every source has the destination's size: `bytes` is 0 where there is no buffer.
    let bytes = call.src.bytes.min(call.dst.bytes);
    if let Some(ReduceOp::PreMulSum(factor)) = call.op {
        // SAFETY: both are valid for `bytes`; equal or disjoint.
        unsafe { scale(call.dtype, call.src.ptr, call.dst.ptr, bytes, factor) };
    } else if call.src.ptr != call.dst.ptr {
        // SAFETY: both are valid for `bytes`.
        unsafe { std::ptr::copy(call.src.ptr, call.dst.ptr, bytes) };
    }
}

/// `dst = factor * src`; the narrow types in f32 and rounded once; every NaN is the canonical quiet one.
///
/// # Safety
///
/// `src` is valid for reads and `dst` for writes of `bytes`.
unsafe fn scale(dtype: DType, src: *const u8, dst: *mut u8, bytes: usize, factor: f64) {
    let single = factor as f32;
    // SAFETY: the caller's promise; each type has the size that its tag says.
    unsafe {
        match dtype {
            DType::F64 => each(src, dst, bytes, |x: f64| quiet(x * factor, f64::NAN, f64::is_nan)),
            DType::F32 => each(src, dst, bytes, |x: f32| quiet(x * single, f32::NAN, f32::is_nan)),
            DType::F16 => {
                each(src, dst, bytes, |x: f16| quiet(f16::from_f32(x.to_f32() * single), f16::NAN, f16::is_nan))
            }
            DType::BF16 => {
                each(src, dst, bytes, |x: bf16| quiet(bf16::from_f32(x.to_f32() * single), bf16::NAN, bf16::is_nan))
            }
            DType::F8E4M3 => each(src, dst, bytes, |x: u8| fp8::e4m3_from_f32(fp8::e4m3_to_f32(x) * single)),
            DType::F8E5M2 => each(src, dst, bytes, |x: u8| fp8::e5m2_from_f32(fp8::e5m2_to_f32(x) * single)),
            // The capability check refuses integers: see ReduceOp::meaningful.
            _ => std::ptr::copy(src, dst, bytes),
        }
    }
}

fn quiet<T: Copy>(value: T, nan: T, is_nan: fn(T) -> bool) -> T {
    if is_nan(value) { nan } else { value }
}

/// # Safety
///
/// `src` is valid for reads and `dst` for writes of `bytes`, in any alignment.
unsafe fn each<T: Copy>(src: *const u8, dst: *mut u8, bytes: usize, f: impl Fn(T) -> T) {
    for i in 0..bytes / size_of::<T>() {
        // SAFETY: within `bytes`; the caller's promise.
        unsafe { dst.cast::<T>().add(i).write_unaligned(f(src.cast::<T>().add(i).read_unaligned())) };
    }
}

/// Memory for `alloc` in a group of one.
pub(crate) struct SoloSegment {
    memory: AlignedBytes,
    id: u64,
}

impl SoloSegment {
    pub(crate) fn new(bytes: usize) -> Result<SoloSegment> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // The upper half keeps these apart from the engines' numbers. Relaxed: only uniqueness matters.
        let id = (1 << 63) | NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(SoloSegment { memory: AlignedBytes::zeroed(bytes)?, id })
    }
}

// SAFETY: the memory is owned by the value; ids come from one counter.
unsafe impl RawSegment for SoloSegment {
    fn ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.memory.len()
    }

    fn space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    fn id(&self) -> u64 {
        self.id
    }
}
