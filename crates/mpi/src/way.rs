//! How a call is carried out: which collective over which memory, and what is left to do after it.

use crate::api::{Api, Named};
use crate::large::{self, OwnType};
use crate::library::Library;
use crate::native::{Arguments, Integers};
use crate::room::Room;
use rankwise_core::backend::{Counts, RawBuf, RawCall};
use rankwise_core::{DType, Error, ErrorKind, OpKind, ReduceOp, Result};
use rankwise_reduce::Reducer;
use std::sync::Arc;

/// What is left to do when the collective has finished.
#[derive(Clone, Copy)]
pub(crate) enum After {
    Nothing,
    /// Combine the contributions, which lie one after the other, into the destination.
    Fold {
        reducer: Reducer,
        parts: *const u8,
        members: usize,
        count: usize,
        dst: *mut u8,
    },
    /// Put the result, which MPI leaves at the start of an input that was lent for it, where it belongs.
    Move {
        from: *const u8,
        bytes: usize,
        dst: *mut u8,
    },
}

/// A call as MPI gets it.
pub(crate) struct Way<A: Api> {
    /// `None` when the counts don't fit; then the plan in `Integers` says how.
    pub(crate) kind: Option<OpKind>,
    pub(crate) arguments: Arguments<A>,
    pub(crate) after: After,
}

/// Decides how a call is carried out in a group of `n`, this rank at `me`. `room` and `ints` belong to the call until it has finished.
///
/// # Safety
///
/// The call's buffers are valid.
#[inline]
pub(crate) unsafe fn decide<A: Api>(
    library: &Library<A>,
    call: &RawCall<'_>,
    (n, me): (usize, usize),
    fixed: bool,
    room: &mut Room,
    ints: &mut Integers,
) -> Result<Way<A>> {
    let Some(op) = call.op else {
        return movement(library, call, (n, me), ints);
    };
    // SAFETY: the caller's promise.
    unsafe {
        if call.src.bytes.max(call.dst.bytes) / call.elem_size > library.most {
            return large::reduction(library, call, op, (n, me), fixed, room, ints);
        }
        reduction(library, call, op, (n, me), fixed, room, ints)
    }
}

/// The part of [`decide`] about reductions, whatever their counts.
///
/// # Safety
///
/// As there.
#[inline]
pub(crate) unsafe fn reduction<A: Api>(
    library: &Library<A>,
    call: &RawCall<'_>,
    op: ReduceOp,
    (n, me): (usize, usize),
    fixed: bool,
    room: &mut Room,
    ints: &mut Integers,
) -> Result<Way<A>> {
    let count = match call.kind {
        OpKind::ReduceScatterV => call.counts.send[me],
        _ => call.count,
    };
    // What each contribution is multiplied by before a plain sum. A mean over another number of members than a power of two is
    // folded, since only the fold keeps it finite where it is; so are products that would be rounded to 16 bits or less.
    let factor = match op {
        ReduceOp::PreMulSum(factor) => Some(factor),
        ReduceOp::Avg if n.is_power_of_two() => Some((n as f64).recip()),
        _ => None,
    };
    let scaled = matches!(op, ReduceOp::Avg | ReduceOp::PreMulSum(_));
    let is_float = DType::F32 as u8 <= call.dtype as u8 || matches!(call.dtype, DType::F16 | DType::BF16);
    let order_matters = is_float && (scaled || matches!(op, ReduceOp::Sum | ReduceOp::Prod));
    if order_matters && (fixed || (scaled && (factor.is_none() || call.elem_size < 4))) {
        // SAFETY: the caller's promise.
        return unsafe { folded(library, call, op, count, (n, me), room, ints) };
    }
    if call.kind == OpKind::ReduceScatterV {
        ints.fill(call, 1);
    }
    let mut way = Way {
        kind: Some(call.kind),
        arguments: Arguments {
            src: address(&call.src, 0),
            dst: address(&call.dst, 1),
            count,
            datatype: library.datatype(call.dtype),
            op: library.operator(call.dtype, if scaled { ReduceOp::Sum } else { op }),
            in_place: false,
        },
        after: After::Nothing,
    };
    if let Some(factor) = factor {
        // SAFETY: the caller's promise.
        unsafe { scale(call, factor, room, &mut way) }?;
        return Ok(way);
    }
    let scatters = matches!(call.kind, OpKind::ReduceScatter | OpKind::ReduceScatterV);
    if !scatters {
        way.arguments.in_place = call.src.ptr == call.dst.ptr && call.src.bytes > 0;
        if way.arguments.in_place && call.kind == OpKind::Reduce && call.root != 0 {
            // SAFETY: the caller's promise.
            way.arguments.src = unsafe { copied(call.src.ptr, call.src.bytes, room) }?;
            way.arguments.in_place = false;
        }
    } else if is_inside(call) {
        // MPI takes the input from the result's buffer and leaves the result at its start.
        way.arguments.in_place = true;
        way.arguments.dst = call.src.ptr;
        way.after = After::Move { from: call.src.ptr, bytes: call.dst.bytes, dst: call.dst.ptr };
    }
    Ok(way)
}

/// A copy of the input of a reduction in place to another rank than 0: MPICH 4.0 crashes when that is given as `MPI_IN_PLACE` and has more than
/// some thousand bytes.
///
/// # Safety
///
/// The input is readable.
pub(crate) unsafe fn copied(input: *const u8, bytes: usize, room: &mut Room) -> Result<*const u8> {
    let copy = room.of(bytes)?;
    // SAFETY: the caller's promise; the copy is as long and apart.
    unsafe { std::ptr::copy_nonoverlapping(input, copy, bytes) };
    Ok(copy)
}

/// Two places that nobody reads or writes.
static NOWHERE: [u64; 2] = [0; 2];

/// Where a buffer begins; for an empty one a place of ours, since its address may mean something to MPI: Open MPI's `MPI_IN_PLACE` is
/// 1, as is Rust's empty slice of bytes, and it takes equal addresses of source and destination for in place too.
pub(crate) fn address(buffer: &RawBuf, place: usize) -> *mut u8 {
    if buffer.bytes == 0 { std::ptr::from_ref(&NOWHERE[place]).cast_mut().cast() } else { buffer.ptr }
}

#[cold]
pub(crate) fn too_large() -> Error {
    let text = "MPI counts to 2^31 - 1 here, in bytes or in the largest number of them that all counts are multiples of; split the call";
    Error::new(ErrorKind::CountTooLarge, text)
}

/// Whether the destination is a part of the source.
fn is_inside(call: &RawCall<'_>) -> bool {
    let (first, at) = (call.src.ptr.addr(), call.dst.ptr.addr());
    call.dst.bytes > 0 && (first..first + call.src.bytes).contains(&at)
}

/// Data that moves as it is: bytes.
#[inline]
fn movement<A: Api>(
    library: &Library<A>,
    call: &RawCall<'_>,
    (n, me): (usize, usize),
    ints: &mut Integers,
) -> Result<Way<A>> {
    let mut most = call.src.bytes.max(call.dst.bytes);
    // Not this rank's bytes alone: members of these decide alike.
    if !(call.counts.send.is_empty() && call.counts.recv.is_empty()) {
        most = ints.fill(call, call.elem_size);
    } else if call.kind == OpKind::Scatter {
        most = call.dst.bytes * n;
    } else if call.kind == OpKind::Gather {
        most = call.src.bytes * n;
    }
    let way = moved(library, call, me);
    if most > library.most { large::movement(library, call, (n, me), way, ints) } else { Ok(way) }
}

fn moved<A: Api>(library: &Library<A>, call: &RawCall<'_>, me: usize) -> Way<A> {
    let count = match call.kind {
        OpKind::AllGatherV | OpKind::GatherV => call.counts.recv[me],
        OpKind::ScatterV => call.counts.send[me],
        _ => call.count,
    };
    let own = match call.kind {
        OpKind::AllGather | OpKind::Gather => me * call.src.bytes,
        OpKind::AllGatherV | OpKind::GatherV => call.counts.recv[..me].iter().sum::<usize>() * call.elem_size,
        _ => usize::MAX,
    };
    let in_place = own != usize::MAX && call.dst.bytes > 0 && call.src.ptr.addr() == call.dst.ptr.addr() + own;
    Way {
        kind: Some(call.kind),
        arguments: Arguments {
            src: address(&call.src, 0),
            dst: address(&call.dst, 1),
            count: count * call.elem_size,
            datatype: library.named(Named::U8),
            op: None,
            in_place,
        },
        after: After::Nothing,
    }
}

/// What a message between two members is, and the type that a large one has.
pub(crate) fn message<A: Api>(
    library: &Arc<Library<A>>,
    call: &RawCall<'_>,
) -> Result<(Arguments<A>, Option<OwnType<A>>)> {
    let mut arguments = moved(library, call, 0).arguments;
    if arguments.count <= library.most {
        return Ok((arguments, None));
    }
    let whole = OwnType::of(library, arguments.count)?;
    (arguments.count, arguments.datatype) = (1, whole.datatype);
    Ok((arguments, Some(whole)))
}

/// Moves the contributions, to be folded in group order afterwards.
///
/// # Safety
///
/// The call's buffers are valid.
unsafe fn folded<A: Api>(
    library: &Library<A>,
    call: &RawCall<'_>,
    op: ReduceOp,
    count: usize,
    (n, me): (usize, usize),
    room: &mut Room,
    ints: &mut Integers,
) -> Result<Way<A>> {
    let is_root = call.kind != OpKind::Reduce || call.root == me;
    let bytes = count.checked_mul(call.elem_size).and_then(|own| own.checked_mul(n)).ok_or_else(too_large)?;
    let parts = if is_root { room.of(bytes)? } else { std::ptr::dangling_mut() };
    let mut moved = *call;
    moved.op = None;
    moved.dst.ptr = parts;
    moved.dst.bytes = if is_root { bytes } else { 0 };
    let alike;
    moved.kind = match call.kind {
        OpKind::AllReduce => OpKind::AllGather,
        OpKind::Reduce => OpKind::Gather,
        OpKind::ReduceScatter => OpKind::AllToAll,
        _ => {
            alike = vec![count; n];
            moved.counts = Counts { send: call.counts.send, recv: &alike };
            OpKind::AllToAllV
        }
    };
    let mut way = movement(library, &moved, (n, me), ints)?;
    let reducer = Reducer::new(call.dtype, op, n).ok_or_else(no_kernel)?;
    if is_root {
        way.after = After::Fold { reducer, parts, members: n, count, dst: call.dst.ptr };
    }
    Ok(way)
}

#[cold]
fn no_kernel() -> Error {
    Error::new(ErrorKind::UnsupportedOp, "there is no kernel for this operator and type")
}

/// Sums what was multiplied before it is lent to MPI.
///
/// # Safety
///
/// The call's buffers are valid.
unsafe fn scale<A: Api>(call: &RawCall<'_>, factor: f64, room: &mut Room, way: &mut Way<A>) -> Result<()> {
    let reducer = Reducer::new(call.dtype, ReduceOp::PreMulSum(factor), 1).ok_or_else(no_kernel)?;
    let staged = room.of(call.src.bytes)?;
    // SAFETY: the staging is as long as the source and apart from it.
    unsafe { reducer.fold(staged, &[call.src.ptr.cast_const()], call.src.bytes / call.elem_size) };
    way.arguments.src = staged;
    Ok(())
}

impl After {
    /// Does it.
    ///
    /// # Safety
    ///
    /// The collective has finished, and its memory is still there.
    #[inline]
    pub(crate) unsafe fn finish(self, members: &mut Vec<*const u8>) {
        match self {
            After::Nothing => {}
            After::Fold { reducer, parts, members: n, count, dst } => {
                members.clear();
                let each = count * reducer.elem_size();
                // SAFETY: `n` contributions of `each` bytes lie there; the destination is apart from them.
                unsafe {
                    members.extend((0..n).map(|i| parts.add(i * each)));
                    reducer.fold(dst, members, count);
                }
            }
            // SAFETY: as long as the destination; they may overlap.
            After::Move { from, bytes, dst } => unsafe { std::ptr::copy(from, dst, bytes) },
        }
    }
}
