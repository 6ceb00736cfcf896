//! Scalar conversions between `f32` and the narrow floats, on their bits.
//!
//! To narrow rounds to nearest, ties to even, and keeps subnormals; to widen is exact. Every NaN becomes the canonical
//! quiet one of the result. Beyond the largest number `f16`, `bf16` and e5m2 give infinity; e4m3, which has none,
//! gives NaN, also for an infinite input. Branch-free, so that loops over them vectorise.

/// The canonical quiet NaN of binary16.
pub const F16_NAN: u16 = 0x7E00;
/// The canonical quiet NaN of bfloat16.
pub const BF16_NAN: u16 = 0x7FC0;
/// The canonical NaN of e4m3.
pub const E4M3_NAN: u8 = 0x7F;
/// The canonical quiet NaN of e5m2.
pub const E5M2_NAN: u8 = 0x7E;
/// The canonical quiet NaN of binary32.
pub const F32_NAN: u32 = 0x7FC0_0000;
/// The canonical quiet NaN of binary64.
pub const F64_NAN: u64 = 0x7FF8_0000_0000_0000;

const F32_SIGN: u32 = 0x8000_0000;
const F32_INFINITY: u32 = 0x7F80_0000;
const F32_MANTISSA: u32 = 23;
const F32_BIAS: u32 = 127;

/// `f32` to binary16.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    narrow_ieee::<10, 15>(x, 16, u32::from(F16_NAN)) as u16
}

/// Binary16 to `f32`.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    widen_ieee::<10, 15>(u32::from(bits & 0x7FFF), u32::from(bits & 0x8000) << 16)
}

/// `f32` to bfloat16.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let is_nan = bits & !F32_SIGN > F32_INFINITY;
    (if is_nan { u32::from(BF16_NAN) } else { rounded }) as u16
}

/// Bfloat16 to `f32`.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    let wide = u32::from(bits) << 16;
    f32::from_bits(if wide & !F32_SIGN > F32_INFINITY { F32_NAN } else { wide })
}

/// `f32` to e5m2.
#[inline(always)]
pub fn f32_to_e5m2(x: f32) -> u8 {
    narrow_ieee::<2, 15>(x, 8, u32::from(E5M2_NAN)) as u8
}

/// E5m2 to `f32`.
#[inline(always)]
pub fn e5m2_to_f32(bits: u8) -> f32 {
    widen_ieee::<2, 15>(u32::from(bits & 0x7F), u32::from(bits & 0x80) << 24)
}

/// `f32` to e4m3.
#[inline(always)]
pub fn f32_to_e4m3(x: f32) -> u8 {
    let nan = u32::from(E4M3_NAN);
    let bits = x.to_bits();
    let magnitude = bits & !F32_SIGN;
    let code = narrow_finite::<3, 7>(magnitude);
    // 480 is the number after 448, were its code not the NaN; what rounds to it gets that code by itself.
    let is_nan = magnitude >= 480f32.to_bits() || code == nan;
    (if is_nan { nan } else { code | (bits & F32_SIGN) >> 24 }) as u8
}

/// E4m3 to `f32`.
#[inline(always)]
pub fn e4m3_to_f32(bits: u8) -> f32 {
    let magnitude = u32::from(bits & 0x7F);
    let signed = widen_finite::<3, 7>(magnitude) | u32::from(bits & 0x80) << 24;
    f32::from_bits(if magnitude == u32::from(E4M3_NAN) { F32_NAN } else { signed })
}

/// `2^exponent`, for exponents of normal numbers.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + F32_BIAS as i32) as u32) << F32_MANTISSA)
}

/// The `f32` bits of a finite magnitude with `MANTISSA` stored bits and exponent bias `BIAS`.
#[inline(always)]
fn widen_finite<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let unit = const { power_of_two(1 - BIAS as i32 - MANTISSA as i32) };
    let normal = (magnitude << (F32_MANTISSA - MANTISSA)).wrapping_add((F32_BIAS - BIAS) << F32_MANTISSA);
    let subnormal = (magnitude as i32 as f32 * unit).to_bits();
    if magnitude < 1 << MANTISSA { subnormal } else { normal }
}

#[inline(always)]
fn widen_ieee<const MANTISSA: u32, const BIAS: u32>(magnitude: u32, sign: u32) -> f32 {
    let infinity = (2 * BIAS + 1) << MANTISSA;
    let finite = widen_finite::<MANTISSA, BIAS>(magnitude);
    let signed = sign | if magnitude >= infinity { F32_INFINITY } else { finite };
    f32::from_bits(if magnitude > infinity { F32_NAN } else { signed })
}

/// The code of the `f32` magnitude rounded to nearest even; right below `2^(BIAS + 1)`, to be replaced above.
#[inline(always)]
fn narrow_finite<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let shift = F32_MANTISSA - MANTISSA;
    let half_less_one = (1 << (shift - 1)) - 1;
    let rebias = (F32_BIAS - BIAS) << MANTISSA;
    let normal = (magnitude.wrapping_add(half_less_one + (magnitude >> shift & 1)) >> shift).wrapping_sub(rebias);
    // The last bit of this number weighs as much as that of the narrow subnormals: the addition rounds to it.
    let ruler = const { power_of_two(1 - BIAS as i32 - MANTISSA as i32 + F32_MANTISSA as i32) };
    let subnormal = (f32::from_bits(magnitude) + ruler).to_bits().wrapping_sub(ruler.to_bits());
    if magnitude < (F32_BIAS + 1 - BIAS) << F32_MANTISSA { subnormal } else { normal }
}

#[inline(always)]
fn narrow_ieee<const MANTISSA: u32, const BIAS: u32>(x: f32, width: u32, nan: u32) -> u32 {
    let bits = x.to_bits();
    let magnitude = bits & !F32_SIGN;
    let sign = (bits & F32_SIGN) >> (32 - width);
    let infinity = (2 * BIAS + 1) << MANTISSA;
    let code = narrow_finite::<MANTISSA, BIAS>(magnitude);
    let too_large = magnitude >= (F32_BIAS + BIAS + 1) << F32_MANTISSA;
    let signed = sign | if too_large { infinity } else { code };
    if magnitude > F32_INFINITY { nan } else { signed }
}
