//! Float operators that compute: in the precision of the format's accumulator, rounded to the format once.

use crate::block::Kernel;
use crate::format::{Format, Real};
use crate::reducer::Scale;
use std::marker::PhantomData;

/// `a + b`.
pub(crate) struct Sum<F>(PhantomData<F>);
/// `a * b`.
pub(crate) struct Prod<F>(PhantomData<F>);
/// The mean: scaled so that the sum stays in range, and capped where the last rounding alone would leave it.
///
/// The sum itself needs no cap. A rounded sum grows with its terms, so that the worst case is the largest number from
/// all of `2^k` members. Each term is then just below a power of two, and so is each partial sum: by one unit in the
/// last place, or, once the terms are below half of that, it no longer grows. The last one is the largest number.
pub(crate) struct Avg<F>(PhantomData<F>);
/// `factor * a + factor * b`, each product rounded.
pub(crate) struct PreMulSum<F>(PhantomData<F>);

macro_rules! plain_kernel {
    ($kernel:ident, $combine:ident) => {
        impl<F: Format> Kernel for $kernel<F> {
            type Bits = F::Bits;
            type Acc = F::Wide;
            type Factors = ();
            const SLOW_SINGLES: bool = F::SLOW_SINGLES;

            #[inline(always)]
            fn factors(_: Scale) {}

            #[inline(always)]
            unsafe fn load<const N: usize>(src: *const F::Bits, (): ()) -> [F::Wide; N] {
                // SAFETY: the caller's promise.
                unsafe { F::widen_each(src) }
            }

            #[inline(always)]
            fn combine(left: F::Wide, right: F::Wide) -> F::Wide {
                left.$combine(right)
            }

            #[inline(always)]
            unsafe fn store<const N: usize>(dst: *mut F::Bits, acc: [F::Wide; N], (): ()) {
                // SAFETY: the caller's promise.
                unsafe { F::narrow_each(dst, acc) }
            }
        }
    };
}
plain_kernel!(Sum, add);
plain_kernel!(Prod, mul);

impl<F: Format> Kernel for Avg<F> {
    type Bits = F::Bits;
    type Acc = F::Wide;
    type Factors = (F::Wide, F::Wide);
    const SLOW_SINGLES: bool = F::SLOW_SINGLES;

    #[inline(always)]
    fn factors(scale: Scale) -> Self::Factors {
        (F::Wide::from_f64(scale.before), F::Wide::from_f64(scale.after))
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(src: *const F::Bits, (before, _): Self::Factors) -> [F::Wide; N] {
        // SAFETY: the caller's promise.
        let mut wide = unsafe { F::widen_each::<N>(src) };
        for x in &mut wide {
            *x = x.mul(before);
        }
        wide
    }

    #[inline(always)]
    fn combine(left: F::Wide, right: F::Wide) -> F::Wide {
        left.add(right)
    }

    #[inline(always)]
    unsafe fn store<const N: usize>(dst: *mut F::Bits, mut acc: [F::Wide; N], (_, after): Self::Factors) {
        for x in &mut acc {
            let mean = x.mul(after);
            *x = if x.is_finite() { mean.cap(F::LARGEST) } else { mean };
        }
        // SAFETY: the caller's promise.
        unsafe { F::narrow_each(dst, acc) }
    }
}

impl<F: Format> Kernel for PreMulSum<F> {
    type Bits = F::Bits;
    type Acc = F::Wide;
    type Factors = F::Wide;
    const SLOW_SINGLES: bool = F::SLOW_SINGLES;

    #[inline(always)]
    fn factors(scale: Scale) -> F::Wide {
        F::Wide::from_f64(scale.before)
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(src: *const F::Bits, factor: F::Wide) -> [F::Wide; N] {
        // SAFETY: the caller's promise.
        let mut wide = unsafe { F::widen_each::<N>(src) };
        for x in &mut wide {
            *x = x.mul(factor);
        }
        wide
    }

    #[inline(always)]
    fn combine(left: F::Wide, right: F::Wide) -> F::Wide {
        left.add(right)
    }

    #[inline(always)]
    unsafe fn store<const N: usize>(dst: *mut F::Bits, acc: [F::Wide; N], _: F::Wide) {
        // SAFETY: the caller's promise.
        unsafe { F::narrow_each(dst, acc) }
    }
}
