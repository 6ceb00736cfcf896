//! A toy over direct memory: ranks put copies of what they bring in a table, and take what is theirs from it; they only pull.
//!
//! The copies are made when the call is issued, so that a started call needs no progress by its owner. Nobody reads
//! another rank's buffers, not even those in a collective allocation: their owner may write them as soon as its call failed.

use super::segment::Segment;
use super::table::Table;
use super::{Meeting, Member, Parts, Toy, ends, host_only, lock, offers, refuse_all};
use rankwise_core::backend::{RawBackend, RawBuf, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{Determinism, Error, MemorySpace, OpKind, Queue, Result};
use std::any::Any;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The backends of a world of `n` ranks.
pub(crate) fn world(n: usize) -> Vec<Arc<dyn RawBackend>> {
    let meeting = Meeting::<Table>::new();
    let backend = |rank| Toy {
        name: "toy-direct",
        rank,
        size: n,
        capabilities: offers(Determinism::Fixed, true),
        meeting: Arc::clone(&meeting),
        make: Box::new(|member, table| Arc::new(Direct { member: Arc::new(member), table, segments: Arc::default() })),
        progress: Box::new(|| ()),
    };
    (0..n).map(|rank| Arc::new(backend(rank)) as Arc<dyn RawBackend>).collect()
}

#[derive(Clone)]
struct Direct {
    member: Arc<Member>,
    table: Arc<Table>,
    segments: Arc<Mutex<Vec<Weak<Segment>>>>,
}

struct Work {
    direct: Direct,
    /// What has not been delivered; none after an error.
    parts: Parts,
    until: Instant,
    error: Option<Error>,
}

impl Direct {
    /// # Safety
    ///
    /// As for [`RawCommunicator::start`].
    unsafe fn post(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<Work> {
        self.member.enter(&self.table.fate)?;
        calls.iter().for_each(|call| [call.src, call.dst].iter().for_each(|buf| self.check_segment(buf)));
        let parts = self.member.parts(calls);
        // SAFETY: the caller lends the sources until return at least.
        unsafe { self.table.post(&self.member, &parts) };
        Ok(Work { direct: self.clone(), parts, until: ends(deadline), error: None })
    }

    /// An engine would find the peers' mapping by this: it must name the segment that the buffer lies in, or none.
    fn check_segment(&self, buf: &RawBuf) {
        let mut segments = lock(&self.segments);
        segments.retain(|segment| segment.strong_count() > 0);
        let place = segments.iter().filter_map(Weak::upgrade).find_map(|segment| segment.place(buf));
        assert_eq!(buf.segment, place, "the layer above names the wrong segment");
    }

    fn settle(&self, _: Instant) -> Result<()> {
        // What this rank brings to calls in flight is in the table already; their results can be taken at any time.
        Ok(())
    }
}

// SAFETY: sources are read in `post` only, destinations are written in `run`, `test` and `wait` only, all by the threads
// that call these; peers see copies.
unsafe impl RawCommunicator for Direct {
    toy_members!();

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        // SAFETY: the caller's promise; the work is over when `wait` returns, and its drop touches nothing.
        unsafe { self.post(calls, deadline) }?.wait(deadline)
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        host_only(queue).map_err(|why| refuse_all(self, calls, why))?;
        // SAFETY: the caller's promise.
        unsafe { self.post(calls, deadline) }.map(|work| Box::new(work) as Box<dyn RawWork>)
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        self.table.reject(&self.member, refusal);
    }

    fn alloc(&self, bytes: usize, _: MemorySpace, deadline: Duration) -> Result<Arc<dyn RawSegment>> {
        let refuse = |why: &Error| self.reject(&Refusal::new(OpKind::Alloc, why, 1));
        let segment = Arc::new(Segment::new(bytes).inspect_err(refuse)?);
        // SAFETY: the call lends no memory.
        unsafe { self.run(&[Member::agreement(OpKind::Alloc, bytes)], deadline) }?;
        lock(&self.segments).push(Arc::downgrade(&segment));
        Ok(segment)
    }

    fn abort(&self) {
        self.table.break_with(self.member.aborted());
    }
}

impl Work {
    fn finish(&mut self, until: Option<Instant>) -> Result<bool> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        // SAFETY: what is in `parts` is not delivered, so the work is not idle and its destinations are lent.
        let finished = unsafe { self.direct.table.finish(&self.direct.member, &mut self.parts, until) };
        finished.inspect_err(|error| self.error = Some(error.clone()))
    }
}

// SAFETY: memory is touched in `finish` only, for what is in `parts`; that is empty once `wait` returned `Ok`, and after
// `cancel`.
unsafe impl RawWork for Work {
    fn test(&mut self) -> Result<bool> {
        let late = Instant::now() >= self.until;
        self.finish(late.then_some(self.until))
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        self.finish(Some(ends(deadline).min(self.until))).map(drop)
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        host_only(queue).and_then(|()| self.wait(Duration::MAX))
    }

    fn cancel(&mut self) -> bool {
        if !self.parts.is_empty() {
            self.parts.clear();
            self.direct.abort();
            self.error = self.direct.member.interrupted(&self.direct.table.fate).err();
        }
        true
    }

    fn detach(mut self: Box<Self>, owned: Box<dyn Any + Send>) {
        // The peers take what is in the table; the result here is wanted by nobody.
        self.direct.table.skip(&mut self.parts);
        drop(owned);
    }
}
