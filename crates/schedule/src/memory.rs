//! The data a plan works on: lent to the transport, copied and folded in local steps.

#![allow(unsafe_code)]

use crate::plan::{Buffer, Fold, Region};
use crate::transport::Lent;
use rankwise_core::backend::RawCall;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_reduce::Reducer;

/// What the regions of a plan are made of. [`HostMemory`] is real memory; a simulation may count time instead, and a test fold symbols.
///
/// # Safety
///
/// Implementors promise that what [`Memory::lend`] returns may be used as the transport uses it, for as long as the value isn't armed again or
/// dropped: real memory for a real transport.
pub unsafe trait Memory {
    /// Address and length of a region.
    fn lend(&mut self, region: Region) -> Lent;

    /// Copies between equally long regions that are apart or the same.
    fn copy(&mut self, from: Region, to: Region);

    /// `to = from[0] op from[1] op …`, element by element. A source is apart from `to` or the same.
    fn reduce(&mut self, fold: Fold, from: &[Region], to: Region);
}

/// The caller's buffers in host memory, and scratch that grows and is kept for the next call.
#[derive(Debug, Default)]
pub struct HostMemory {
    source: Option<Lent>,
    destination: Option<Lent>,
    scratch: Scratch,
    elem_size: usize,
    reducer: Option<Reducer>,
    /// Addresses of the sources of a reduction.
    addresses: Vec<*const u8>,
}

// SAFETY: the addresses are of memory that was lent to this value, or of its own; whoever holds it is the only one who uses them.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// Takes the buffers of a call, for a plan that needs `scratch` elements. `members` is the size of the group.
    ///
    /// `NoMemory` when the scratch can't be had, `UnsupportedOp` when the operator has no meaning for the type.
    ///
    /// # Safety
    ///
    /// Whenever a method of [`Memory`] is called, or a transport uses what one has lent, the source is readable, the destination writable, and both are
    /// nobody else's: until the call is idle. The buffers have the sizes [`RawCall`] promises.
    pub unsafe fn arm(&mut self, call: &RawCall<'_>, members: usize, scratch: usize) -> Result<()> {
        self.disarm();
        self.elem_size = call.elem_size;
        self.reducer = match call.op {
            None => None,
            Some(op) => Some(Reducer::new(call.dtype, op, members).ok_or_else(|| {
                Error::new(ErrorKind::UnsupportedOp, format!("{op} has no meaning for {}; choose another", call.dtype))
            })?),
        };
        self.scratch.reserve(scratch.checked_mul(call.elem_size))?;
        let lent = |buffer: rankwise_core::backend::RawBuf| Lent { ptr: buffer.ptr, bytes: buffer.bytes };
        self.source = Some(lent(call.src));
        self.destination = Some(lent(call.dst));
        Ok(())
    }

    /// Gives the caller's buffers back.
    pub fn disarm(&mut self) {
        self.source = None;
        self.destination = None;
    }

    /// Address and length of a region that lies within its buffer.
    fn at(&mut self, region: Region) -> Lent {
        let buffer = match region.buffer {
            Buffer::Source => self.source,
            Buffer::Destination => self.destination,
            Buffer::Scratch => Some(self.scratch.lent()),
        };
        let (start, bytes) = (region.start * self.elem_size, region.len * self.elem_size);
        let fits = buffer.filter(|buffer| start <= buffer.bytes && bytes <= buffer.bytes - start);
        // A plan that leaves its buffers must not touch foreign memory.
        let buffer = fits.expect("a region of a plan lies within its buffer");
        Lent { ptr: buffer.ptr.wrapping_add(start), bytes }
    }
}

// SAFETY: regions are checked to lie in memory that was lent by `arm` or is the scratch, which stays where it is until armed again.
unsafe impl Memory for HostMemory {
    fn lend(&mut self, region: Region) -> Lent {
        self.at(region)
    }

    fn copy(&mut self, from: Region, to: Region) {
        let (from, to) = (self.at(from), self.at(to));
        assert_eq!(from.bytes, to.bytes, "a copy has two sides of one length");
        if from.ptr != to.ptr {
            // SAFETY: both lie within their buffers.
            unsafe { std::ptr::copy(from.ptr.cast_const(), to.ptr, to.bytes) };
        }
    }

    fn reduce(&mut self, _: Fold, from: &[Region], to: Region) {
        // Operators that scale are offered by plans only that fold whole: then this is the call's operator either way.
        let reducer = self.reducer.expect("a plan folds only in calls with an operator");
        assert!(from.iter().all(|source| source.len == to.len), "a reduction has sources of one length");
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        addresses.extend(from.iter().map(|source| self.at(*source).ptr.cast_const()));
        // SAFETY: all lie within their buffers and have the length of `to`; a plan's sources are apart from `to` or the same.
        unsafe { reducer.fold(self.at(to).ptr, &addresses, to.len) };
        self.addresses = addresses;
    }
}

/// Memory aligned to cache lines that only grows.
#[derive(Debug, Default)]
struct Scratch {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

impl Scratch {
    fn reserve(&mut self, bytes: Option<usize>) -> Result<()> {
        let need = bytes.map_or(u64::MAX, |bytes| bytes as u64);
        let lines = bytes.unwrap_or(usize::MAX).div_ceil(size_of::<Line>());
        if let Some(more) = lines.checked_sub(self.lines.len()) {
            self.lines.try_reserve_exact(more).map_err(|_| {
                let kind = ErrorKind::NoMemory { need, limit: 0 };
                Error::new(kind, "no memory for the plan's scratch; choose a plan that needs less, or smaller chunks")
            })?;
            self.lines.resize(lines, Line { _bytes: [0; 64] });
        }
        Ok(())
    }

    fn lent(&mut self) -> Lent {
        Lent { ptr: self.lines.as_mut_ptr().cast(), bytes: self.lines.len() * size_of::<Line>() }
    }
}
