//! Check mode: calls that wait for their members, in the order in which they were made.
//!
//! MPI wants the collectives of a communicator begun in the same order everywhere, so a call begins when those before it have begun. Whoever
//! waits for anything moves the calls of all communicators, or ranks that wait in different orders would wait for each other.

use crate::api::Api;
use crate::channel::{Channel, lock};
use crate::flight::Flight;
use crate::meeting::Meeting;
use rankwise_core::backend::{Counts, RawCall};
use rankwise_core::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex};

/// Calls that may not have begun.
pub(crate) struct Pending<A: Api> {
    meeting: Option<Meeting<A>>,
    calls: Vec<Kept>,
    staged: bool,
    /// What became of it.
    outcome: Option<Result<Vec<Flight<A>>>>,
}

/// A call whose counts are its own.
struct Kept {
    call: RawCall<'static>,
    send: Vec<usize>,
    recv: Vec<usize>,
}

// SAFETY: the pointers are lent until the call has finished, as `RawCommunicator::start` says; whoever holds the lock uses them.
unsafe impl Send for Kept {}

impl Kept {
    fn new(call: &RawCall<'_>) -> Kept {
        Kept { call: without_counts(call), send: call.counts.send.to_vec(), recv: call.counts.recv.to_vec() }
    }

    fn call(&self) -> RawCall<'_> {
        let mut call = self.call;
        call.counts = Counts { send: &self.send, recv: &self.recv };
        call
    }
}

/// The call with nothing that it borrows.
pub(crate) fn without_counts(call: &RawCall<'_>) -> RawCall<'static> {
    let RawCall { kind, dtype, elem_size, op, count, root, src, dst, tag, .. } = *call;
    let mut kept = RawCall::new(kind, dtype, count);
    (kept.elem_size, kept.op, kept.root, kept.src, kept.dst, kept.tag) = (elem_size, op, root, src, dst, tag);
    kept
}

pub(crate) type Shared<A> = Arc<Mutex<Pending<A>>>;

impl<A: Api> Channel<A> {
    /// Queues calls behind those that were made before, after telling the members.
    pub(crate) fn queue(self: &Arc<Self>, calls: &[RawCall<'_>], staged: bool) -> Result<Shared<A>> {
        let meeting = Meeting::of_calls(self, calls)?;
        let calls = calls.iter().map(Kept::new).collect();
        Ok(self.push(Pending { meeting: Some(meeting), calls, staged, outcome: None }))
    }

    /// Queues a refusal in the place of calls.
    pub(crate) fn queue_refusal(self: &Arc<Self>, meeting: Meeting<A>) {
        self.push(Pending { meeting: Some(meeting), calls: Vec::new(), staged: true, outcome: None });
    }

    fn push(self: &Arc<Self>, pending: Pending<A>) -> Shared<A> {
        let shared = Arc::new(Mutex::new(pending));
        lock(&self.pending).push_back(shared.clone());
        let mut all = lock(&self.library.pending);
        if !all.iter().any(|other| std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(self))) {
            all.push(Arc::downgrade(self));
        }
        shared
    }

    /// Begins what can begin.
    fn advance(self: &Arc<Self>) {
        let mut queue = lock(&self.pending);
        while let Some(front) = queue.front() {
            let mut front = lock(front);
            if front.outcome.is_none() && !front.advance(self) {
                return;
            }
            drop(front);
            queue.pop_front();
        }
    }

    /// Takes out what has not begun, because nobody waits for it any more.
    pub(crate) fn forget(&self, shared: &Shared<A>) {
        lock(&self.pending).retain(|other| !Arc::ptr_eq(other, shared));
    }
}

/// Moves the calls of all communicators of the process.
pub(crate) fn advance_all<A: Api>(library: &crate::library::Library<A>) {
    let channels: Vec<_> = {
        let mut all = lock(&library.pending);
        all.retain(|channel| channel.upgrade().is_some_and(|channel| !lock(&channel.pending).is_empty()));
        all.iter().filter_map(std::sync::Weak::upgrade).collect()
    };
    for channel in channels {
        channel.advance();
    }
}

impl<A: Api> Pending<A> {
    /// Whether it is over with it, one way or the other.
    fn advance(&mut self, channel: &Arc<Channel<A>>) -> bool {
        if let Some(cause) = channel.cause() {
            // A peer that gave up knows less than this rank does of its own call: who has not come.
            let own = (cause.kind() == &ErrorKind::Timeout).then(|| self.late(channel)).flatten();
            self.outcome = Some(Err(own.unwrap_or(cause)));
            return true;
        }
        let Some(meeting) = &mut self.meeting else { return true };
        // Asked before the messages are looked for: who has called and left is not missed.
        let left = channel.left();
        match meeting.poll(channel).and_then(|all| if all { meeting.verdict(channel).map(Some) } else { Ok(None) }) {
            Ok(None) => {
                let has_left = |peer: &usize| left.iter().any(|left| left.member == *peer);
                let Some(gone) = meeting.missing(channel).into_iter().find(has_left) else { return false };
                self.outcome = Some(Err(channel.left_by(gone)));
            }
            Ok(Some(Some(further))) => {
                self.meeting = Some(further);
                return self.advance(channel);
            }
            Ok(Some(None)) => {
                let begun = self.calls.iter().map(|kept| {
                    // SAFETY: the buffers are lent to the started call, which this is.
                    unsafe { Flight::start(channel, &kept.call(), self.staged) }
                });
                let begun: Result<Vec<_>> = begun.collect();
                self.outcome = Some(begun.map_err(|error| channel.poison(error)));
            }
            // The peer's own error; nothing has moved.
            Err(error) if error.kind() == &ErrorKind::PeerRejected => self.outcome = Some(Err(error)),
            Err(error) => self.outcome = Some(Err(channel.poison(error))),
        }
        self.meeting = None;
        true
    }

    /// The calls in flight, once they have begun.
    pub(crate) fn take(&mut self) -> Option<Result<Vec<Flight<A>>>> {
        self.outcome.take()
    }

    /// Who has not come, in words.
    pub(crate) fn late(&self, channel: &Channel<A>) -> Option<Error> {
        let meeting = self.meeting.as_ref()?;
        let group = &channel.spec.group;
        let missing: Vec<usize> = meeting.missing(channel).into_iter().filter_map(|peer| group.global(peer)).collect();
        (!missing.is_empty()).then(|| {
            let text = format!("the ranks {missing:?} have not called {}", meeting.mine());
            Error::new(ErrorKind::Timeout, text).with_peers(missing)
        })
    }
}
