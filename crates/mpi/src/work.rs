//! Started calls as the layer above holds them, and waiting for them.

use crate::api::Api;
use crate::channel::{Channel, lock};
use crate::end;
use crate::flight::Flight;
use crate::goodbye::Left;
use crate::post::Word;
use crate::queue;
use rankwise_core::backend::{RawCall, RawWork};
use rankwise_core::{Error, ErrorKind, OpKind, Queue, Result};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at the request before the processor is handed over.
const SPINS: u32 = 2_000;

/// How long the last message of a member that has left may take after its goodbye; it had handed the message over completely.
const LAST_MESSAGE: Duration = Duration::from_secs(1);

/// Several calls that were started as one.
pub(crate) struct Started<A: Api> {
    channel: Arc<Channel<A>>,
    flights: Vec<Flight<A>>,
    /// Check mode: the calls, while they have not begun.
    pending: Option<queue::Shared<A>>,
    /// Number of the call, and of the last collective with it; 0 when it is none.
    sequence: u64,
    collective: u64,
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
            sequence: 0,
            collective: 0,
            started: Instant::now(),
            deadline,
            staged,
            given_up: false,
        };
        started.count(calls);
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

    /// Tells the members about calls, which begin when all have come.
    pub(crate) fn meet(
        channel: &Arc<Channel<A>>,
        calls: &[RawCall<'_>],
        deadline: Duration,
        staged: bool,
    ) -> Result<Started<A>> {
        let staged = staged || calls.len() > 1;
        let pending = Some(channel.queue(calls, staged)?);
        let mut started = Started {
            channel: channel.clone(),
            flights: Vec::new(),
            pending,
            sequence: 0,
            collective: 0,
            started: Instant::now(),
            deadline,
            staged,
            given_up: false,
        };
        started.count(calls);
        Ok(started)
    }

    fn count(&mut self, calls: &[RawCall<'_>]) {
        for call in calls {
            self.sequence = self.channel.next(call.kind);
            if !matches!(call.kind, OpKind::Send | OpKind::Recv) {
                self.collective = self.channel.collectives();
            }
        }
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
        let _inside = end::enter()?;
        if self.poll()? {
            return Ok(true);
        }
        self.interrupted()?;
        if self.started.elapsed() >= self.deadline { Err(self.late()) } else { Ok(false) }
    }

    fn is_idle(&self) -> bool {
        self.given_up || self.pending.is_none() && self.flights.iter().all(Flight::is_idle)
    }

    fn interrupted(&mut self) -> Result<()> {
        self.channel.interrupted().map_err(|cause| {
            let own = self.pending.as_ref().filter(|_| cause.kind() == &ErrorKind::Timeout);
            own.and_then(|pending| lock(pending).late(&self.channel)).unwrap_or(cause)
        })?;
        // Check mode knows by its exchange who has come.
        if self.pending.is_some() || self.channel.spec.check {
            return Ok(());
        }
        let senders: Vec<usize> = self.flights.iter().filter_map(Flight::sender).collect();
        // A member's last message is matched before its goodbye is, but may take longer to arrive.
        let is_missed = |left: &Left| {
            left.collectives < self.collective || senders.contains(&left.member) && left.heard.elapsed() >= LAST_MESSAGE
        };
        match self.channel.left().into_iter().find(is_missed) {
            Some(_) if self.poll()? => Ok(()),
            Some(left) => Err(self.channel.left_by(left.member)),
            None => Ok(()),
        }
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

    /// Waits to the end, which MPI alone brings about once the calls have begun with the caller's own buffers. From then on the watching thread
    /// sees the call.
    pub(crate) fn finish_watched(mut self, kind: OpKind) -> Result<()> {
        let (sequence, channel) = (self.sequence, self.channel.clone());
        let _inside = end::enter()?;
        let mut failed = None;
        if let Err(error) = self.poll_until(self.deadline, Until::Begun) {
            failed = Some(numbered(error, sequence));
            if self.cancel() {
                return failed.map_or(Ok(()), Err);
            }
        }
        let _noted = channel.call.note(kind, sequence, self.deadline.saturating_sub(self.started.elapsed()));
        let mut pause = Pause::new(&channel);
        loop {
            match self.poll() {
                Ok(true) => return failed.map_or(Ok(()), Err),
                Ok(false) => pause.take(),
                // Nothing is left of a call that failed; several were staged.
                Err(error) => {
                    self.cancel();
                    return Err(failed.unwrap_or(numbered(error, sequence)));
                }
            }
        }
    }

    fn wait_until(&mut self, deadline: Duration) -> Result<()> {
        self.poll_until(deadline, Until::Finished).map_err(|error| numbered(error, self.sequence))
    }

    fn poll_until(&mut self, deadline: Duration, until: Until) -> Result<()> {
        let _inside = end::enter()?;
        let begun = Instant::now();
        let own = self.deadline.saturating_sub(self.started.elapsed());
        let limit = deadline.min(own);
        let mut pause = Pause::new(&self.channel);
        loop {
            if self.poll()? || (until == Until::Begun && self.pending.is_none()) {
                return Ok(());
            }
            pause.take();
            if pause.looks.is_multiple_of(64) || !pause.patient {
                self.interrupted()?;
                if begun.elapsed() >= limit {
                    return Err(self.late());
                }
            }
        }
    }
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The members have come, so that the calls are MPI's.
    Begun,
    Finished,
}

/// Between two looks.
struct Pause {
    /// Every rank of this host has a processor.
    patient: bool,
    looks: u32,
}

impl Pause {
    fn new<A: Api>(channel: &Channel<A>) -> Pause {
        Pause { patient: channel.world.local_size() <= channel.world.cpus(), looks: 0 }
    }

    fn take(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        if !self.patient || self.looks > SPINS {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
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
        let Ok(_inside) = end::enter() else { return self.staged || self.is_idle() };
        let _ = self.poll();
        if self.is_idle() {
            return true;
        }
        self.channel.abort();
        if let Some(pending) = self.pending.take() {
            self.channel.forget(&pending);
            // Another thread may have begun it meanwhile.
            match lock(&pending).take() {
                // MPI has nothing of the caller's.
                None | Some(Err(_)) => {
                    self.given_up = true;
                    return true;
                }
                Some(Ok(flights)) => self.flights = flights,
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
        channel.base.detach(self, owned);
    }
}
