//! One communicator on this rank: its segments, counters and first failure.

use crate::ctl::{Ctl, PoisonKind, Progress, SLOTS, recheck_fence};
use crate::exit;
use crate::failure::lost_error;
use crate::futex;
use crate::layout::Layout;
use crate::pause::WaitRules;
use crate::queue::Queue;
use crate::rank_state::RankState;
use crate::segment::Segment;
use crate::sync::Payload;
use rankwise_core::backend::CommSpec;
use rankwise_core::descriptor::{self, Words};
use rankwise_core::fork::Generation;
use rankwise_core::{Capabilities, Error, ErrorKind, Group, Result};
use rankwise_world::Placement;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

/// One communicator on this rank.
///
/// Calls run one at a time: the issuer of a small blocking call while nothing is queued, else whoever holds the lock of `queue`.
/// The counters are atomics only so that `&Comm` suffices; nobody else writes them meanwhile.
pub(crate) struct Comm {
    pub(crate) spec: CommSpec,
    pub(crate) me: usize,
    pub(crate) layout: Layout,
    pub(crate) caps: Capabilities,
    pub(crate) rules: WaitRules,
    /// Whether direct calls are possible. Between threads a peer's late read of a buffer whose owner's call failed would be a
    /// data race within one program.
    pub(crate) reads_buffers: bool,
    pub(crate) rank: Arc<RankState>,
    /// Number of started calls, changed under the queue's lock. While it is zero nobody but the issuer of a blocking call
    /// touches the protocol state of this rank.
    pub(crate) queued: AtomicUsize,
    /// Started calls. Declared before the segments: their futures end first.
    pub(crate) queue: Mutex<Queue>,
    /// One segment a member, in group order; this rank's own is writable.
    segments: Box<[Arc<Segment>]>,
    pub(crate) allocations: Mutex<crate::alloc::Allocations>,
    /// First failure on this rank.
    pub(crate) cause: OnceLock<Error>,
    pub(crate) closed: AtomicBool,
    pub(crate) generation: Generation,
    /// Sequence number of the last call.
    pub(crate) seq: AtomicU64,
    /// Last call that this rank is done with: no poison set later concerns it.
    pub(crate) completed: AtomicU64,
    /// Kind of the last call, for errors.
    pub(crate) last_kind: AtomicU8,
    /// Last call that every member was seen to have posted.
    met: AtomicU64,
    /// Ring steps of all calls so far.
    pub(crate) steps: AtomicU64,
    /// The member that the last wait waits for, with `MAIL` for a send or receive.
    pub(crate) waiting: AtomicUsize,
    /// Looks of a first wait before it gives up its turn.
    pub(crate) burst: AtomicU32,
    /// Counts waits that ended, so that the pause starts over.
    pub(crate) moves: AtomicU64,
    /// Fragments sent to and received from each member.
    pub(crate) sent: Box<[AtomicU64]>,
    pub(crate) received: Box<[AtomicU64]>,
    /// Messages sent to and received from each member, refused ones included.
    pub(crate) messages_sent: Box<[AtomicU64]>,
    pub(crate) messages_received: Box<[AtomicU64]>,
    /// Lengths the rank lost-list had when this communicator last looked.
    seen_lost: AtomicUsize,
    sources: Mutex<Sources>,
}

/// Scratch for the kernels' source pointers.
struct Sources(Vec<*const u8>);

// SAFETY: the pointers are refilled before each use, by the thread that uses them.
unsafe impl Send for Sources {}

/// Set in `Comm::waiting` when a send or receive waits.
pub(crate) const MAIL: usize = 1 << 31;

/// Members up to which the kernels' source pointers fit on the stack.
const FEW: usize = 16;

impl Comm {
    pub(crate) fn new(
        spec: CommSpec,
        me: usize,
        caps: Capabilities,
        rules: WaitRules,
        rank: Arc<RankState>,
        segments: Box<[Arc<Segment>]>,
    ) -> Comm {
        let members = segments.len();
        let counters = || (0..members).map(|_| AtomicU64::new(0)).collect();
        let comm = Comm {
            spec,
            me,
            layout: Layout::new(members),
            caps,
            rules,
            reads_buffers: rank.world.placement() == Placement::Processes,
            queued: AtomicUsize::new(0),
            queue: Mutex::default(),
            segments,
            allocations: Mutex::default(),
            cause: OnceLock::new(),
            closed: AtomicBool::new(false),
            generation: Generation::current(),
            seq: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            last_kind: AtomicU8::new(0),
            met: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            waiting: AtomicUsize::new(usize::MAX),
            burst: AtomicU32::new(rules.burst),
            moves: AtomicU64::new(0),
            sent: counters(),
            received: counters(),
            messages_sent: counters(),
            messages_received: counters(),
            seen_lost: AtomicUsize::new(0),
            sources: Mutex::new(Sources(vec![std::ptr::null(); if members > FEW { members } else { 0 }])),
            rank,
        };
        exit::register(&comm.segments[me]);
        comm
    }

    pub(crate) fn group(&self) -> &Group {
        &self.spec.group
    }

    #[inline]
    pub(crate) fn members(&self) -> usize {
        self.segments.len()
    }

    pub(crate) fn global(&self, member: usize) -> usize {
        self.spec.group.global(member).unwrap_or(usize::MAX)
    }

    /// The other members, starting after this rank so that not everybody looks at rank 0 first.
    #[inline]
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, n) = (self.me, self.members());
        (me + 1..n).chain(0..me)
    }

    #[inline]
    pub(crate) fn ctl(&self, member: usize) -> &Ctl {
        // SAFETY: every segment begins with a `Ctl`, is page aligned, was zeroed, and lives as long as `self`. A `Ctl` has
        // only atomics and a payload cell.
        unsafe { &*self.segments[member].base().cast::<Ctl>() }
    }

    /// Marks the owner of an own segment as left.
    pub(crate) fn leave_segment(own: &Segment) {
        // SAFETY: a segment of a communicator begins with a `Ctl`, is writable by its owner, and lives during the call.
        unsafe { &*own.base().cast::<Ctl>() }.leave();
    }

    #[inline]
    pub(crate) fn own(&self) -> &Ctl {
        self.ctl(self.me)
    }

    /// An address in a member's segment; `offset` comes from [`Layout`].
    #[inline]
    pub(crate) fn at(&self, member: usize, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.layout.bytes);
        // SAFETY: the layout's offsets lie within the segment, whose size was checked against the layout.
        unsafe { self.segments[member].base().add(offset) }
    }

    /// A 64-bit word in a member's segment.
    #[inline]
    pub(crate) fn word(&self, member: usize, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8));
        // SAFETY: within the segment (see `at`), aligned, and only ever used as an atomic.
        unsafe { &*self.at(member, offset).cast::<AtomicU64>() }
    }

    /// Where member `member` exposes the contribution to call `seq`.
    #[inline]
    pub(crate) fn exposed(&self, member: usize, seq: u64, inline: bool) -> *mut u8 {
        if inline { self.ctl(member).slot(seq).payload.as_ptr() } else { self.at(member, self.layout.stage(seq)) }
    }

    /// Calls `f` with a pointer for each member, in group order.
    #[inline]
    pub(crate) fn with_sources<R>(
        &self,
        mut source: impl FnMut(usize) -> *const u8,
        f: impl FnOnce(&[*const u8]) -> R,
    ) -> R {
        let n = self.members();
        let fill = |slots: &mut [*const u8], source: &mut dyn FnMut(usize) -> *const u8| {
            for (member, slot) in slots.iter_mut().enumerate() {
                *slot = source(member);
            }
        };
        if n <= FEW {
            let mut few = [std::ptr::null(); FEW];
            for (member, slot) in few[..n].iter_mut().enumerate() {
                *slot = source(member);
            }
            f(&few[..n])
        } else {
            let mut many = self.sources.lock().unwrap_or_else(|e| e.into_inner());
            fill(&mut many.0, &mut source);
            f(&many.0)
        }
    }

    pub(crate) fn lock_queue(&self) -> MutexGuard<'_, Queue> {
        // A panic in a waiter leaves the queue as it was: its calls go on.
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn try_queue(&self) -> Option<MutexGuard<'_, Queue>> {
        match self.queue.try_lock() {
            Ok(queue) => Some(queue),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether calls are still possible: `Closed`, `Poisoned`, or `PeerLost` of a member that another communicator lost.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<()> {
        let lost = self.rank.lost_count();
        if self.cause.get().is_none()
            && !self.closed.load(Ordering::Relaxed)
            && lost == self.seen_lost.load(Ordering::Relaxed)
            && self.own().poisoned().is_none()
        {
            return Ok(());
        }
        self.refuse_unusable(lost)
    }

    #[cold]
    fn refuse_unusable(&self, lost: usize) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the communicator was finalized; make a new one"));
        }
        if let Some(cause) = self.cause.get() {
            return Err(self.poisoned(cause));
        }
        if let Some(poison) = self.own().poisoned() {
            return Err(self.adopt(self.me, poison));
        }
        self.seen_lost.store(lost, Ordering::Relaxed);
        match self.rank.lost_among(self.group()) {
            Some(rank) => Err(self.fail(PoisonKind::Lost, rank, lost_error(rank))),
            None => Ok(()),
        }
    }

    fn poisoned(&self, cause: &Error) -> Error {
        Error::new(
            ErrorKind::Poisoned,
            format!(
                "{} in an earlier call made this communicator unusable; make a new one of the ranks that are left",
                cause.kind().name()
            ),
        )
        .with_peers(cause.peers().iter().copied())
        .with_source(cause.clone())
    }

    /// The first failure, once there is one.
    pub(crate) fn cause(&self) -> Option<&Error> {
        self.cause.get()
    }

    pub(crate) fn current_seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Takes the next sequence number. Its slot may be overwritten as soon as [`Comm::slot_is_free`].
    #[inline]
    pub(crate) fn next_seq(&self) -> u64 {
        let seq = self.seq.load(Ordering::Relaxed) + 1;
        self.seq.store(seq, Ordering::Relaxed);
        seq
    }

    /// Waits until every member has posted call `seq + 1 - SLOTS`, so that nobody reads this rank's slot and stage.
    #[inline]
    pub(crate) async fn slot_is_free(&self, seq: u64) {
        if !self.slot_is_known_free(seq) {
            let needed = (seq + 1).saturating_sub(SLOTS);
            for q in self.others() {
                self.until(q, || self.ctl(q).has_posted(needed)).await;
            }
            self.met.store(needed, Ordering::Relaxed);
        }
    }

    /// Whether [`Comm::slot_is_free`] needs no look at the peers.
    #[inline]
    pub(crate) fn slot_is_known_free(&self, seq: u64) -> bool {
        self.met.load(Ordering::Relaxed) >= (seq + 1).saturating_sub(SLOTS)
    }

    /// Notes what this rank is in, for errors.
    #[inline]
    pub(crate) fn set_kind(&self, kind: u8) {
        self.last_kind.store(kind, Ordering::Relaxed);
    }

    /// Publishes call `seq` and rings.
    #[inline]
    pub(crate) fn post(&self, seq: u64, words: Words, fill: impl FnOnce(&Payload)) {
        self.set_kind(words[0] as u8);
        self.own().post(seq, words, fill);
        self.ring();
    }

    /// Waits for every member's post of `seq` and compares the descriptors.
    #[inline]
    pub(crate) async fn meet(&self, seq: u64, words: Words) -> Result<()> {
        let mut difference = 0;
        for q in self.others() {
            let ctl = self.ctl(q);
            self.until(q, || ctl.has_posted(seq)).await;
            let theirs = ctl.words(seq);
            difference |= (theirs[0] ^ words[0]) | (theirs[1] ^ words[1]) | (theirs[2] ^ words[2]);
        }
        self.met.store(seq, Ordering::Relaxed);
        if difference == 0 { Ok(()) } else { Err(self.disagreement(seq)) }
    }

    /// [`Comm::meet`] for as long as a first wait spins; `None` when some member has not posted by then.
    #[inline]
    pub(crate) fn meet_soon(&self, seq: u64, words: Words) -> Option<Result<()>> {
        let mut difference = 0;
        for q in self.others() {
            let ctl = self.ctl(q);
            let mut looks = 0;
            while !ctl.has_posted(seq) {
                if looks == self.rules.burst {
                    return None;
                }
                looks += 1;
                spin_loop();
            }
            let theirs = ctl.words(seq);
            difference |= (theirs[0] ^ words[0]) | (theirs[1] ^ words[1]) | (theirs[2] ^ words[2]);
        }
        self.met.store(seq, Ordering::Relaxed);
        Some(if difference == 0 { Ok(()) } else { Err(self.disagreement(seq)) })
    }

    #[cold]
    fn disagreement(&self, seq: u64) -> Error {
        let all: Vec<Words> = (0..self.members()).map(|q| self.ctl(q).words(seq)).collect();
        let error = descriptor::verdict(self.group(), self.me, &all);
        match error.kind() {
            ErrorKind::Mismatch => {
                let odd = error.peers().first().copied().unwrap_or(0);
                self.fail(PoisonKind::Mismatch, odd, error)
            }
            _ => {
                self.complete(seq);
                error
            }
        }
    }

    /// The last look before `Ok`: no member failed in this call or before. The call is complete then.
    #[inline]
    pub(crate) fn recheck(&self, seq: u64) -> Result<()> {
        recheck_fence();
        for q in 0..self.members() {
            if let Some(poison) = self.ctl(q).poisoned()
                && poison.concerns(seq)
            {
                return Err(self.adopt(q, poison));
            }
        }
        self.complete(seq);
        Ok(())
    }

    /// This rank is done with call `seq`.
    #[inline]
    pub(crate) fn complete(&self, seq: u64) {
        self.completed.store(seq, Ordering::Relaxed);
    }

    /// Raises an own progress counter and rings.
    #[inline]
    pub(crate) fn advance(&self, progress: Progress, value: u64) {
        self.own().advance(progress, value);
        self.ring();
    }

    /// Wakes those who sleep until this rank publishes.
    #[inline]
    pub(crate) fn ring(&self) {
        let mut sleepers = false;
        for q in self.others() {
            sleepers |= self.ctl(q).sleeps_on(self.me);
        }
        if sleepers {
            self.own().change_bell();
            futex::wake_all(self.own().bell());
        }
    }

    /// Wakes every sleeper of the communicator, whomever it waits for.
    pub(crate) fn ring_all(&self) {
        for q in 0..self.members() {
            futex::wake_all(self.ctl(q).bell());
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // In a forked child the segment is the parent's, and another thread may have held any lock.
        if !self.generation.is_current() {
            return;
        }
        exit::unregister(&self.segments[self.me]);
        let error = Error::new(ErrorKind::Closed, "the communicator was dropped while the call was in flight");
        let mut queue = std::mem::take(&mut *self.lock_queue());
        queue.fail_all(self, &error);
        self.own().leave();
        self.ring_all();
    }
}
