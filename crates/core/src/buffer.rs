//! What a [`Call`](crate::Call) can be given as source and destination.
//!
//! While an engine uses a buffer it is *lent*: held as raw parts, because a `Vec` or a `&mut` that moves claims to be
//! the only way to its memory, which is not so while an engine writes.

#![allow(unsafe_code)]

use crate::segbuf::SegBuf;
use bytemuck::Pod;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The source of an operation that works inside its destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InPlace;

/// The buffer of a rank that has none: the other side of a send, or a rank that is not the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent;

/// Address and length of a lent buffer. Not for users: the traits below are sealed.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Side {
    pub(crate) ptr: *mut u8,
    /// In elements.
    pub(crate) len: usize,
    pub(crate) present: bool,
}

impl Side {
    pub(crate) const ABSENT: Side = Side { ptr: NonNull::<u8>::dangling().as_ptr(), len: 0, present: false };

    #[inline]
    pub(crate) fn of_slice<T>(slice: &[T]) -> Side {
        Side { ptr: slice.as_ptr().cast_mut().cast(), len: slice.len(), present: true }
    }

    #[inline]
    pub(crate) fn of_slice_mut<T>(slice: &mut [T]) -> Side {
        Side { ptr: slice.as_mut_ptr().cast(), len: slice.len(), present: true }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Anything a call can hold: a source, a destination, or the absence of one. Sealed.
///
/// # Safety
///
/// Implemented in this crate only. A lent value keeps its memory allocated, in place and initialised, and makes no
/// claim on it that access by address would break, until it is given back or dropped; moving it does not move
/// the memory.
pub unsafe trait Buffer: sealed::Sealed + Sized {
    /// What stays here while an engine uses the memory.
    #[doc(hidden)]
    type Lent;

    #[doc(hidden)]
    fn lend(self) -> Self::Lent;

    #[doc(hidden)]
    fn side(lent: &Self::Lent) -> Side;

    /// # Safety
    ///
    /// No engine touches the memory any more.
    #[doc(hidden)]
    unsafe fn give_back(lent: Self::Lent) -> Self;
}

/// A buffer that elements of type `T` can be read from: `&[T]`, `Vec<T>`, [`SegBuf<T>`], borrowed forms of them,
/// `Option` of these, [`Absent`].
pub trait Source<T>: Buffer {}

/// A buffer that elements of type `T` can be written to: `&mut [T]`, `Vec<T>`, [`SegBuf<T>`], mutably borrowed forms
/// of them, `Option` of these, [`Absent`].
pub trait Dest<T>: Buffer {}

/// A buffer that may outlive every scope: an owned one, or one that is borrowed for ever.
///
/// What [`Communicator::start`](crate::Communicator::start) accepts: its [`Work`](crate::Work) may be forgotten while
/// the engine is still busy.
pub trait Owned: Buffer<Lent: Send> + 'static {}

impl<B: Buffer<Lent: Send> + 'static> Owned for B {}

macro_rules! without_memory {
    ($type:ty) => {
        impl sealed::Sealed for $type {}
        // SAFETY: there is no memory.
        unsafe impl Buffer for $type {
            type Lent = $type;
            #[inline]
            fn lend(self) -> $type {
                self
            }
            #[inline]
            fn side(_: &$type) -> Side {
                Side::ABSENT
            }
            #[inline]
            unsafe fn give_back(lent: $type) -> $type {
                lent
            }
        }
    };
}
without_memory!(InPlace);
without_memory!(Absent);
impl<T> Source<T> for Absent {}
impl<T> Dest<T> for Absent {}

impl<B: Buffer> sealed::Sealed for Option<B> {}
// SAFETY: either there is no memory or the inner buffer keeps the promise.
unsafe impl<B: Buffer> Buffer for Option<B> {
    type Lent = Option<B::Lent>;
    #[inline]
    fn lend(self) -> Self::Lent {
        self.map(B::lend)
    }
    #[inline]
    fn side(lent: &Self::Lent) -> Side {
        lent.as_ref().map_or(Side::ABSENT, B::side)
    }
    #[inline]
    unsafe fn give_back(lent: Self::Lent) -> Self {
        // SAFETY: the caller's promise.
        lent.map(|lent| unsafe { B::give_back(lent) })
    }
}
impl<T, B: Source<T>> Source<T> for Option<B> {}
impl<T, B: Dest<T>> Dest<T> for Option<B> {}

macro_rules! shared {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => {
        $(impl<$($generics)*> sealed::Sealed for &$type {}
        // SAFETY: engines only read a source, and a shared borrow allows reading beside it. `T: Pod` has no cells.
        unsafe impl<$($generics)*> Buffer for &$type {
            type Lent = Self;
            #[inline]
            fn lend(self) -> Self {
                self
            }
            #[inline]
            fn side(lent: &Self) -> Side {
                Side::of_slice::<T>(&**lent)
            }
            #[inline]
            unsafe fn give_back(lent: Self) -> Self {
                lent
            }
        }
        impl<$($generics)*> Source<T> for &$type {})*
    };
}
shared!([T: Pod] [T], [T: Pod, const N: usize] [T; N], [T: Pod] Vec<T>, [T: Pod] SegBuf<T>);

/// A `&'a mut X` whose elements are `T`, as raw parts.
#[doc(hidden)]
pub struct LentMut<'a, X: ?Sized, T> {
    owner: NonNull<X>,
    first: NonNull<T>,
    len: usize,
    borrow: PhantomData<&'a mut X>,
}

// SAFETY: stands for a `&mut X`, which is Send when X is; the elements belong to X.
unsafe impl<X: ?Sized + Send, T: Send> Send for LentMut<'_, X, T> {}

macro_rules! exclusive {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => {
        $(impl<$($generics)*> sealed::Sealed for &mut $type {}
        // SAFETY: the borrow keeps the memory; the raw parts make no claim on it; nobody else can reach it.
        unsafe impl<'a, $($generics)*> Buffer for &'a mut $type {
            type Lent = LentMut<'a, $type, T>;
            #[inline]
            fn lend(self) -> Self::Lent {
                let owner = NonNull::from(self);
                // SAFETY: derived from a `&mut` just now. For arrays and slices the elements lie in the owner itself:
                // the pointer to them is derived from `owner`, so that both stay usable.
                let elements: &mut [T] = unsafe { &mut *owner.as_ptr() };
                let len = elements.len();
                LentMut { owner, first: NonNull::from(elements).cast(), len, borrow: PhantomData }
            }
            #[inline]
            fn side(lent: &Self::Lent) -> Side {
                Side { ptr: lent.first.as_ptr().cast(), len: lent.len, present: true }
            }
            #[inline]
            unsafe fn give_back(lent: Self::Lent) -> Self {
                // SAFETY: the parts of a `&'a mut`, and by the caller's promise its only user again.
                unsafe { &mut *lent.owner.as_ptr() }
            }
        }
        impl<$($generics)*> Dest<T> for &mut $type {})*
    };
}
exclusive!([T: Pod] [T], [T: Pod, const N: usize] [T; N], [T: Pod] Vec<T>, [T: Pod] SegBuf<T>);

/// A `Vec<T>` as raw parts. Dropping it frees the memory.
#[doc(hidden)]
pub struct LentVec<T> {
    first: NonNull<T>,
    len: usize,
    capacity: usize,
}

// SAFETY: owns its elements as a `Vec<T>` does.
unsafe impl<T: Send> Send for LentVec<T> {}

impl<T> Drop for LentVec<T> {
    fn drop(&mut self) {
        // SAFETY: the parts of a `Vec` that was taken apart in `lend`, not yet put together again.
        drop(unsafe { Vec::from_raw_parts(self.first.as_ptr(), self.len, self.capacity) });
    }
}

impl<T: Pod> sealed::Sealed for Vec<T> {}
// SAFETY: the heap memory does not move with the parts, and raw parts make no claim on it.
unsafe impl<T: Pod> Buffer for Vec<T> {
    type Lent = LentVec<T>;
    #[inline]
    fn lend(self) -> LentVec<T> {
        let mut vec = ManuallyDrop::new(self);
        let (len, capacity) = (vec.len(), vec.capacity());
        // SAFETY: a Vec's pointer is never null.
        LentVec { first: unsafe { NonNull::new_unchecked(vec.as_mut_ptr()) }, len, capacity }
    }
    #[inline]
    fn side(lent: &LentVec<T>) -> Side {
        Side { ptr: lent.first.as_ptr().cast(), len: lent.len, present: true }
    }
    #[inline]
    unsafe fn give_back(lent: LentVec<T>) -> Vec<T> {
        let lent = ManuallyDrop::new(lent);
        // SAFETY: the parts of a `Vec` that was taken apart in `lend`; ManuallyDrop keeps Drop from using them again.
        unsafe { Vec::from_raw_parts(lent.first.as_ptr(), lent.len, lent.capacity) }
    }
}
impl<T: Pod> Source<T> for Vec<T> {}
impl<T: Pod> Dest<T> for Vec<T> {}

impl<T: Pod> sealed::Sealed for SegBuf<T> {}
// SAFETY: a SegBuf holds its memory as a raw pointer and a reference to the mapping already.
unsafe impl<T: Pod> Buffer for SegBuf<T> {
    type Lent = SegBuf<T>;
    #[inline]
    fn lend(self) -> SegBuf<T> {
        self
    }
    #[inline]
    fn side(lent: &SegBuf<T>) -> Side {
        lent.side()
    }
    #[inline]
    unsafe fn give_back(lent: SegBuf<T>) -> SegBuf<T> {
        lent
    }
}
impl<T: Pod> Source<T> for SegBuf<T> {}
impl<T: Pod> Dest<T> for SegBuf<T> {}
