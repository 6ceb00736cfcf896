//! Every check of arguments, once, above the backends.

#![allow(unsafe_code)]

use crate::backend::{Counts, RawBuf, RawCall};
use crate::buffer::Side;
use crate::call::{Request, Shape};
use crate::caps::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::MemorySpace;
use crate::op::OpKind;

/// Where a request is made.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) size: usize,
    pub(crate) position: usize,
    pub(crate) capabilities: &'a Capabilities,
}

/// A request that passed: what [`RawCall`] promises holds, except that counts are still in rows of `width`.
pub(crate) fn check<'c>(request: &Request<'c>, place: Place<'_>) -> Result<RawCall<'c>> {
    let Request { shape, src, dst } = request;
    let checked = match shape.kind {
        OpKind::AllReduce => all_reduce(shape, src, dst)?,
        OpKind::Barrier => Checked::default(),
        OpKind::AllGather => all_gather(shape, src, dst, place)?,
        OpKind::ReduceScatter => reduce_scatter(shape, src, dst, place)?,
        OpKind::AllToAll => all_to_all(src, dst, place)?,
        OpKind::Broadcast => broadcast(shape, dst, place)?,
        OpKind::Reduce | OpKind::Gather | OpKind::Scatter => rooted(shape, src, dst, place)?,
        OpKind::Send | OpKind::Recv => point_to_point(shape, src, dst, place)?,
        _ => uneven(shape, src, dst, place)?,
    };
    let caps = place.capabilities;
    caps.check(shape.kind, shape.dtype, shape.op, MemorySpace::Host)?;
    let size = shape.elem_size;
    match checked.largest.checked_mul(size) {
        Some(bytes) if bytes as u64 <= caps.max_bytes() => {}
        _ => return Err(too_large(checked.largest, size, caps.max_bytes())),
    }
    let raw = |view: Option<View>| match view {
        // SAFETY: the checks keep offset + len within the buffer; `wrapping_add` would hide a mistake from Miri.
        Some(view) => RawBuf::host(unsafe { view.ptr.add(view.offset * size) }, view.len * size),
        None => RawBuf::NONE,
    };
    // Elements without bytes are moved as no elements.
    let (count, elem_size) = if size == 0 { (0, 1) } else { (checked.count, size) };
    Ok(RawCall {
        elem_size,
        op: shape.op,
        counts: Counts { send: shape.send, recv: shape.recv },
        root: shape.root,
        src: raw(checked.src),
        dst: raw(checked.dst),
        tag: shape.tag,
        ..RawCall::new(shape.kind, shape.dtype, count)
    })
}

/// Turns counts of rows into counts of elements, in `scratch`.
#[inline]
pub(crate) fn widen<'a>(call: RawCall<'a>, shape: &Shape<'_>, scratch: &'a mut Vec<usize>) -> RawCall<'a> {
    let width = if shape.elem_size == 0 { 0 } else { shape.width };
    if width == 1 || (call.counts.send.is_empty() && call.counts.recv.is_empty()) {
        return call;
    }
    scratch.clear();
    // The sum was checked in elements, so that no product overflows.
    scratch.extend(call.counts.send.iter().chain(call.counts.recv).map(|rows| rows * width));
    let (send, recv) = scratch.split_at(call.counts.send.len());
    RawCall { counts: Counts { send, recv }, ..call }
}

#[derive(Clone, Copy)]
struct View {
    ptr: *mut u8,
    /// In elements.
    offset: usize,
    len: usize,
}

/// What the check of one kind finds out.
#[derive(Default)]
struct Checked {
    count: usize,
    /// Elements of the largest buffer on any rank, so that all ranks refuse alike.
    largest: usize,
    src: Option<View>,
    dst: Option<View>,
}

fn all(side: &Side) -> Option<View> {
    Some(View { ptr: side.ptr, offset: 0, len: side.len })
}

fn part(side: &Side, offset: usize, len: usize) -> Option<View> {
    Some(View { ptr: side.ptr, offset, len })
}

#[inline]
fn all_reduce(shape: &Shape<'_>, src: &Side, dst: &Side) -> Result<Checked> {
    let count = dst.len;
    present(src, dst, !shape.in_place, true)?;
    if shape.in_place {
        return Ok(Checked { count, largest: count, src: all(dst), dst: all(dst) });
    }
    if src.len != count {
        return Err(unequal("source", src.len, count, "the destination's length"));
    }
    Ok(Checked { count, largest: count, src: all(src), dst: all(dst) })
}

fn all_gather(shape: &Shape<'_>, src: &Side, dst: &Side, place: Place<'_>) -> Result<Checked> {
    let n = place.size;
    present(src, dst, !shape.in_place, true)?;
    if shape.in_place {
        let count = divided("buffer", dst.len, n)?;
        let own = part(dst, place.position * count, count);
        return Ok(Checked { count, largest: dst.len, src: own, dst: all(dst) });
    }
    let need = times(n, src.len, "members", "elements of each")?;
    if dst.len != need {
        return Err(unequal("destination", dst.len, need, &format!("{n} members times {} elements", src.len)));
    }
    Ok(Checked { count: src.len, largest: need, src: all(src), dst: all(dst) })
}

fn reduce_scatter(shape: &Shape<'_>, src: &Side, dst: &Side, place: Place<'_>) -> Result<Checked> {
    let n = place.size;
    present(src, dst, !shape.in_place, true)?;
    if shape.in_place {
        let count = divided("buffer", dst.len, n)?;
        let own = part(dst, place.position * count, count);
        return Ok(Checked { count, largest: dst.len, src: all(dst), dst: own });
    }
    let need = times(n, dst.len, "members", "elements of each")?;
    if src.len != need {
        return Err(unequal("source", src.len, need, &format!("{n} members times {} elements", dst.len)));
    }
    Ok(Checked { count: dst.len, largest: need, src: all(src), dst: all(dst) })
}

fn all_to_all(src: &Side, dst: &Side, place: Place<'_>) -> Result<Checked> {
    present(src, dst, true, true)?;
    if src.len != dst.len {
        return Err(unequal("source", src.len, dst.len, "the destination's length"));
    }
    let count = divided("source", src.len, place.size)?;
    Ok(Checked { count, largest: src.len, src: all(src), dst: all(dst) })
}

fn broadcast(shape: &Shape<'_>, dst: &Side, place: Place<'_>) -> Result<Checked> {
    root(shape, place)?;
    present(&Side::ABSENT, dst, false, true)?;
    let src = if shape.root == place.position { all(dst) } else { None };
    Ok(Checked { count: dst.len, largest: dst.len, src, dst: all(dst) })
}

fn rooted(shape: &Shape<'_>, src: &Side, dst: &Side, place: Place<'_>) -> Result<Checked> {
    root(shape, place)?;
    let (n, is_root) = (place.size, shape.root == place.position);
    let scatter = shape.kind == OpKind::Scatter;
    present(src, dst, !scatter || is_root, scatter || is_root)?;
    // `small` is what every rank has, `big` what the root alone has.
    let (small, big, name) = if scatter { (dst, src, "source") } else { (src, dst, "destination") };
    let count = small.len;
    let need = if shape.kind == OpKind::Reduce { count } else { times(n, count, "members", "elements of each")? };
    if is_root && big.len != need {
        return Err(match shape.kind {
            OpKind::Reduce => unequal(name, big.len, need, "the source's length"),
            _ => unequal(name, big.len, need, &format!("{n} members times {count} elements")),
        });
    }
    let at_root = if is_root { all(big) } else { None };
    let (src, dst) = if scatter { (at_root, all(small)) } else { (all(small), at_root) };
    Ok(Checked { count, largest: need, src, dst })
}

fn point_to_point(shape: &Shape<'_>, src: &Side, dst: &Side, place: Place<'_>) -> Result<Checked> {
    let send = shape.kind == OpKind::Send;
    let name = if send { "destination" } else { "source" };
    position(shape.root, place, name)?;
    if shape.root == place.position {
        return Err(Error::invalid(format!(
            "the {name} {} is this rank itself; name another position of the group",
            shape.root
        )));
    }
    present(src, dst, send, !send)?;
    let side = if send { src } else { dst };
    let (src, dst) = if send { (all(side), None) } else { (None, all(side)) };
    Ok(Checked { count: side.len, largest: side.len, src, dst })
}

/// The v-forms; the token forms are those with rows of `width`.
fn uneven(shape: &Shape<'_>, src: &Side, dst: &Side, place: Place<'_>) -> Result<Checked> {
    use OpKind::*;
    let me = place.position;
    let is_root = shape.root == me;
    if shape.kind.has_root() {
        root(shape, place)?;
    }
    let (send, recv) = match shape.kind {
        AllGatherV | GatherV => (None, Some(shape.recv)),
        ReduceScatterV | ScatterV => (Some(shape.send), None),
        AllToAllV => (Some(shape.send), Some(shape.recv)),
        kind => {
            return Err(Error::new(
                ErrorKind::UnsupportedOp,
                format!("{kind} is not an operation on buffers; call the method of that name"),
            ));
        }
    };
    let sent = send.map(|counts| sum(counts, "send", shape, place)).transpose()?;
    let received = recv.map(|counts| sum(counts, "receive", shape, place)).transpose()?;
    let own = |counts: &[usize]| counts[me] * shape.width;
    let (needs_src, needs_dst) = match shape.kind {
        GatherV => (true, is_root),
        ScatterV => (is_root, true),
        _ => (true, true),
    };
    present(src, dst, needs_src, needs_dst)?;
    let src_len = sent.unwrap_or_else(|| own(shape.recv));
    let dst_len = received.unwrap_or_else(|| own(shape.send));
    if needs_src && src.len != src_len {
        return Err(wrong_rows("source", src.len, src_len, sent.is_none(), shape, me));
    }
    if needs_dst && dst.len != dst_len {
        return Err(wrong_rows("destination", dst.len, dst_len, received.is_none(), shape, me));
    }
    if shape.kind == AllToAllV && shape.send[me] != shape.recv[me] {
        return Err(Error::invalid(format!(
            "this rank sends itself {} elements but receives {} from itself; make both counts at position {me} equal",
            shape.send[me], shape.recv[me]
        )));
    }
    Ok(Checked {
        count: 0,
        largest: src_len.max(dst_len),
        src: if needs_src { all(src) } else { None },
        dst: if needs_dst { all(dst) } else { None },
    })
}

/// Elements that all counts are together.
fn sum(counts: &[usize], name: &str, shape: &Shape<'_>, place: Place<'_>) -> Result<usize> {
    if counts.len() != place.size {
        return Err(Error::invalid(format!(
            "{} {name} counts for {} members; give one count for each member, in group order",
            counts.len(),
            place.size
        )));
    }
    counts
        .iter()
        .try_fold(0_usize, |sum, count| sum.checked_add(*count))
        .and_then(|rows| rows.checked_mul(shape.width))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::CountTooLarge,
                format!(
                    "the {name} counts together (in rows of {} elements) exceed the address space; split the call",
                    shape.width
                ),
            )
        })
}

fn root(shape: &Shape<'_>, place: Place<'_>) -> Result<()> {
    position(shape.root, place, "root")
}

fn position(position: usize, place: Place<'_>, name: &str) -> Result<()> {
    if position < place.size {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the {name} {position} is not a position in a group of {}; positions count from 0 in group order",
        place.size
    )))
}

fn present(src: &Side, dst: &Side, needs_src: bool, needs_dst: bool) -> Result<()> {
    if src.present == needs_src && dst.present == needs_dst {
        return Ok(());
    }
    let (name, needed) = if src.present != needs_src { ("source", needs_src) } else { ("destination", needs_dst) };
    Err(Error::invalid(if needed {
        format!("this rank needs a {name}, but none was given; pass Some here")
    } else {
        format!("this rank has no use for a {name}, but one was given; pass it at the root only, None here")
    }))
}

fn divided(name: &str, len: usize, n: usize) -> Result<usize> {
    if len.is_multiple_of(n) {
        return Ok(len / n);
    }
    Err(Error::invalid(format!(
        "the {name} has {len} elements, which {n} members can't share evenly; pad it or use the v-form"
    )))
}

pub(crate) fn times(a: usize, b: usize, what_a: &str, what_b: &str) -> Result<usize> {
    a.checked_mul(b).ok_or_else(|| {
        Error::new(
            ErrorKind::CountTooLarge,
            format!("{a} {what_a} times {b} {what_b} exceed the address space; split the call"),
        )
    })
}

#[cold]
fn unequal(name: &str, have: usize, need: usize, because: &str) -> Error {
    Error::invalid(format!("the {name} has {have} elements but must have {need} ({because}); pass a buffer of {need}"))
}

#[cold]
fn wrong_rows(name: &str, have: usize, need: usize, own: bool, shape: &Shape<'_>, me: usize) -> Error {
    let because = if own { format!("counts[{me}], this rank's own") } else { "the sum of the counts".into() };
    match shape.width {
        1 => unequal(name, have, need, &because),
        width => Error::invalid(format!(
            "the {name} has {have} elements ({} rows of {width}) but must have {need} ({} rows: {because}); \
             pass exactly the rows that the counts say",
            have.checked_div(width).unwrap_or(0),
            need.checked_div(width).unwrap_or(0),
        )),
    }
}

#[cold]
pub(crate) fn too_large(elements: usize, size: usize, max_bytes: u64) -> Error {
    Error::new(
        ErrorKind::CountTooLarge,
        format!("{elements} elements of {size} bytes exceed the backend's {max_bytes} bytes a buffer; split the call"),
    )
}
