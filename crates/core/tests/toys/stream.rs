//! A toy that is stream-ordered: each rank has streams, a worker thread each; calls enqueue, results appear later.
//!
//! A call reads its source and meets its peers when its turn on the stream comes, not when it is issued; sequence numbers
//! are taken, and deadlines begin, when it is issued. Each communicator has a stream of its own for calls on the host queue: on one stream for all, ranks
//! that use two communicators in different orders would hang.

pub(crate) use super::device::Device;
use super::event::Event;
use super::table::Table;
use super::{Meeting, Member, Toy, ends, lock, offers, refuse_all};
use rankwise_core::backend::{RawBackend, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{Determinism, Error, ErrorKind, MemorySpace, Queue, Result};
use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The backends of a world of `n` ranks, and their devices.
pub(crate) fn world_with_devices(n: usize) -> Vec<(Arc<dyn RawBackend>, Arc<Device>)> {
    let meeting = Meeting::<Table>::new();
    let backend = |rank| {
        let device = Arc::new(Device::default());
        let (meeting, mine) = (Arc::clone(&meeting), Arc::clone(&device));
        let capabilities = offers(Determinism::SameTopology, false);
        let make = move |member, table| {
            let (member, device, home) = (Arc::new(member), Arc::clone(&mine), mine.stream());
            Arc::new(Stream { member, table, device, home, events: Arc::default() }) as Arc<dyn RawCommunicator>
        };
        let (make, progress) = (Box::new(make), Box::new(|| ()));
        let toy = Toy { name: "toy-stream", rank, size: n, capabilities, meeting, make, progress };
        (Arc::new(toy) as Arc<dyn RawBackend>, device)
    };
    (0..n).map(backend).collect()
}

/// The backends of a world of `n` ranks.
pub(crate) fn world(n: usize) -> Vec<Arc<dyn RawBackend>> {
    world_with_devices(n).into_iter().map(|(backend, _)| backend).collect()
}

#[derive(Clone)]
struct Stream {
    member: Arc<Member>,
    table: Arc<Table>,
    device: Arc<Device>,
    home: u64,
    /// Of the jobs that may not be over.
    events: Arc<Mutex<Vec<Arc<Event>>>>,
}

struct Work {
    comm: Stream,
    event: Arc<Event>,
    until: Instant,
}

impl Stream {
    fn known(&self, queue: Queue) -> Result<u64> {
        let Queue::Stream(stream) = queue else { return Ok(self.home) };
        let unknown = || Error::invalid(format!("there is no stream {stream}; make one on the device first"));
        self.device.has(stream).then_some(stream).ok_or_else(unknown)
    }

    fn enqueue(&self, calls: &[RawCall<'_>], stream: u64, deadline: Duration) -> Result<Work> {
        self.member.enter(&self.table.fate)?;
        let (mut parts, until, event) = (self.member.parts(calls), ends(deadline), Arc::new(Event::default()));
        let (comm, theirs) = (self.clone(), Arc::clone(&event));
        let job = move || {
            let is_cancelled = std::mem::replace(&mut lock(&theirs.state).running, true);
            if !is_cancelled {
                // SAFETY: the job has not finished, so the memory is lent.
                unsafe { comm.table.post(&comm.member, &parts) };
                // SAFETY: as above.
                theirs.finish(unsafe { comm.table.finish(&comm.member, &mut parts, Some(until)) }.map(drop));
            }
        };
        if !self.device.enqueue(stream, job) {
            event.finish(Err(Error::new(ErrorKind::Closed, "the stream's thread is gone; make a new stream")));
        }
        let mut events = lock(&self.events);
        events.retain(|event| lock(&event.state).result.is_none());
        events.push(Arc::clone(&event));
        Ok(Work { comm: self.clone(), event, until })
    }

    /// Waits for what is in flight on this communicator, on all streams.
    fn settle(&self, until: Instant) -> Result<()> {
        let events = std::mem::take(&mut *lock(&self.events));
        if !events.iter().all(|event| event.wait(until).is_some()) {
            self.table.break_with(self.member.timeout([]));
            return self.member.interrupted(&self.table.fate);
        }
        Ok(())
    }
}

// SAFETY: memory is touched by jobs only; `run` waits for the end of its own.
unsafe impl RawCommunicator for Stream {
    toy_members!();

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        self.enqueue(calls, self.home, deadline)?.wait(deadline)
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        let stream = self.known(queue).map_err(|why| refuse_all(self, calls, why))?;
        Ok(Box::new(self.enqueue(calls, stream, deadline)?))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        self.table.reject(&self.member, refusal);
    }

    fn alloc(&self, _: usize, _: MemorySpace, _: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(Error::new(ErrorKind::UnsupportedOp, "this toy stages everything; use a Vec"))
    }

    fn abort(&self) {
        self.table.break_with(self.member.aborted());
    }
}

// SAFETY: memory is touched by the job before it sets a result, which `wait` and `cancel` wait for; a job whose turn has not
// come finds that it was cancelled and touches nothing.
unsafe impl RawWork for Work {
    fn test(&mut self) -> Result<bool> {
        let result = lock(&self.event.state).result.clone();
        match result {
            Some(result) => result.map(|()| true),
            None if Instant::now() >= self.until => self.wait(Duration::ZERO).map(|()| true),
            None => Ok(false),
        }
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        let until = ends(deadline).min(self.until);
        if let Some(result) = self.event.wait(until) {
            return result;
        }
        // At the work's own deadline a running job ends itself, and can tell whom it missed.
        if until < self.until || !lock(&self.event.state).running {
            self.comm.table.break_with(self.comm.member.timeout([]));
            self.cancel();
        }
        self.event.wait(ends(Duration::MAX)).unwrap_or(Ok(()))
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        if queue == Queue::Host {
            return self.wait(Duration::MAX);
        }
        let (event, until) = (Arc::clone(&self.event), self.until);
        self.comm.device.enqueue(self.comm.known(queue)?, move || drop(event.wait(until)));
        Ok(())
    }

    fn cancel(&mut self) -> bool {
        if lock(&self.event.state).result.is_none() {
            self.comm.abort();
            // A job whose turn has not come finds this and leaves the memory alone; one that runs is woken by the abort.
            let waits = !std::mem::replace(&mut lock(&self.event.state).running, true);
            match self.comm.member.interrupted(&self.comm.table.fate) {
                Err(cause) if waits => self.event.finish(Err(cause)),
                _ => drop(self.event.wait(ends(Duration::MAX))),
            }
        }
        true
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        let mut state = lock(&self.event.state);
        if state.result.is_none() {
            state.owned = Some(owned);
        }
    }
}
