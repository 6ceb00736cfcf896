//! The end of a job on a stream, for who waits for it on the host or on another stream.

use super::lock;
use rankwise_core::Result;
use std::any::Any;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

/// What a work and its job share.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    /// Its turn has come, or it was cancelled before.
    pub(crate) running: bool,
    pub(crate) result: Option<Result<()>>,
    pub(crate) owned: Option<Box<dyn Any + Send>>,
}

impl Event {
    /// Waits until the job is over, or the moment has come.
    pub(crate) fn wait(&self, until: Instant) -> Option<Result<()>> {
        let left = until.saturating_duration_since(Instant::now());
        let state = self.changed.wait_timeout_while(lock(&self.state), left, |state| state.result.is_none());
        state.unwrap_or_else(|e| e.into_inner()).0.result.clone()
    }

    /// The first result stays; what the buffers live in is dropped.
    pub(crate) fn finish(&self, result: Result<()>) {
        let mut state = lock(&self.state);
        state.result.get_or_insert(result);
        let owned = state.owned.take();
        self.changed.notify_all();
        drop(state);
        drop(owned);
    }
}
