//! The backend interface over a channel.

use crate::api::Api;
use crate::channel::Channel;
use crate::work::Started;
use rankwise_core::backend::{RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{Capabilities, DeadlineMode, Error, ErrorKind, Group, MemorySpace, OpKind, Queue, Result};
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct MpiCommunicator<A: Api>(pub(crate) Arc<Channel<A>>);

impl<A: Api> MpiCommunicator<A> {
    fn enforces(&self) -> bool {
        self.0.settings.deadline == DeadlineMode::Enforce
    }

    /// # Safety
    ///
    /// As for [`RawCommunicator::run`].
    #[inline]
    unsafe fn watched(&self, call: &RawCall<'_>, deadline: Duration) -> Result<()> {
        let channel = &self.0;
        channel.usable()?;
        let _noted = channel.call.note(call.kind, channel.next(), deadline);
        // SAFETY: the caller's promise.
        unsafe {
            match call.kind {
                OpKind::Send | OpKind::Recv => channel.point_to_point(call),
                _ => channel.collective(call),
            }
        }
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
        if self.enforces() {
            // SAFETY: the caller's promise.
            let mut work = unsafe { self.start(calls, Queue::Host, deadline) }?;
            let result = work.wait(deadline);
            if result.is_err() {
                // Staged, so that this lets go of the caller's memory.
                work.cancel();
            }
            return result;
        }
        for call in calls {
            // SAFETY: the caller's promise.
            unsafe { self.watched(call, deadline) }?;
        }
        Ok(())
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], _queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        self.0.usable()?;
        self.0.next();
        // SAFETY: the caller's promise.
        let started = unsafe { Started::start(&self.0, calls, deadline, self.enforces()) }?;
        Ok(Box::new(started))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        if self.0.usable().is_err() || is_alike_everywhere(refusal.why.kind()) {
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
        self.0.abort();
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        let barrier = RawCall::new(OpKind::Barrier, rankwise_core::DType::U8, 0);
        // SAFETY: a barrier has no buffers.
        let mut work = unsafe { self.start(&[barrier], Queue::Host, deadline) }?;
        work.wait(deadline).inspect_err(|_| {
            work.cancel();
        })
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
