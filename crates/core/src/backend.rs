//! The interface a backend implements: type-erased, object safe, small.
//!
//! Everything above it is checked once, in this crate: lengths, overflow, roots, membership, aliasing, types, spaces and
//! capabilities. A backend may rely on what [`RawCall`] promises. Everything below is the backend's: transports,
//! algorithms, waiting, liveness.
//!
//! Four things are different and named differently:
//! - *returned*: the call gave control back;
//! - *finished*: its result is in the destination and the engine no longer touches the caller's memory;
//! - *waited*: the host thread has seen that it finished ([`RawWork::wait`]);
//! - *stream ordered*: later work on a queue will see the result ([`RawWork::order`]), whatever the host does.

#![allow(unsafe_code)]

use crate::caps::{Capabilities, Determinism};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::mem::{MemorySpace, Queue};
use crate::op::{OpKind, ReduceOp};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A buffer without its type: address, length in bytes, where it lives.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RawBuf {
    /// First byte; dangling when `bytes` is zero. Not necessarily aligned to the element.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub bytes: usize,
    /// Where it lives.
    pub space: MemorySpace,
    /// The collective allocation it lies in, and its offset there in bytes. Known to this rank only: peers may differ in
    /// whether and where, so an algorithm that depends on it has to agree on it first.
    pub segment: Option<(u64, usize)>,
}

impl RawBuf {
    /// No buffer: the call kind has none on this side, or this rank is not the root.
    pub const NONE: RawBuf =
        RawBuf { ptr: std::ptr::NonNull::<u8>::dangling().as_ptr(), bytes: 0, space: MemorySpace::Host, segment: None };

    /// A host buffer outside every collective allocation.
    pub fn host(ptr: *const u8, bytes: usize) -> RawBuf {
        RawBuf { ptr: ptr.cast_mut(), bytes, space: MemorySpace::Host, segment: None }
    }
}

/// Elements per rank for the v-forms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts<'a> {
    /// Elements of the source that go to, or come from, each position.
    ///
    /// AllGatherV, GatherV: unused. ReduceScatterV, ScatterV: elements of each part. AllToAllV: elements sent to each.
    pub send: &'a [usize],
    /// AllGatherV, GatherV: elements each position contributes. AllToAllV: elements received from each.
    pub recv: &'a [usize],
}

/// One operation, checked and without types.
///
/// What the layer above guarantees to a backend:
/// - `elem_size` is above zero, and equals `dtype.size()` unless opaque;
/// - `src` and `dst` have exactly the sizes of the table at [`OpKind`] for `count` elements of `elem_size` bytes (for
///   the v-forms: for `counts`), or are [`RawBuf::NONE`] where the kind has no such buffer on this rank;
/// - they do not overlap, except in place: AllReduce, Reduce(root), Broadcast with `src.ptr == dst.ptr`; AllGather(V) and Gather(V)(root) with `src`
///   at this rank's slot of `dst`; ReduceScatter(V) with `dst` at this rank's slot of `src`;
/// - `counts` has a length of the group for the v-forms and is empty otherwise; sums do not overflow;
/// - the capability table offers the call; `op` is set exactly for reducing kinds; `root` is in the group; `fused` is set
///   exactly for the fused kinds.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RawCall<'a> {
    /// What to do.
    pub kind: OpKind,
    /// Type of the elements.
    pub dtype: DType,
    /// Bytes of an element; `dtype.size()` unless opaque.
    pub elem_size: usize,
    /// Operator of a reducing kind.
    pub op: Option<ReduceOp>,
    /// Elements, as the table at [`OpKind`] counts them. Zero for the v-forms.
    pub count: usize,
    /// Elements per rank for the v-forms.
    pub counts: Counts<'a>,
    /// Position in the group of the root, of the destination (Send) or of the source (Recv); otherwise 0.
    pub root: usize,
    /// What the caller's data is read from.
    pub src: RawBuf,
    /// Where the result goes.
    pub dst: RawBuf,
    /// Distinguishes uses of one kind that must not meet (for example the length message of a broadcast of unknown
    /// length); part of the descriptor.
    pub tag: u32,
    /// What a fused kind needs beside source and destination.
    pub fused: Option<Fused>,
}

impl<'a> RawCall<'a> {
    /// A call of this kind without buffers, on `count` elements of a numeric type (opaque elements: set `elem_size`). Set what else the
    /// kind needs.
    pub fn new(kind: OpKind, dtype: DType, count: usize) -> RawCall<'a> {
        RawCall {
            kind,
            dtype,
            elem_size: dtype.size().unwrap_or(1),
            op: None,
            count,
            counts: Counts::default(),
            root: 0,
            src: RawBuf::NONE,
            dst: RawBuf::NONE,
            tag: 0,
            fused: None,
        }
    }
}

/// Further buffers of [`OpKind::AllReduceAddRmsNorm`]: `residual += all_reduce(src)`, then `dst = residual / rms(residual) * weight`
/// over rows as long as `weight`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Fused {
    /// Read and written; as long as the source.
    pub residual: RawBuf,
    /// Read; one row.
    pub weight: RawBuf,
    /// Added to the mean square.
    pub epsilon: f64,
}

/// A call that was refused above the backend.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// What it would have been.
    pub kind: OpKind,
    /// Position of the destination or source of a Send or Recv.
    pub peer: Option<usize>,
    /// Why.
    pub why: &'a Error,
    /// How many calls one launch would have been.
    pub calls: usize,
}

impl<'a> Refusal<'a> {
    /// A refusal of `calls` collective calls.
    pub fn new(kind: OpKind, why: &'a Error, calls: usize) -> Refusal<'a> {
        Refusal { kind, peer: None, why, calls }
    }
}

/// What a communicator is made from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CommSpec {
    /// Its members in order.
    pub group: Group,
    /// 0 for the registered communicator of a group; otherwise distinguishes communicators with equal members. The
    /// same on all members.
    pub tag: u64,
    /// Determinism that must be offered.
    pub determinism: Determinism,
    /// Compare descriptors even where that costs an exchange.
    pub check: bool,
}

impl CommSpec {
    /// The registered communicator of a group, with the default modes.
    pub fn new(group: Group) -> CommSpec {
        CommSpec { group, tag: 0, determinism: Determinism::SameTopology, check: false }
    }
}

/// One joined engine on this rank.
///
/// # Safety
///
/// Implementors promise what [`RawCommunicator`] promises for the communicators they make.
pub unsafe trait RawBackend: Send + Sync + Any {
    /// The backend's name, as in `RANKWISE_BACKEND`.
    fn name(&self) -> &'static str;

    /// This rank's global rank.
    fn rank(&self) -> usize;

    /// Number of ranks in the world.
    fn world_size(&self) -> usize;

    /// What this rank could offer; a communicator's own table is the intersection over its members.
    fn capabilities(&self) -> Capabilities;

    /// Makes a communicator of at least two members. Collective over the members, within `deadline`. Several threads may make
    /// communicators of different groups at once (`Busy` where the engine can't); a failed attempt must not disturb the next one of the
    /// same group.
    ///
    /// `Timeout` lists the missing ranks and what they registered instead; `UnsupportedMode` when the determinism asked
    /// for is not offered.
    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>>;
}

/// One communicator of at least two members on this rank.
///
/// Collectives are issued by one thread at a time (the layer above sees to it), in the same order on all members; sends and
/// receives are ordered for each pair of ranks only. [`RawCommunicator::abort`], and the methods of a [`RawWork`], may come from
/// any thread at any time. `deadline` counts from the call; [`Duration::MAX`] means none.
///
/// Communicators are independent: ranks may interleave calls on two of them in different orders. Whatever blocks
/// (`run`, `alloc`, `finalize`, `wait`, `order` on the host, making a communicator) and [`RawWork::test`] progresses every outstanding
/// work of the backend.
///
/// # Safety
///
/// Implementors promise, for every call they are given:
/// - they read only `src` and write only `dst`, within their lengths, and in place as [`RawCall`] describes;
/// - once [`RawCommunicator::run`] has returned, with or without an error, neither they nor any engine below touches the
///   call's memory;
/// - the memory of a started call is not touched after its work is *idle* ([`RawWork::wait`] returned `Ok`, or
///   [`RawWork::cancel`] returned true);
/// - when ranks are threads of one process, nobody reads a buffer of another rank, allocations included: its owner may
///   write it as soon as its own call has failed.
pub unsafe trait RawCommunicator: Send + Sync + Any {
    /// The members.
    fn group(&self) -> &Group;

    /// The intersection of the members' tables.
    fn capabilities(&self) -> &Capabilities;

    /// Runs several calls as one; all are finished on return. One call is the ordinary case; more are a grouped launch
    /// where the engine has one. The calls don't depend on each other and share no memory but sources; the number of calls, and the
    /// place of each among them, belongs to their descriptors.
    ///
    /// # Safety
    ///
    /// The buffers of the calls are valid: `src` for reads, `dst` for writes, until return, and nobody else writes `src` or
    /// touches `dst` meanwhile. Until return no other method of this communicator is called, but `abort` and those that only look.
    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()>;

    /// Starts several calls as one and returns; several works may be in flight, and may be waited for in any order. On
    /// a stream the calls are enqueued behind what the stream holds.
    ///
    /// `deadline` counts from here; when it passes in a wait or test of the work, the communicator is poisoned with `Timeout`.
    ///
    /// # Safety
    ///
    /// As for [`RawCommunicator::run`], but until the returned work is idle. When an error is returned the memory is
    /// not touched. `calls` and the slices of counts in it may be gone after return.
    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>>;

    /// Takes the place of a call that was refused above, and tells the peers that meet it (`PeerRejected`). Does not wait for
    /// them to come. A refused collective, or a launch of several, takes one sequence number: it is always met at the first call of
    /// a peer's launch, which then ends. A refused Send tells its receiver; a refused Recv takes the next message of its pair, and its sender
    /// is told if it has not sent it yet.
    ///
    /// A backend that can't tell them makes itself unusable here (later calls are `Poisoned`): else this rank's next call
    /// would meet the peers' refused one, and data would be silently wrong.
    fn reject(&self, refusal: &Refusal<'_>);

    /// Allocates memory that operations on this communicator can use without copies. Collective; equal `bytes`
    /// (more than 0) on all members, in a space that the capability table offers.
    fn alloc(&self, bytes: usize, space: MemorySpace, deadline: Duration) -> Result<Arc<dyn RawSegment>>;

    /// Forms a communicator from the members that are still there, in group order. Collective over the survivors.
    fn shrink(&self, deadline: Duration) -> Result<Arc<dyn RawCommunicator>>;

    /// Makes every member's running and later calls fail with `Aborted` (then `Poisoned`). Any thread; twice is fine.
    fn abort(&self);

    /// The collective goodbye: returns when all members have said it, after all works in flight. Afterwards, and also when it
    /// fails, peers see this rank as left, as they do when the last handle is dropped.
    fn finalize(&self, deadline: Duration) -> Result<()>;
}

/// Calls in flight.
///
/// Dropping a work that is not idle is a bug of the layer above; it hands it to [`RawWork::detach`] instead. `wait`, `cancel` and
/// `detach` may follow an error of `test` or `wait`.
///
/// # Safety
///
/// Implementors promise not to touch the calls' memory once the work is idle: `wait` returned `Ok`, or `cancel` true.
pub unsafe trait RawWork: Send {
    /// Whether the calls have finished; progresses. Stays true once it was. An error is final.
    fn test(&mut self) -> Result<bool>;

    /// Waits on the host until finished, at most `deadline` and at most what is left of the work's own. On an error the work may still be in flight: [`RawWork::cancel`] tells.
    fn wait(&mut self, deadline: Duration) -> Result<()>;

    /// Orders later work on `queue` after these calls without waiting on the host; on [`Queue::Host`] the same as
    /// `wait` without a deadline of its own.
    fn order(&mut self, queue: Queue) -> Result<()>;

    /// Stops the calls if the engine can. True: idle, the engine no longer touches their memory. Cancelling unfinished calls
    /// breaks the communicator on all members (`Aborted`), since some may have begun them.
    fn cancel(&mut self) -> bool;

    /// The handle was dropped unfinished: the engine keeps `owned` (what the buffers live in) until idle, then drops
    /// it, or leaks it.
    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>);
}

/// Memory from a collective allocation. Dropping it is local; peers that still use it keep their own mapping.
///
/// # Safety
///
/// Implementors promise that the memory is valid for reads and writes for its whole length as long as the value lives, and that
/// no other segment of the process has the same `id`.
pub unsafe trait RawSegment: Send + Sync {
    /// First byte, at least 64-byte aligned.
    fn ptr(&self) -> *mut u8;

    /// Length in bytes, as asked for.
    fn bytes(&self) -> usize;

    /// Where it lives.
    fn space(&self) -> MemorySpace;

    /// The number [`RawBuf::segment`] names it by; unique in the process.
    fn id(&self) -> u64;
}
