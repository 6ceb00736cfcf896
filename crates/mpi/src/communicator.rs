//! The backend interface over a channel.

use crate::api::Api;
use crate::channel::Channel;
use crate::end;
use crate::header::Header;
use crate::meeting::Meeting;
use crate::work::{Started, numbered};
use rankwise_core::backend::{RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{Capabilities, DeadlineMode, Error, ErrorKind, Group, MemorySpace, OpKind, Queue, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct MpiCommunicator<A: Api>(pub(crate) Arc<Channel<A>>);

impl<A: Api> MpiCommunicator<A> {
    fn enforces(&self) -> bool {
        self.0.settings.deadline == DeadlineMode::Enforce
    }

    /// # Safety
    ///
    /// As for [`RawCommunicator::start`].
    unsafe fn begin(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<Started<A>> {
        let _inside = end::enter()?;
        if self.0.spec.check || self.enforces() {
            self.0.base.collect();
        }
        self.0.usable()?;
        self.0.base.sweep();
        if self.0.spec.check && !matches!(calls, [RawCall { kind: OpKind::Send | OpKind::Recv, .. }]) {
            return Started::meet(&self.0, calls, deadline, self.enforces());
        }
        // SAFETY: the caller's promise.
        unsafe { Started::start(&self.0, calls, deadline, self.enforces()) }
    }

    /// Waits until all members have come with the same calls, then runs them.
    ///
    /// # Safety
    ///
    /// As for [`RawCommunicator::run`].
    unsafe fn checked(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        let _inside = end::enter()?;
        self.0.base.collect();
        self.0.usable()?;
        self.0.base.sweep();
        if matches!(calls, [RawCall { kind: OpKind::Send | OpKind::Recv, .. }]) {
            // SAFETY: the caller's promise.
            let message = unsafe { Started::start(&self.0, calls, deadline, true) }?;
            return message.finish(deadline);
        }
        let Some(first) = calls.first() else { return Ok(()) };
        // Not MPI's blocking call: a peer may have started the same one, and MPI lets the two forms not meet.
        Started::meet(&self.0, calls, deadline, false)?.finish_watched(first.kind)
    }

    /// # Safety
    ///
    /// As for [`RawCommunicator::run`].
    #[inline]
    unsafe fn watched(&self, call: &RawCall<'_>, deadline: Duration) -> Result<()> {
        let channel = &self.0;
        let sequence = channel.next(call.kind);
        // Before the communicator is looked at, see `end`.
        let _noted = channel.call.note(call.kind, sequence, deadline);
        channel.usable()?;
        channel.base.sweep();
        // SAFETY: the caller's promise.
        let result = unsafe {
            match call.kind {
                OpKind::Send | OpKind::Recv => channel.point_to_point(call),
                _ => channel.collective(call),
            }
        };
        result.map_err(|error| numbered(error, sequence))
    }
}

// SAFETY: a blocking call is over when it returns, or it had staging; works say themselves when they are idle; memory of
// other ranks is never touched.
unsafe impl<A: Api> RawCommunicator for MpiCommunicator<A> {
    fn group(&self) -> &Group {
        &self.0.spec.group
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    #[inline]
    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        if self.0.spec.check && !self.enforces() {
            // SAFETY: the caller's promise.
            return unsafe { self.checked(calls, deadline) };
        }
        if self.enforces() {
            // SAFETY: the caller's promise.
            return unsafe { self.begin(calls, deadline) }?.finish(deadline);
        }
        let [first, more @ ..] = calls else { return Ok(()) };
        let begun = (!more.is_empty()).then(Instant::now);
        // SAFETY: the caller's promise.
        unsafe { self.watched(first, deadline) }?;
        for call in more {
            let left = begun.map_or(deadline, |begun| deadline.saturating_sub(begun.elapsed()));
            // SAFETY: the caller's promise.
            unsafe { self.watched(call, left) }?;
        }
        Ok(())
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], _queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { self.begin(calls, deadline) }?))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        let Ok(_inside) = end::enter() else { return };
        if self.0.usable().is_err() {
            return;
        }
        if self.0.spec.check {
            let (kind, why) = (refusal.kind, refusal.why.kind());
            let told = match refusal.peer {
                Some(peer) => Header::refuse(&self.0, kind, peer, why),
                None => Meeting::of_refusal(&self.0, kind, why).map(|meeting| self.0.queue_refusal(meeting)),
            };
            if let Err(error) = told {
                self.0.poison(error);
            }
            return;
        }
        if is_alike_everywhere(refusal.why.kind()) {
            return;
        }
        // The peers can't be told: this rank's next call would meet the one that it refused.
        self.0.library.mark_broken();
        self.0.poison(refusal.why.clone());
    }

    fn alloc(&self, _bytes: usize, _space: MemorySpace, _deadline: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(unsupported("collective memory"))
    }

    fn shrink(&self, _deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        Err(unsupported("shrink"))
    }

    fn abort(&self) {
        if let Ok(_inside) = end::enter() {
            self.0.abort();
        }
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        let barrier = RawCall::new(OpKind::Barrier, rankwise_core::DType::U8, 0);
        // SAFETY: a barrier has no buffers.
        unsafe { self.begin(&[barrier], deadline) }?.finish(deadline)
    }
}

impl<A: Api> Drop for MpiCommunicator<A> {
    fn drop(&mut self) {
        if let Ok(_inside) = end::enter() {
            self.0.base.sweep();
        }
    }
}

/// Whether all ranks that make the same call refuse it alike, so that nobody waits for it.
fn is_alike_everywhere(why: &ErrorKind) -> bool {
    matches!(
        why,
        ErrorKind::UnsupportedOp
            | ErrorKind::UnsupportedDtype
            | ErrorKind::UnsupportedMemory
            | ErrorKind::UnsupportedMode
            | ErrorKind::Unsupported { .. }
    )
}

fn unsupported(function: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported { function: function.into(), needs: "another backend".into(), have: "mpi".into() },
        format!("the mpi backend offers no {function}"),
    )
}
