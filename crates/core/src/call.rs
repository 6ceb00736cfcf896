//! [`Call`]: one operation as a value.

#![allow(unsafe_code)]

use crate::buffer::{Absent, Buffer, Dest, InPlace, Side, Source};
use crate::dtype::{DType, Elem};
use crate::op::{OpKind, ReduceOp};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// What an operation is, apart from its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'c> {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DType,
    pub(crate) elem_size: usize,
    pub(crate) op: Option<ReduceOp>,
    /// Root, destination or source: a position in the group.
    pub(crate) root: usize,
    /// Elements per row: what the counts count. 1 except for the token forms.
    pub(crate) width: usize,
    pub(crate) send: &'c [usize],
    pub(crate) recv: &'c [usize],
    pub(crate) in_place: bool,
    pub(crate) tag: u32,
}

impl Shape<'static> {
    #[inline]
    pub(crate) fn of<T: Pod>(kind: OpKind) -> Shape<'static> {
        Shape::new(kind, DType::of::<T>(), size_of::<T>())
    }

    #[inline]
    pub(crate) fn new(kind: OpKind, dtype: DType, elem_size: usize) -> Shape<'static> {
        Shape { kind, dtype, elem_size, op: None, root: 0, width: 1, send: &[], recv: &[], in_place: false, tag: 0 }
    }
}

impl<'c> Shape<'c> {
    #[inline]
    pub(crate) fn op(self, op: ReduceOp) -> Self {
        Shape { op: Some(op), ..self }
    }

    #[inline]
    pub(crate) fn root(self, root: usize) -> Self {
        Shape { root, ..self }
    }

    #[inline]
    pub(crate) fn in_place(self) -> Self {
        Shape { in_place: true, ..self }
    }

    #[inline]
    pub(crate) fn counts<'n>(self, send: &'n [usize], recv: &'n [usize]) -> Shape<'n>
    where
        'c: 'n,
    {
        Shape { send, recv, ..self }
    }

    #[inline]
    pub(crate) fn width(self, width: usize) -> Self {
        Shape { width, ..self }
    }
}

/// An operation with the addresses of its buffers: what the checks see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'c> {
    pub(crate) shape: Shape<'c>,
    pub(crate) src: Side,
    pub(crate) dst: Side,
}

/// One operation with its buffers.
///
/// The same value goes to [`Communicator::run`](crate::Communicator::run) (blocking),
/// [`Communicator::start`](crate::Communicator::start) (owned buffers, returns a [`Work`](crate::Work)) and
/// [`Scope::start`](crate::Scope::start) (borrowed buffers). Nothing is checked before it gets there.
///
/// `'c` is the borrow of the counts of the uneven forms.
///
/// ```
/// use rankwise_core::{Call, ReduceOp};
/// use std::time::Duration;
///
/// let call = Call::all_reduce(vec![1.0_f32; 8], vec![0.0; 8], ReduceOp::Sum).timeout(Duration::from_secs(5));
/// assert!(format!("{call:?}").contains("AllReduce"));
/// ```
#[must_use = "a call does nothing until it is run or started"]
pub struct Call<'c, S, D> {
    shape: Shape<'c>,
    timeout: Option<Duration>,
    src: S,
    dst: D,
}

/// A call whose buffers are lent to an engine.
pub(crate) struct Lent<S: Buffer, D: Buffer> {
    pub(crate) src: S::Lent,
    pub(crate) dst: D::Lent,
}

impl<S: Buffer, D: Buffer> Lent<S, D> {
    /// # Safety
    ///
    /// No engine touches the memory any more.
    pub(crate) unsafe fn give_back(self) -> (S, D) {
        // SAFETY: the caller's promise.
        unsafe { (S::give_back(self.src), D::give_back(self.dst)) }
    }
}

impl<'c, S, D> Call<'c, S, D> {
    #[inline]
    fn new(shape: Shape<'c>, src: S, dst: D) -> Self {
        Call { shape, timeout: None, src, dst }
    }

    /// Overrides the communicator's deadline for this call.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What it does.
    pub fn kind(&self) -> OpKind {
        self.shape.kind
    }
}

impl<'c, S: Buffer, D: Buffer> Call<'c, S, D> {
    #[inline]
    pub(crate) fn lend(self) -> (Request<'c>, Option<Duration>, Lent<S, D>) {
        let lent = Lent { src: self.src.lend(), dst: self.dst.lend() };
        let request = Request { shape: self.shape, src: S::side(&lent.src), dst: D::side(&lent.dst) };
        (request, self.timeout, lent)
    }
}

impl<S, D> fmt::Debug for Call<'_, S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("shape", &self.shape).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Call<'static, Absent, Absent> {
    /// See [`Communicator::barrier`](crate::Communicator::barrier).
    pub fn barrier() -> Self {
        Call::new(Shape::of::<u8>(OpKind::Barrier), Absent, Absent)
    }
}

impl<S, D> Call<'static, S, D> {
    /// See [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    #[inline]
    pub fn all_reduce<T: Elem>(src: S, dst: D, op: ReduceOp) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllReduce).op(op), src, dst)
    }

    /// See [`Communicator::all_gather`](crate::Communicator::all_gather).
    pub fn all_gather<T: Pod>(src: S, dst: D) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllGather), src, dst)
    }

    /// See [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    pub fn reduce_scatter<T: Elem>(src: S, dst: D, op: ReduceOp) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::ReduceScatter).op(op), src, dst)
    }

    /// See [`Communicator::all_to_all`](crate::Communicator::all_to_all).
    pub fn all_to_all<T: Pod>(src: S, dst: D) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllToAll), src, dst)
    }

    /// See [`Communicator::reduce`](crate::Communicator::reduce).
    pub fn reduce<T: Elem>(src: S, dst: D, op: ReduceOp, root: usize) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::Reduce).op(op).root(root), src, dst)
    }

    /// See [`Communicator::gather`](crate::Communicator::gather).
    pub fn gather<T: Pod>(src: S, dst: D, root: usize) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::Gather).root(root), src, dst)
    }

    /// See [`Communicator::scatter`](crate::Communicator::scatter).
    pub fn scatter<T: Pod>(src: S, dst: D, root: usize) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::Scatter).root(root), src, dst)
    }
}

impl<'c, S, D> Call<'c, S, D> {
    /// See [`Communicator::all_gather_v`](crate::Communicator::all_gather_v).
    pub fn all_gather_v<T: Pod>(src: S, dst: D, counts: &'c [usize]) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllGatherV).counts(&[], counts), src, dst)
    }

    /// See [`Communicator::reduce_scatter_v`](crate::Communicator::reduce_scatter_v).
    pub fn reduce_scatter_v<T: Elem>(src: S, dst: D, counts: &'c [usize], op: ReduceOp) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::ReduceScatterV).op(op).counts(counts, &[]), src, dst)
    }

    /// See [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v).
    pub fn all_to_all_v<T: Pod>(src: S, send_counts: &'c [usize], dst: D, recv_counts: &'c [usize]) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllToAllV).counts(send_counts, recv_counts), src, dst)
    }

    /// See [`Communicator::gather_v`](crate::Communicator::gather_v).
    pub fn gather_v<T: Pod>(src: S, dst: D, counts: &'c [usize], root: usize) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::GatherV).counts(&[], counts).root(root), src, dst)
    }

    /// See [`Communicator::scatter_v`](crate::Communicator::scatter_v).
    pub fn scatter_v<T: Pod>(src: S, dst: D, counts: &'c [usize], root: usize) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::ScatterV).counts(counts, &[]).root(root), src, dst)
    }

    /// See [`Communicator::token_all_gather`](crate::Communicator::token_all_gather).
    pub fn token_all_gather<T: Pod>(src: S, dst: D, width: usize, counts: &'c [usize]) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllGatherV).counts(&[], counts).width(width), src, dst)
    }

    /// See [`Communicator::token_reduce_scatter`](crate::Communicator::token_reduce_scatter).
    pub fn token_reduce_scatter<T: Elem>(src: S, dst: D, width: usize, counts: &'c [usize], op: ReduceOp) -> Self
    where
        S: Source<T>,
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::ReduceScatterV).op(op).counts(counts, &[]).width(width), src, dst)
    }
}

impl<D> Call<'static, InPlace, D> {
    /// See [`Communicator::all_reduce_in_place`](crate::Communicator::all_reduce_in_place).
    #[inline]
    pub fn all_reduce_in_place<T: Elem>(buf: D, op: ReduceOp) -> Self
    where
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllReduce).op(op).in_place(), InPlace, buf)
    }

    /// See [`Communicator::all_gather_in_place`](crate::Communicator::all_gather_in_place).
    pub fn all_gather_in_place<T: Pod>(buf: D) -> Self
    where
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::AllGather).in_place(), InPlace, buf)
    }

    /// See [`Communicator::reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place).
    pub fn reduce_scatter_in_place<T: Elem>(buf: D, op: ReduceOp) -> Self
    where
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::ReduceScatter).op(op).in_place(), InPlace, buf)
    }

    /// See [`Communicator::broadcast`](crate::Communicator::broadcast).
    pub fn broadcast<T: Pod>(buf: D, root: usize) -> Self
    where
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::Broadcast).root(root).in_place(), InPlace, buf)
    }
}

impl<S> Call<'static, S, Absent> {
    /// See [`Communicator::send`](crate::Communicator::send).
    pub fn send<T: Pod>(buf: S, to: usize) -> Self
    where
        S: Source<T>,
    {
        Call::new(Shape::of::<T>(OpKind::Send).root(to), buf, Absent)
    }
}

impl<D> Call<'static, Absent, D> {
    /// See [`Communicator::recv`](crate::Communicator::recv).
    pub fn recv<T: Pod>(buf: D, from: usize) -> Self
    where
        D: Dest<T>,
    {
        Call::new(Shape::of::<T>(OpKind::Recv).root(from), Absent, buf)
    }
}

/// One of several all-reduces that run as one: see
/// [`Communicator::all_reduce_many`](crate::Communicator::all_reduce_many).
#[derive(Debug)]
pub struct Part<'a> {
    pub(crate) request: Request<'static>,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Part<'a> {
    /// The reduction of `src` into `dst`, of equal length.
    pub fn new<T: Elem>(src: &'a [T], dst: &'a mut [T], op: ReduceOp) -> Part<'a> {
        let shape = Shape::of::<T>(OpKind::AllReduce).op(op);
        let request = Request { shape, src: Side::of_slice(src), dst: Side::of_slice_mut(dst) };
        // SAFETY: both are borrowed for 'a.
        unsafe { Part::of(request) }
    }

    /// The reduction of `buf` in place.
    pub fn in_place<T: Elem>(buf: &'a mut [T], op: ReduceOp) -> Part<'a> {
        let shape = Shape::of::<T>(OpKind::AllReduce).op(op).in_place();
        // SAFETY: borrowed for 'a.
        unsafe { Part::of(Request { shape, src: Side::ABSENT, dst: Side::of_slice_mut(buf) }) }
    }

    /// # Safety
    ///
    /// The sides are valid for 'a, the destination for writes and reachable by nobody else.
    pub(crate) unsafe fn of(request: Request<'static>) -> Part<'a> {
        Part { request, buffers: PhantomData }
    }
}
