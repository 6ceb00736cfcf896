//! A toy over an asynchronous transport: collectives are steps that advance when somebody makes progress.
//!
//! Messages leave only when their sender makes progress ([`super::steps`]). So whoever waits for anything must advance every
//! call of its rank, on all communicators, or ranks that wait in different orders hang.

use super::exchange::Exchange;
use super::steps::{Steps, Wires, departure};
use super::{Meeting, Member, Toy, ends, host_only, lock, offers};
use rankwise_core::backend::{RawBackend, RawCall, RawCommunicator, RawSegment, RawWork};
use rankwise_core::{Determinism, Error, ErrorKind, OpKind, Queue, Result};
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
        let make = move |member, wires| {
            Arc::new(Transport { member: Arc::new(member), wires, engine: Arc::clone(&engine) })
                as Arc<dyn RawCommunicator>
        };
        let (meeting, capabilities) = (Arc::clone(&meeting), offers(Determinism::Fixed, false));
        Toy { name: "toy-transport", rank, size: n, capabilities, meeting, make: Box::new(make) }
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
    /// Advances everything in flight on this rank; the result of `id` when it is finished.
    fn progress(&self, id: u64) -> Option<Result<()>> {
        let mut flights = lock(&self.flights);
        for flight in flights.values_mut().filter(|flight| flight.result.is_none()) {
            flight.result = flight.advance();
        }
        flights.retain(|_, flight| flight.result.is_none() || flight.owned.is_none());
        flights.get(&id)?.result.clone()
    }
}

struct Work {
    comm: Transport,
    id: u64,
    done: Option<Result<()>>,
}

impl Transport {
    fn begin(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Work> {
        host_only(queue)?;
        self.member.enter(&self.wires.fate)?;
        let steps = |call: &RawCall<'_>| {
            let key = self.member.key(call.kind, call.root);
            let x = Exchange::new(call, self.member.me, self.member.group.len());
            Steps { key, x, sends_at: departure(self.member.me, 0), heard: Vec::new() }
        };
        let (steps, until) = (calls.iter().map(steps).collect(), ends(deadline));
        let id = self.engine.started.fetch_add(1, Ordering::Relaxed);
        let flight = Flight { comm: self.clone(), steps, until, result: None, owned: None };
        lock(&self.engine.flights).insert(id, flight);
        Ok(Work { comm: self.clone(), id, done: None })
    }
}

// SAFETY: memory is touched only by flights in the engine's list without a result; `run` returns with a result.
unsafe impl RawCommunicator for Transport {
    toy_members!();

    unsafe fn run(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<()> {
        self.begin(calls, queue, deadline)?.wait(Duration::MAX)
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        Ok(Box::new(self.begin(calls, queue, deadline)?))
    }

    fn reject(&self, kind: OpKind, why: &Error, calls: usize) {
        for key in self.member.rejected_keys(kind, calls) {
            let refused = |to| ((key, self.member.me, to), Err(why.clone()));
            lock(&self.wires.arrived).extend((0..self.member.group.len()).map(refused));
        }
    }

    fn alloc(&self, _: usize, _: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(Error::new(ErrorKind::UnsupportedOp, "messages need no common memory; use a Vec"))
    }

    fn abort(&self) {
        self.wires.fate.set(self.member.aborted());
    }
}

impl RawWork for Work {
    fn test(&mut self) -> Result<bool> {
        if self.done.is_none() {
            self.done = self.comm.engine.progress(self.id);
            self.done.as_ref().and_then(|_| lock(&self.comm.engine.flights).remove(&self.id));
        }
        self.done.clone().map_or(Ok(false), |result| result.map(|()| true))
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        let until = ends(deadline);
        while !self.test()? {
            if Instant::now() >= until {
                self.comm.wires.fate.set(self.comm.member.timeout([]));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        host_only(queue).and_then(|()| self.wait(Duration::MAX))
    }

    fn cancel(&mut self) -> bool {
        if lock(&self.comm.engine.flights).remove(&self.id).is_some() {
            // The peers may wait for messages that will not leave now.
            self.comm.abort();
        }
        true
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        if let Some(flight) = lock(&self.comm.engine.flights).get_mut(&self.id) {
            flight.owned = Some(owned);
        }
    }
}
