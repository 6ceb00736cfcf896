//! The watching thread: it reports a call that does not come back from MPI in time, and does what the settings say.
//!
//! The calling thread only notes what it is in; it looks at no clock. The watching thread looks at all notes from time to time and
//! counts from when it first saw a call, so that a report comes up to one interval late.

use rankwise_core::{OnStuck, OpKind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// Exit code of a process whose call is stuck; the same as in the layer above.
pub(crate) const STUCK_EXIT_CODE: i32 = 70;

/// What a communicator's issuing thread is in.
#[derive(Default)]
pub(crate) struct Call {
    /// Number of the call, 0 for none.
    sequence: AtomicU64,
    kind: AtomicU8,
    /// In nanoseconds, from when it began.
    deadline: AtomicU64,
}

/// Ends the note when dropped.
pub(crate) struct Noted<'a>(&'a Call);

impl Drop for Noted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.sequence.store(0, Ordering::Release);
    }
}

impl Call {
    /// Notes that a call begins.
    #[inline]
    pub(crate) fn note(&self, kind: OpKind, sequence: u64, deadline: Duration) -> Noted<'_> {
        // The end of the call before is seen before anything of this one.
        fence(Ordering::Release);
        // Relaxed: published by the release below.
        self.kind.store(kind as u8, Ordering::Relaxed);
        self.deadline.store(nanoseconds(deadline), Ordering::Relaxed);
        self.sequence.store(sequence, Ordering::Release);
        Noted(self)
    }

    fn look(&self) -> Option<(u64, u8, u64)> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let rest = (self.kind.load(Ordering::Relaxed), self.deadline.load(Ordering::Relaxed));
        // The loads above stay above. A call that ended meanwhile may have left the note to the next, whose deadline is another.
        fence(Ordering::Acquire);
        let same = self.sequence.load(Ordering::Relaxed) == sequence;
        (sequence != 0 && same).then_some((sequence, rest.0, rest.1))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    // No division: seconds that don't fit are no deadline.
    match duration.as_secs() {
        seconds @ 0..=10_000_000_000 => seconds * 1_000_000_000 + u64::from(duration.subsec_nanos()),
        _ => u64::MAX,
    }
}

/// A communicator that is watched.
pub(crate) trait Watched: Send + Sync {
    fn call(&self) -> &Call;
    /// For people: which communicator, on which rank.
    fn name(&self) -> String;
    fn on_stuck(&self) -> OnStuck;
    /// Someone has called abort.
    fn aborted(&self) -> bool;
    /// MPI is at its end.
    fn close(&self);
    /// And nobody is in it: the members are told that this rank has left.
    fn leave(&self);
}

struct Entry {
    channel: Weak<dyn Watched>,
    /// The call that was seen last, and when first.
    seen: Option<(u64, Instant)>,
    reported: u64,
}

static WATCHED: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static STARTED: Once = Once::new();

/// Adds a communicator.
pub(crate) fn watch(channel: Weak<dyn Watched>) {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner).push(Entry { channel, seen: None, reported: 0 });
    STARTED.call_once(|| {
        let spawned = std::thread::Builder::new().name("rankwise-mpi-watch".into()).spawn(|| {
            loop {
                std::thread::sleep(INTERVAL);
                look();
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "calls into MPI are not watched: the thread could not be started");
        }
    });
}

/// Tells all communicators that MPI is at its end.
pub(crate) fn close_all() {
    all().into_iter().for_each(|channel| channel.close());
}

/// All communicators that exist.
pub(crate) fn all() -> Vec<Arc<dyn Watched>> {
    let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    watched.iter().filter_map(|entry| entry.channel.upgrade()).collect()
}

/// Whether a thread is in a call at this moment.
pub(crate) fn is_any_in_a_call() -> bool {
    all().into_iter().any(|channel| channel.call().look().is_some())
}

fn look() {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    watched.retain_mut(|entry| match entry.channel.upgrade() {
        Some(channel) => {
            entry.look(channel.as_ref());
            true
        }
        None => false,
    });
}

impl Entry {
    fn look(&mut self, channel: &dyn Watched) {
        let Some((sequence, kind, deadline)) = channel.call().look() else {
            self.seen = None;
            return;
        };
        let since = match self.seen {
            Some((seen, since)) if seen == sequence => since,
            _ => {
                self.seen = Some((sequence, Instant::now()));
                return;
            }
        };
        let waited = since.elapsed();
        let late = deadline != u64::MAX && waited >= Duration::from_nanos(deadline);
        if (!late && !channel.aborted()) || self.reported == sequence {
            return;
        }
        if channel.call().look().is_none_or(|(now, ..)| now != sequence) {
            return;
        }
        self.reported = sequence;
        let kind = OpKind::from_tag(kind).map_or("a call", OpKind::name);
        let why = if late { "its deadline has passed" } else { "abort was called" };
        let what = format!(
            "rankwise: {kind} (call {sequence}) on {} is in MPI for {:.1} s and {why}; which ranks are missing is not known without RANKWISE_CHECK=1; \
             MPI can't be stopped and still uses the caller's buffers",
            channel.name(),
            waited.as_secs_f64(),
        );
        match channel.on_stuck() {
            OnStuck::Wait => eprintln!("{what}; waiting on (RANKWISE_ON_STUCK=wait)"),
            _ => {
                eprintln!("{what}; exiting (RANKWISE_ON_STUCK=exit)");
                // SAFETY: ends the process without the exit handlers, which may wait for the call that is stuck.
                unsafe { libc::_exit(STUCK_EXIT_CODE) }
            }
        }
    }
}

/// Runs what may wait in MPI for other processes before there is a communicator to watch.
pub(crate) fn starting<R>(
    what: &'static str,
    hint: &'static str,
    limit: Duration,
    on_stuck: OnStuck,
    f: impl FnOnce() -> R,
) -> R {
    let (finished, waits) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::Builder::new().name("rankwise-mpi-start".into()).spawn(move || {
        if waits.recv_timeout(limit) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            return;
        }
        let text = format!(
            "rankwise: {what} has not come back for {:.1} s, {hint}; MPI can't be stopped",
            limit.as_secs_f64()
        );
        match on_stuck {
            OnStuck::Wait => eprintln!("{text}; waiting on (RANKWISE_ON_STUCK=wait)"),
            _ => {
                eprintln!("{text}; exiting (RANKWISE_ON_STUCK=exit)");
                // SAFETY: as above.
                unsafe { libc::_exit(STUCK_EXIT_CODE) }
            }
        }
    });
    let result = f();
    drop(finished);
    // It ends at once; waited for, so that it is not in the middle of something when the process forks or ends.
    if let Ok(watch) = watch {
        let _ = watch.join();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_while_it_runs() {
        let call = Call::default();
        assert_eq!(call.look(), None);
        let noted = call.note(OpKind::Barrier, 7, Duration::from_millis(3));
        assert_eq!(call.look(), Some((7, OpKind::Barrier as u8, 3_000_000)));
        drop(noted);
        assert_eq!(call.look(), None);
        let _noted = call.note(OpKind::Barrier, 8, Duration::MAX);
        assert_eq!(call.look(), Some((8, OpKind::Barrier as u8, u64::MAX)));
    }
}
