//! Float formats: how their elements become accumulators and back.

use crate::block::{read_each, write_each};
use crate::convert;

/// Precision in which floats are folded.
pub(crate) trait Real: Copy {
    fn from_f64(x: f64) -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The number itself, or `largest` with its sign where the magnitude is beyond that.
    fn cap(self, largest: Self) -> Self;
    fn is_finite(self) -> bool;
}

macro_rules! real {
    ($type:ident) => {
        impl Real for $type {
            #[inline(always)]
            fn from_f64(x: f64) -> $type {
                x as $type
            }

            #[inline(always)]
            fn add(self, other: $type) -> $type {
                self + other
            }

            #[inline(always)]
            fn mul(self, other: $type) -> $type {
                self * other
            }

            #[inline(always)]
            fn cap(self, largest: $type) -> $type {
                if self.abs() > largest { largest.copysign(self) } else { self }
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                self.abs() < $type::INFINITY
            }
        }
    };
}
real!(f32);
real!(f64);

/// A float type in memory. NaNs may be widened to any NaN; narrowing makes them canonical.
pub(crate) trait Format {
    type Bits: Copy + Default;
    type Wide: Real;
    /// The largest finite number.
    const LARGEST: Self::Wide;
    /// See [`Kernel::SLOW_SINGLES`](crate::block::Kernel::SLOW_SINGLES).
    const SLOW_SINGLES: bool;

    fn widen(bits: Self::Bits) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self::Bits;

    /// # Safety
    /// `src` is readable for `N` elements, with any alignment, and the processor has the instructions of the format.
    #[inline(always)]
    unsafe fn widen_each<const N: usize>(src: *const Self::Bits) -> [Self::Wide; N] {
        // SAFETY: the caller's promise.
        unsafe { read_each(src, Self::widen) }
    }

    /// # Safety
    /// `dst` is writable for `N` elements, with any alignment, and the processor has the instructions of the format.
    #[inline(always)]
    unsafe fn narrow_each<const N: usize>(dst: *mut Self::Bits, wide: [Self::Wide; N]) {
        // SAFETY: the caller's promise.
        unsafe { write_each(dst, wide, Self::narrow) }
    }
}

/// IEEE 754 binary16, converted with integer instructions.
pub(crate) struct F16;
/// Bfloat16. Not with the processor's own conversion, which flushes subnormals.
pub(crate) struct Bf16;
/// IEEE 754 binary32.
pub(crate) struct F32;
/// IEEE 754 binary64.
pub(crate) struct F64;
/// OCP 8-bit float with 4 exponent bits.
pub(crate) struct E4m3;
/// OCP 8-bit float with 5 exponent bits.
pub(crate) struct E5m2;

impl Format for F16 {
    type Bits = u16;
    type Wide = f32;
    const LARGEST: f32 = 65504.0;
    const SLOW_SINGLES: bool = true;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        convert::f16_to_f32(bits)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u16 {
        convert::f32_to_f16(wide)
    }
}

impl Format for Bf16 {
    type Bits = u16;
    type Wide = f32;
    const LARGEST: f32 = f32::from_bits(0x7F7F_0000);
    const SLOW_SINGLES: bool = false;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u16 {
        convert::f32_to_bf16(wide)
    }
}

impl Format for F32 {
    type Bits = u32;
    type Wide = f32;
    const LARGEST: f32 = f32::MAX;
    const SLOW_SINGLES: bool = false;

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u32 {
        if wide.is_nan() { convert::F32_NAN } else { wide.to_bits() }
    }
}

impl Format for F64 {
    type Bits = u64;
    type Wide = f64;
    const LARGEST: f64 = f64::MAX;
    const SLOW_SINGLES: bool = false;

    #[inline(always)]
    fn widen(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    #[inline(always)]
    fn narrow(wide: f64) -> u64 {
        if wide.is_nan() { convert::F64_NAN } else { wide.to_bits() }
    }
}

impl Format for E4m3 {
    type Bits = u8;
    type Wide = f32;
    const LARGEST: f32 = 448.0;
    const SLOW_SINGLES: bool = false;

    #[inline(always)]
    fn widen(bits: u8) -> f32 {
        convert::e4m3_to_f32(bits)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u8 {
        convert::f32_to_e4m3(wide)
    }
}

impl Format for E5m2 {
    type Bits = u8;
    type Wide = f32;
    const LARGEST: f32 = 57344.0;
    const SLOW_SINGLES: bool = false;

    #[inline(always)]
    fn widen(bits: u8) -> f32 {
        convert::e5m2_to_f32(bits)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> u8 {
        convert::f32_to_e5m2(wide)
    }
}
