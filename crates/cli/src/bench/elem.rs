//! The element types as the benchmark needs them: small whole numbers in and out.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use rankwise::{DType, Elem};

/// An element type that holds every whole number from 0 to `LIMIT` exactly.
pub(crate) trait BenchElem: Elem {
    const LIMIT: u64;

    fn exactly(value: u64) -> Self;

    /// Whether a mean came out right: `exactly` the same, but for the last bits of a wide float, whose mean is one
    /// multiplication by a rounded factor.
    fn is_mean(self, wanted: Self) -> bool {
        self == wanted
    }
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl BenchElem for $type {
            const LIMIT: u64 = if size_of::<$type>() < 4 { <$type>::MAX as u64 } else { 1 << 24 };

            fn exactly(value: u64) -> Self {
                value as $type
            }
        })*
    };
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! wide_floats {
    ($($type:ty),*) => {
        $(impl BenchElem for $type {
            const LIMIT: u64 = 1 << 24;

            fn exactly(value: u64) -> Self {
                value as $type
            }

            fn is_mean(self, wanted: Self) -> bool {
                (self - wanted).abs() <= wanted * 2.0 * <$type>::EPSILON
            }
        })*
    };
}
wide_floats!(f32, f64);

macro_rules! half_floats {
    ($($type:ty: $limit:literal),*) => {
        $(impl BenchElem for $type {
            const LIMIT: u64 = $limit;

            fn exactly(value: u64) -> Self {
                <$type>::from_f32(value as f32)
            }
        })*
    };
}
half_floats!(f16: 2048, bf16: 256);

macro_rules! small_floats {
    ($($type:ty: $limit:literal),*) => {
        $(impl BenchElem for $type {
            const LIMIT: u64 = $limit;

            fn exactly(value: u64) -> Self {
                let find = |bits: &u8| <$type>::from_bits(*bits).to_f32() == value as f32;
                <$type>::from_bits((0..0x7c).find(find).unwrap_or(0x7f))
            }
        })*
    };
}
small_floats!(F8E4M3: 16, F8E5M2: 8);

/// Calls `$function::<T>($arguments)` with the Rust type of `$dtype`; `$other` when it has none.
macro_rules! with_elem {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?), $other:expr) => {
        match $dtype {
            rankwise::DType::I8 => $function::<i8>($($argument),*),
            rankwise::DType::U8 => $function::<u8>($($argument),*),
            rankwise::DType::I16 => $function::<i16>($($argument),*),
            rankwise::DType::U16 => $function::<u16>($($argument),*),
            rankwise::DType::I32 => $function::<i32>($($argument),*),
            rankwise::DType::U32 => $function::<u32>($($argument),*),
            rankwise::DType::I64 => $function::<i64>($($argument),*),
            rankwise::DType::U64 => $function::<u64>($($argument),*),
            rankwise::DType::F16 => $function::<half::f16>($($argument),*),
            rankwise::DType::BF16 => $function::<half::bf16>($($argument),*),
            rankwise::DType::F32 => $function::<f32>($($argument),*),
            rankwise::DType::F64 => $function::<f64>($($argument),*),
            rankwise::DType::F8E4M3 => $function::<float8::F8E4M3>($($argument),*),
            rankwise::DType::F8E5M2 => $function::<float8::F8E5M2>($($argument),*),
            _ => $other,
        }
    };
}
pub(crate) use with_elem;

/// Bytes of one element; 1 for what only moves.
pub(crate) fn size_of_elem(dtype: DType) -> u64 {
    dtype.size().unwrap_or(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn whole_numbers<T: BenchElem>() {
        let bits = |value: u64| bytemuck::bytes_of(&T::exactly(value)).to_vec();
        let limit = T::LIMIT.min(3000);
        let distinct: HashSet<_> = (0..=limit).map(bits).collect();
        assert_eq!(distinct.len() as u64, limit + 1, "{}", T::DTYPE);
        assert!(T::exactly(3).is_mean(T::exactly(3)) && !T::exactly(3).is_mean(T::exactly(4)));
    }

    #[test]
    fn whole_numbers_up_to_the_limit_are_distinct() {
        for dtype in DType::NUMERIC {
            with_elem!(dtype, whole_numbers(), unreachable!());
        }
    }
}
