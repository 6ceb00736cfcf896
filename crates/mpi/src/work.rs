//! Started calls as the layer above holds them, and waiting for them.

use crate::api::Api;
use crate::channel::{Channel, lock};
use crate::flight::Flight;
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
    started: Instant,
    deadline: Duration,
    /// MPI has staging instead of the caller's buffers.
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
        let mut started = Started {
            channel: channel.clone(),
            flights: Vec::with_capacity(calls.len()),
            started: Instant::now(),
            deadline,
            staged,
            given_up: false,
        };
        for call in calls {
            // SAFETY: the caller's promise.
            match unsafe { Flight::start(channel, call, staged) } {
                Ok(flight) => started.flights.push(flight),
                Err(error) => {
                    // Those before it may be under way with the caller's memory, which an error promises not to touch.
                    started.abandon_or_wait();
                    return Err(channel.poison(error));
                }
            }
        }
        Ok(started)
    }

    fn poll(&mut self) -> Result<bool> {
        let mut all = true;
        for flight in &mut self.flights {
            all &= flight.test()?;
        }
        Ok(all)
    }

    fn abandon_or_wait(&mut self) {
        while !self.staged && self.flights.iter().any(|flight| !flight.is_idle()) {
            let _ = self.poll();
            std::thread::yield_now();
        }
        self.flights.clear();
    }

    fn is_idle(&self) -> bool {
        self.given_up || self.flights.iter().all(Flight::is_idle)
    }

    #[cold]
    fn late(&self) -> Error {
        self.channel.poison(
            Error::new(
                ErrorKind::Timeout,
                "MPI has not finished the call within its deadline; which ranks are missing is not known without RANKWISE_CHECK=1",
            )
            .with_elapsed(self.started.elapsed()),
        )
    }
}

impl<A: Api> Started<A> {
    fn wait_until(&mut self, deadline: Duration) -> Result<()> {
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
                self.channel.interrupted()?;
                if begun.elapsed() >= limit {
                    return Err(self.late());
                }
            }
        }
    }
}

// SAFETY: idle means that MPI has finished every call, or never had the caller's buffers.
unsafe impl<A: Api> RawWork for Started<A> {
    fn test(&mut self) -> Result<bool> {
        if self.poll()? {
            return Ok(true);
        }
        self.channel.interrupted()?;
        if self.started.elapsed() >= self.deadline { Err(self.late()) } else { Ok(false) }
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
        if self.staged {
            // What MPI holds is leaked.
            self.flights.clear();
            self.given_up = true;
        }
        self.staged
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        let channel = self.channel.clone();
        lock(&channel.detached).push((self, owned));
    }
}
