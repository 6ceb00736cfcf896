//! The 16-bit floats through instructions of x86-64, where the compiler's own choice is slower.
//!
//! The conversion instructions treat everything but NaNs as `convert` does.

use crate::block::{read_each, write_each};
use crate::convert;
use crate::format::{Bf16, F16, Format};
use std::arch::x86_64::*;

/// Binary16 converted eight at a time with F16C. Only for kernels compiled for AVX2 and F16C.
pub(crate) struct F16Avx2;
/// Bfloat16 rounded with integer instructions, sixteen at a time. Only for kernels compiled for AVX2.
pub(crate) struct Bf16Avx2;
/// Binary16 converted sixteen at a time. Only for kernels compiled for AVX-512.
pub(crate) struct F16Avx512;

impl Format for F16Avx2 {
    type Bits = u16;
    type Wide = f32;
    const LARGEST: f32 = F16::LARGEST;
    const SLOW_SINGLES: bool = F16::SLOW_SINGLES;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        F16::widen(bits)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u16 {
        F16::narrow(wide)
    }

    #[inline(always)]
    unsafe fn widen_each<const N: usize>(src: *const u16) -> [f32; N] {
        if !N.is_multiple_of(8) {
            // SAFETY: the caller's promise.
            return unsafe { read_each(src, Self::widen) };
        }
        let mut wide = [0.0; N];
        for i in (0..N).step_by(8) {
            // SAFETY: `i + 8 <= N`; the caller promised the instructions.
            unsafe {
                let narrow = _mm_loadu_si128(src.add(i).cast());
                _mm256_storeu_ps(wide.as_mut_ptr().add(i), _mm256_cvtph_ps(narrow));
            }
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow_each<const N: usize>(dst: *mut u16, wide: [f32; N]) {
        if !N.is_multiple_of(8) {
            // SAFETY: the caller's promise.
            return unsafe { write_each(dst, wide, Self::narrow) };
        }
        for i in (0..N).step_by(8) {
            // SAFETY: `i + 8 <= N`; the caller promised the instructions.
            unsafe {
                let x = _mm256_loadu_ps(wide.as_ptr().add(i));
                let nan = _mm256_castsi256_ps(_mm256_set1_epi32(convert::F32_NAN as i32));
                let x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
                _mm_storeu_si128(dst.add(i).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
            }
        }
    }
}

impl Format for F16Avx512 {
    type Bits = u16;
    type Wide = f32;
    const LARGEST: f32 = F16::LARGEST;
    const SLOW_SINGLES: bool = F16::SLOW_SINGLES;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        F16::widen(bits)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u16 {
        F16::narrow(wide)
    }

    #[inline(always)]
    unsafe fn widen_each<const N: usize>(src: *const u16) -> [f32; N] {
        if !N.is_multiple_of(16) {
            // SAFETY: the caller's promise.
            return unsafe { read_each(src, Self::widen) };
        }
        let mut wide = [0.0; N];
        for i in (0..N).step_by(16) {
            // SAFETY: `i + 16 <= N`; the caller promised the instructions.
            unsafe {
                let narrow = _mm256_loadu_si256(src.add(i).cast());
                _mm512_storeu_ps(wide.as_mut_ptr().add(i), _mm512_cvtph_ps(narrow));
            }
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow_each<const N: usize>(dst: *mut u16, wide: [f32; N]) {
        if !N.is_multiple_of(16) {
            // SAFETY: the caller's promise.
            return unsafe { write_each(dst, wide, Self::narrow) };
        }
        for i in (0..N).step_by(16) {
            // SAFETY: `i + 16 <= N`; the caller promised the instructions.
            unsafe {
                let x = _mm512_loadu_ps(wide.as_ptr().add(i));
                let nan = _mm512_castsi512_ps(_mm512_set1_epi32(convert::F32_NAN as i32));
                let x = _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), x, nan);
                _mm256_storeu_si256(dst.add(i).cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
            }
        }
    }
}

impl Format for Bf16Avx2 {
    type Bits = u16;
    type Wide = f32;
    const LARGEST: f32 = Bf16::LARGEST;
    const SLOW_SINGLES: bool = Bf16::SLOW_SINGLES;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        Bf16::widen(bits)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u16 {
        Bf16::narrow(wide)
    }

    #[inline(always)]
    unsafe fn narrow_each<const N: usize>(dst: *mut u16, wide: [f32; N]) {
        if !N.is_multiple_of(16) {
            // SAFETY: the caller's promise.
            return unsafe { write_each(dst, wide, Self::narrow) };
        }
        for i in (0..N).step_by(16) {
            // SAFETY: `i + 16 <= N`; the caller promised the instructions.
            unsafe {
                let low = round_to_bf16(_mm256_loadu_ps(wide.as_ptr().add(i)));
                let high = round_to_bf16(_mm256_loadu_ps(wide.as_ptr().add(i + 8)));
                // The pack works in halves of 128 bits; the permutation restores the order.
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
                _mm256_storeu_si256(dst.add(i).cast(), packed);
            }
        }
    }
}

/// Eight bfloat16 codes, each in the lower half of 32 bits.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn round_to_bf16(x: __m256) -> __m256i {
    let bits = _mm256_castps_si256(x);
    let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7FFF)));
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(convert::F32_NAN as i32));
    let unordered = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
    let chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), nan, unordered);
    _mm256_srli_epi32::<16>(_mm256_castps_si256(chosen))
}
