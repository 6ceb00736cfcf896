//! A toy that is stream-ordered: each rank has streams, a worker thread each; calls enqueue, results appear later.
//!
//! A call reads its source and meets its peers when its turn on the stream comes, not when it is issued; sequence numbers
//! are taken when it is issued. Each communicator has a stream of its own for calls on the host queue: on one stream for all, ranks
//! that use two communicators in different orders would hang.

pub(crate) use super::device::Device;
use super::exchange::Exchange;
use super::table::{Bytes, Table};
use super::{Key, Meeting, Member, Toy, ends, lock, offers};
use rankwise_core::backend::{RawBackend, RawCall, RawCommunicator, RawSegment, RawWork};
use rankwise_core::{Determinism, Error, ErrorKind, OpKind, Queue, Result};
use std::any::Any;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The backends of a world of `n` ranks, and their devices.
pub(crate) fn world_with_devices(n: usize) -> Vec<(Arc<dyn RawBackend>, Arc<Device>)> {
    let meeting = Meeting::<Table>::new();
    let backend = |rank| {
        let device = Arc::new(Device::default());
        let (meeting, capabilities, mine) =
            (Arc::clone(&meeting), offers(Determinism::SameTopology, false), Arc::clone(&device));
        let make = move |member, table| {
            Arc::new(Stream { member: Arc::new(member), table, device: Arc::clone(&mine), home: mine.stream() })
                as Arc<dyn RawCommunicator>
        };
        let toy = Toy { name: "toy-stream", rank, size: n, capabilities, meeting, make: Box::new(make) };
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
}

/// What a work and its job share.
#[derive(Default)]
struct Event {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    result: Option<Result<()>>,
    owned: Option<Box<dyn Any + Send>>,
}

impl Event {
    /// Waits until the job is over, or the moment has come.
    fn wait(&self, until: Instant) -> Option<Result<()>> {
        let left = until.saturating_duration_since(Instant::now());
        let state = self.changed.wait_timeout_while(lock(&self.state), left, |state| state.result.is_none());
        state.unwrap_or_else(|e| e.into_inner()).0.result.clone()
    }

    fn finish(&self, result: Result<()>) {
        let mut state = lock(&self.state);
        state.result.get_or_insert(result);
        let owned = state.owned.take();
        self.changed.notify_all();
        drop(state);
        drop(owned);
    }
}

struct Work(Stream, Arc<Event>, Instant);

impl Stream {
    fn enqueue(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Work> {
        self.member.enter(&self.table.fate)?;
        let parts: Vec<(Key, Exchange)> = calls
            .iter()
            .map(|call| {
                let x = Exchange::new(call, self.member.me, self.member.group.len());
                (self.member.key(call.kind, call.root), x)
            })
            .collect();
        let (event, comm) = (Arc::new(Event::default()), self.clone());
        let theirs = Arc::clone(&event);
        let job = move || {
            let cancelled = std::mem::replace(&mut lock(&theirs.state).running, true);
            if !cancelled {
                theirs.finish(comm.perform(&parts, ends(deadline)));
            }
        };
        let stream = if let Queue::Stream(stream) = queue { stream } else { self.home };
        match self.device.enqueue(stream, job) {
            true => Ok(Work(self.clone(), event, ends(deadline))),
            false => Err(Error::invalid(format!("there is no stream {stream}; make one on the device first"))),
        }
    }

    fn perform(&self, parts: &[(Key, Exchange)], until: Instant) -> Result<()> {
        for (key, x) in parts {
            // SAFETY: the job has not finished, so the memory is lent; staged bytes are our own.
            unsafe {
                self.table.post(
                    &self.member,
                    *key,
                    x,
                    Bytes::Staged((0..x.out.len()).map(|to| x.outgoing(to)).collect()),
                )
            };
        }
        parts.iter().try_for_each(|(key, x)| {
            let pieces = self.table.wait(&self.member, *key, x, until)?;
            // SAFETY: as above.
            unsafe { x.deliver(&pieces) };
            Ok(())
        })
    }
}

// SAFETY: memory is touched by the job only; `run` on the host queue waits for its end.
unsafe impl RawCommunicator for Stream {
    toy_members!();

    unsafe fn run(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<()> {
        let mut work = self.enqueue(calls, queue, deadline)?;
        if queue == Queue::Host { work.wait(Duration::MAX) } else { Ok(()) }
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        Ok(Box::new(self.enqueue(calls, queue, deadline)?))
    }

    fn reject(&self, kind: OpKind, why: &Error, calls: usize) {
        self.table.reject(&self.member, kind, why, calls);
    }

    fn alloc(&self, _: usize, _: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(Error::new(ErrorKind::UnsupportedOp, "this toy stages everything; use a Vec"))
    }

    fn abort(&self) {
        self.table.break_with(self.member.aborted());
    }
}

impl RawWork for Work {
    fn test(&mut self) -> Result<bool> {
        lock(&self.1.state).result.clone().map_or(Ok(false), |result| result.map(|()| true))
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        if let Some(result) = self.1.wait(ends(deadline)) {
            return result;
        }
        self.0.table.break_with(self.0.member.timeout([]));
        self.cancel();
        self.1.wait(ends(Duration::MAX)).unwrap_or(Ok(()))
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        let Queue::Stream(stream) = queue else { return self.wait(Duration::MAX) };
        let (event, until) = (Arc::clone(&self.1), self.2);
        match self.0.device.enqueue(stream, move || drop(event.wait(until))) {
            true => Ok(()),
            false => Err(Error::invalid(format!("there is no stream {stream}; make one on the device first"))),
        }
    }

    fn cancel(&mut self) -> bool {
        if lock(&self.1.state).result.is_none() {
            self.0.abort();
            // A job whose turn has not come finds this and leaves the memory alone; one that runs is woken by the abort.
            let waits = !std::mem::replace(&mut lock(&self.1.state).running, true);
            match self.0.member.interrupted(&self.0.table.fate) {
                Err(cause) if waits => self.1.finish(Err(cause)),
                _ => drop(self.1.wait(ends(Duration::MAX))),
            }
        }
        true
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        let mut state = lock(&self.1.state);
        if state.result.is_none() {
            state.owned = Some(owned);
        }
    }
}
