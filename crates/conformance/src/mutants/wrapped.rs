//! The layer between a backend and the suite: it hands everything on, and lets a fault act on the way.

use super::Mutant;
use rankwise_core::backend::{CommSpec, RawBackend, RawBuf, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{Capabilities, Config, Error, Group, MemorySpace, OpKind, Queue, Result};
use rankwise_world::{Driver, ProbeReport, World};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Deadline of what a fault does through the engine for itself.
const OWN_DEADLINE: Duration = Duration::from_secs(10);
/// Tag of the calls that a fault makes for itself.
const OWN_TAG: u32 = 0x6d75;

/// What is wrong with a mutant. One value for each communicator; every method does by itself what a good backend does.
pub(super) trait Fault: Send + Sync {
    /// Answers the calls in the place of the engine.
    fn answer(&self, _: &Arc<Seat>, _: &[RawCall<'_>]) -> Option<Result<()>> {
        None
    }

    /// Changes what the engine is asked for.
    fn redirect(&self, _: &Seat, _: &mut RawCall<'_>) {}

    /// Changes how long the engine may take.
    fn deadline(&self, deadline: Duration) -> Duration {
        deadline
    }

    /// Changes the result of a finished call.
    fn spoil(&self, _: &Seat, _: &Finished<'_>, _dst: &mut [u8]) -> Result<()> {
        Ok(())
    }

    /// Changes what an error of the engine becomes, and the destinations of the failed calls.
    fn explain(&self, _: &Seat, error: Error, _destinations: &mut [&mut [u8]]) -> Result<()> {
        Err(error)
    }

    /// Changes the result of a started call that has finished; `before` is what its destination was.
    fn spoil_work(&self, _before: &[u8], _dst: &mut [u8]) {}

    /// Tells the peers of a refused call.
    fn reject(&self, seat: &Seat, refusal: &Refusal<'_>) {
        seat.inner.reject(refusal);
    }

    /// Aborts.
    fn abort(&self, seat: &Seat) {
        seat.inner.abort();
    }

    /// Says goodbye.
    fn finalize(&self, seat: &Seat, deadline: Duration) -> Result<()> {
        seat.inner.finalize(deadline)
    }

    /// Changes the capability table.
    fn table(&self, table: Capabilities) -> Capabilities {
        table
    }

    /// Ends what the fault does beside the calls: the engine takes one at a time.
    fn settle(&self) {}
}

/// For each group: the tag of the communicator that was used last, and its result.
type LastResults = Arc<Mutex<HashMap<Group, (u64, Vec<u8>)>>>;

/// A member's place in a communicator of the engine.
pub(super) struct Seat {
    pub(super) inner: Arc<dyn RawCommunicator>,
    pub(super) position: usize,
    /// Distinguishes communicators with equal members.
    pub(super) tag: u64,
    /// The last result on any communicator of each group, and the tag of that communicator.
    pub(super) last_of_group: LastResults,
    /// Never freed before the communicator: a fault may reach into memory that its owner has dropped.
    segments: Mutex<Vec<Arc<dyn RawSegment>>>,
}

impl Seat {
    pub(super) fn members(&self) -> usize {
        self.inner.group().len()
    }

    /// The sources of all members, in group order.
    pub(super) fn sources(&self, call: &RawCall<'_>, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![0_u8; own.len() * self.members()];
        let mut gather = RawCall::new(OpKind::AllGather, call.dtype, own.len() / call.elem_size);
        gather.src = RawBuf::host(own.as_ptr(), own.len());
        gather.dst = RawBuf::host(all.as_mut_ptr(), all.len());
        gather.tag = OWN_TAG;
        // SAFETY: both buffers live until return and have the sizes of the table.
        unsafe { self.inner.run(&[gather], OWN_DEADLINE)? };
        Ok(match own.len() {
            0 => vec![Vec::new(); self.members()],
            bytes => all.chunks(bytes).map(<[u8]>::to_vec).collect(),
        })
    }

    /// The collective memory that a buffer lies in, and where.
    pub(super) fn segment(&self, buffer: &RawBuf) -> Option<(Arc<dyn RawSegment>, usize)> {
        let (id, offset) = buffer.segment?;
        let segment = lock(&self.segments).iter().find(|segment| segment.id() == id).cloned()?;
        Some((segment, offset))
    }
}

/// A call that has finished.
pub(super) struct Finished<'a> {
    pub(super) call: &'a RawCall<'a>,
    /// Its source before the call.
    pub(super) src: &'a [u8],
    /// Its destination before the call.
    pub(super) before: &'a [u8],
    /// Whether it was the last of several that ran as one.
    pub(super) is_last_of_many: bool,
}

impl Finished<'_> {
    /// A call of this kind by the user, not one that the layer above makes for itself.
    pub(super) fn is(&self, kind: OpKind) -> bool {
        self.call.kind == kind && self.call.tag == 0
    }

    /// Source and destination are in one buffer.
    pub(super) fn is_in_place(&self) -> bool {
        let (src, dst) = (self.call.src.ptr as usize, self.call.dst.ptr as usize);
        let (src_end, dst_end) = (src + self.call.src.bytes, dst + self.call.dst.bytes);
        src < dst_end && dst < src_end
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct MutantDriver<'a> {
    pub(super) inner: &'a dyn Driver,
    pub(super) mutant: Mutant,
}

impl Driver for MutantDriver<'_> {
    fn name(&self) -> &'static str {
        self.mutant.name
    }

    fn description(&self) -> &'static str {
        self.mutant.fault
    }

    fn probe(&self, world: &World) -> Result<ProbeReport> {
        self.inner.probe(world)
    }

    fn join(&self, world: &World, config: &Config) -> Result<Arc<dyn RawBackend>> {
        let inner = self.inner.join(world, config)?;
        Ok(Arc::new(MutantBackend { inner, mutant: self.mutant, last_of_group: Arc::default() }))
    }
}

struct MutantBackend {
    inner: Arc<dyn RawBackend>,
    mutant: Mutant,
    last_of_group: LastResults,
}

// SAFETY: every call goes to a backend that keeps the promises. What the faults add stays within `dst`, and, where breaking
// just that promise is the fault, within memory from collective allocation, which this layer keeps alive.
unsafe impl RawBackend for MutantBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn capabilities(&self) -> Capabilities {
        (self.mutant.make)().table(self.inner.capabilities())
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let inner = self.inner.communicator(spec, deadline)?;
        let fault = (self.mutant.make)();
        let table = fault.table(inner.capabilities().clone());
        let position = spec.group.position(self.rank()).unwrap_or(0);
        let last_of_group = self.last_of_group.clone();
        let seat = Arc::new(Seat { inner, position, tag: spec.tag, last_of_group, segments: Mutex::default() });
        Ok(Arc::new(MutantCommunicator { seat, fault, table }))
    }
}

struct MutantCommunicator {
    seat: Arc<Seat>,
    fault: Arc<dyn Fault>,
    table: Capabilities,
}

// SAFETY: as for the backend.
unsafe impl RawCommunicator for MutantCommunicator {
    fn group(&self) -> &Group {
        self.seat.inner.group()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.table
    }

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        self.fault.settle();
        if let Some(answer) = self.fault.answer(&self.seat, calls) {
            return answer;
        }
        // SAFETY: the caller's buffers are valid; sources are read and destinations copied before the call.
        let before: Vec<(Vec<u8>, Vec<u8>)> =
            calls.iter().map(|call| unsafe { (bytes(call.src).to_vec(), bytes(call.dst).to_vec()) }).collect();
        let mut asked = calls.to_vec();
        asked.iter_mut().for_each(|call| self.fault.redirect(&self.seat, call));
        // SAFETY: the buffers are the caller's, in the roles that their kind allows.
        if let Err(error) = unsafe { self.seat.inner.run(&asked, self.fault.deadline(deadline)) } {
            // SAFETY: the destinations are ours until return, and distinct.
            let mut all: Vec<&mut [u8]> = calls.iter().map(|call| unsafe { bytes_mut(call.dst) }).collect();
            return self.fault.explain(&self.seat, error, &mut all);
        }
        for (i, (call, (src, before))) in calls.iter().zip(&before).enumerate() {
            let is_last_of_many = calls.len() > 1 && i + 1 == calls.len();
            // SAFETY: the destination is valid and ours until return.
            let dst = unsafe { bytes_mut(call.dst) };
            self.fault.spoil(&self.seat, &Finished { call, src, before, is_last_of_many }, dst)?;
        }
        Ok(())
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        self.fault.settle();
        let with_result = calls.iter().filter(|call| call.dst.bytes > 0);
        // SAFETY: the destinations are valid, and nothing has been started yet.
        let results = with_result.map(|call| (Destination(call.dst), unsafe { bytes(call.dst) }.to_vec())).collect();
        // SAFETY: handed on as it came.
        let inner = unsafe { self.seat.inner.start(calls, queue, self.fault.deadline(deadline))? };
        Ok(Box::new(MutantWork { inner, fault: self.fault.clone(), results }))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        self.fault.settle();
        self.fault.reject(&self.seat, refusal);
    }

    fn alloc(&self, bytes: usize, space: MemorySpace, deadline: Duration) -> Result<Arc<dyn RawSegment>> {
        self.fault.settle();
        let segment = self.seat.inner.alloc(bytes, space, deadline)?;
        lock(&self.seat.segments).push(segment.clone());
        Ok(segment)
    }

    fn shrink(&self, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        self.fault.settle();
        self.seat.inner.shrink(deadline)
    }

    fn abort(&self) {
        self.fault.abort(&self.seat);
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        self.fault.settle();
        self.fault.finalize(&self.seat, deadline)
    }
}

impl Drop for MutantCommunicator {
    fn drop(&mut self) {
        self.fault.settle();
    }
}

/// A destination of a started call.
struct Destination(RawBuf);

// SAFETY: used through the work only, whose calls' memory may be written from whichever thread holds the work.
unsafe impl Send for Destination {}

struct MutantWork {
    inner: Box<dyn RawWork>,
    fault: Arc<dyn Fault>,
    /// Those that the fault has not seen finished, with what they were before.
    results: Vec<(Destination, Vec<u8>)>,
}

impl MutantWork {
    /// Only right after the inner work has said that it has finished.
    fn spoil(&mut self) {
        for (destination, before) in self.results.drain(..) {
            // SAFETY: the destination lives until the layer above hears that the work is idle, which is after this; the engine
            // has finished with it.
            self.fault.spoil_work(&before, unsafe { bytes_mut(destination.0) });
        }
    }
}

// SAFETY: the memory is touched by the inner work as it promises, and by `spoil` before the work says that it is idle.
unsafe impl RawWork for MutantWork {
    fn test(&mut self) -> Result<bool> {
        let finished = self.inner.test()?;
        if finished {
            self.spoil();
        }
        Ok(finished)
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        self.inner.wait(deadline)?;
        self.spoil();
        Ok(())
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        self.inner.order(queue)
    }

    fn cancel(&mut self) -> bool {
        self.inner.cancel()
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        self.inner.detach(owned);
    }
}

/// # Safety
///
/// The buffer is valid for reads, and nobody writes it while the slice lives.
unsafe fn bytes<'a>(buffer: RawBuf) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(buffer.ptr, buffer.bytes) }
}

/// # Safety
///
/// The buffer is valid for reads and writes, and nobody else uses it while the slice lives.
pub(super) unsafe fn bytes_mut<'a>(buffer: RawBuf) -> &'a mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(buffer.ptr, buffer.bytes) }
}
