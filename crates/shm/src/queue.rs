//! Started calls: kept as futures, moved on by any wait or test of the rank.

use crate::comm::Comm;
use rankwise_core::{Error, Result};
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// What a started call may overtake: nothing of its own lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Collective,
    Send(usize),
    Recv(usize),
}

/// Whether anybody waits for a started call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// A handle does, or the communicator's end.
    Awaited,
    /// Nobody: a message that is to be thrown away.
    Background,
}

/// The state of a started call that its handle sees.
#[derive(Default)]
pub(crate) struct Progressing {
    phase: AtomicU8,
    error: Mutex<Option<Error>>,
    /// What the buffers live in, once the handle is gone.
    owned: Mutex<Option<Box<dyn Any + Send>>>,
}

const PENDING: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

impl Progressing {
    pub(crate) fn is_pending(&self) -> bool {
        self.phase.load(Ordering::Acquire) == PENDING
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        match self.phase.load(Ordering::Acquire) {
            PENDING => None,
            DONE => Some(Ok(())),
            _ => {
                let error = self.error.lock().unwrap_or_else(|e| e.into_inner()).clone();
                Some(error.map_or(Ok(()), Err))
            }
        }
    }

    fn finish(&self, result: Result<()>) {
        let phase = match result {
            Ok(()) => DONE,
            Err(error) => {
                *self.error.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
                FAILED
            }
        };
        self.phase.store(phase, Ordering::Release);
        let owned = self.owned.lock().unwrap_or_else(|e| e.into_inner()).take();
        drop(owned);
    }

    /// Keeps `owned` until the call ends.
    pub(crate) fn keep(&self, owned: Box<dyn Any + Send>) {
        let mut slot = self.owned.lock().unwrap_or_else(|e| e.into_inner());
        *slot = Some(owned);
        // `finish` takes the lock after it has set the phase: one of the two sees the other.
        if !self.is_pending() {
            let owned = slot.take();
            drop(slot);
            drop(owned);
        }
    }
}

type Operation = Pin<Box<dyn Future<Output = Result<()>>>>;

struct Started {
    operation: Operation,
    lane: Lane,
    interest: Interest,
    state: Arc<Progressing>,
    /// As in `Comm::waiting`, when it was last polled; `usize::MAX` before.
    awaits: usize,
}

// SAFETY: the future holds raw parts of buffers that the starter lent or gave up until the call is idle, and a pointer
// to the communicator that owns this queue; both may be used from whichever thread holds the queue's lock.
unsafe impl Send for Started {}

/// The started calls of one communicator, oldest first.
#[derive(Default)]
pub(crate) struct Queue {
    started: Vec<Started>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.started.is_empty()
    }

    /// Whether no call is left that somebody waits for.
    pub(crate) fn is_settled(&self) -> bool {
        self.started.iter().all(|one| one.interest == Interest::Background)
    }

    /// Appends a call.
    ///
    /// # Safety
    ///
    /// What `operation` points to stays valid until `state` is no longer pending, and may be used from any thread.
    pub(crate) unsafe fn push(
        &mut self,
        comm: &Arc<Comm>,
        lane: Lane,
        interest: Interest,
        operation: Operation,
        state: Arc<Progressing>,
    ) {
        comm.queued.fetch_add(1, Ordering::Relaxed);
        comm.rank.outstanding.add(comm);
        self.started.push(Started { operation, lane, interest, state, awaits: usize::MAX });
    }

    /// Polls what may run. Collectives run strictly in order; sends and receives only wait for those of the same pair.
    pub(crate) fn progress(&mut self, comm: &Comm) {
        if let Some(cause) = comm.cause() {
            let cause = cause.clone();
            return self.fail_all(comm, &cause);
        }
        // Others want their turn: look once, don't spin.
        let burst = comm.burst.swap(0, Ordering::Relaxed);
        self.poll(comm);
        comm.burst.store(burst, Ordering::Relaxed);
    }

    fn poll(&mut self, comm: &Comm) {
        let mut context = Context::from_waker(Waker::noop());
        let mut blocked: Vec<Lane> = Vec::new();
        let mut i = 0;
        let mut ended = 0;
        while i < self.started.len() {
            let started = &mut self.started[i];
            if blocked.contains(&started.lane) {
                i += 1;
                continue;
            }
            match started.operation.as_mut().poll(&mut context) {
                Poll::Ready(result) => {
                    let started = self.started.remove(i);
                    drop(started.operation);
                    started.state.finish(result);
                    ended += 1;
                    if comm.cause().is_some() {
                        break;
                    }
                }
                Poll::Pending => {
                    started.awaits = comm.waiting.load(Ordering::Relaxed);
                    blocked.push(started.lane);
                    // All later ones are usually collectives: no need to walk over them.
                    if started.lane == Lane::Collective
                        && self.started[i..].iter().all(|later| later.lane == Lane::Collective)
                    {
                        break;
                    }
                    i += 1;
                }
            }
        }
        if ended > 0 {
            Self::ended(comm, ended);
        }
    }

    /// Whom the calls that hold up these wait for: those of the same lanes that were polled.
    pub(crate) fn awaited(&self, states: &[Arc<Progressing>]) -> Vec<usize> {
        let holds_up = |one: &Started| {
            self.started
                .iter()
                .any(|other| other.lane == one.lane && states.iter().any(|state| Arc::ptr_eq(state, &other.state)))
        };
        self.started.iter().filter(|one| one.awaits != usize::MAX && holds_up(one)).map(|one| one.awaits).collect()
    }

    /// Whom any call waits for.
    pub(crate) fn all_awaited(&self) -> Vec<usize> {
        self.started.iter().map(|one| one.awaits).filter(|awaits| *awaits != usize::MAX).collect()
    }

    fn ended(comm: &Comm, calls: usize) {
        // Releases what the calls did to the protocol state to the next blocking call.
        comm.queued.fetch_sub(calls, Ordering::Release);
        comm.rank.outstanding.remove(calls);
    }

    /// Drops every call; their handles get the error.
    pub(crate) fn fail_all(&mut self, comm: &Comm, error: &Error) {
        let started = std::mem::take(&mut self.started);
        Self::ended(comm, started.len());
        for one in started {
            drop(one.operation);
            one.state.finish(Err(error.clone().without_sequence()));
        }
    }
}
