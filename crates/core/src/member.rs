//! One communicator as this rank sees it: the engine's half, the busy flag, the end of life.

#![allow(unsafe_code)]

use crate::backend::{RawCall, RawCommunicator, RawWork, Refusal};
use crate::bytes::ALIGNMENT;
use crate::call::{Part, Request, Shape};
use crate::caps::Capabilities;
use crate::check::{self, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::Generation;
use crate::group::Group;
use crate::mem::{MemorySpace, Queue};
use crate::op::OpKind;
use crate::segbuf::{SegBuf, SegmentTable, SegmentView};
use crate::solo::{self, SoloSegment};
use bytemuck::Pod;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
/// Groups of one only: an engine keeps this itself.
const ABORTED: u8 = 2;
const POISONED: u8 = 3;

/// A communicator that this rank is a member of; all handles of one registered group share it.
pub(crate) struct Member {
    /// `None` in a group of one.
    raw: ManuallyDrop<Option<Arc<dyn RawCommunicator>>>,
    group: Group,
    position: usize,
    rank: usize,
    tag: u64,
    capabilities: Capabilities,
    state: AtomicU8,
    busy: AtomicBool,
    splits: AtomicU64,
    generation: Generation,
    segments: Arc<SegmentTable>,
}

/// What a handle keeps between calls so that they need not allocate.
#[derive(Default)]
pub(crate) struct Scratch {
    counts: Vec<usize>,
    segments: SegmentView,
}

/// The right to issue calls; gives it back when dropped.
pub(crate) struct Entered<'a>(&'a Member);

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the acquire in `enter`: the next issuer sees what the engine wrote on this thread.
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Member {
    /// `raw` is dropped when the group has one member. `rank` must be in the group.
    pub(crate) fn new(
        raw: Option<Arc<dyn RawCommunicator>>,
        group: &Group,
        rank: usize,
        tag: u64,
        alone: &Capabilities,
    ) -> Result<Member> {
        let position = group.position(rank).ok_or_else(|| not_member(group, rank))?;
        let raw = raw.filter(|_| group.len() > 1);
        Ok(Member {
            capabilities: raw.as_ref().map_or(alone, |raw| raw.capabilities()).clone(),
            raw: ManuallyDrop::new(raw),
            group: group.clone(),
            position,
            rank,
            tag,
            state: AtomicU8::new(OPEN),
            busy: AtomicBool::new(false),
            splits: AtomicU64::new(0),
            generation: Generation::current(),
            segments: Arc::default(),
        })
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    pub(crate) fn raw(&self) -> Option<&Arc<dyn RawCommunicator>> {
        self.raw.as_ref()
    }

    /// Number of splits that this rank knows to have happened.
    pub(crate) fn splits(&self) -> &AtomicU64 {
        &self.splits
    }

    pub(crate) fn is_current(&self) -> bool {
        self.generation.is_current()
    }

    /// Takes the right to issue calls, without waiting.
    #[inline]
    pub(crate) fn enter(&self, kind: OpKind) -> Result<Entered<'_>> {
        if self.generation.is_current() && !self.busy.swap(true, Ordering::Acquire) {
            let entered = Entered(self);
            if self.state.load(Ordering::Relaxed) == OPEN {
                return Ok(entered);
            }
            return Err(self.not_open(kind));
        }
        Err(self.not_entered(kind))
    }

    #[cold]
    fn not_entered(&self, kind: OpKind) -> Error {
        self.blame(
            kind,
            if self.generation.is_current() {
                Error::new(
                    ErrorKind::Busy,
                    "another thread is in a call on this group; let one thread issue its calls, or split the group",
                )
            } else {
                return self.forked(kind);
            },
        )
    }

    #[cold]
    pub(crate) fn forked(&self, kind: OpKind) -> Error {
        self.blame(
            kind,
            Error::new(
                ErrorKind::ForkedProcess,
                "this handle was made before a fork; use it in the parent, and start ranks by exec, not by fork",
            ),
        )
    }

    #[cold]
    fn not_open(&self, kind: OpKind) -> Error {
        let aborted = Error::new(ErrorKind::Aborted, "this rank called abort").with_peers([self.rank]);
        let error = match self.state.load(Ordering::Relaxed) {
            ABORTED => {
                self.state.store(POISONED, Ordering::Relaxed);
                aborted
            }
            POISONED => {
                Error::new(ErrorKind::Poisoned, "the communicator was aborted; make another one").with_source(aborted)
            }
            _ => Error::new(ErrorKind::Closed, "the communicator was finalized; nothing can follow on its group"),
        };
        self.blame(kind, error)
    }

    /// Ends the communicator for all its handles.
    pub(crate) fn close(&self) {
        // Relaxed: written by the holder of `busy`, read by the next one.
        self.state.store(CLOSED, Ordering::Relaxed);
    }

    pub(crate) fn abort(&self) {
        if !self.generation.is_current() {
            return;
        }
        match self.raw() {
            Some(raw) => raw.abort(),
            None => {
                // Relaxed: nothing else is published with it.
                let _ = self.state.compare_exchange(OPEN, ABORTED, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Adds operation, group and rank to an error.
    #[cold]
    pub(crate) fn blame(&self, kind: OpKind, error: Error) -> Error {
        error.with_operation(kind).with_group(&self.group, self.rank)
    }

    /// Refuses a call of the holder of `_entered`: peers that meet it learn why.
    #[cold]
    pub(crate) fn refuse(&self, _entered: &Entered<'_>, kind: OpKind, error: Error, calls: usize) -> Error {
        let error = self.blame(kind, error);
        if let Some(raw) = self.raw() {
            raw.reject(&Refusal::new(kind, &error, calls));
        }
        error
    }

    /// [`Member::refuse`], naming the peer of a send or receive if it is one.
    #[cold]
    fn refuse_request(&self, entered: &Entered<'_>, shape: &Shape<'_>, error: Error) -> Error {
        let is_peer = shape.root < self.group.len() && shape.root != self.position;
        if !matches!(shape.kind, OpKind::Send | OpKind::Recv) || !is_peer {
            return self.refuse(entered, shape.kind, error, 1);
        }
        let error = self.blame(shape.kind, error);
        if let Some(raw) = self.raw() {
            raw.reject(&Refusal { peer: Some(shape.root), ..Refusal::new(shape.kind, &error, 1) });
        }
        error
    }

    /// Enters only to refuse: for checks that are made before there is a request.
    #[cold]
    pub(crate) fn enter_and_refuse(&self, kind: OpKind, error: Error, calls: usize) -> Error {
        match self.enter(kind) {
            Ok(entered) => self.refuse(&entered, kind, error, calls),
            Err(error) => error,
        }
    }

    fn place(&self) -> Place<'_> {
        Place { size: self.group.len(), position: self.position, capabilities: &self.capabilities }
    }

    /// Checks a request whose destination is only a length yet.
    pub(crate) fn check(&self, request: &Request<'_>) -> Result<()> {
        check::check(request, &self.place(), &mut check::blank(&request.shape))
    }

    #[inline]
    fn locate(&self, call: &mut RawCall<'_>, view: &mut SegmentView) {
        call.src.segment = view.find(&self.segments, call.src.ptr, call.src.bytes);
        call.dst.segment = view.find(&self.segments, call.dst.ptr, call.dst.bytes);
    }

    /// Checks, and fills a call that came from [`check::blank`].
    #[inline]
    fn prepare<'a>(&self, request: &Request<'a>, call: &mut RawCall<'a>, scratch: &'a mut Scratch) -> Result<()> {
        check::check(request, &self.place(), call)?;
        self.locate(call, &mut scratch.segments);
        if check::has_rows(&request.shape) {
            call.counts = check::widen(&request.shape, &mut scratch.counts);
        }
        Ok(())
    }

    /// Runs one operation and returns when it is finished.
    ///
    /// # Safety
    ///
    /// The sides of the request are valid for their lengths, the destination for writes and reachable by nobody else.
    #[inline]
    pub(crate) unsafe fn run(&self, request: &Request<'_>, deadline: Duration, scratch: &mut Scratch) -> Result<()> {
        let entered = self.enter(request.shape.kind)?;
        // SAFETY: the caller's promise.
        unsafe { self.run_as(&entered, request, deadline, scratch) }
    }

    /// [`Member::run`] by who has entered already.
    ///
    /// # Safety
    ///
    /// As for [`Member::run`].
    #[inline]
    pub(crate) unsafe fn run_as(
        &self,
        entered: &Entered<'_>,
        request: &Request<'_>,
        deadline: Duration,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let kind = request.shape.kind;
        let mut call = check::blank(&request.shape);
        if let Err(error) = self.prepare(request, &mut call, scratch) {
            return Err(self.refuse_request(entered, &request.shape, error));
        }
        match self.raw() {
            Some(raw) => {
                // SAFETY: checked, and the caller's promise about the sides.
                unsafe { raw.run(std::slice::from_ref(&call), deadline) }.map_err(|error| self.blame(kind, error))
            }
            None => {
                // SAFETY: as above.
                unsafe { solo::run(&call) };
                Ok(())
            }
        }
    }

    /// Runs several all-reduces as one.
    pub(crate) fn run_many(&self, parts: &mut [Part<'_>], deadline: Duration, scratch: &mut Scratch) -> Result<()> {
        const INLINE: usize = 8;
        let kind = OpKind::AllReduce;
        let entered = self.enter(kind)?;
        if parts.is_empty() {
            let error = Error::invalid("no tensors were given; pass at least one");
            return Err(self.refuse(&entered, kind, error, 1));
        }
        let mut few: [Option<RawCall<'_>>; INLINE] = [None; INLINE];
        let mut many = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let mut call = check::blank(&part.request.shape);
            if let Err(error) = check::check(&part.request, &self.place(), &mut call) {
                return Err(self.refuse(&entered, kind, error, parts.len()));
            }
            self.locate(&mut call, &mut scratch.segments);
            match few.get_mut(i) {
                Some(slot) if parts.len() <= INLINE => *slot = Some(call),
                _ => many.push(call),
            }
        }
        let Some(raw) = self.raw() else {
            for call in few.iter().flatten().chain(&many) {
                // SAFETY: checked; a Part borrows its buffers, the destination exclusively.
                unsafe { solo::run(call) };
            }
            return Ok(());
        };
        let first = few[0].unwrap_or_else(|| many[0]);
        let inline = few.map(|call| call.unwrap_or(first));
        let calls = if many.is_empty() { &inline[..parts.len()] } else { &many[..] };
        // SAFETY: as above; the parts are borrowed until return.
        unsafe { raw.run(calls, deadline) }.map_err(|error| self.blame(kind, error))
    }

    /// Starts one operation; `None` when it is finished already.
    ///
    /// # Safety
    ///
    /// As for [`Member::run`], but until the work is idle.
    pub(crate) unsafe fn start(
        &self,
        request: &Request<'_>,
        deadline: Duration,
        scratch: &mut Scratch,
    ) -> Result<Option<Box<dyn RawWork>>> {
        let kind = request.shape.kind;
        let entered = self.enter(kind)?;
        let mut call = check::blank(&request.shape);
        let checked = self.prepare(request, &mut call, scratch).and_then(|()| match self.capabilities.nonblocking() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::UnsupportedMode,
                "this backend can't start operations without waiting; use the blocking form",
            )),
        });
        if let Err(error) = checked {
            return Err(self.refuse_request(&entered, &request.shape, error));
        }
        match self.raw() {
            // SAFETY: checked, and the caller's promise about the sides.
            Some(raw) => unsafe { raw.start(std::slice::from_ref(&call), Queue::Host, deadline) }
                .map(Some)
                .map_err(|error| self.blame(kind, error)),
            None => {
                // SAFETY: as above.
                unsafe { solo::run(&call) };
                Ok(None)
            }
        }
    }
}

impl Member {
    /// Zeroed collective memory for `len` elements.
    pub(crate) fn alloc<T: Pod>(&self, len: usize, deadline: Duration) -> Result<SegBuf<T>> {
        let kind = OpKind::Alloc;
        let entered = self.enter(kind)?;
        let bytes = match self.check_alloc(len, size_of::<T>(), align_of::<T>()) {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.refuse(&entered, kind, error, 1)),
        };
        let segment = match self.raw() {
            Some(raw) => raw.alloc(bytes, MemorySpace::Host, deadline),
            None => SoloSegment::new(bytes).map(|segment| Arc::new(segment) as _),
        };
        segment.and_then(|segment| SegBuf::new(segment, len, &self.segments)).map_err(|error| self.blame(kind, error))
    }

    fn check_alloc(&self, len: usize, size: usize, align: usize) -> Result<usize> {
        let bytes = check::times(len, size, "elements", "bytes")?;
        if !self.capabilities.alloc() {
            return Err(Error::new(
                ErrorKind::Unsupported {
                    function: "alloc".into(),
                    needs: "a backend with collective memory".into(),
                    have: "none".into(),
                },
                "this backend can't allocate collective memory; use ordinary buffers",
            ));
        }
        if align > ALIGNMENT {
            return Err(Error::invalid(format!(
                "elements aligned to {align} bytes can't be allocated; at most {ALIGNMENT} are possible"
            )));
        }
        if bytes as u64 > self.capabilities.max_bytes() {
            return Err(check::too_large(len, size, self.capabilities.max_bytes()));
        }
        // A segment is never empty, so that zero elements need no rule of their own below.
        Ok(bytes.max(1))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // In a forked child the engine's half belongs to the parent; even dropping it would speak for the parent.
        if self.generation.is_current() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.raw) };
        }
    }
}

#[cold]
pub(crate) fn not_member(group: &Group, rank: usize) -> Error {
    Error::new(
        ErrorKind::NotMember,
        format!("rank {rank} is not in the group {group}; only its members may register and use it"),
    )
    .with_group(group, rank)
}
