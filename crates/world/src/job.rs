//! A running job: watching its ranks, and ending it so that nobody is left.

use crate::exit::Exit;
use crate::failure::RankEnd;
use crate::guardian::Guardian;
use crate::hub::Hub;
use crate::leftovers::{Mark, kill_marked};
use crate::outcome::Outcome;
use crate::output::{Line, News, Reader, Stream};
use crate::signals::CaughtSignals;
use rankwise_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a killed process may take to end before it is called stuck.
const KILL_GRACE: Duration = Duration::from_secs(1);
/// How long output may go on after the last rank has ended.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// Something that happened in a job.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A rank printed a line; only with [`crate::launch::Output::Lines`].
    Line {
        /// Global rank.
        rank: usize,
        /// Where it printed.
        stream: Stream,
        /// The bytes without the line's end; not necessarily UTF-8.
        text: Vec<u8>,
    },
    /// A rank ended.
    Exited {
        /// Global rank.
        rank: usize,
        /// How.
        exit: Exit,
    },
    /// The remaining ranks are being ended.
    Stopping {
        /// Why.
        reason: StopReason,
    },
}

/// Why a job is ended before its ranks have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// A rank failed and the others had their time to report it.
    RankFailed,
    /// The job's timeout passed.
    TimedOut,
    /// The launcher got this signal.
    Interrupted(i32),
    /// Nobody reads the output any more.
    OutputClosed,
}

/// A running job. It cannot leave the thread that started it, because its ranks die with that thread. Dropping it kills
/// all ranks.
pub struct Job {
    parts: JobParts,
    ranks: JobHandle,
    exits: Vec<Option<Exit>>,
    output: Option<Reader>,
    started: Instant,
    stays_on_its_thread: PhantomData<*const ()>,
}

pub(crate) struct JobParts {
    pub(crate) id: u128,
    /// Global rank of the first one here.
    pub(crate) first_rank: usize,
    pub(crate) listens_on: Option<SocketAddr>,
    pub(crate) hub: Hub,
    pub(crate) guardian: Guardian,
    pub(crate) signals: Option<Rc<CaughtSignals>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) term_grace: Duration,
}

/// Signals ranks from any thread while the job runs. Harmless once they have ended.
#[derive(Clone)]
pub struct JobHandle(Arc<[RankProcess]>);

/// One rank's process.
pub(crate) struct RankProcess {
    pid: u32,
    pidfd: OwnedFd,
    /// None once reaped. Locked while the process group is signalled, so that its number is not reused meanwhile.
    child: Mutex<Option<Child>>,
}

impl RankProcess {
    pub(crate) fn new(child: Child, pidfd: OwnedFd) -> RankProcess {
        RankProcess { pid: child.id(), pidfd, child: Mutex::new(Some(child)) }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal_group(&self, signal: Signal) {
        let child = self.child();
        // Not reaped, so the number still is this rank's own group.
        if child.is_some() {
            if let Some(group) = Pid::from_raw(self.pid as i32) {
                let _ = kill_process_group(group, signal);
            }
            // In case it has left its group.
            let _ = pidfd_send_signal(&self.pidfd, signal);
        }
    }
}

impl JobHandle {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.0.len()
    }

    /// The process id of a rank; `None` outside the job.
    pub fn pid(&self, rank: usize) -> Option<u32> {
        self.0.get(rank).map(|process| process.pid)
    }

    /// Sends a signal to a rank's first process, through its pidfd. `InvalidArgument` outside the job, `Closed` when it has
    /// ended.
    pub fn signal(&self, rank: usize, signal: Signal) -> Result<()> {
        let process = self
            .0
            .get(rank)
            .ok_or_else(|| Error::invalid(format!("rank {rank} is outside this job of {}", self.0.len())))?;
        pidfd_send_signal(&process.pidfd, signal).map_err(|errno| {
            Error::new(ErrorKind::Closed, format!("rank {rank} cannot be signalled; it has ended")).with_source(errno)
        })
    }

    /// Sends a signal to all ranks and what they started in their process groups.
    pub fn signal_all(&self, signal: Signal) {
        self.0.iter().for_each(|process| process.signal_group(signal));
    }

    /// Sends SIGKILL to all ranks and what they started in their process groups.
    pub fn kill_all(&self) {
        self.signal_all(Signal::KILL);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Running,
    /// A rank failed; the others may still report.
    Reporting(Instant),
    /// Asked to end.
    Asked(Instant),
    Killed(Instant),
}

impl Job {
    pub(crate) fn new(parts: JobParts) -> Job {
        Job {
            parts,
            ranks: JobHandle(Arc::new([])),
            exits: Vec::new(),
            output: None,
            started: Instant::now(),
            stays_on_its_thread: PhantomData,
        }
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.parts.hub
    }

    pub(crate) fn guardian(&self) -> &Guardian {
        &self.parts.guardian
    }

    pub(crate) fn add(&mut self, processes: Vec<RankProcess>) {
        self.exits = processes.iter().map(|_| None).collect();
        self.ranks = JobHandle(processes.into());
    }

    pub(crate) fn listen(&mut self, reader: Reader) {
        self.output = Some(reader);
    }

    pub(crate) fn first_rank(&self) -> usize {
        self.parts.first_rank
    }

    /// Where rank 0 of a job on several hosts listens, if this launcher starts that.
    pub fn listens_on(&self) -> Option<SocketAddr> {
        self.parts.listens_on
    }

    /// The job's id, as the ranks see it.
    pub fn id(&self) -> u128 {
        self.parts.id
    }

    /// The process id of a rank; `None` outside the job.
    pub fn pid(&self, rank: usize) -> Option<u32> {
        self.ranks.pid(rank)
    }

    /// See [`JobHandle::signal`].
    pub fn signal(&self, rank: usize, signal: Signal) -> Result<()> {
        self.ranks.signal(rank, signal)
    }

    /// See [`JobHandle::kill_all`].
    pub fn kill_all(&self) {
        self.ranks.kill_all();
    }

    /// For signalling ranks from other threads while this one is in [`Job::run`].
    pub fn handle(&self) -> JobHandle {
        self.ranks.clone()
    }

    /// Watches the job until all ranks have ended, and ends it when one fails, when its timeout passes, or when a signal
    /// that it handles comes. Afterwards no process of the job is left.
    pub fn run(mut self, on_event: &mut dyn FnMut(Event)) -> Outcome {
        let mut outcome = Outcome {
            first_failure: None,
            exits: Vec::new(),
            first_rank: self.parts.first_rank,
            timed_out: false,
            interrupted: None,
            output_error: None,
            leftovers: 0,
            elapsed: Duration::ZERO,
        };
        let mut phase = Phase::Running;
        while self.exits.iter().any(Option::is_none) {
            self.wait(phase);
            self.take_output(&mut outcome, on_event);
            self.replace_guardian();
            self.reap(phase, &mut outcome, on_event);
            phase = self.next_phase(phase, &mut outcome, on_event);
            if matches!(phase, Phase::Killed(when) if when.elapsed() > KILL_GRACE) {
                break;
            }
        }
        outcome.elapsed = self.started.elapsed();
        for (exit, process) in self.exits.iter_mut().zip(self.ranks.0.iter()) {
            exit.get_or_insert(Exit::Stuck(process.pid));
        }
        outcome.exits = self.exits.iter().copied().flatten().collect();
        outcome.leftovers = kill_marked(&Mark::new(self.parts.id));
        if let Some(reader) = self.output.take() {
            reader.finish(OUTPUT_GRACE, |news| report(news, &mut outcome, on_event));
        }
        outcome
    }

    /// Blocks until something happens or the phase ends.
    fn wait(&self, phase: Phase) {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(self.exits.len() + 3);
        for (exit, process) in self.exits.iter().zip(self.ranks.0.iter()) {
            if exit.is_none() {
                polled.push(PollFd::new(&process.pidfd, PollFlags::IN));
            }
        }
        let notified = self.output.as_ref().map(Reader::notified);
        polled.extend(notified.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        polled.extend(self.parts.guardian.ended().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        polled.extend(self.parts.signals.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let until = match phase {
            Phase::Running | Phase::Reporting(_) | Phase::Asked(_) => {
                let own = match phase {
                    Phase::Reporting(until) | Phase::Asked(until) => Some(until),
                    _ => None,
                };
                let timeout = self.timeout().filter(|_| matches!(phase, Phase::Running));
                own.into_iter().chain(timeout).min()
            }
            Phase::Killed(when) => Some(when + KILL_GRACE),
        };
        let limit = until.map(|when| {
            // A millisecond more, or the clock may not have got there.
            let left = when.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs().min(1 << 30) as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let _ = poll(&mut polled, limit.as_ref());
    }

    /// Starts another guardian when somebody has killed the last.
    fn replace_guardian(&mut self) {
        if !self.parts.guardian.ended().is_some_and(is_readable) {
            return;
        }
        match Guardian::start(self.ranks.ranks(), self.parts.id) {
            Ok(guardian) => {
                for (exit, process) in self.exits.iter().zip(self.ranks.0.iter()) {
                    // Not reaped yet, so the number still is this rank's own group.
                    if exit.is_none() {
                        guardian.adopt(process.pid);
                    }
                }
                self.parts.guardian = guardian;
            }
            Err(errno) => {
                tracing::warn!(%errno, "the job's guardian was killed and cannot be replaced");
                self.parts.guardian.give_up();
            }
        }
    }

    fn timeout(&self) -> Option<Instant> {
        self.parts.timeout.and_then(|timeout| self.started.checked_add(timeout))
    }

    fn take_output(&mut self, outcome: &mut Outcome, on_event: &mut dyn FnMut(Event)) {
        if let Some(reader) = &self.output {
            reader.take(|news| report(news, outcome, on_event));
        }
    }

    fn reap(&mut self, phase: Phase, outcome: &mut Outcome, on_event: &mut dyn FnMut(Event)) {
        let mut ended = Vec::new();
        for (rank, process) in self.ranks.0.iter().enumerate() {
            if self.exits[rank].is_none() && has_ended(process) {
                let exit = reap(process, &self.parts.guardian);
                self.exits[rank] = Some(exit);
                ended.push((rank, exit));
            }
        }
        // Of several that ended since the last look, one that was killed is the likelier cause.
        ended.sort_by_key(|(rank, exit)| (!matches!(exit, Exit::Signal(_)), *rank));
        for (rank, exit) in ended {
            self.parts.hub.rank_gone(rank, rank_end(exit));
            let rank = self.parts.first_rank + rank;
            let natural = matches!(phase, Phase::Running);
            if natural && !exit.success() && outcome.first_failure.is_none() {
                outcome.first_failure = Some((rank, exit));
            }
            on_event(Event::Exited { rank, exit });
        }
    }

    fn next_phase(&self, phase: Phase, outcome: &mut Outcome, on_event: &mut dyn FnMut(Event)) -> Phase {
        let now = Instant::now();
        let mut stop = |reason: StopReason, signal: Signal| {
            if self.exits.iter().any(Option::is_none) {
                on_event(Event::Stopping { reason });
            }
            self.ranks.signal_all(signal);
            // A stopped process ends only once it goes on.
            self.ranks.signal_all(Signal::CONT);
            Phase::Asked(now + self.parts.term_grace)
        };
        if let Some(signal) = self.parts.signals.as_ref().and_then(|signals| signals.next()) {
            if outcome.interrupted.is_some() {
                self.ranks.kill_all();
                return Phase::Killed(now);
            }
            outcome.interrupted = Some(signal);
            let same = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
            return stop(StopReason::Interrupted(signal), same);
        }
        match phase {
            Phase::Running if outcome.first_failure.is_some() => Phase::Reporting(now + self.parts.grace),
            Phase::Running if self.timeout().is_some_and(|when| now >= when) => {
                outcome.timed_out = true;
                stop(StopReason::TimedOut, Signal::TERM)
            }
            Phase::Running | Phase::Reporting(_) if outcome.output_error.is_some() => {
                stop(StopReason::OutputClosed, Signal::TERM)
            }
            Phase::Reporting(until) if now >= until => stop(StopReason::RankFailed, Signal::TERM),
            Phase::Asked(until) if now >= until => {
                self.ranks.kill_all();
                Phase::Killed(now)
            }
            same => same,
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.exits.is_empty() && self.exits.iter().all(Option::is_some) {
            return;
        }
        self.ranks.kill_all();
        let until = Instant::now() + KILL_GRACE;
        for (rank, process) in self.ranks.0.iter().enumerate() {
            while self.exits[rank].is_none() && Instant::now() < until {
                if has_ended(process) {
                    self.exits[rank] = Some(reap(process, &self.parts.guardian));
                } else {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        kill_marked(&Mark::new(self.parts.id));
    }
}

fn report(news: News, outcome: &mut Outcome, on_event: &mut dyn FnMut(Event)) {
    match news {
        News::Line(Line { rank, stream, text }) => on_event(Event::Line { rank, stream, text }),
        News::Closed(error) => outcome.output_error = Some(error),
    }
}

fn has_ended(process: &RankProcess) -> bool {
    is_readable(process.pidfd.as_fd())
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
}

/// Takes the exit status of a process that has ended, and ends what is left of its group first, while the number of the
/// group cannot have been reused.
fn reap(process: &RankProcess, guardian: &Guardian) -> Exit {
    process.signal_group(Signal::KILL);
    guardian.release(process.pid);
    match process.child().take().map(|mut child| child.wait()) {
        Some(Ok(status)) => status.into(),
        _ => Exit::Code(1),
    }
}

fn rank_end(exit: Exit) -> RankEnd {
    match exit {
        Exit::Code(0) => RankEnd::Left,
        Exit::Code(code) => RankEnd::Lost(format!("exited with code {code}")),
        exit => RankEnd::Lost(format!("was {exit}")),
    }
}
