//! The backend interface over the engine.

use crate::core::Core;
use crate::engine::{Engine, take};
use crate::job::{Job, Kept, Stage};
use rankwise_core::backend::{RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{
    Capabilities, DType, Error, ErrorKind, Group, MemorySpace, OpKind, Queue, Result, descriptor, fork::Generation,
};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Marks the barrier that says goodbye.
const GOODBYE: u32 = 0x6f6f_6462;

/// How long a cancelled call may take to become idle.
const STOPPING: Duration = Duration::from_millis(100);

pub(crate) struct UcxCommunicator {
    pub(crate) engine: Arc<Engine>,
    pub(crate) number: u16,
    pub(crate) group: Group,
    pub(crate) capabilities: Capabilities,
    pub(crate) generation: Generation,
}

fn host_only(queue: Queue) -> Result<()> {
    match queue {
        Queue::Host => Ok(()),
        _ => Err(Error::new(ErrorKind::UnsupportedMode, "UCX has no streams; call on the host queue")),
    }
}

fn is_of_a_pair(call: &RawCall<'_>) -> bool {
    matches!(call.kind, OpKind::Send | OpKind::Recv)
}

impl UcxCommunicator {
    /// Hands calls to the engine: the collectives as one job, each send and receive by itself.
    fn begin(&self, core: &mut Core, calls: &[RawCall<'_>], deadline: Duration) -> Result<Vec<usize>> {
        // What others have said counts before anything begins.
        core.pass();
        while let Some(word) = core.transport().heard() {
            core.hear(word);
        }
        core.usable(self.number)?;
        let deadline = core.now().saturating_add(deadline);
        let job = |calls: Vec<Kept>, launch, kind| Job {
            channel: self.number,
            calls,
            launch,
            deadline,
            kind,
            sequence: 0,
            words: [0; 3],
            stage: Stage::Queued,
            draining: None,
            asked: Duration::ZERO,
            owned: None,
            detached: false,
        };
        let mut jobs = Vec::with_capacity(1);
        for call in calls.iter().filter(|call| is_of_a_pair(call)) {
            jobs.push(core.add(job(vec![Kept::new(call)], 0, call.kind)));
        }
        let collectives: Vec<Kept> = calls.iter().rev().filter(|call| !is_of_a_pair(call)).map(Kept::new).collect();
        if let Some(kind) = collectives.last().map(|kept| kept.call().kind) {
            jobs.push(core.add(job(collectives, descriptor::launch(calls), kind)));
        }
        Ok(jobs)
    }
}

// SAFETY: calls are jobs of the engine, which are idle when UCX has let go of their memory; `run` returns when they are, and works say themselves.
unsafe impl RawCommunicator for UcxCommunicator {
    fn group(&self) -> &Group {
        &self.group
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        let jobs = self.begin(&mut self.engine.lock(), calls, deadline)?;
        let mut result = Ok(());
        // All of them, whatever becomes of the first.
        for id in jobs {
            result = result.and(self.engine.finish(id));
        }
        result
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        host_only(queue)?;
        let jobs = self.begin(&mut self.engine.lock(), calls, deadline)?;
        Ok(Box::new(UcxWork { engine: self.engine.clone(), number: self.number, jobs, looks: 0, error: None }))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        let mut core = self.engine.lock();
        let Some(channel) = core.channels.get_mut(&self.number).filter(|channel| channel.cause.is_none()) else {
            return;
        };
        let pair = matches!(refusal.kind, OpKind::Send | OpKind::Recv);
        let sequence = match (refusal.kind, refusal.peer) {
            (OpKind::Send, Some(to)) => &mut channel.sent[to],
            (OpKind::Recv, Some(from)) => &mut channel.received[from],
            // Without a peer there is nobody to tell.
            (OpKind::Send | OpKind::Recv, None) => return,
            _ => &mut channel.begun,
        };
        *sequence += 1;
        let sequence = *sequence;
        if !pair {
            channel.remember(sequence, descriptor::rejected(refusal.kind, refusal.why.kind()));
        }
        let partner = refusal.peer.filter(|_| pair);
        core.refuse(self.number, refusal.kind, sequence, partner, refusal.why.kind());
        core.pass();
    }

    fn alloc(&self, _bytes: usize, _space: MemorySpace, _deadline: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(unsupported("collective memory"))
    }

    fn shrink(&self, _deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        Err(unsupported("shrink"))
    }

    fn abort(&self) {
        if self.generation.is_current() {
            abort(&mut self.engine.lock(), self.number);
        }
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        let mut barrier = RawCall::new(OpKind::Barrier, DType::U8, 0);
        barrier.tag = GOODBYE;
        // SAFETY: a barrier has no buffers.
        let result = unsafe { self.run(&[barrier], deadline) };
        let mut core = self.engine.lock();
        core.leave(self.number);
        core.pass();
        result
    }
}

impl Drop for UcxCommunicator {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        let mut core = self.engine.lock();
        if let Some(channel) = core.channels.get_mut(&self.number) {
            channel.dropped = true;
        }
        core.retire();
        core.pass();
    }
}

/// Makes all members' calls fail.
fn abort(core: &mut Core, number: u16) {
    let rank = core.transport().world().rank();
    let running = core.jobs.iter().flatten().any(|job| job.channel == number && !matches!(job.stage, Stage::Ended(_)));
    if core.channels.get(&number).is_none_or(|channel| channel.cause.is_some() || channel.closed) {
        return;
    }
    let text = format!("rank {rank} aborted this communicator; make a new one to go on");
    core.fail(number, Error::new(ErrorKind::Aborted, text).with_peers([rank]), true);
    if let Some(channel) = core.channels.get_mut(&number) {
        channel.told = running;
    }
    core.pass();
}

fn unsupported(function: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported { function: function.into(), needs: "another backend".into(), have: "ucx".into() },
        format!("the ucx backend offers no {function}"),
    )
}

/// Started calls.
struct UcxWork {
    engine: Arc<Engine>,
    number: u16,
    jobs: Vec<usize>,
    looks: u32,
    error: Option<Error>,
}

impl UcxWork {
    /// What has become of the calls, once all have ended. Those that are idle are taken out.
    fn outcome(&mut self, core: &mut Core) -> Option<Result<()>> {
        let (jobs, error) = (&mut self.jobs, &mut self.error);
        let mut ended = true;
        jobs.retain(|id| {
            let Some(job) = core.job(*id) else { return false };
            let Stage::Ended(result) = &job.stage else {
                ended = false;
                return true;
            };
            if let Err(failed) = result {
                error.get_or_insert_with(|| failed.clone());
            }
            let idle = job.is_idle();
            if idle {
                let _ = take(core, *id);
            }
            !idle
        });
        ended.then(|| error.clone().map_or(Ok(()), Err))
    }

    fn is_idle(&mut self, core: &mut Core) -> bool {
        self.outcome(core).is_some() && self.jobs.is_empty()
    }
}

// SAFETY: idle means that all jobs are, see `Job::is_idle`.
unsafe impl RawWork for UcxWork {
    fn test(&mut self) -> Result<bool> {
        let engine = self.engine.clone();
        let mut core = engine.lock();
        if let Some(result) = self.outcome(&mut core) {
            return result.map(|()| true);
        }
        core.pass();
        self.looks = self.looks.wrapping_add(1);
        let now = core.now();
        let late = self.jobs.iter().any(|id| core.job(*id).is_some_and(|job| now >= job.deadline));
        if late || self.looks.is_multiple_of(16) {
            core.look();
        }
        self.outcome(&mut core).map_or(Ok(false), |result| result.map(|()| true))
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        let engine = self.engine.clone();
        let began = Instant::now();
        if let Some(result) = engine.wait(deadline, |core| self.outcome(core)) {
            return result;
        }
        let mut core = engine.lock();
        for id in self.jobs.clone() {
            if core.job(id).is_some_and(|job| matches!(job.stage, Stage::Running(_) | Stage::Queued)) {
                core.expire(id);
            }
        }
        drop(core);
        // Asking around takes a moment.
        let more = Duration::from_secs(5);
        engine.wait(more, |core| self.outcome(core)).unwrap_or_else(|| {
            let text = format!("the calls have not ended within {:?}; look at the other ranks", began.elapsed());
            Err(Error::new(ErrorKind::Timeout, text))
        })
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        host_only(queue)?;
        self.wait(Duration::MAX)
    }

    fn cancel(&mut self) -> bool {
        let engine = self.engine.clone();
        let mut core = engine.lock();
        if self.outcome(&mut core).is_none() {
            core.pass();
        }
        if self.outcome(&mut core).is_none() {
            abort(&mut core, self.number);
        }
        drop(core);
        engine.wait(STOPPING, |core| self.is_idle(core).then_some(())).is_some()
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        // Each job keeps its share.
        let owned = Arc::new(std::sync::Mutex::new(owned));
        let mut core = self.engine.lock();
        for id in &self.jobs {
            if let Some(job) = core.jobs[*id].as_mut() {
                job.owned = Some(Box::new(owned.clone()));
                job.detached = true;
            }
        }
        core.settle();
    }
}
