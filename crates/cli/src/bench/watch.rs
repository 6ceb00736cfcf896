//! Jobs that other launchers than ours start may say nothing for ever.

use rankwise_world::launch::JobHandle;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Kills a job that says nothing for too long, from a thread of its own.
pub(crate) struct Watch {
    state: Arc<Mutex<Watched>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Watched {
    last: Instant,
    ended: bool,
    silent: bool,
}

impl Watch {
    /// From now on.
    pub(crate) fn start(handle: JobHandle, silence: Duration) -> Watch {
        let state = Arc::new(Mutex::new(Watched { last: Instant::now(), ended: false, silent: false }));
        let shared = state.clone();
        let watch = move || {
            loop {
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if state.ended {
                    return;
                }
                if state.last.elapsed() > silence {
                    state.silent = true;
                    drop(state);
                    handle.kill_all();
                    return;
                }
                let left = silence.saturating_sub(state.last.elapsed()) + Duration::from_millis(1);
                drop(state);
                std::thread::park_timeout(left);
            }
        };
        // Without a thread only a timeout of the whole job ends it.
        let thread = std::thread::Builder::new().name("bench-watch".into()).spawn(watch).ok();
        Watch { state, thread }
    }

    /// The time begins anew.
    pub(crate) fn heard(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last = Instant::now();
    }

    /// Whether it had to kill.
    pub(crate) fn end(self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            let _ = thread.join();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).silent
    }
}
