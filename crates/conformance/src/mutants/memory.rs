//! Faults with lent memory: it is read after return, or something is written that was not lent for writing.
//!
//! They act on memory from collective allocation only, which the layer between keeps alive: ordinary memory may be gone, or
//! not writable, and the suite must survive its mutants.

use super::Mutant;
use super::wrapped::{Fault, Finished, Seat, lock};
use crate::case::Need;
use rankwise_core::backend::{RawBuf, RawCall, RawSegment};
use rankwise_core::{OpKind, Result};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const ALLOC: &[Need] = &[Need::Alloc];

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("changed-source", "an out-of-place call writes its source", &["AL"], || Arc::new(ChangedSource))
        .needs(ALLOC),
    Mutant::new("written-past-the-end", "a byte after the destination is written", &["AL"], || Arc::new(PastTheEnd))
        .needs(ALLOC),
    Mutant::new("aliased-result", "a later call writes into the result of the one before", &["LM"], || {
        Arc::<Aliased>::default()
    })
    .needs(ALLOC),
    Mutant::new(
        "early-return",
        "a rank without a result returns before its peers have read its source",
        &["LM"],
        || Arc::<EarlyReturn>::default(),
    )
    .needs(&[Need::Alloc, Need::Kind(OpKind::Broadcast)]),
    Mutant::new("late-write", "a call that has failed writes its destination later", &["LM"], || {
        Arc::<LateWrite>::default()
    })
    .needs(ALLOC),
];

/// Bytes of collective memory that are kept alive.
struct Region {
    segment: Arc<dyn RawSegment>,
    offset: usize,
    bytes: usize,
}

impl Region {
    fn of(seat: &Seat, buffer: &RawBuf) -> Option<Region> {
        let (segment, offset) = seat.segment(buffer)?;
        Some(Region { segment, offset, bytes: buffer.bytes })
    }

    /// The byte at `index`, which may lie outside the region but not outside its segment.
    fn place(&self, index: usize) -> Option<*mut u8> {
        let at = self.offset + index;
        // SAFETY: within the segment, which `self` keeps alive.
        (at < self.segment.bytes()).then(|| unsafe { self.segment.ptr().add(at) })
    }

    fn read(&self) -> Vec<u8> {
        // SAFETY: valid memory of this process. That its owner may be writing it is the fault; volatile, so that what is
        // read is what is there.
        (0..self.bytes).filter_map(|i| self.place(i)).map(|place| unsafe { place.read_volatile() }).collect()
    }

    fn write(&self, index: usize, value: u8) {
        if let Some(place) = self.place(index) {
            // SAFETY: valid memory of this process. That it has not been lent for writing is the fault.
            unsafe { place.write_volatile(value) };
        }
    }
}

struct ChangedSource;

impl Fault for ChangedSource {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, _: &mut [u8]) -> Result<()> {
        if let Some(source) = Region::of(seat, &finished.call.src)
            && !finished.is_in_place()
            && let Some(first) = finished.src.first()
        {
            source.write(0, first ^ 1);
        }
        Ok(())
    }
}

struct PastTheEnd;

impl Fault for PastTheEnd {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        if let Some(region) = Region::of(seat, &finished.call.dst)
            && !dst.is_empty()
        {
            region.write(dst.len(), 0);
        }
        Ok(())
    }
}

/// The destination of the last all-reduce.
#[derive(Default)]
struct Aliased(Mutex<Option<Region>>);

impl Fault for Aliased {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        let Some(region) = Region::of(seat, &finished.call.dst).filter(|_| finished.is(OpKind::AllReduce)) else {
            return Ok(());
        };
        let mine = finished.call.dst.ptr;
        if let Some(last) = lock(&self.0).replace(region)
            && last.place(0) != Some(mine)
        {
            dst.iter().take(last.bytes).enumerate().for_each(|(i, byte)| last.write(i, *byte));
        }
        Ok(())
    }
}

/// A call that goes on after its return.
#[derive(Default)]
struct EarlyReturn(Mutex<Option<JoinHandle<()>>>);

impl Fault for EarlyReturn {
    fn answer(&self, seat: &Arc<Seat>, calls: &[RawCall<'_>]) -> Option<Result<()>> {
        let [call] = calls else { return None };
        let at_root = seat.position == call.root;
        let buffer = match call.kind {
            OpKind::Broadcast if at_root => call.src,
            OpKind::Gather | OpKind::Reduce if !at_root => call.src,
            _ => return None,
        };
        let source = Region::of(seat, &buffer)?;
        let (kind, dtype, elem_size, op) = (call.kind, call.dtype, call.elem_size, call.op);
        let (count, root, tag) = (call.count, call.root, call.tag);
        let seat = seat.clone();
        let rest = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(4));
            let mut data = source.read();
            let mut call = RawCall::new(kind, dtype, count);
            (call.elem_size, call.op, call.root, call.tag) = (elem_size, op, root, tag);
            call.src = RawBuf::host(data.as_mut_ptr(), data.len());
            if kind == OpKind::Broadcast {
                call.dst = call.src;
            }
            // SAFETY: the buffer lives until return; `settle` keeps other calls away. Its peers tell what goes wrong.
            let _ = unsafe { seat.inner.run(&[call], Duration::from_secs(10)) };
        });
        *lock(&self.0) = Some(rest);
        Some(Ok(()))
    }

    fn settle(&self) {
        if let Some(rest) = lock(&self.0).take() {
            // A panic in there has been printed.
            let _ = rest.join();
        }
    }
}

/// The destination of the last call that failed.
#[derive(Default)]
struct LateWrite(Mutex<Option<Region>>, Mutex<Option<Region>>);

impl Fault for LateWrite {
    fn redirect(&self, seat: &Seat, call: &mut RawCall<'_>) {
        *lock(&self.0) = Region::of(seat, &call.dst);
    }

    fn explain(&self, _: &Seat, error: rankwise_core::Error, _: &mut [&mut [u8]]) -> Result<()> {
        if let Some(region) = lock(&self.0).take() {
            *lock(&self.1) = Some(region);
        }
        Err(error)
    }

    fn settle(&self) {
        if let Some(region) = lock(&self.1).take() {
            region.write(0, 0x3C);
        }
    }
}
