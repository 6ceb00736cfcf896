//! Calls that were handed to the engine: one, or several as one launch.

use rankwise_core::backend::{Counts, RawCall};
use rankwise_core::descriptor::Words;
use rankwise_core::{Error, OpKind, Result};
use rankwise_schedule::Ticket;
use std::any::Any;
use std::time::Duration;

/// A call that owns its counts.
pub(crate) struct Kept {
    call: RawCall<'static>,
    send: Vec<usize>,
    recv: Vec<usize>,
}

// SAFETY: the addresses are of memory that was lent to the call until it is idle, from whichever thread.
unsafe impl Send for Kept {}

impl Kept {
    pub(crate) fn new(call: &RawCall<'_>) -> Kept {
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

    pub(crate) fn call(&self) -> RawCall<'_> {
        let mut call = self.call;
        call.counts = Counts { send: &self.send, recv: &self.recv };
        call
    }
}

/// How far the current call of a job is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Behind others of its communicator.
    Queued,
    Running(Ticket),
    /// It has failed, and it is asked around why.
    Asking {
        error: Error,
        until: Duration,
    },
    Ended(Result<()>),
}

/// Calls that run one after the other; a send or a receive is a job by itself.
pub(crate) struct Job {
    /// Number of the communicator.
    pub(crate) channel: u16,
    /// In reverse; the last is the current one.
    pub(crate) calls: Vec<Kept>,
    pub(crate) launch: u64,
    /// On the transport's clock.
    pub(crate) deadline: Duration,
    pub(crate) kind: OpKind,
    /// Number of the current call.
    pub(crate) sequence: u64,
    pub(crate) words: Words,
    pub(crate) stage: Stage,
    /// Of a call that has failed: what UCX may still use.
    pub(crate) draining: Option<Ticket>,
    /// When it began, or when the others were last asked how far they are.
    pub(crate) asked: Duration,
    /// What the buffers live in, once nobody waits any more.
    pub(crate) owned: Option<Box<dyn Any + Send>>,
    /// Nobody waits: removed once it is idle.
    pub(crate) detached: bool,
}

impl Job {
    /// Whether it is a send or a receive.
    pub(crate) fn is_of_a_pair(&self) -> bool {
        matches!(self.kind, OpKind::Send | OpKind::Recv)
    }

    /// Whether nothing of it is touched any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.draining.is_none() && matches!(self.stage, Stage::Ended(_))
    }

    /// Position of the other side of a send or receive.
    pub(crate) fn partner(&self) -> Option<usize> {
        self.calls.last().filter(|_| self.is_of_a_pair()).map(|kept| kept.call().root)
    }
}
