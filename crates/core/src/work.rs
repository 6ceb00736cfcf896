//! [`Work`]: an operation in flight on owned buffers.

#![allow(unsafe_code)]

use crate::backend::RawWork;
use crate::buffer::Owned;
use crate::call::Lent;
use crate::error::{Error, Result};
use crate::member::Member;
use crate::op::OpKind;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An operation in flight that owns its buffers.
///
/// [`Work::wait`] gives them back. Dropped unfinished, it hands them to the engine, which frees them when it has
/// finished; the operation still takes part in the protocol. Can be waited for on another thread.
#[must_use = "wait for the work to get the result"]
pub struct Work<S: Owned, D: Owned> {
    /// `None` when finished.
    raw: Option<Box<dyn RawWork>>,
    /// `None` only while being taken apart.
    lent: Option<Lent<S, D>>,
    failed: Option<Error>,
    kind: OpKind,
    deadline: Duration,
    member: Arc<Member>,
}

impl<S: Owned, D: Owned> Work<S, D> {
    pub(crate) fn new(
        raw: Option<Box<dyn RawWork>>,
        lent: Lent<S, D>,
        kind: OpKind,
        deadline: Duration,
        member: Arc<Member>,
    ) -> Work<S, D> {
        Work { raw, lent: Some(lent), failed: None, kind, deadline, member }
    }

    /// Whether the operation has finished; does not wait. An error is final: [`Work::wait`] returns it again.
    pub fn test(&mut self) -> Result<bool> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.alive()?;
        let Some(raw) = &mut self.raw else { return Ok(true) };
        match raw.test() {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.raw = None;
                Ok(true)
            }
            Err(error) => Err(self.failed.insert(self.member.blame(self.kind, error)).clone()),
        }
    }

    /// Waits until finished and gives the destination back; the source is dropped.
    ///
    /// The deadline is the call's, counted from the start of the work. After an error the operation is stopped where the engine can, and the
    /// error gives the buffers back; otherwise the engine holds them until it has finished.
    pub fn wait(self) -> Result<D, WorkError<S, D>> {
        self.wait_both().map(|(_, dst)| dst)
    }

    /// [`Work::wait`], giving both buffers back.
    pub fn wait_both(mut self) -> Result<(S, D), WorkError<S, D>> {
        let result = match (self.failed.take(), self.alive()) {
            (Some(error), _) | (None, Err(error)) => Err(error),
            (None, Ok(())) => match &mut self.raw {
                Some(raw) => raw.wait(self.deadline).map_err(|error| self.member.blame(self.kind, error)),
                None => Ok(()),
            },
        };
        let error = match result {
            Ok(()) => {
                self.raw = None;
                None
            }
            Err(error) => Some(error),
        };
        let idle =
            self.raw.is_none() || (self.member.is_current() && self.raw.as_mut().is_some_and(|raw| raw.cancel()));
        let buffers = if idle {
            self.raw = None;
            // SAFETY: the work is idle: it finished or was cancelled.
            self.lent.take().map(|lent| unsafe { lent.give_back() })
        } else {
            // Drop hands them to the engine.
            None
        };
        match (error, buffers) {
            (None, Some(buffers)) => Ok(buffers),
            (error, buffers) => {
                let error = error.unwrap_or_else(|| Error::invalid("the work was taken apart before"));
                Err(WorkError::new(error, buffers))
            }
        }
    }

    fn alive(&self) -> Result<()> {
        if self.raw.is_none() || self.member.is_current() { Ok(()) } else { Err(self.member.forked(self.kind)) }
    }
}

impl<S: Owned, D: Owned> Drop for Work<S, D> {
    fn drop(&mut self) {
        let (Some(raw), Some(lent)) = (self.raw.take(), self.lent.take()) else { return };
        if self.member.is_current() {
            raw.detach(Box::new((lent.src, lent.dst)));
        } else {
            // In a forked child the engine's work is the parent's, and so are the addresses in it.
            std::mem::forget((raw, lent));
        }
    }
}

impl<S: Owned, D: Owned> fmt::Debug for Work<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({}, finished: {})", self.kind, self.raw.is_none())
    }
}

/// Why a [`Work`] failed, and its buffers unless the engine still holds them. Converts into [`Error`].
pub struct WorkError<S, D> {
    error: Error,
    buffers: Option<(S, D)>,
}

impl<S, D> WorkError<S, D> {
    pub(crate) fn new(error: Error, buffers: Option<(S, D)>) -> WorkError<S, D> {
        WorkError { error, buffers }
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Source and destination, the latter with unspecified contents; `None` when the engine could not be stopped and
    /// keeps them until it has finished.
    pub fn into_buffers(self) -> Option<(S, D)> {
        self.buffers
    }

    /// Whether [`WorkError::into_buffers`] has any.
    pub fn has_buffers(&self) -> bool {
        self.buffers.is_some()
    }

    /// The error alone; the buffers are dropped.
    pub fn into_error(self) -> Error {
        self.error
    }
}

impl<S, D> From<WorkError<S, D>> for Error {
    fn from(failed: WorkError<S, D>) -> Error {
        failed.error
    }
}

impl<S, D> fmt::Display for WorkError<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S, D> fmt::Debug for WorkError<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<S, D> std::error::Error for WorkError<S, D> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}
