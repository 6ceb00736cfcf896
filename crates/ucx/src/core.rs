//! The state of a joined rank, behind one lock: the executor, the communicators, the calls.

use crate::channel::Channel;
use crate::job::{Job, Stage};
use crate::spoken::{self, Saying};
use crate::transport::UcxTransport;
use crate::word::Word;
use rankwise_core::descriptor::{self, Words};
use rankwise_core::{Error, ErrorKind, OpKind, Result};
use rankwise_schedule::{Executor, HostMemory, Stamp, Start, Status, Transport};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// How long after a refused call its messages are still thrown away, in calls.
const LINGERING: u64 = 30_000;

pub(crate) struct Core {
    pub(crate) executor: Executor<UcxTransport, HostMemory>,
    pub(crate) channels: HashMap<u16, Channel>,
    pub(crate) jobs: Vec<Option<Job>>,
    pub(crate) free: Vec<usize>,
    /// Communicators that this rank has left, and the ranks that may still send.
    pub(crate) retired: HashMap<u16, Vec<usize>>,
    /// Words about communicators that this rank has yet to make.
    pub(crate) early: Vec<Word>,
    pub(crate) numbers: HashSet<u16>,
    pub(crate) looked: Duration,
    pub(crate) asked: u64,
    /// Refused calls whose messages are thrown away.
    pub(crate) lingering: Vec<(u16, u64)>,
}

impl Core {
    pub(crate) fn new(transport: UcxTransport) -> Core {
        Core {
            executor: Executor::new(transport),
            channels: HashMap::new(),
            jobs: Vec::new(),
            free: Vec::new(),
            retired: HashMap::new(),
            early: Vec::new(),
            numbers: HashSet::from([0]),
            looked: Duration::ZERO,
            asked: 0,
            lingering: Vec::new(),
        }
    }

    pub(crate) fn transport(&self) -> &UcxTransport {
        self.executor.transport()
    }

    pub(crate) fn now(&self) -> Duration {
        self.transport().now()
    }

    pub(crate) fn job(&self, id: usize) -> Option<&Job> {
        self.jobs.get(id)?.as_ref()
    }

    /// Takes a job in, and starts it if no other is before it.
    pub(crate) fn add(&mut self, job: Job) -> usize {
        let (number, pair) = (job.channel, job.is_of_a_pair());
        let id = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() - 1
        });
        self.jobs[id] = Some(job);
        if pair {
            self.begin(id);
        } else if let Some(channel) = self.channels.get_mut(&number) {
            channel.queue.push_back(id);
            if channel.queue.len() == 1 {
                self.begin(id);
            }
        }
        self.settle_job(id);
        id
    }

    /// Forgets a job that is idle, or whose memory stays with UCX for ever.
    pub(crate) fn remove(&mut self, id: usize) {
        if let Some(job) = self.jobs[id].take() {
            if let Some(ticket) = job.draining {
                self.executor.finish(ticket);
                std::mem::forget(job.owned);
            }
            self.free.push(id);
        }
    }

    /// Moves everything on. True when something has moved.
    pub(crate) fn pass(&mut self) -> bool {
        let moved = self.executor.progress();
        if moved {
            self.settle();
        }
        moved
    }

    pub(crate) fn settle(&mut self) {
        for id in 0..self.jobs.len() {
            self.settle_job(id);
        }
    }

    /// Starts the current call of a job.
    fn begin(&mut self, id: usize) {
        let Some(job) = self.jobs[id].as_mut() else { return };
        let number = job.channel;
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let Some(kept) = job.calls.last() else { return };
        let call = kept.call();
        job.kind = call.kind;
        let sequence = match call.kind {
            OpKind::Send => &mut channel.sent[call.root],
            OpKind::Recv => &mut channel.received[call.root],
            _ => &mut channel.begun,
        };
        *sequence += 1;
        job.sequence = *sequence;
        let stamp = Stamp::new(number, job.sequence, &call, job.launch);
        job.words = stamp.words;
        if job.is_of_a_pair() {
            let refused = channel.refused_receives.iter().find(|(member, sequence, _)| {
                call.kind == OpKind::Send && *member == call.root && *sequence == stamp.sequence
            });
            if let Some((member, _, words)) = refused {
                let error = rankwise_schedule::mismatch(channel.global(*member), *words, stamp.words);
                return self.end(id, Err(error));
            }
            if call.kind == OpKind::Send
                && let Some((_, _, error)) = &channel.gone[call.root]
            {
                let error = error.clone();
                return self.break_with(id, number, error);
            }
        } else {
            channel.remember(stamp.sequence, stamp.words);
            if channel.notes.contains_key(&stamp.sequence) {
                return self.disagree(id, None);
            }
        }
        let choice = channel.selection.choose(&call);
        let (group, me) = (&channel.spec.group, channel.me);
        let start = Start { group, me, stamp, choice, deadline: Duration::MAX };
        // SAFETY: the memory is the caller's until the job is idle, which it is not before the executor says so.
        let started = unsafe {
            self.executor.start(&call, &start, |memory, plan| memory.arm(&call, group.len(), plan.scratch()))
        };
        match started {
            Ok(ticket) => {
                job.stage = Stage::Running(ticket);
                job.asked = self.executor.transport().now();
            }
            Err(error) => {
                // Nothing was sent: to the others it is a call that was refused.
                let (kind, sequence, partner) = (job.kind, job.sequence, job.partner());
                self.end(id, Err(error.clone()));
                self.refuse(number, kind, sequence, partner, error.kind());
            }
        }
    }

    /// Takes up what has become of a job's current call, and starts what comes next.
    fn settle_job(&mut self, id: usize) {
        loop {
            let Some(job) = self.jobs.get_mut(id).and_then(Option::as_mut) else { return };
            if let Some(ticket) = job.draining.filter(|ticket| self.executor.is_idle(*ticket)) {
                self.executor.finish(ticket);
                job.draining = None;
            }
            if job.detached && job.is_idle() {
                return self.remove(id);
            }
            let Stage::Running(ticket) = job.stage else { return };
            match self.executor.status(ticket) {
                Status::Running => return,
                Status::Done => {
                    self.executor.finish(ticket);
                    let (pair, number, sequence) = (job.is_of_a_pair(), job.channel, job.sequence);
                    job.calls.pop();
                    if !pair && self.dispute_of(number, sequence, id) {
                        return;
                    }
                    let Some(job) = self.jobs[id].as_mut() else { return };
                    if job.calls.is_empty() {
                        self.end(id, Ok(()));
                    } else {
                        self.begin(id);
                    }
                }
                Status::Draining(error) | Status::Failed(error) => {
                    job.draining = Some(ticket);
                    self.failed(id, error);
                }
            }
        }
    }

    /// Ends a job, and starts the next one of its communicator.
    pub(crate) fn end(&mut self, id: usize, result: Result<()>) {
        let Some(job) = self.jobs[id].as_mut() else { return };
        let number = job.channel;
        let Some(channel) = self.channels.get_mut(&number) else {
            job.stage = Stage::Ended(result);
            return;
        };
        let (pair, sequence, kind) = (job.is_of_a_pair(), job.sequence, job.kind);
        let rank = channel.global(channel.me);
        job.stage = Stage::Ended(result.map_err(|error| {
            let error = error.with_operation(kind).with_group(&channel.spec.group, rank);
            if pair || sequence == 0 { error } else { error.with_sequence(sequence) }
        }));
        if !pair && channel.queue.front() == Some(&id) {
            channel.queue.pop_front();
            if let Some(next) = channel.queue.front().copied().filter(|_| channel.cause.is_none()) {
                self.begin(next);
                self.settle_job(next);
            }
        }
    }

    /// Ends what runs of a job.
    pub(crate) fn halt(&mut self, id: usize, error: &Error) {
        let Some(job) = self.jobs[id].as_mut() else { return };
        if let Stage::Running(ticket) = job.stage {
            self.executor.stop(ticket, error.clone());
            job.draining = Some(ticket);
        }
    }

    /// A call of this rank is refused: the members are told.
    pub(crate) fn refuse(&mut self, number: u16, kind: OpKind, sequence: u64, partner: Option<usize>, why: &ErrorKind) {
        let words = descriptor::rejected(kind, why);
        let Some(channel) = self.channels.get(&number) else { return };
        let transport = self.executor.transport();
        match (kind, partner) {
            (OpKind::Send, Some(to)) => {
                spoken::send_refusal(transport, number, sequence, channel.global(to), words);
            }
            (OpKind::Recv, Some(from)) => {
                let from = channel.global(from);
                transport.abandon_message(from, number, sequence);
                self.lingering.push((number, sequence));
                self.say(number, &[from], Saying::RefusedReceive, sequence, words);
            }
            _ => {
                let others = channel.others();
                self.throw_away(number, sequence);
                self.say(number, &others, Saying::Refused, sequence, words);
            }
        }
    }

    /// The messages of a collective call that did not take place.
    pub(crate) fn throw_away(&mut self, number: u16, sequence: u64) {
        self.transport().abandon_call(number, sequence);
        self.lingering.push((number, sequence));
        let begun = self.channels.get(&number).map_or(u64::MAX, |channel| channel.begun);
        let (transport, lingering) = (self.executor.transport(), &mut self.lingering);
        lingering.retain(|(of, old)| {
            let over = *of == number && old + LINGERING < begun;
            if over {
                transport.forget_call(*of, *old);
            }
            !over
        });
    }

    /// Tells ranks something about a communicator.
    pub(crate) fn say(&self, number: u16, to: &[usize], what: Saying, sequence: u64, words: Words) {
        for peer in to {
            let word = spoken::word(*peer, what, number, sequence, words);
            if let Err(error) = self.transport().tell(word) {
                tracing::debug!(peer, %error, "a rank could not be told");
            }
        }
    }
}
