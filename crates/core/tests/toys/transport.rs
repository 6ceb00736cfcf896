//! A toy over an asynchronous transport: collectives are steps that advance when somebody makes progress.
//!
//! Messages leave only when their sender makes progress ([`super::steps`]). So whoever waits for anything must advance every
//! call of its rank, on all communicators, or ranks that wait in different orders hang.

use super::steps::{Steps, Wires, departure};
use super::{Meeting, Member, Toy, ends, host_only, lock, offers, refuse_all};
use rankwise_core::backend::{RawBackend, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{Determinism, Error, ErrorKind, MemorySpace, Queue, Result};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The calls in flight of one rank, over all its communicators.
#[derive(Default)]
struct Engine {
    flights: Mutex<HashMap<u64, Flight>>,
    started: AtomicU64,
}

struct Flight {
    comm: Transport,
    steps: Vec<Steps>,
    until: Instant,
    result: Option<Result<()>>,
    owned: Option<Box<dyn Any + Send>>,
}

#[derive(Clone)]
struct Transport {
    member: Arc<Member>,
    wires: Arc<Wires>,
    engine: Arc<Engine>,
}

/// The backends of a world of `n` ranks.
pub(crate) fn world(n: usize) -> Vec<Arc<dyn RawBackend>> {
    let meeting = Meeting::<Wires>::new();
    let backend = |rank| {
        let engine = Arc::new(Engine::default());
        let outstanding = Arc::clone(&engine);
        let make = move |member, wires| {
            Arc::new(Transport { member: Arc::new(member), wires, engine: Arc::clone(&engine) })
                as Arc<dyn RawCommunicator>
        };
        let (meeting, capabilities) = (Arc::clone(&meeting), offers(Determinism::Fixed, false));
        let progress = Box::new(move || outstanding.progress());
        Toy { name: "toy-transport", rank, size: n, capabilities, meeting, make: Box::new(make), progress }
    };
    (0..n).map(|rank| Arc::new(backend(rank)) as Arc<dyn RawBackend>).collect()
}

impl Flight {
    /// One round over the calls of the flight; the result once it is finished, after which no memory is touched.
    fn advance(&mut self) -> Option<Result<()>> {
        let mut failed = Ok(());
        let comm = &self.comm;
        self.steps.retain_mut(|steps| match steps.advance(&comm.member, &comm.wires) {
            Ok(finished) => !finished,
            Err(error) => {
                failed = failed.clone().and(Err(error));
                false
            }
        });
        if failed.is_err() || self.steps.is_empty() {
            return Some(failed);
        }
        if Instant::now() >= self.until {
            let missing = self.steps[0].pair(comm.member.me).1;
            comm.wires.fate.set(comm.member.timeout([missing]));
        }
        comm.member.interrupted(&comm.wires.fate).err().map(Err)
    }
}

impl Engine {
    /// Advances everything in flight on this rank.
    fn progress(&self) {
        let mut flights = lock(&self.flights);
        for flight in flights.values_mut().filter(|flight| flight.result.is_none()) {
            flight.result = flight.advance();
        }
        flights.retain(|_, flight| flight.result.is_none() || flight.owned.is_none());
    }
}

struct Work {
    comm: Transport,
    id: u64,
    done: Option<Result<()>>,
}

impl Transport {
    fn begin(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<Work> {
        self.member.enter(&self.wires.fate)?;
        let steps = |(key, x)| Steps { key, x, sends_at: departure(self.member.me, 0), heard: Vec::new() };
        let (steps, until) = (self.member.parts(calls).into_iter().map(steps).collect(), ends(deadline));
        // Relaxed: only uniqueness matters.
        let id = self.engine.started.fetch_add(1, Ordering::Relaxed);
        let flight = Flight { comm: self.clone(), steps, until, result: None, owned: None };
        lock(&self.engine.flights).insert(id, flight);
        Ok(Work { comm: self.clone(), id, done: None })
    }

    /// Waits for what is in flight on this communicator: the peers' calls need its messages.
    fn settle(&self, until: Instant) -> Result<()> {
        let is_busy = |flight: &Flight| Arc::ptr_eq(&flight.comm.member, &self.member) && flight.result.is_none();
        loop {
            self.engine.progress();
            if !lock(&self.engine.flights).values().any(is_busy) {
                return Ok(());
            }
            if Instant::now() >= until {
                self.wires.fate.set(self.member.timeout([]));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

// SAFETY: memory is touched only by flights in the engine's list without a result; `run` returns with a result.
unsafe impl RawCommunicator for Transport {
    toy_members!();

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        self.begin(calls, deadline)?.wait(deadline)
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        host_only(queue).map_err(|why| refuse_all(self, calls, why))?;
        Ok(Box::new(self.begin(calls, deadline)?))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        let (me, (keys, meet)) = (self.member.me, self.member.refused(refusal));
        for key in keys {
            let refused = |to: &usize| ((key, me, *to), Err(refusal.why.clone()));
            lock(&self.wires.arrived).extend(meet.iter().filter(|to| **to != me).map(refused));
        }
    }

    fn alloc(&self, _: usize, _: MemorySpace, _: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(Error::new(ErrorKind::UnsupportedOp, "messages need no common memory; use a Vec"))
    }

    fn abort(&self) {
        self.wires.fate.set(self.member.aborted());
    }
}

// SAFETY: memory is touched by a flight in the engine's list without a result; `wait` returns with a result, and `cancel`
// takes the flight out under the list's lock.
unsafe impl RawWork for Work {
    fn test(&mut self) -> Result<bool> {
        if self.done.is_none() {
            self.comm.engine.progress();
            let mut flights = lock(&self.comm.engine.flights);
            self.done = flights.get(&self.id).and_then(|flight| flight.result.clone());
            self.done.as_ref().and_then(|_| flights.remove(&self.id));
        }
        self.done.clone().map_or(Ok(false), |result| result.map(|()| true))
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        if let Some(flight) = lock(&self.comm.engine.flights).get_mut(&self.id) {
            flight.until = flight.until.min(ends(deadline));
        }
        while !self.test()? {
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        host_only(queue).and_then(|()| self.wait(Duration::MAX))
    }

    fn cancel(&mut self) -> bool {
        let flight = lock(&self.comm.engine.flights).remove(&self.id);
        match flight.map(|flight| flight.result) {
            Some(None) => {
                // The peers may wait for messages that will not leave now.
                self.comm.abort();
                self.done = Some(self.comm.member.interrupted(&self.comm.wires.fate));
            }
            Some(finished) => self.done = finished,
            None => (),
        }
        true
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        if let Some(flight) = lock(&self.comm.engine.flights).get_mut(&self.id) {
            flight.owned = Some(owned);
        }
    }
}
