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
pub(crate) struct Place<'a> {
    pub(crate) size: usize,
    pub(crate) position: usize,
    pub(crate) capabilities: &'a Capabilities,
}

/// Fills `call` from a request that passes: what [`RawCall`] promises holds, except that counts are still in rows of
/// `width`. `call` comes from [`blank`]; filled in place, because moving it about would cost more than the checks.
pub(crate) fn check<'c>(request: &Request<'c>, place: &Place<'_>, call: &mut RawCall<'c>) -> Result<()> {
    let Request { shape, src, dst } = request;
    let largest = match shape.kind {
        OpKind::AllReduce => all_reduce(shape, src, dst, call)?,
        OpKind::Barrier => 0,
        OpKind::AllGather => all_gather(shape, src, dst, place, call)?,
        OpKind::ReduceScatter => reduce_scatter(shape, src, dst, place, call)?,
        OpKind::AllToAll => all_to_all(shape, src, dst, place, call)?,
        OpKind::Broadcast => broadcast(shape, dst, place, call)?,
        OpKind::Reduce | OpKind::Gather | OpKind::Scatter => rooted(shape, src, dst, place, call)?,
        OpKind::Send | OpKind::Recv => point_to_point(shape, src, dst, place, call)?,
        _ => uneven(shape, src, dst, place, call)?,
    };
    let caps = place.capabilities;
    caps.check(shape.kind, shape.dtype, shape.op, MemorySpace::Host)?;
    match largest.checked_mul(shape.elem_size) {
        Some(bytes) if bytes as u64 <= caps.max_bytes() => {}
        _ => return Err(too_large(largest, shape.elem_size, caps.max_bytes())),
    }
    if shape.elem_size == 0 {
        // Elements without bytes are moved as no elements.
        (call.count, call.elem_size) = (0, 1);
    }
    Ok(())
}

/// A call of this shape, without buffers and count.
#[inline]
pub(crate) fn blank<'c>(shape: &Shape<'c>) -> RawCall<'c> {
    RawCall {
        kind: shape.kind,
        dtype: shape.dtype,
        elem_size: shape.elem_size,
        op: shape.op,
        count: 0,
        counts: Counts { send: shape.send, recv: shape.recv },
        root: shape.root,
        src: RawBuf::NONE,
        dst: RawBuf::NONE,
        tag: shape.tag,
        fused: None,
    }
}

/// Whether [`widen`] has something to do.
#[inline]
pub(crate) fn has_rows(shape: &Shape<'_>) -> bool {
    (shape.width != 1 || shape.elem_size == 0) && !(shape.send.is_empty() && shape.recv.is_empty())
}

/// Turns counts of rows into counts of elements, in `scratch`.
pub(crate) fn widen<'a>(shape: &Shape<'_>, scratch: &'a mut Vec<usize>) -> Counts<'a> {
    let width = if shape.elem_size == 0 { 0 } else { shape.width };
    scratch.clear();
    // The sum was checked in elements, so that no product overflows.
    scratch.extend(shape.send.iter().chain(shape.recv).map(|rows| rows * width));
    let (send, recv) = scratch.split_at(shape.send.len());
    Counts { send, recv }
}

#[inline]
fn all(side: &Side, shape: &Shape<'_>) -> RawBuf {
    // Cannot overflow: a slice has at most isize::MAX bytes. Where there is only a length yet, nothing uses the product.
    RawBuf::host(side.ptr, side.len.wrapping_mul(shape.elem_size))
}

/// The caller has checked that offset and length lie within the buffer.
fn part(side: &Side, offset: usize, len: usize, shape: &Shape<'_>) -> RawBuf {
    debug_assert!(offset + len <= side.len);
    // SAFETY: within the buffer.
    RawBuf::host(unsafe { side.ptr.add(offset * shape.elem_size) }, len * shape.elem_size)
}

#[inline]
fn all_reduce(shape: &Shape<'_>, src: &Side, dst: &Side, call: &mut RawCall<'_>) -> Result<usize> {
    present(src, dst, !shape.in_place, true)?;
    let src = if shape.in_place { dst } else { src };
    if src.len != dst.len {
        return Err(unequal("source", src.len, dst.len, "the destination's length"));
    }
    (call.count, call.src, call.dst) = (dst.len, all(src, shape), all(dst, shape));
    Ok(dst.len)
}

fn all_gather(shape: &Shape<'_>, src: &Side, dst: &Side, place: &Place<'_>, call: &mut RawCall<'_>) -> Result<usize> {
    let n = place.size;
    present(src, dst, !shape.in_place, true)?;
    call.dst = all(dst, shape);
    if shape.in_place {
        call.count = divided("buffer", dst.len, n)?;
        call.src = part(dst, place.position * call.count, call.count, shape);
        return Ok(dst.len);
    }
    let need = times(n, src.len, "members", "elements of each")?;
    if dst.len != need {
        return Err(unequal("destination", dst.len, need, &format!("{n} members times {} elements", src.len)));
    }
    (call.count, call.src) = (src.len, all(src, shape));
    Ok(need)
}

fn reduce_scatter(
    shape: &Shape<'_>,
    src: &Side,
    dst: &Side,
    place: &Place<'_>,
    call: &mut RawCall<'_>,
) -> Result<usize> {
    let n = place.size;
    present(src, dst, !shape.in_place, true)?;
    if shape.in_place {
        call.count = divided("buffer", dst.len, n)?;
        call.src = all(dst, shape);
        call.dst = part(dst, place.position * call.count, call.count, shape);
        return Ok(dst.len);
    }
    let need = times(n, dst.len, "members", "elements of each")?;
    if src.len != need {
        return Err(unequal("source", src.len, need, &format!("{n} members times {} elements", dst.len)));
    }
    (call.count, call.src, call.dst) = (dst.len, all(src, shape), all(dst, shape));
    Ok(need)
}

fn all_to_all(shape: &Shape<'_>, src: &Side, dst: &Side, place: &Place<'_>, call: &mut RawCall<'_>) -> Result<usize> {
    present(src, dst, true, true)?;
    if src.len != dst.len {
        return Err(unequal("source", src.len, dst.len, "the destination's length"));
    }
    call.count = divided("source", src.len, place.size)?;
    (call.src, call.dst) = (all(src, shape), all(dst, shape));
    Ok(src.len)
}

fn broadcast(shape: &Shape<'_>, dst: &Side, place: &Place<'_>, call: &mut RawCall<'_>) -> Result<usize> {
    root(shape, place)?;
    present(&Side::ABSENT, dst, false, true)?;
    (call.count, call.dst) = (dst.len, all(dst, shape));
    if shape.root == place.position {
        call.src = call.dst;
    }
    Ok(dst.len)
}

fn rooted(shape: &Shape<'_>, src: &Side, dst: &Side, place: &Place<'_>, call: &mut RawCall<'_>) -> Result<usize> {
    root(shape, place)?;
    let (n, is_root) = (place.size, shape.root == place.position);
    let scatter = shape.kind == OpKind::Scatter;
    let (needs_src, needs_dst) = (!scatter || is_root, scatter || is_root);
    present(src, dst, needs_src, needs_dst)?;
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
    call.count = count;
    both(shape, needs_src.then_some(src), needs_dst.then_some(dst), call);
    Ok(need)
}

fn point_to_point(
    shape: &Shape<'_>,
    src: &Side,
    dst: &Side,
    place: &Place<'_>,
    call: &mut RawCall<'_>,
) -> Result<usize> {
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
    call.count = if send { src.len } else { dst.len };
    both(shape, send.then_some(src), (!send).then_some(dst), call);
    Ok(call.count)
}

/// The v-forms; the token forms are those with rows of `width`.
fn uneven(shape: &Shape<'_>, src: &Side, dst: &Side, place: &Place<'_>, call: &mut RawCall<'_>) -> Result<usize> {
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
    both(shape, needs_src.then_some(src), needs_dst.then_some(dst), call);
    Ok(src_len.max(dst_len))
}

/// The buffers that there are on this rank, whole.
fn both(shape: &Shape<'_>, src: Option<&Side>, dst: Option<&Side>, call: &mut RawCall<'_>) {
    if let Some(src) = src {
        call.src = all(src, shape);
    }
    if let Some(dst) = dst {
        call.dst = all(dst, shape);
    }
}

/// Elements that all counts are together.
fn sum(counts: &[usize], name: &str, shape: &Shape<'_>, place: &Place<'_>) -> Result<usize> {
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

fn root(shape: &Shape<'_>, place: &Place<'_>) -> Result<()> {
    position(shape.root, place, "root")
}

fn position(position: usize, place: &Place<'_>, name: &str) -> Result<()> {
    if position < place.size {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the {name} {position} is not a position in a group of {}; positions count from 0 in group order",
        place.size
    )))
}

#[inline]
fn present(src: &Side, dst: &Side, needs_src: bool, needs_dst: bool) -> Result<()> {
    if src.present == needs_src && dst.present == needs_dst {
        return Ok(());
    }
    Err(misplaced(src.present != needs_src, needs_src, needs_dst))
}

#[cold]
fn misplaced(is_src: bool, needs_src: bool, needs_dst: bool) -> Error {
    let (name, needed) = if is_src { ("source", needs_src) } else { ("destination", needs_dst) };
    Error::invalid(if needed {
        format!("this rank needs a {name}, but none was given; pass Some here")
    } else {
        format!("this rank has no use for a {name}, but one was given; pass it at the root only, None here")
    })
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
