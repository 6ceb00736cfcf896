//! `Min` and `Max` of floats, on their bits.
//!
//! Read as a signed integer with the magnitude bits of negatives inverted, a float sorts as IEEE 754 wants, `-0 < +0`
//! included. A NaN is replaced by the integer that always loses. The result is one of the inputs, so that narrow types
//! need no conversion.

use crate::block::{Kernel, read_each, write_each};
use crate::convert::{BF16_NAN, E4M3_NAN, E5M2_NAN, F16_NAN, F32_NAN, F64_NAN};
use crate::format::{Bf16, E4m3, E5m2, F16, F32, F64};
use crate::reducer::Scale;
use std::marker::PhantomData;

/// `minimumNumber`.
pub(crate) struct Min<F>(PhantomData<F>);
/// `maximumNumber`.
pub(crate) struct Max<F>(PhantomData<F>);

macro_rules! extremum_kernel {
    ($kernel:ident, $format:ty, $bits:ty, $key:ty, $largest:expr, $nan:expr, $loser:expr, $combine:expr) => {
        impl Kernel for $kernel<$format> {
            type Bits = $bits;
            type Acc = $key;
            type Factors = ();
            const SLOW_SINGLES: bool = false;

            #[inline(always)]
            fn factors(_: Scale) {}

            #[inline(always)]
            unsafe fn load<const N: usize>(src: *const $bits, (): ()) -> [$key; N] {
                let key = |bits: $bits| {
                    let magnitude = bits & <$bits>::MAX >> 1;
                    let sorted = (bits ^ ((bits as $key >> (<$key>::BITS - 1)) as $bits >> 1)) as $key;
                    if magnitude > $largest { $loser } else { sorted }
                };
                // SAFETY: the caller's promise.
                unsafe { read_each(src, key) }
            }

            #[inline(always)]
            fn combine(left: $key, right: $key) -> $key {
                let combine: fn($key, $key) -> $key = $combine;
                combine(left, right)
            }

            #[inline(always)]
            unsafe fn store<const N: usize>(dst: *mut $bits, acc: [$key; N], (): ()) {
                let bits = |key: $key| {
                    let bits = key as $bits ^ ((key >> (<$key>::BITS - 1)) as $bits >> 1);
                    if key == $loser { $nan } else { bits }
                };
                // SAFETY: the caller's promise.
                unsafe { write_each(dst, acc, bits) }
            }
        }
    };
}

/// Per format: its bits, the key, the largest magnitude that is not a NaN, the canonical NaN.
macro_rules! both {
    ($format:ty, $bits:ty, $key:ty, $largest:expr, $nan:expr) => {
        extremum_kernel!(Min, $format, $bits, $key, $largest, $nan, <$key>::MAX, |a, b| a.min(b));
        extremum_kernel!(Max, $format, $bits, $key, $largest, $nan, <$key>::MIN, |a, b| a.max(b));
    };
}

both!(F16, u16, i16, 0x7C00, F16_NAN);
both!(Bf16, u16, i16, 0x7F80, BF16_NAN);
both!(F32, u32, i32, 0x7F80_0000, F32_NAN);
both!(F64, u64, i64, 0x7FF0_0000_0000_0000, F64_NAN);
both!(E4m3, u8, i8, 0x7E, E4M3_NAN);
both!(E5m2, u8, i8, 0x7C, E5M2_NAN);
