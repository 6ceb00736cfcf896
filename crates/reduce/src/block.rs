//! The loop all kernels share, and its compilation for each instruction set.

use crate::reducer::Scale;

/// A compiled kernel: destination, sources, elements, factors. Its safety contract is that of
/// [`Reducer::fold`](crate::Reducer::fold), and that the processor has its instruction set.
pub(crate) type KernelFn = unsafe fn(*mut u8, &[*const u8], usize, Scale);

/// What happens to the elements of one type under one operator.
pub(crate) trait Kernel {
    /// An element as it lies in memory.
    type Bits: Copy + Default;
    /// An element as it is folded.
    type Acc: Copy;
    /// The factors in the precision of the fold.
    type Factors: Copy;
    /// Whether a handful of single elements takes longer than a block of 16 and the copies to fill one.
    const SLOW_SINGLES: bool;

    fn factors(scale: Scale) -> Self::Factors;

    /// Reads `N` elements, ready to be folded.
    ///
    /// # Safety
    /// `src` is readable for `N` elements, with any alignment.
    unsafe fn load<const N: usize>(src: *const Self::Bits, factors: Self::Factors) -> [Self::Acc; N];

    fn combine(left: Self::Acc, right: Self::Acc) -> Self::Acc;

    /// Writes `N` folded elements.
    ///
    /// # Safety
    /// `dst` is writable for `N` elements, with any alignment.
    unsafe fn store<const N: usize>(dst: *mut Self::Bits, acc: [Self::Acc; N], factors: Self::Factors);
}

/// Reads `N` elements and maps each. One read per element, through the pointer: sources can be shared memory.
///
/// # Safety
/// `src` is readable for `N` elements, with any alignment.
#[inline(always)]
pub(crate) unsafe fn read_each<T: Copy, A: Copy, const N: usize>(src: *const T, map: impl Fn(T) -> A) -> [A; N] {
    // SAFETY: the caller's promise covers index 0 .. N.
    std::array::from_fn(|i| map(unsafe { src.add(i).read_unaligned() }))
}

/// Maps and writes `N` elements.
///
/// # Safety
/// `dst` is writable for `N` elements, with any alignment.
#[inline(always)]
pub(crate) unsafe fn write_each<T: Copy, A: Copy, const N: usize>(dst: *mut T, acc: [A; N], map: impl Fn(A) -> T) {
    for (i, &a) in acc.iter().enumerate() {
        // SAFETY: the caller's promise covers index 0 .. N.
        unsafe { dst.add(i).write_unaligned(map(a)) };
    }
}

/// Blocks of `N` elements first, then of 16, then the few left over. Within a block all sources are read before anything is
/// written, so that `dst` may be one of them.
///
/// # Safety
/// As [`Reducer::fold`](crate::Reducer::fold).
#[inline(always)]
unsafe fn fold_all<K: Kernel, const N: usize>(dst: *mut u8, srcs: &[*const u8], count: usize, scale: Scale) {
    let Some((&first, rest)) = srcs.split_first() else { return };
    let factors = K::factors(scale);
    let mut at = 0;
    // SAFETY: `at + size <= count` before each block, which with the caller's promise covers all accesses.
    unsafe {
        while count - at >= N {
            fold_block::<K, N>(dst, first, rest, at, factors);
            at += N;
        }
        while count - at >= 16 {
            fold_block::<K, 16>(dst, first, rest, at, factors);
            at += 16;
        }
        if K::SLOW_SINGLES && count - at >= 8 {
            fold_tail::<K>(dst, first, rest, at, count - at, factors);
            return;
        }
        while at < count {
            fold_block::<K, 1>(dst, first, rest, at, factors);
            at += 1;
        }
    }
}

/// # Safety
/// `dst`, `first` and all of `rest` hold at least `at + N` elements.
#[inline(always)]
unsafe fn fold_block<K: Kernel, const N: usize>(
    dst: *mut u8,
    first: *const u8,
    rest: &[*const u8],
    at: usize,
    factors: K::Factors,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = K::load::<N>(first.cast::<K::Bits>().add(at), factors);
        for &src in rest {
            let next = K::load::<N>(src.cast::<K::Bits>().add(at), factors);
            combine_each::<K, _>(&mut acc, next);
        }
        K::store::<N>(dst.cast::<K::Bits>().add(at), acc, factors);
    }
}

#[inline(always)]
fn combine_each<K: Kernel, const N: usize>(acc: &mut [K::Acc; N], next: [K::Acc; N]) {
    for i in 0..N {
        acc[i] = K::combine(acc[i], next[i]);
    }
}

/// Folds `left < 16` elements in a block of 16 filled up with zeros.
///
/// # Safety
/// `dst`, `first` and all of `rest` hold at least `at + left` elements.
#[inline(always)]
unsafe fn fold_tail<K: Kernel>(
    dst: *mut u8,
    first: *const u8,
    rest: &[*const u8],
    at: usize,
    left: usize,
    factors: K::Factors,
) {
    let size = size_of::<K::Bits>();
    let load = |src: *const u8| {
        let mut filled = [K::Bits::default(); 16];
        // SAFETY: the caller's promise for the source; the array holds `16 > left` elements. Bytes suffice: the source
        // need not be aligned.
        unsafe {
            let from = src.add(at * size);
            std::ptr::copy_nonoverlapping(from, filled.as_mut_ptr().cast::<u8>(), left * size);
            K::load::<16>(filled.as_ptr(), factors)
        }
    };
    let mut acc = load(first);
    for &src in rest {
        let next = load(src);
        combine_each::<K, _>(&mut acc, next);
    }
    let mut result = [K::Bits::default(); 16];
    // SAFETY: the array holds 16 elements, of which `dst` has room for `left` by the caller's promise.
    unsafe {
        K::store::<16>(result.as_mut_ptr(), acc, factors);
        std::ptr::copy_nonoverlapping(result.as_ptr().cast::<u8>(), dst.add(at * size), left * size);
    }
}

macro_rules! compile_for {
    ($(#[$attribute:meta])* $module:ident) => {
        pub(crate) mod $module {
            use super::{Kernel, Scale, fold_all};

            /// # Safety
            /// As [`Reducer::fold`](crate::Reducer::fold), and the processor has the instruction set of the module.
            $(#[$attribute])*
            pub(crate) unsafe fn fold<K: Kernel, const N: usize>(
                dst: *mut u8,
                srcs: &[*const u8],
                count: usize,
                scale: Scale,
            ) {
                // SAFETY: the caller's promise.
                unsafe { fold_all::<K, N>(dst, srcs, count, scale) }
            }
        }
    };
}

compile_for!(portable);
#[cfg(target_arch = "x86_64")]
compile_for!(
    #[target_feature(enable = "avx2,f16c")]
    avx2
);
#[cfg(target_arch = "x86_64")]
compile_for!(
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    avx512
);
#[cfg(target_arch = "aarch64")]
compile_for!(
    #[target_feature(enable = "neon")]
    neon
);
