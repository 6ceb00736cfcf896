//! Direct calls: peers read the callers' buffers, which lie in one collective allocation.

use super::all_reduce::Parts;
use super::shape::part;
use crate::alloc::{Allocation, Place};
use crate::comm::Comm;
use crate::ctl::{PoisonKind, Progress};
use crate::sync::Payload;
use rankwise_core::backend::RawCall;
use rankwise_core::op::OpKind;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_reduce::copy::copy;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where source and destination lie, as posted.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Places {
    src: Place,
    dst: Place,
}

impl Places {
    pub(crate) fn write(&self, payload: &Payload) {
        // SAFETY: the own payload is writable, 8-byte aligned, longer than `Places`, and read by nobody before the post.
        unsafe { payload.as_ptr().cast::<Places>().write(*self) };
    }
}

/// The buffers of all members in a direct call.
pub(crate) struct Direct {
    sources: Arc<Allocation>,
    src: Vec<*const u8>,
    /// Set when all destinations lie in one allocation too.
    dst: Option<Vec<*mut u8>>,
    /// Keeps the destinations mapped.
    _targets: Option<Arc<Allocation>>,
}

impl Comm {
    /// Where the buffers of a call lie; the allocations are held so that the call outlives a dropped handle.
    pub(crate) fn places(&self, call: &RawCall<'_>) -> (Places, [Option<Arc<Allocation>>; 2]) {
        if !self.reads_buffers || (call.src.segment.is_none() && call.dst.segment.is_none()) {
            return (Places::default(), [None, None]);
        }
        let (src, sources) = self.place(&call.src);
        let (dst, targets) = self.place(&call.dst);
        (Places { src, dst }, [sources, targets])
    }

    /// The members' buffers, when all contributors' sources lie in one allocation. All members decide alike, from what all
    /// have posted.
    pub(crate) fn direct(
        &self,
        call: &RawCall<'_>,
        seq: u64,
        allocations: &[Option<Arc<Allocation>>; 2],
    ) -> Result<Option<Direct>> {
        let n = self.members();
        // Where only the root contributes, the others have no source to post; they can't reach the root's either.
        if matches!(call.kind, OpKind::Broadcast | OpKind::Scatter | OpKind::ScatterV) {
            return Ok(None);
        }
        // SAFETY: call `seq` was met: the payload is published, and stays until all have posted `seq + 3`.
        let posted = |q: usize| unsafe { self.ctl(q).slot(seq).payload.as_ptr().cast::<Places>().read() };
        let first = posted(0);
        let mut same_dst = first.dst.index != 0;
        let mut offsets = Vec::new();
        if first.src.index == 0 {
            return Ok(None);
        }
        for q in 0..n {
            let places = posted(q);
            if places.src.index != first.src.index {
                return Ok(None);
            }
            same_dst &= places.dst.index == first.dst.index;
            offsets.push(places);
        }
        let outside = |q: usize| {
            let error = Error::new(
                ErrorKind::Engine { library: "shm".into(), code: 0, text: "offset outside an allocation".into() },
                "a peer posted a buffer outside its allocation; its memory is corrupt, end the job",
            );
            self.fail(PoisonKind::Aborted, self.global(q), error.with_peers([self.global(q)]))
        };
        // In one shot everybody reads all of every source until the end: nobody may write its own meanwhile.
        if call.kind == OpKind::AllReduce && !same_dst && offsets.iter().any(|places| places.src == places.dst) {
            return Ok(None);
        }
        // This rank's own index is among the equal ones, so it holds the allocation.
        let Some(sources) = allocations[0].clone() else { return Ok(None) };
        let length = |q: usize| match call.kind {
            OpKind::AllGatherV | OpKind::GatherV => part(call, q).1,
            OpKind::ReduceScatter | OpKind::AllToAll | OpKind::ReduceScatterV => call.src.bytes,
            _ => call.count * call.elem_size,
        };
        let src = (0..n)
            .map(|q| sources.at(q, offsets[q].src.offset, length(q)).map(|p| p.cast_const()).ok_or_else(|| outside(q)))
            .collect::<Result<Vec<_>>>()?;
        let wants_dst = call.kind == OpKind::AllReduce && same_dst;
        let targets = allocations[1].clone().filter(|_| wants_dst);
        let dst = match &targets {
            Some(targets) => Some(
                (0..n)
                    .map(|q| targets.at(q, offsets[q].dst.offset, call.dst.bytes).ok_or_else(|| outside(q)))
                    .collect::<Result<Vec<_>>>()?,
            ),
            None => None,
        };
        Ok(Some(Direct { sources, src, dst, _targets: targets }))
    }

    pub(crate) async fn run_direct(&self, call: &RawCall<'_>, direct: &Direct) -> Result<()> {
        let base = self.steps.load(Ordering::Relaxed);
        let exposed = |q: usize| direct.src[q];
        debug_assert!(direct.sources.index > 0);
        match &direct.dst {
            Some(dst) => self.all_reduce_direct(call, dst, &exposed, base).await,
            None => {
                self.take(call, exposed);
                self.own().advance(Progress::Reduced, base + 1);
            }
        }
        // The exit meet: the caller may write its buffer when this returns.
        self.advance(Progress::Done, base + 1);
        self.all_reach(Progress::Done, base + 1).await;
        self.end_steps(base, 1);
        Ok(())
    }

    /// Two-shot in the members' own destinations.
    async fn all_reduce_direct(
        &self,
        call: &RawCall<'_>,
        dst: &[*mut u8],
        exposed: &impl Fn(usize) -> *const u8,
        base: u64,
    ) {
        let parts = Parts::new(call.count * call.elem_size, self.members());
        let (offset, bytes) = parts.piece(self.me, 0, usize::MAX);
        if bytes > 0 {
            // SAFETY: part `me` of the own destination; only this rank reads that part of any source, or writes it.
            let own = unsafe { call.dst.ptr.add(offset) };
            self.fold(call, own, bytes / call.elem_size, exposed, offset);
        }
        self.advance(Progress::Reduced, base + 1);
        for q in self.others() {
            let (offset, bytes) = parts.piece(q, 0, usize::MAX);
            self.until(q, || self.ctl(q).has_reached(Progress::Reduced, base + 1)).await;
            if bytes > 0 {
                // SAFETY: member q has folded its part into its destination, and with that read ours for the last time.
                unsafe { copy(call.dst.ptr.add(offset), dst[q].add(offset), bytes) };
            }
        }
    }
}
