//! Elements as numbers: decoding and rounding written for the oracle alone, one element at a time.
//!
//! The 8-bit floats are rounded by searching the list of their values, so that nothing here shares a method with a
//! backend's kernels.

use half::{bf16, f16};
use rankwise_core::DType;
use std::sync::OnceLock;

/// An element's value in the type it is accumulated in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// Any integer type.
    Int(i128),
    /// `f16`, `bf16`, the 8-bit floats and `f32`.
    Single(f32),
    /// `f64`.
    Double(f64),
}

/// Bytes of one element; an opaque element of the suite has twelve.
pub(crate) fn elem_size(dtype: DType) -> usize {
    dtype.size().unwrap_or(12)
}

/// The value of one element, given its bytes. Panics on opaque elements, which have none.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Number {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes[..N].try_into().expect("an element's bytes")
    }
    match dtype {
        DType::I8 => Number::Int((bytes[0] as i8).into()),
        DType::U8 => Number::Int(bytes[0].into()),
        DType::I16 => Number::Int(i16::from_ne_bytes(array(bytes)).into()),
        DType::U16 => Number::Int(u16::from_ne_bytes(array(bytes)).into()),
        DType::I32 => Number::Int(i32::from_ne_bytes(array(bytes)).into()),
        DType::U32 => Number::Int(u32::from_ne_bytes(array(bytes)).into()),
        DType::I64 => Number::Int(i64::from_ne_bytes(array(bytes)).into()),
        DType::U64 => Number::Int(u64::from_ne_bytes(array(bytes)).into()),
        DType::F16 => Number::Single(f16::from_ne_bytes(array(bytes)).to_f32()),
        DType::BF16 => Number::Single(bf16::from_ne_bytes(array(bytes)).to_f32()),
        DType::F32 => Number::Single(f32::from_ne_bytes(array(bytes))),
        DType::F64 => Number::Double(f64::from_ne_bytes(array(bytes))),
        DType::F8E4M3 => Number::Single(small(&E4M3).values[bytes[0] as usize]),
        DType::F8E5M2 => Number::Single(small(&E5M2).values[bytes[0] as usize]),
        other => panic!("{other} has no numbers"),
    }
}

/// The bytes of a value, rounded once to nearest even; integers wrap; NaN becomes the canonical quiet one.
pub(crate) fn encode(dtype: DType, number: Number) -> [u8; 8] {
    let mut out = [0; 8];
    let mut put = |bytes: &[u8]| out[..bytes.len()].copy_from_slice(bytes);
    match (dtype, number) {
        (dtype, Number::Int(value)) => put(&(value as u64).to_ne_bytes()[..elem_size(dtype)]),
        (DType::F64, Number::Double(value)) => {
            put(&if value.is_nan() { 0x7FF8_0000_0000_0000_u64 } else { value.to_bits() }.to_ne_bytes());
        }
        (dtype, Number::Double(value)) => return encode(dtype, Number::Single(value as f32)),
        (DType::F64, Number::Single(value)) => return encode(dtype, Number::Double(value.into())),
        (DType::F32, Number::Single(value)) => {
            put(&if value.is_nan() { 0x7FC0_0000_u32 } else { value.to_bits() }.to_ne_bytes());
        }
        (DType::F16, Number::Single(value)) => {
            put(&if value.is_nan() { 0x7E00_u16 } else { f16::from_f32(value).to_bits() }.to_ne_bytes());
        }
        (DType::BF16, Number::Single(value)) => {
            put(&if value.is_nan() { 0x7FC0_u16 } else { bf16::from_f32(value).to_bits() }.to_ne_bytes());
        }
        (DType::F8E4M3, Number::Single(value)) => put(&[small(&E4M3).round(value)]),
        (DType::F8E5M2, Number::Single(value)) => put(&[small(&E5M2).round(value)]),
        (other, _) => panic!("{other} has no numbers"),
    }
    out
}

/// The value after a round trip through the type: what an accumulator of that type holds.
pub(crate) fn wrap(dtype: DType, value: i128) -> i128 {
    match decode(dtype, &encode(dtype, Number::Int(value))) {
        Number::Int(value) => value,
        _ => value,
    }
}

/// Whether the element is a NaN.
pub(crate) fn is_nan(dtype: DType, bytes: &[u8]) -> bool {
    dtype.is_float()
        && match decode(dtype, bytes) {
            Number::Single(value) => value.is_nan(),
            Number::Double(value) => value.is_nan(),
            Number::Int(_) => false,
        }
}

struct SmallFloat {
    mantissa_bits: u32,
    bias: i32,
    has_infinity: bool,
    nan: u8,
}

const E4M3: SmallFloat = SmallFloat { mantissa_bits: 3, bias: 7, has_infinity: false, nan: 0x7F };
const E5M2: SmallFloat = SmallFloat { mantissa_bits: 2, bias: 15, has_infinity: true, nan: 0x7E };

struct Table {
    format: &'static SmallFloat,
    values: [f32; 256],
}

fn small(format: &'static SmallFloat) -> &'static Table {
    static TABLES: [OnceLock<Table>; 2] = [OnceLock::new(), OnceLock::new()];
    TABLES[usize::from(format.has_infinity)]
        .get_or_init(|| Table { format, values: std::array::from_fn(|bits| format.value(bits as u8)) })
}

impl SmallFloat {
    fn value(&self, bits: u8) -> f32 {
        let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
        let magnitude = bits & 0x7F;
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let fraction = f32::from(magnitude & ((1 << self.mantissa_bits) - 1)) / f32::from(1u8 << self.mantissa_bits);
        if self.has_infinity && exponent == 31 {
            return if fraction == 0.0 { sign * f32::INFINITY } else { f32::NAN };
        }
        if !self.has_infinity && magnitude == 0x7F {
            return f32::NAN;
        }
        let (exponent, leading) = if exponent == 0 { (1, 0.0) } else { (exponent, 1.0) };
        sign * (leading + fraction) * 2.0_f32.powi(exponent - self.bias)
    }
}

impl Table {
    /// Nearest value, ties to the even pattern. Beyond the largest finite value: half a step further overflows.
    fn round(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.format.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = value.abs();
        let largest = if self.format.has_infinity { 0x7B_u8 } else { 0x7E };
        let overflow = if self.format.has_infinity { sign | 0x7C } else { self.format.nan };
        let top = self.values[largest as usize];
        let step = top - self.values[largest as usize - 1];
        if magnitude > top {
            // The value after the largest would have an even pattern where the largest is odd, and the other way round.
            let half = top + step / 2.0;
            let overflows = magnitude > half || (magnitude == half && largest & 1 == 1);
            return if overflows { overflow } else { sign | largest };
        }
        let above = self.values[..=largest as usize].partition_point(|v| *v < magnitude);
        if above == 0 {
            return sign;
        }
        let (low, high) = (self.values[above - 1], self.values[above]);
        let nearest = match (magnitude - low).partial_cmp(&(high - magnitude)) {
            Some(std::cmp::Ordering::Less) => above - 1,
            Some(std::cmp::Ordering::Greater) => above,
            _ => above - (above & 1),
        };
        sign | nearest as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e4m3(value: f32) -> u8 {
        encode(DType::F8E4M3, Number::Single(value))[0]
    }

    #[test]
    fn small_floats_round_to_nearest_even_and_overflow_as_their_format_says() {
        assert_eq!(e4m3(448.0), 0x7E);
        assert_eq!(e4m3(464.0), 0x7E, "a tie goes to the even pattern");
        assert_eq!(e4m3(464.1), 0x7F, "beyond it is NaN");
        assert_eq!(e4m3(-1.0), 0xB8);
        assert_eq!(e4m3(2.0_f32.powi(-9)), 0x01, "smallest subnormal");
        assert_eq!(e4m3(2.0_f32.powi(-10)), 0x00, "half of it ties to zero");
        let e5m2 = |value| encode(DType::F8E5M2, Number::Single(value))[0];
        assert_eq!(e5m2(57344.0), 0x7B);
        assert_eq!(e5m2(61439.9), 0x7B);
        assert_eq!(e5m2(61440.0), 0x7C, "a tie at the top goes to infinity");
        assert_eq!(e5m2(f32::NAN), 0x7E);
        assert_eq!(e5m2(f32::NEG_INFINITY), 0xFC);
    }

    #[test]
    fn every_pattern_survives_a_round_trip() {
        for dtype in [DType::F8E4M3, DType::F8E5M2] {
            for bits in 0..=u8::MAX {
                if !is_nan(dtype, &[bits]) {
                    assert_eq!(encode(dtype, decode(dtype, &[bits]))[0], bits, "{dtype} {bits:#x}");
                }
            }
        }
        for bits in 0..=u16::MAX {
            for dtype in [DType::F16, DType::BF16] {
                if !is_nan(dtype, &bits.to_ne_bytes()) {
                    assert_eq!(encode(dtype, decode(dtype, &bits.to_ne_bytes()))[..2], bits.to_ne_bytes(), "{dtype}");
                }
            }
        }
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(wrap(DType::I8, 300), 44);
        assert_eq!(wrap(DType::I32, i128::from(i32::MAX) + 1), i128::from(i32::MIN));
        assert_eq!(wrap(DType::U64, -1), i128::from(u64::MAX));
    }
}
