//! Started calls as the layer above holds them, and waiting for them.

use crate::api::Api;
use crate::channel::{Channel, lock};
use crate::flight::Flight;
use crate::post::Word;
use crate::queue;
use rankwise_core::backend::{RawCall, RawWork};
use rankwise_core::{Error, ErrorKind, Queue, Result};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at the request before the processor is handed over.
const SPINS: u32 = 2_000;

/// Several calls that were started as one.
pub(crate) struct Started<A: Api> {
    channel: Arc<Channel<A>>,
    flights: Vec<Flight<A>>,
    /// Check mode: the calls, while they have not begun.
    pending: Option<queue::Shared<A>>,
    /// Number of the call.
    sequence: u64,
    started: Instant,
    deadline: Duration,
    /// MPI has staging instead of the caller's buffers. Always with several calls: when a later one can't be started, the earlier ones
    /// can't be stopped.
    staged: bool,
    given_up: bool,
}

impl<A: Api> Started<A> {
    /// Starts calls.
    ///
    /// # Safety
    ///
    /// As for `RawCommunicator::start`.
    pub(crate) unsafe fn start(
        channel: &Arc<Channel<A>>,
        calls: &[RawCall<'_>],
        deadline: Duration,
        staged: bool,
    ) -> Result<Started<A>> {
        let staged = staged || calls.len() > 1;
        let mut started = Started {
            channel: channel.clone(),
            flights: Vec::with_capacity(calls.len()),
            pending: None,
            sequence: channel.next(),
            started: Instant::now(),
            deadline,
            staged,
            given_up: false,
        };
        for call in calls {
            // SAFETY: the caller's promise.
            match unsafe { Flight::start(channel, call, staged) } {
                Ok(flight) => started.flights.push(flight),
                // Those before it are under way with staging alone, and are leaked.
                Err(error) => return Err(channel.poison(error)),
            }
        }
        Ok(started)
    }

    /// Tells the members about calls, which begin when all have come; with `only_meet` they don't, and all is done when all have come.
    pub(crate) fn meet(
        channel: &Arc<Channel<A>>,
        calls: &[RawCall<'_>],
        deadline: Duration,
        staged: bool,
        only_meet: bool,
    ) -> Result<Started<A>> {
        let staged = staged || calls.len() > 1;
        let pending = Some(channel.queue(calls, staged, only_meet)?);
        Ok(Started {
            channel: channel.clone(),
            flights: Vec::new(),
            pending,
            sequence: channel.next(),
            started: Instant::now(),
            deadline,
            staged,
            given_up: false,
        })
    }

    fn poll(&mut self) -> Result<bool> {
        if self.channel.spec.check {
            queue::advance_all(&self.channel.library);
        }
        if let Some(pending) = &self.pending {
            let Some(begun) = lock(pending).take() else { return Ok(false) };
            self.pending = None;
            self.flights = begun?;
        }
        let mut all = true;
        for flight in &mut self.flights {
            all &= flight.test()?;
        }
        Ok(all)
    }

    fn look(&mut self) -> Result<bool> {
        if self.poll()? {
            return Ok(true);
        }
        self.interrupted()?;
        if self.started.elapsed() >= self.deadline { Err(self.late()) } else { Ok(false) }
    }

    fn is_idle(&self) -> bool {
        self.given_up || self.pending.is_none() && self.flights.iter().all(Flight::is_idle)
    }

    fn interrupted(&self) -> Result<()> {
        self.channel.interrupted().map_err(|cause| {
            let own = self.pending.as_ref().filter(|_| cause.kind() == &ErrorKind::Timeout);
            own.and_then(|pending| lock(pending).late(&self.channel)).unwrap_or(cause)
        })
    }

    #[cold]
    fn late(&self) -> Error {
        let waiting = self.pending.as_ref().and_then(|pending| lock(pending).late(&self.channel));
        let error = waiting.unwrap_or_else(|| {
            let text = "MPI has not finished the call within its deadline; which ranks are missing is not known, with \
                        RANKWISE_CHECK=1 it mostly is";
            Error::new(ErrorKind::Timeout, text)
        });
        let error = self.channel.poison(error.with_elapsed(self.started.elapsed()));
        self.channel.tell(Word::Late);
        error
    }
}

impl<A: Api> Started<A> {
    /// Waits to the end, and lets go of the caller's memory on an error; for staged calls, or those without buffers.
    pub(crate) fn finish(mut self, deadline: Duration) -> Result<()> {
        let result = self.wait_until(deadline);
        if result.is_err() {
            self.cancel();
        }
        result
    }

    fn wait_until(&mut self, deadline: Duration) -> Result<()> {
        self.poll_until(deadline).map_err(|error| numbered(error, self.sequence))
    }

    fn poll_until(&mut self, deadline: Duration) -> Result<()> {
        let begun = Instant::now();
        let own = self.deadline.saturating_sub(self.started.elapsed());
        let limit = deadline.min(own);
        let patient = self.channel.world.local_size() <= self.channel.world.cpus();
        let mut looks = 0_u32;
        loop {
            if self.poll()? {
                return Ok(());
            }
            looks = looks.wrapping_add(1);
            if !patient || looks > SPINS {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            if looks.is_multiple_of(64) || !patient {
                self.interrupted()?;
                if begun.elapsed() >= limit {
                    return Err(self.late());
                }
            }
        }
    }
}

/// The error with the number of its call, unless it comes from an earlier one.
#[cold]
pub(crate) fn numbered(error: Error, sequence: u64) -> Error {
    if error.sequence().is_some() || error.kind() == &ErrorKind::Poisoned {
        error
    } else {
        error.with_sequence(sequence)
    }
}

// SAFETY: idle means that MPI has finished every call, or never had the caller's buffers.
unsafe impl<A: Api> RawWork for Started<A> {
    fn test(&mut self) -> Result<bool> {
        self.look().map_err(|error| numbered(error, self.sequence))
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        self.wait_until(deadline)
    }

    fn order(&mut self, _queue: Queue) -> Result<()> {
        self.wait_until(Duration::MAX)
    }

    fn cancel(&mut self) -> bool {
        let _ = self.poll();
        if self.is_idle() {
            return true;
        }
        self.channel.abort();
        if let Some(pending) = self.pending.take() {
            // Not begun: MPI has nothing of the caller's.
            self.channel.forget(&pending);
            if lock(&pending).take().is_none() {
                self.given_up = true;
                return true;
            }
        }
        if self.staged {
            // What MPI holds is leaked.
            self.flights.clear();
            self.given_up = true;
        }
        self.staged
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        let channel = self.channel.clone();
        channel.detach(self, owned);
    }
}
