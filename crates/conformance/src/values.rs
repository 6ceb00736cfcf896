//! Input values as a function of (rank, index), never constant, so that every misplaced or missing piece shows (H1).

use crate::number::{Number, decode, elem_size, encode, is_nan};
use crate::random::{Random, mix};
use rankwise_core::{DType, ReduceOp};

/// Which values a rank contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// `(31 * rank + 7 * index + seed) mod P`, with every partial sum exactly representable; integers use their whole range
    /// and wrap. Other seeds give other results, or a result of another call would not show.
    Exact,
    /// 1 or 2, with every product exactly representable.
    Powers,
    /// Any bit pattern that is a number: infinities, subnormals and both zeros included.
    Numbers,
    /// Any bit pattern at all: NaN payloads included.
    Bits,
    /// Floats of mixed sign and magnitude whose sum depends on the order of addition.
    Rounding,
}

impl Pattern {
    /// Values that suit an operator and give a result that does not depend on the order of combination.
    pub fn exact_for(op: ReduceOp) -> Pattern {
        match op {
            ReduceOp::Prod => Pattern::Powers,
            ReduceOp::Min | ReduceOp::Max => Pattern::Numbers,
            ReduceOp::BAnd | ReduceOp::BOr | ReduceOp::BXor => Pattern::Bits,
            _ => Pattern::Exact,
        }
    }
}

/// The contribution of the member at `rank` of `members`: `count` elements as bytes.
pub(crate) fn fill(pattern: Pattern, dtype: DType, seed: u64, rank: usize, members: usize, count: usize) -> Vec<u8> {
    let size = elem_size(dtype);
    let mut bytes = Vec::with_capacity(count * size);
    let prime = exact_prime(dtype, members);
    let shift = (mix(seed) % 100_003) as usize;
    for index in 0..count {
        let element = match pattern {
            _ if dtype == DType::Opaque => {
                let mut random = Random::labelled(seed, &[rank as u64, index as u64]);
                bytes.extend(random.next_u64().to_ne_bytes());
                bytes.extend(&random.next_u64().to_ne_bytes()[..size - 8]);
                continue;
            }
            Pattern::Exact => exact(dtype, rank, index + shift, members, prime),
            Pattern::Powers => {
                let index = index + shift;
                let two = (31 * rank + 7 * index) % members.max(1) < index % 8;
                number(dtype, if two { 2 } else { 1 })
            }
            Pattern::Numbers | Pattern::Bits => any_bits(pattern, dtype, seed, rank, index),
            Pattern::Rounding => rounding(dtype, seed, rank, index),
        };
        bytes.extend(&element[..size]);
    }
    bytes
}

/// One integer-valued element.
pub(crate) fn number(dtype: DType, value: i128) -> [u8; 8] {
    match dtype {
        DType::F64 => encode(dtype, Number::Double(value as f64)),
        dtype if dtype.is_float() => encode(dtype, Number::Single(value as f32)),
        dtype => encode(dtype, Number::Int(value)),
    }
}

/// One element of a floating-point value.
pub(crate) fn float(dtype: DType, value: f64) -> [u8; 8] {
    match dtype {
        DType::F64 => encode(dtype, Number::Double(value)),
        dtype => encode(dtype, Number::Single(value as f32)),
    }
}

/// The largest integer up to which the type represents every integer.
fn exact_limit(dtype: DType) -> usize {
    match dtype {
        DType::F8E5M2 => 8,
        DType::F8E4M3 => 16,
        DType::BF16 => 256,
        DType::F16 => 2048,
        DType::F32 => 1 << 24,
        DType::F64 => 1 << 53,
        _ => usize::MAX,
    }
}

fn exact_prime(dtype: DType, members: usize) -> usize {
    match dtype {
        DType::I8 | DType::U8 => 251,
        DType::I16 | DType::U16 => 65_521,
        DType::I32 | DType::U32 => 2_147_483_647,
        DType::I64 | DType::U64 => 4_294_967_291,
        DType::Opaque => 251,
        float => {
            let mut candidate = (exact_limit(float) / members.max(1) + 1).min(65_521);
            // With 7 or 31 one of the two factors would vanish.
            // With a divisor of the number of members every sum would be the same.
            let varies = |p: usize| p != 7 && p != 31 && !members.is_multiple_of(p);
            let fits = |p: usize| varies(p) && (2..).take_while(|d| d * d <= p).all(|d| !p.is_multiple_of(d));
            while candidate >= 2 && !fits(candidate) {
                candidate -= 1;
            }
            candidate
        }
    }
}

fn exact(dtype: DType, rank: usize, index: usize, members: usize, prime: usize) -> [u8; 8] {
    let base = 31 * rank + 7 * index;
    match dtype {
        DType::I64 | DType::U64 => {
            // Beyond 2^53, so that a detour through f64 shows.
            number(dtype, ((base as i128 % prime as i128) << 29) + base as i128 + 1)
        }
        DType::I32 | DType::U32 | DType::I16 | DType::U16 | DType::I8 | DType::U8 => {
            number(dtype, (base as i128 * 64_007 + 3) % prime as i128)
        }
        float if prime < 2 => {
            // More members than the type can count: only as many contribute as the sum can hold.
            let contributes = base % members < index % (exact_limit(float) + 1);
            number(float, contributes.into())
        }
        float => number(float, (base % prime) as i128 - (prime / 2) as i128),
    }
}

fn any_bits(pattern: Pattern, dtype: DType, seed: u64, rank: usize, index: usize) -> [u8; 8] {
    let size = elem_size(dtype);
    let mut random = Random::labelled(seed, &[rank as u64, index as u64]);
    loop {
        let bits = random.next_u64();
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&bits.to_ne_bytes()[..size]);
        // Few random patterns are zeros or infinities: make them common enough to meet each other.
        if dtype.is_float() && bits.is_multiple_of(11) {
            let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.0][(bits / 11 % 5) as usize];
            bytes = float(dtype, special);
        }
        if pattern == Pattern::Bits || !is_nan(dtype, &bytes[..size]) {
            return bytes;
        }
    }
}

fn rounding(dtype: DType, seed: u64, rank: usize, index: usize) -> [u8; 8] {
    let bits = mix(seed ^ mix((rank as u64) << 40 ^ index as u64));
    let magnitude = 2.0_f64.powi((bits % 7) as i32 - 3);
    let fraction = 1.0 + (bits >> 11) as f64 / (1u64 << 53) as f64;
    let value = if bits & 0x80 != 0 { -magnitude * fraction } else { magnitude * fraction };
    if dtype.is_float() { float(dtype, value) } else { number(dtype, (value * 8.0) as i128) }
}

/// The value of an element for a message.
pub(crate) fn show(dtype: DType, bytes: &[u8]) -> String {
    if dtype == DType::Opaque {
        return format!("{bytes:02x?}");
    }
    match decode(dtype, bytes) {
        Number::Int(value) => value.to_string(),
        Number::Single(value) => format!("{value:e} ({bytes:02x?})"),
        Number::Double(value) => format!("{value:e} ({bytes:02x?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sums_stay_within_the_limit_of_the_type() {
        for dtype in DType::NUMERIC.into_iter().filter(|dtype| dtype.is_float()) {
            for members in [1, 2, 3, 4, 5, 7, 8, 13] {
                let seed = members as u64;
                let parts: Vec<_> = (0..members).map(|r| fill(Pattern::Exact, dtype, seed, r, members, 100)).collect();
                let size = elem_size(dtype);
                let mut seen = std::collections::BTreeSet::new();
                for index in 0..100 {
                    let mut sum = 0.0;
                    for part in &parts {
                        sum += match decode(dtype, &part[index * size..][..size]) {
                            Number::Single(v) => f64::from(v),
                            Number::Double(v) => v,
                            Number::Int(_) => unreachable!(),
                        };
                        assert!(sum.abs() <= exact_limit(dtype) as f64, "{dtype} {members}");
                    }
                    seen.insert(sum as i64);
                }
                assert!(seen.len() > 1, "{dtype} {members}: the sum must vary with the index");
            }
        }
    }

    #[test]
    fn the_seed_changes_what_a_call_gives() {
        for pattern in [Pattern::Exact, Pattern::Powers] {
            for dtype in [DType::F32, DType::I32, DType::U8] {
                let values = |seed| fill(pattern, dtype, seed, 1, 3, 24);
                assert_eq!(values(5), values(5));
                assert_ne!(values(5), values(6), "{pattern:?} {dtype}");
            }
        }
    }

    #[test]
    fn numbers_have_no_nan_and_bits_do() {
        let has_nan = |pattern| fill(pattern, DType::F16, 3, 0, 2, 2000).chunks(2).any(|e| is_nan(DType::F16, e));
        assert!(!has_nan(Pattern::Numbers));
        assert!(has_nan(Pattern::Bits));
    }
}
