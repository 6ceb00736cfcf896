//! A backend that records what reaches it and answers as if every member called with the same data.

use rankwise_core::backend::{CommSpec, RawBackend, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{
    Backend, Capabilities, DType, DTypeSet, Error, ErrorKind, Group, MemorySpace, OpKind, Queue, ReduceOp, Result,
    Settings,
};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What reached the engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Communicator { group: String, tag: u64 },
    Run(Vec<Seen>),
    Start(Seen),
    Reject { kind: OpKind, peer: Option<usize>, why: ErrorKind, calls: usize },
    Alloc(usize),
    Shrink,
    Abort,
    Finalize,
    Detach,
    Cancel,
    Dropped(String),
}

/// A call without its lifetimes.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub kind: OpKind,
    pub dtype: DType,
    pub elem_size: usize,
    pub op: Option<ReduceOp>,
    pub count: usize,
    pub send: Vec<usize>,
    pub recv: Vec<usize>,
    pub root: usize,
    pub src: Span,
    pub dst: Span,
    pub tag: u32,
    pub deadline: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub address: usize,
    pub bytes: usize,
    pub segment: Option<(u64, usize)>,
}

/// How the next works behave.
#[derive(Clone, Debug, Default)]
pub struct WorkPlan {
    /// Errors that `wait` and `test` return before they succeed.
    pub failures: Vec<ErrorKind>,
    pub cancellable: bool,
    /// `test` says so before any wait.
    pub finished: bool,
}

type Answer = Box<dyn FnMut(&RawCall<'_>) -> Result<()> + Send>;

pub struct Fake {
    pub rank: usize,
    pub world: usize,
    pub capabilities: Capabilities,
    pub log: Mutex<Vec<Event>>,
    pub answer: Mutex<Option<Answer>>,
    pub plan: Mutex<WorkPlan>,
    /// Works in flight whose handle is gone: what they own, and where they write.
    pub detached: Mutex<Vec<(Target, Box<dyn Any + Send>)>>,
}

/// The destination of a work.
#[derive(Clone, Copy)]
pub struct Target(*mut u8, usize);
// SAFETY: the layer above keeps the memory until the work is idle; that is what the tests are about.
unsafe impl Send for Target {}

impl Target {
    /// What the engine writes as the result.
    pub fn write(self) {
        // SAFETY: valid until the work is idle.
        unsafe { self.0.write_bytes(0x11, self.1) };
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Everything for the types that the tests use, up to 1 MiB a buffer.
pub fn capabilities() -> Capabilities {
    let mut table = Capabilities::none()
        .with_kinds(&OpKind::DATA)
        .with_spaces(true, false)
        .with_nonblocking(true, true)
        .with_max_bytes(1 << 20);
    let moved: Vec<DType> = DType::NUMERIC.into_iter().chain([DType::Opaque]).collect();
    table = table.with_moves(DTypeSet::of(&moved));
    for op in ReduceOp::ALL {
        // i16 is the type it can't compute.
        let types: Vec<DType> = op.meaningful().iter().filter(|dtype| *dtype != DType::I16).collect();
        table = table.with_reduce(op, DTypeSet::of(&types));
    }
    table
}

impl Fake {
    pub fn joined(rank: usize, world: usize) -> (Backend, Arc<Fake>) {
        Fake::with(rank, world, capabilities(), Settings::default())
    }

    pub fn with(rank: usize, world: usize, capabilities: Capabilities, settings: Settings) -> (Backend, Arc<Fake>) {
        let fake = Arc::new(Fake {
            rank,
            world,
            capabilities,
            log: Mutex::default(),
            answer: Mutex::default(),
            plan: Mutex::default(),
            detached: Mutex::default(),
        });
        (Backend::new(Arc::new(FakeBackend(fake.clone())), settings), fake)
    }

    /// What has happened since the last call of this.
    pub fn events(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.log))
    }

    /// The single call of the single run since the last look.
    pub fn only_call(&self) -> Seen {
        match self.events().as_slice() {
            [Event::Run(calls)] if calls.len() == 1 => calls[0].clone(),
            [Event::Start(call)] => call.clone(),
            other => panic!("expected one call, saw {other:?}"),
        }
    }

    pub fn answer(&self, answer: impl FnMut(&RawCall<'_>) -> Result<()> + Send + 'static) {
        *lock(&self.answer) = Some(Box::new(answer));
    }

    pub fn plan(&self, plan: WorkPlan) {
        *lock(&self.plan) = plan;
    }

    fn note(&self, event: Event) {
        lock(&self.log).push(event);
    }
}

struct FakeBackend(Arc<Fake>);

// SAFETY: its communicators touch only the call's buffers, within their lengths, before they return or the work is idle.
unsafe impl RawBackend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn rank(&self) -> usize {
        self.0.rank
    }

    fn world_size(&self) -> usize {
        self.0.world
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities.clone()
    }

    fn communicator(&self, spec: &CommSpec, _: Duration) -> Result<Arc<dyn RawCommunicator>> {
        self.0.note(Event::Communicator { group: spec.group.to_string(), tag: spec.tag });
        Ok(Arc::new(FakeComm { group: spec.group.clone(), fake: self.0.clone() }))
    }
}

struct FakeComm {
    group: Group,
    fake: Arc<Fake>,
}

impl Drop for FakeComm {
    fn drop(&mut self) {
        self.fake.note(Event::Dropped(self.group.to_string()));
    }
}

fn seen(call: &RawCall<'_>, deadline: Duration) -> Seen {
    let span = |buf: &rankwise_core::backend::RawBuf| Span {
        address: buf.ptr as usize,
        bytes: buf.bytes,
        segment: buf.segment,
    };
    Seen {
        kind: call.kind,
        dtype: call.dtype,
        elem_size: call.elem_size,
        op: call.op,
        count: call.count,
        send: call.counts.send.to_vec(),
        recv: call.counts.recv.to_vec(),
        root: call.root,
        src: span(&call.src),
        dst: span(&call.dst),
        tag: call.tag,
        deadline,
    }
}

/// Every member sends what this one sends.
unsafe fn mirror(call: &RawCall<'_>) {
    let (src, dst) = (call.src, call.dst);
    if matches!(call.kind, OpKind::AllReduce | OpKind::AllGather) && src.bytes > 0 {
        for slot in 0..dst.bytes / src.bytes {
            // SAFETY: within dst; equal or disjoint, `copy` takes both.
            unsafe { std::ptr::copy(src.ptr, dst.ptr.add(slot * src.bytes), src.bytes) };
        }
    }
}

// SAFETY: see FakeBackend.
unsafe impl RawCommunicator for FakeComm {
    fn group(&self) -> &Group {
        &self.group
    }

    fn capabilities(&self) -> &Capabilities {
        &self.fake.capabilities
    }

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        self.fake.note(Event::Run(calls.iter().map(|call| seen(call, deadline)).collect()));
        // Taken out while it runs, so that calls on other groups can pass one that blocks.
        let mut answer = lock(&self.fake.answer).take();
        let result = calls.iter().try_for_each(|call| match &mut answer {
            Some(answer) => answer(call),
            None => {
                // SAFETY: the caller's promise.
                unsafe { mirror(call) };
                Ok(())
            }
        });
        if let Some(answer) = answer {
            lock(&self.fake.answer).get_or_insert(answer);
        }
        result
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], _: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        self.fake.note(Event::Start(seen(&calls[0], deadline)));
        let target = Target(calls[0].dst.ptr, calls[0].dst.bytes);
        Ok(Box::new(FakeWork { fake: self.fake.clone(), plan: lock(&self.fake.plan).clone(), target }))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        let (kind, why, calls) = (refusal.kind, refusal.why.kind().clone(), refusal.calls);
        assert_eq!(refusal.peer.is_some(), refusal.peer.is_some_and(|_| matches!(kind, OpKind::Send | OpKind::Recv)));
        self.fake.note(Event::Reject { kind, peer: refusal.peer, why, calls });
    }

    fn alloc(&self, bytes: usize, _: MemorySpace, _: Duration) -> Result<Arc<dyn RawSegment>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.fake.note(Event::Alloc(bytes));
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let lines = vec![Line([0xEE; 64]); bytes.div_ceil(64)].into_boxed_slice();
        Ok(Arc::new(FakeSegment { memory: Box::into_raw(lines), bytes, id }))
    }

    fn shrink(&self, _: Duration) -> Result<Arc<dyn RawCommunicator>> {
        self.fake.note(Event::Shrink);
        let survivors = self.group.ranks().filter(|rank| *rank != 0);
        Ok(Arc::new(FakeComm { group: Group::new(survivors)?, fake: self.fake.clone() }))
    }

    fn abort(&self) {
        self.fake.note(Event::Abort);
    }

    fn finalize(&self, _: Duration) -> Result<()> {
        self.fake.note(Event::Finalize);
        Ok(())
    }
}

struct FakeWork {
    fake: Arc<Fake>,
    plan: WorkPlan,
    target: Target,
}

impl FakeWork {
    fn next(&mut self) -> Result<()> {
        if self.plan.failures.is_empty() {
            self.target.write();
            return Ok(());
        }
        Err(Error::new(self.plan.failures.remove(0), "planned"))
    }
}

// SAFETY: writes only in `next`, which `wait` and `test` call before the work is idle.
unsafe impl RawWork for FakeWork {
    fn test(&mut self) -> Result<bool> {
        if self.plan.failures.is_empty() && !self.plan.finished {
            return Ok(false);
        }
        self.next().map(|()| true)
    }

    fn wait(&mut self, _: Duration) -> Result<()> {
        self.next()
    }

    fn order(&mut self, _: Queue) -> Result<()> {
        self.next()
    }

    fn cancel(&mut self) -> bool {
        self.fake.note(Event::Cancel);
        self.plan.cancellable
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        self.fake.note(Event::Detach);
        lock(&self.fake.detached).push((self.target, owned));
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

struct FakeSegment {
    memory: *mut [Line],
    bytes: usize,
    id: u64,
}

// SAFETY: owns its memory as a Box does.
unsafe impl Send for FakeSegment {}
// SAFETY: shared access only hands out the address.
unsafe impl Sync for FakeSegment {}

impl Drop for FakeSegment {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw in `alloc`.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

// SAFETY: the memory lives as long as this does; the number is counted up.
unsafe impl RawSegment for FakeSegment {
    fn ptr(&self) -> *mut u8 {
        self.memory.cast()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    fn id(&self) -> u64 {
        self.id
    }
}
