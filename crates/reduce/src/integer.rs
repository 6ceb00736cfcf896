//! Integer operators.

use crate::block::{Kernel, read_each, write_each};
use crate::reducer::Scale;
use std::marker::PhantomData;

/// `a + b`, wrapping. The same bits for signed and unsigned, as for all but [`Min`] and [`Max`].
pub(crate) struct Sum<T>(PhantomData<T>);
/// `a * b`, wrapping.
pub(crate) struct Prod<T>(PhantomData<T>);
/// The smaller one in the order of the type.
pub(crate) struct Min<T>(PhantomData<T>);
/// The larger one in the order of the type.
pub(crate) struct Max<T>(PhantomData<T>);
/// `a & b`.
pub(crate) struct And<T>(PhantomData<T>);
/// `a | b`.
pub(crate) struct Or<T>(PhantomData<T>);
/// `a ^ b`.
pub(crate) struct Xor<T>(PhantomData<T>);

macro_rules! integer_kernel {
    ($kernel:ident, $combine:expr, $($type:ty),*) => {
        $(impl Kernel for $kernel<$type> {
            type Bits = $type;
            type Acc = $type;
            type Factors = ();
            const SLOW_SINGLES: bool = false;

            #[inline(always)]
            fn factors(_: Scale) {}

            #[inline(always)]
            unsafe fn load<const N: usize>(src: *const $type, (): ()) -> [$type; N] {
                // SAFETY: the caller's promise.
                unsafe { read_each(src, |x| x) }
            }

            #[inline(always)]
            fn combine(left: $type, right: $type) -> $type {
                let combine: fn($type, $type) -> $type = $combine;
                combine(left, right)
            }

            #[inline(always)]
            unsafe fn store<const N: usize>(dst: *mut $type, acc: [$type; N], (): ()) {
                // SAFETY: the caller's promise.
                unsafe { write_each(dst, acc, |x| x) }
            }
        })*
    };
}

integer_kernel!(Sum, |a, b| a.wrapping_add(b), u8, u16, u32, u64);
integer_kernel!(Prod, |a, b| a.wrapping_mul(b), u8, u16, u32, u64);
integer_kernel!(Min, |a, b| a.min(b), i8, u8, i16, u16, i32, u32, i64, u64);
integer_kernel!(Max, |a, b| a.max(b), i8, u8, i16, u16, i32, u32, i64, u64);
integer_kernel!(And, |a, b| a & b, u8, u16, u32, u64);
integer_kernel!(Or, |a, b| a | b, u8, u16, u32, u64);
integer_kernel!(Xor, |a, b| a ^ b, u8, u16, u32, u64);
