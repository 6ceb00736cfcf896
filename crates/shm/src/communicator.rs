//! The backend interface over [`Comm`].

use crate::alloc::Allocation;
use crate::comm::Comm;
use crate::ctl::PoisonKind;
use crate::ops::{Op, Shape};
use crate::pause::Pause;
use crate::queue::{Interest, Lane, Progressing};
use crate::rank_state::RankState;
use crate::segment::{Segment, check_memory};
use rankwise_core::backend::{Counts, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::descriptor;
use rankwise_core::{Capabilities, Error, ErrorKind, Group, MemorySpace, OpKind, Queue, Result};
use rankwise_world::Attachment;
#[cfg(target_os = "linux")]
use rankwise_world::Placement;
use std::any::Any;
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// One communicator as the layer above sees it.
pub(crate) struct ShmCommunicator(pub(crate) Arc<Comm>);

impl Comm {
    /// Posts and meets a call that moves no data through the rings.
    async fn handshake(&self, kind: OpKind, count: u64) -> Result<()> {
        let words = [kind as u64, count, 0];
        let seq = self.next_seq();
        self.slot_is_free(seq).await;
        self.post(seq, words, |_| {});
        self.meet(seq, words).await?;
        self.recheck(seq)
    }

    /// Takes one sequence number for a launch that was refused, however many calls it would have been: peers meet it at the
    /// first call of theirs and stop there, so that all members go on with the same number.
    async fn refuse(&self, kind: OpKind, why: &ErrorKind) {
        let seq = self.next_seq();
        self.slot_is_free(seq).await;
        self.post(seq, descriptor::rejected(kind, why), |_| {});
        self.complete(seq);
    }

    /// Runs a batch, up to its first error.
    async fn batch(&self, calls: &[RawCall<'_>]) -> Result<()> {
        let launch = descriptor::launch(calls);
        for call in calls {
            let result = self.execute(Op { call: *call, launch }).await;
            if let Err(error) = result {
                let mail = matches!(call.kind, OpKind::Send | OpKind::Recv);
                return Err(if mail { error } else { error.with_sequence(self.current_seq()) });
            }
        }
        Ok(())
    }
}

fn host_only(queue: Queue) -> Result<()> {
    match queue {
        Queue::Host => Ok(()),
        _ => Err(Error::new(ErrorKind::UnsupportedMode, "shared memory has no streams; call on the host queue")),
    }
}

/// A call that owns its counts.
struct Kept {
    call: RawCall<'static>,
    send: Vec<usize>,
    recv: Vec<usize>,
}

impl Kept {
    fn is_mail(&self) -> bool {
        matches!(self.call.kind, OpKind::Send | OpKind::Recv)
    }

    fn new(call: &RawCall<'_>) -> Kept {
        // The buffers' validity is the caller's promise; only the counts carry a lifetime.
        let mut kept = RawCall::new(call.kind, call.dtype, call.count);
        kept.elem_size = call.elem_size;
        kept.op = call.op;
        kept.root = call.root;
        kept.src = call.src;
        kept.dst = call.dst;
        kept.tag = call.tag;
        kept.fused = call.fused;
        Kept { call: kept, send: call.counts.send.to_vec(), recv: call.counts.recv.to_vec() }
    }

    fn call(&self) -> RawCall<'_> {
        let mut call = self.call;
        call.counts = Counts { send: &self.send, recv: &self.recv };
        call
    }
}

/// The communicator that a queued future belongs to.
#[derive(Clone, Copy)]
struct Home(*const Comm);

impl Home {
    /// # Safety
    ///
    /// Only inside a future in the queue of this communicator: the queue is a field of it and ends before it does.
    unsafe fn comm<'a>(self) -> &'a Comm {
        // SAFETY: as the caller promises; a `Comm` lives in an `Arc` and does not move.
        unsafe { &*self.0 }
    }
}

impl ShmCommunicator {
    /// Queues calls: the collectives as one batch, each send and receive by itself, so that none waits for another.
    ///
    /// # Safety
    ///
    /// As for [`RawCommunicator::start`].
    unsafe fn enqueue(&self, calls: &[RawCall<'_>]) -> Vec<Arc<Progressing>> {
        let comm = &self.0;
        let home = Home(Arc::as_ptr(comm));
        let (mail, collectives): (Vec<_>, Vec<_>) = calls.iter().map(Kept::new).partition(|kept| kept.is_mail());
        let mut queue = comm.lock_queue();
        let mut states = Vec::new();
        let mut push = |lane, operation| {
            let state = Arc::new(Progressing::default());
            // SAFETY: the caller keeps the buffers valid until the work is idle, that is until no state is pending.
            unsafe { queue.push(comm, lane, Interest::Awaited, operation, state.clone()) };
            states.push(state);
        };
        for kept in mail {
            let lane =
                if kept.call.kind == OpKind::Send { Lane::Send(kept.call.root) } else { Lane::Recv(kept.call.root) };
            push(
                lane,
                Box::pin(async move {
                    let kept = kept;
                    // SAFETY: this future lives in the queue of that communicator.
                    unsafe { home.comm() }.execute(Op { call: kept.call(), launch: 0 }).await
                }),
            );
        }
        if !collectives.is_empty() {
            push(
                Lane::Collective,
                Box::pin(async move {
                    let calls: Vec<RawCall<'_>> = collectives.iter().map(Kept::call).collect();
                    // SAFETY: this future lives in the queue of that communicator.
                    unsafe { home.comm() }.batch(&calls).await
                }),
            );
        }
        queue.progress(comm);
        states
    }

    /// Runs `operation` now if nobody waits for anything queued; `None` when somebody does.
    fn run_alone(&self, operation: impl Future<Output = Result<()>>, deadline: Duration) -> Option<Result<()>> {
        let comm = &self.0;
        let mut queue = comm.lock_queue();
        if !queue.is_settled() {
            return None;
        }
        if queue.is_empty() {
            return Some(comm.drive(operation, deadline));
        }
        // A peer may have to get rid of a message that is to be thrown away here before it comes to this call.
        let mut operation = pin!(operation);
        let mut context = Context::from_waker(Waker::noop());
        let awaited = Cell::new(usize::MAX);
        let mut look = || match operation.as_mut().poll(&mut context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => {
                awaited.set(comm.waiting.load(Ordering::Relaxed));
                queue.progress(comm);
                comm.waiting.store(awaited.get(), Ordering::Relaxed);
                None
            }
        };
        Some(comm.wait_while(&mut look, &|| vec![awaited.get()], deadline))
    }

    /// Waits until everything queued has ended.
    fn drain(&self, deadline: Duration) -> Result<()> {
        self.0.wait_while(
            &mut || {
                let mut queue = self.0.lock_queue();
                queue.progress(&self.0);
                queue.is_settled().then_some(Ok(()))
            },
            &|| self.0.try_queue().map_or_else(Vec::new, |queue| queue.all_awaited()),
            deadline,
        )
    }

    /// Runs a call of the communicator's own after everything queued.
    fn run_after_queue(&self, operation: impl Future<Output = Result<()>>, deadline: Duration) -> Result<()> {
        let began = Instant::now();
        self.drain(deadline)?;
        let rest = deadline.saturating_sub(began.elapsed());
        // Nobody else starts calls now: the layer above sees to it.
        self.run_alone(operation, rest).unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Busy, "another thread started a call on this communicator meanwhile"))
        })
    }
}

// SAFETY: see the operations: they read `src`, write `dst` within their lengths, and hold no pointer beyond `run`; started
// calls keep theirs in the queue, which `cancel` and completion remove. Allocations own their mapping.
unsafe impl RawCommunicator for ShmCommunicator {
    fn group(&self) -> &Group {
        self.0.group()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.caps
    }

    #[inline]
    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        self.0.check_usable()?;
        // Acquires what calls that were started before did.
        if let [call] = calls
            && self.0.queued.load(Ordering::Acquire) == 0
            && let Some(shape) = Shape::of_small(call, self.0.members(), self.0.me)
        {
            let result = self.0.small_now(Op { call: *call, launch: 0 }, shape, deadline);
            return result.map_err(|error| error.with_sequence(self.0.current_seq()));
        }
        // In a group of several calls a send must not wait for a receive beside it.
        let mail = calls.iter().any(|call| matches!(call.kind, OpKind::Send | OpKind::Recv));
        // Nor may it overtake one that is thrown away.
        let alone = !mail || (calls.len() == 1 && self.0.queued.load(Ordering::Acquire) == 0);
        if let Some(result) = alone.then(|| self.run_alone(self.0.batch(calls), deadline)).flatten() {
            return result;
        }
        // SAFETY: passed on; the guard makes the work idle before the buffers' borrow ends, also when `wait` panics.
        let mut work = Idle(unsafe { self.start(calls, Queue::Host, deadline)? });
        work.0.wait(deadline)
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        host_only(queue)?;
        self.0.check_usable()?;
        let pause = Pause::new(self.0.rules);
        // SAFETY: the caller's promise is the same.
        let states = unsafe { self.enqueue(calls) };
        Ok(Box::new(ShmWork { comm: self.0.clone(), states, pause, deadline, looks: 0 }))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        if self.0.check_usable().is_err() {
            return;
        }
        let (kind, why) = (refusal.kind, refusal.why.kind().clone());
        let lane = match (kind, refusal.peer) {
            (OpKind::Send, Some(to)) => Lane::Send(to),
            (OpKind::Recv, Some(from)) => Lane::Recv(from),
            // Without a peer there is nobody to tell.
            (OpKind::Send | OpKind::Recv, None) => return,
            _ => Lane::Collective,
        };
        let home = Home(Arc::as_ptr(&self.0));
        let refuse = Box::pin(async move {
            // SAFETY: this future lives in the queue of that communicator.
            let comm = unsafe { home.comm() };
            match lane {
                Lane::Send(to) => comm.send_refusal(to, &why).await,
                Lane::Recv(from) => comm.discard(from).await,
                Lane::Collective => comm.refuse(kind, &why).await,
            }
            Ok(())
        });
        let mut queue = self.0.lock_queue();
        let interest = if matches!(lane, Lane::Recv(_)) { Interest::Background } else { Interest::Awaited };
        // SAFETY: the future holds no buffers.
        unsafe { queue.push(&self.0, lane, interest, refuse, Arc::default()) };
        queue.progress(&self.0);
    }

    fn alloc(&self, bytes: usize, space: MemorySpace, deadline: Duration) -> Result<Arc<dyn RawSegment>> {
        let comm = &self.0;
        comm.check_usable()?;
        debug_assert_eq!(space, MemorySpace::Host, "the layer above asks the table first");
        let began = Instant::now();
        let whole_pages = bytes
            .checked_next_multiple_of(4096)
            .ok_or_else(|| Error::new(ErrorKind::CountTooLarge, format!("{bytes} bytes exceed the address space")));
        let (own, attachment) =
            whole_pages.and_then(|bytes| new_segment(&comm.rank, bytes, comm.members())).inspect_err(|error| {
                self.reject(&Refusal::new(OpKind::Alloc, error, 1));
            })?;
        self.run_after_queue(comm.handshake(OpKind::Alloc, bytes as u64), deadline)?;
        let index = comm.allocations.lock().unwrap_or_else(|e| e.into_inner()).next_index();
        let key = format!("shm/alloc/{:x}/{}/{:x}/{index}", comm.spec.tag, comm.group(), comm.group().stable_hash());
        let what = format!("allocation {index} of {bytes} bytes on group {}", comm.group());
        let rest = deadline.saturating_sub(began.elapsed());
        let parts = comm
            .rank
            .exchange(&key, &what, comm.group(), &[], attachment, rest)
            .and_then(|parts| open_segments(comm.me, own, parts.into_iter().map(|(_, part)| part)))
            .map_err(|error| {
                let kind = match error.kind() {
                    ErrorKind::PeerLost => PoisonKind::Lost,
                    ErrorKind::PeerLeft => PoisonKind::Left,
                    _ => PoisonKind::Timeout,
                };
                let culprit = error.peers().first().copied().unwrap_or(comm.global(comm.me));
                comm.fail(kind, culprit, error)
            })?;
        let allocation = Arc::new(Allocation::new(index, bytes, comm.me, parts));
        comm.allocations.lock().unwrap_or_else(|e| e.into_inner()).add(&allocation);
        Ok(allocation)
    }

    fn shrink(&self, _deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        Err(Error::new(
            ErrorKind::Unsupported {
                function: "shrink".into(),
                needs: "a later version of the shm backend".into(),
                have: env!("CARGO_PKG_VERSION").into(),
            },
            "survivors can't shrink yet; register a group of the survivors instead",
        ))
    }

    fn abort(&self) {
        self.0.abort();
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        let result =
            self.0.check_usable().and_then(|()| self.run_after_queue(self.0.handshake(OpKind::Finalize, 0), deadline));
        // Whatever came of it, this rank says nothing more.
        self.0.close();
        result
    }
}

/// Cancels what has not finished.
struct Idle(Box<dyn RawWork>);

impl Drop for Idle {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Started calls.
struct ShmWork {
    comm: Arc<Comm>,
    states: Vec<Arc<Progressing>>,
    pause: Pause,
    deadline: Duration,
    looks: u32,
}

impl ShmWork {
    fn progress(&self) -> Option<Result<()>> {
        if self.states.iter().any(|state| state.is_pending())
            && let Some(mut queue) = self.comm.try_queue()
        {
            queue.progress(&self.comm);
        }
        self.outcome()
    }

    /// Whom the pending calls wait for.
    fn awaited(&self) -> Vec<usize> {
        match self.comm.try_queue() {
            Some(queue) => queue.awaited(&self.states),
            None => Vec::new(),
        }
    }

    fn outcome(&self) -> Option<Result<()>> {
        let mut result = Ok(());
        for state in &self.states {
            match state.outcome() {
                None => return None,
                Some(Err(error)) if result.is_ok() => result = Err(error),
                Some(_) => {}
            }
        }
        Some(result)
    }
}

// SAFETY: a call that has ended has left the queue, and with it dropped its pointers; `cancel` empties the queue.
unsafe impl RawWork for ShmWork {
    fn test(&mut self) -> Result<bool> {
        if let Some(result) = self.progress() {
            return result.map(|()| true);
        }
        self.comm.rank.outstanding.progress(Some(&self.comm));
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(64) || self.pause.began.elapsed() >= self.deadline {
            let result = self.comm.test(&mut || self.progress(), &|| self.awaited(), &self.pause, self.deadline)?;
            if let Some(result) = result {
                return result.map(|()| true);
            }
        }
        Ok(false)
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        let rest = self.deadline.saturating_sub(self.pause.began.elapsed());
        self.comm.wait_while(&mut || self.progress(), &|| self.awaited(), deadline.min(rest))
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        host_only(queue)?;
        let rest = self.deadline.saturating_sub(self.pause.began.elapsed());
        self.wait(rest)
    }

    fn cancel(&mut self) -> bool {
        if self.states.iter().any(|state| state.is_pending()) {
            // A collective that some have begun can't be taken back: the communicator ends here.
            self.comm.abort();
            let culprit = self.comm.global(self.comm.me);
            let error = match self.comm.cause() {
                Some(cause) => cause.clone(),
                None => {
                    let error = Error::new(ErrorKind::Aborted, "a started call was cancelled").with_peers([culprit]);
                    self.comm.fail(PoisonKind::Aborted, culprit, error)
                }
            };
            let mut queue = self.comm.lock_queue();
            queue.fail_all(&self.comm, &error);
        }
        true
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        // The last call of a batch ends last, in order; those of other lanes keep their own share of `owned`.
        let owned = Arc::new(std::sync::Mutex::new(owned));
        for state in &self.states {
            state.keep(Box::new(owned.clone()));
        }
    }
}

/// A segment of this rank, and what to hand to the peers. All members make one of the same size.
pub(crate) fn new_segment(rank: &RankState, bytes: usize, members: usize) -> Result<(Arc<Segment>, Attachment)> {
    check_memory(bytes, members)?;
    match rank.world.placement() {
        #[cfg(target_os = "linux")]
        Placement::Processes => {
            let (segment, fd) = Segment::create(bytes)?;
            Ok((Arc::new(segment), Attachment::Fd(fd)))
        }
        _ => {
            let segment = Arc::new(Segment::heap(bytes)?);
            Ok((segment.clone(), Attachment::Local(segment)))
        }
    }
}

/// Every member's segment, of the same size as this rank's own.
pub(crate) fn open_segments(
    me: usize,
    own: Arc<Segment>,
    attachments: impl Iterator<Item = Attachment>,
) -> Result<Box<[Arc<Segment>]>> {
    let mut segments = Vec::new();
    for (member, attachment) in attachments.enumerate() {
        segments.push(match attachment {
            _ if member == me => own.clone(),
            #[cfg(target_os = "linux")]
            Attachment::Fd(fd) => Arc::new(Segment::open(&fd, own.bytes())?),
            Attachment::Local(segment) => match segment.downcast::<Segment>() {
                Ok(segment) if segment.bytes() == own.bytes() => segment,
                _ => return Err(no_memory_offered(member)),
            },
            _ => return Err(no_memory_offered(member)),
        });
    }
    Ok(segments.into())
}

fn no_memory_offered(member: usize) -> Error {
    Error::new(
        ErrorKind::Refused {
            key: "segment".into(),
            ours: "memory of the agreed size".into(),
            theirs: format!("something else from member {member}"),
        },
        "a peer offered no usable memory; are all ranks of the same rankwise version?",
    )
}
