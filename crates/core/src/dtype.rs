//! Element types: the run-time tag [`DType`] and the sealed compile-time trait [`Elem`].

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use std::any::TypeId;
use std::fmt;

/// Type of one element of a buffer.
///
/// Arithmetic needs one of the fourteen numeric types. Any other `Pod` type travels as
/// [`DType::Opaque`]: it can be moved bit for bit, never reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum DType {
    /// Signed 8-bit integer.
    I8 = 1,
    /// Unsigned 8-bit integer.
    U8 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Unsigned 16-bit integer.
    U16 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// Unsigned 32-bit integer.
    U32 = 6,
    /// Signed 64-bit integer.
    I64 = 7,
    /// Unsigned 64-bit integer.
    U64 = 8,
    /// IEEE 754 binary16.
    F16 = 9,
    /// bfloat16: the upper half of a binary32.
    BF16 = 10,
    /// IEEE 754 binary32.
    F32 = 11,
    /// IEEE 754 binary64.
    F64 = 12,
    /// OCP 8-bit float, 4 exponent bits, no infinities, NaN is `S.1111.111`.
    F8E4M3 = 13,
    /// OCP 8-bit float, 5 exponent bits, IEEE-like infinities and NaNs.
    F8E5M2 = 14,
    /// Bytes that are only moved. The element size travels beside the tag.
    Opaque = 15,
}

impl DType {
    /// The fourteen types that have arithmetic, in a fixed order.
    pub const NUMERIC: [DType; 14] = [
        DType::I8,
        DType::U8,
        DType::I16,
        DType::U16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
        DType::F8E5M2,
    ];

    /// Bytes of one element; `None` for [`DType::Opaque`].
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
            DType::Opaque => return None,
        })
    }

    /// True for the six floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::F8E4M3 | DType::F8E5M2)
    }

    /// True for the eight integer types.
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, DType::Opaque)
    }

    /// The name used on command lines, in tables and in errors: `f32`, `bf16`, `fp8e4m3`, …
    pub const fn name(self) -> &'static str {
        match self {
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I16 => "i16",
            DType::U16 => "u16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F8E4M3 => "fp8e4m3",
            DType::F8E5M2 => "fp8e5m2",
            DType::Opaque => "opaque",
        }
    }

    /// The inverse of [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::NUMERIC.into_iter().chain([DType::Opaque]).find(|dtype| dtype.name() == name)
    }

    /// The inverse of `self as u8`.
    pub fn from_tag(tag: u8) -> Option<DType> {
        DType::NUMERIC.into_iter().chain([DType::Opaque]).find(|dtype| *dtype as u8 == tag)
    }

    /// The tag of a Rust type: its own for an [`Elem`], [`DType::Opaque`] for every other `Pod`.
    pub fn of<T: Pod>() -> DType {
        macro_rules! find {
            ($($type:ty => $tag:ident),* $(,)?) => {
                $(if TypeId::of::<T>() == TypeId::of::<$type>() { return DType::$tag; })*
            };
        }
        find! {
            i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
            f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
        }
        DType::Opaque
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type with arithmetic: what all-reduce, reduce-scatter and reduce accept.
///
/// Sealed: a backend's capability table speaks of a closed list of types.
pub trait Elem: Pod + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed {
    /// The run-time tag of this type.
    const DTYPE: DType;
}

macro_rules! elem {
    ($($type:ty => $tag:ident),* $(,)?) => {
        $(impl sealed::Sealed for $type {}
        impl Elem for $type {
            const DTYPE: DType = DType::$tag;
        })*
    };
}
elem! {
    i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
}

/// A set of [`DType`]s, used in capability tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DTypeSet(u16);

impl DTypeSet {
    /// No type.
    pub const NONE: DTypeSet = DTypeSet(0);
    /// Every numeric type.
    pub const NUMERIC: DTypeSet = DTypeSet::of(&DType::NUMERIC);
    /// The eight integer types.
    pub const INTEGERS: DTypeSet =
        DTypeSet::of(&[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64]);
    /// The six floating-point types.
    pub const FLOATS: DTypeSet =
        DTypeSet::of(&[DType::F16, DType::BF16, DType::F32, DType::F64, DType::F8E4M3, DType::F8E5M2]);

    /// The set of the given types.
    pub const fn of(types: &[DType]) -> DTypeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < types.len() {
            bits |= 1 << types[i] as u16;
            i += 1;
        }
        DTypeSet(bits)
    }

    /// Whether `dtype` is in the set.
    pub const fn contains(self, dtype: DType) -> bool {
        self.0 & (1 << dtype as u16) != 0
    }

    /// Types in both sets.
    pub const fn intersection(self, other: DTypeSet) -> DTypeSet {
        DTypeSet(self.0 & other.0)
    }

    /// The set as bits, bit `dtype as u8`; for the exchange at communicator creation.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The inverse of [`DTypeSet::bits`].
    pub const fn from_bits(bits: u16) -> DTypeSet {
        DTypeSet(bits)
    }

    /// The types of the set in tag order.
    pub fn iter(self) -> impl Iterator<Item = DType> {
        DType::NUMERIC.into_iter().chain([DType::Opaque]).filter(move |dtype| self.contains(*dtype))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tags_round_trip() {
        for dtype in DType::NUMERIC {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::from_tag(dtype as u8), Some(dtype));
        }
        assert_eq!(DType::from_name("complex64"), None);
        assert_eq!(DType::from_tag(0), None);
    }

    #[test]
    fn rust_types_find_their_tag() {
        assert_eq!(DType::of::<f32>(), DType::F32);
        assert_eq!(DType::of::<bf16>(), DType::BF16);
        assert_eq!(DType::of::<[f32; 2]>(), DType::Opaque);
        assert_eq!(DType::of::<F8E5M2>(), F8E5M2::DTYPE);
    }
}
