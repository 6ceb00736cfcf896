//! Starting ranks as processes of this host.

#![allow(unsafe_code)]

mod across;

use crate::environment::{
    CONTROL_FD, CPUS, JOB_ID, LIFE_FD, LOCAL_RANK, LOCAL_SIZE, PROTOCOL, PROTOCOL_VERSION, RANK, WORLD_SIZE,
};
use crate::guardian::Guardian;
use crate::hub::Hub;
use crate::job::{JobParts, RankProcess};
use crate::limits::{descriptors_needed, refused_by_system};
use crate::meeting_point::{ADDRESS, LISTEN_FD, PORT, TOKEN_FD, TOKEN_FILE};
use crate::output::{Reader, Source};
use crate::pin;
use crate::signals::{CaughtSignals, keep_exit_statuses};
use crate::world::{available_cpus, random_id};
use across::Prepared;
use rankwise_core::{Error, Result};
use rustix::io::{Errno, FdFlags};
use rustix::process::{PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use rustix::thread::CpuSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

pub use crate::exit::{Exit, signal_name};
pub use crate::job::{Event, Job, JobHandle, StopReason};
pub use crate::outcome::Outcome;
pub use crate::output::{Line, MAX_LINE, Output, Sink, Stream};
pub use crate::pin::Pin;
pub use crate::wire::MAX_RANKS;
pub use across::Across;
pub use rustix::process::Signal;

/// A job to start: how many ranks of which program, and how.
///
/// ```no_run
/// use rankwise_world::launch::{Launch, Pin};
/// use std::time::Duration;
///
/// let job = Launch::new(4, "./hello").args(["--verbose"]).timeout(Duration::from_secs(60)).pin(Pin::Auto).spawn()?;
/// let outcome = job.run(&mut |_event| ());
/// std::process::exit(outcome.code());
/// # Ok::<(), rankwise_core::Error>(())
/// ```
#[must_use]
pub struct Launch {
    ranks: usize,
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(OsString, Option<OsString>)>,
    timeout: Option<Duration>,
    pin: Pin,
    output: Output,
    grace: Duration,
    term_grace: Duration,
    handle_signals: bool,
    across: Option<Across>,
}

/// Catches SIGINT, SIGTERM and SIGHUP over several jobs in a row, so that none is lost between them.
///
/// Stays on the thread that starts the jobs. Signals that come while a job runs end the job; others wait in
/// [`next`](Interrupts::next).
pub struct Interrupts {
    signals: Option<Rc<CaughtSignals>>,
}

impl Interrupts {
    /// Begins. Catches nothing while a job of this process or another of these already does.
    ///
    /// `Config` or `Limit` when the system refuses.
    pub fn catch() -> Result<Interrupts> {
        let signals = CaughtSignals::install().map_err(|errno| refused_by_system("catch signals", 1, errno.into()))?;
        Ok(Interrupts { signals: signals.map(Rc::new) })
    }

    /// A signal that no job has seen, without blocking.
    pub fn next(&self) -> Option<i32> {
        self.signals.as_ref()?.next()
    }
}

impl Launch {
    /// `ranks` processes of this program, which is looked up in `PATH` unless it contains a slash.
    pub fn new(ranks: usize, program: impl Into<OsString>) -> Launch {
        Launch {
            ranks,
            program: program.into(),
            args: Vec::new(),
            envs: Vec::new(),
            timeout: None,
            pin: Pin::None,
            output: Output::Inherit,
            grace: Duration::from_secs(2),
            term_grace: Duration::from_secs(5),
            handle_signals: false,
            across: None,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Launch {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Launch {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable of the ranks. Those that say who a rank is are always the launcher's.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Launch {
        self.envs.push((name.into(), Some(value.into())));
        self
    }

    /// Removes an environment variable from the ranks.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Launch {
        self.envs.push((name.into(), None));
        self
    }

    /// Ends the job after this time (default: never).
    pub fn timeout(mut self, timeout: Duration) -> Launch {
        self.timeout = Some(timeout);
        self
    }

    /// Binds ranks to CPUs (default: not).
    pub fn pin(mut self, pin: Pin) -> Launch {
        self.pin = pin;
        self
    }

    /// What happens to what the ranks print (default: inherited).
    pub fn output(mut self, output: Output) -> Launch {
        self.output = output;
        self
    }

    /// How long the others may go on after the first rank failed, to report what they saw (default 2 s).
    pub fn grace(mut self, grace: Duration) -> Launch {
        self.grace = grace;
        self
    }

    /// How long ranks have after SIGTERM before SIGKILL (default 5 s).
    pub fn term_grace(mut self, grace: Duration) -> Launch {
        self.term_grace = grace;
        self
    }

    /// Ends the job on SIGINT, SIGTERM and SIGHUP to this process, at once on the second (default: leaves signals alone).
    /// One job of a process at a time can do so.
    pub fn handle_signals(mut self, handle: bool) -> Launch {
        self.handle_signals = handle;
        self
    }

    /// Makes the ranks part of a job on several hosts (default: a job of their own). Ranks are counted over all of them.
    pub fn across(mut self, across: Across) -> Launch {
        self.across = Some(across);
        self
    }

    /// Starts all ranks.
    ///
    /// The ranks die with the *thread* that calls this, so the job cannot leave it. Raises this process's soft
    /// limit on descriptors if the job needs more (the ranks keep the old one), and stops ignoring SIGCHLD.
    ///
    /// `InvalidArgument` for zero or too many ranks, `AddrInUse` when the port of a job on several hosts is taken, `Config` when the program cannot be run, `Limit` when the system
    /// refuses; then no rank is left.
    pub fn spawn(self) -> Result<Job> {
        let signals = match self.handle_signals {
            true => CaughtSignals::install()
                .map_err(|errno| refused_by_system("catch signals", self.ranks, errno.into()))?,
            false => None,
        };
        self.start(signals.map(Rc::new))
    }

    /// Like [`spawn`](Launch::spawn) with [`handle_signals`](Launch::handle_signals), for one of several jobs in a row.
    pub fn spawn_under(self, interrupts: &Interrupts) -> Result<Job> {
        self.start(interrupts.signals.clone())
    }

    fn start(self, signals: Option<Rc<CaughtSignals>>) -> Result<Job> {
        keep_exit_statuses();
        let across = self.across.as_ref().map(|across| across.prepare(self.ranks)).transpose()?;
        let limit = raise_descriptor_limit(self.ranks);
        let (hub, seats) = Hub::start(self.ranks)?;
        let id = random_id();
        let guardian = Guardian::start(self.ranks, id)
            .map_err(|errno| refused_by_system("start the guardian", self.ranks, errno.into()))?;
        let mut job = Job::new(JobParts {
            id,
            first_rank: across.as_ref().map_or(0, |across| across.first_rank),
            listens_on: across.as_ref().and_then(|across| across.listener.as_ref()).map(|(_, address)| *address),
            hub,
            guardian,
            signals,
            timeout: self.timeout,
            grace: self.grace,
            term_grace: self.term_grace,
        });
        let piped = !matches!(self.output, Output::Inherit);
        let mut started = Started::default();
        let result = self.start_ranks(&job, across.as_ref(), seats, piped, limit, &mut started);
        job.add(started.processes);
        // On an error the job is dropped here, which ends the ranks that were started.
        result?;
        if piped {
            let sink = match self.output {
                Output::Sink(sink) => Some(sink),
                _ => None,
            };
            let reader = Reader::start(started.sources, sink)
                .map_err(|error| refused_by_system("read the output of the ranks", self.ranks, error))?;
            job.listen(reader);
        }
        Ok(job)
    }

    fn start_ranks(
        &self,
        job: &Job,
        across: Option<&Prepared>,
        seats: Vec<OwnedFd>,
        piped: bool,
        limit: Rlimit,
        started: &mut Started,
    ) -> Result<()> {
        let allowed = pin::allowed();
        let cpus = available_cpus().min(allowed.len()).max(1);
        for (rank, seat) in seats.into_iter().enumerate() {
            let inherited = Inherited {
                control: seat.as_fd(),
                life: job.hub().life(),
                listener: across
                    .and_then(|across| across.listener.as_ref())
                    .filter(|_| rank == 0)
                    .map(|(fd, _)| fd.as_fd()),
                guardian: job.guardian().pipe(),
                cpu: pin::choose(self.pin, rank, self.ranks, &allowed),
                limit,
            };
            let mut child = self.start_rank(rank, across, job.id(), cpus, piped, &inherited)?;
            for (stream, pipe) in [
                (Stream::Stdout, child.stdout.take().map(OwnedFd::from)),
                (Stream::Stderr, child.stderr.take().map(OwnedFd::from)),
            ] {
                started.sources.extend(pipe.map(|pipe| Source { rank: job.first_rank() + rank, stream, pipe }));
            }
            let pid = rustix::process::Pid::from_raw(child.id() as i32).ok_or(Errno::SRCH);
            match pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
                Ok(pidfd) => started.processes.push(RankProcess::new(child, pidfd)),
                Err(errno) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(refused_by_system(&format!("watch rank {rank}"), self.ranks, errno.into()));
                }
            }
        }
        Ok(())
    }

    fn start_rank(
        &self,
        local_rank: usize,
        across: Option<&Prepared>,
        id: u128,
        cpus: usize,
        piped: bool,
        inherited: &Inherited<'_>,
    ) -> Result<Child> {
        let rank = across.map_or(0, |across| across.first_rank) + local_rank;
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).process_group(0);
        if piped {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        for (name, value) in &self.envs {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .env(RANK, rank.to_string())
            .env(WORLD_SIZE, across.map_or(self.ranks, |across| across.size).to_string())
            .env(LOCAL_RANK, local_rank.to_string())
            .env(LOCAL_SIZE, self.ranks.to_string())
            .env(JOB_ID, format!("{id:032x}"))
            .env(CONTROL_FD, inherited.control.as_raw_fd().to_string())
            .env(LIFE_FD, inherited.life.as_raw_fd().to_string())
            .env(CPUS, cpus.to_string())
            .env(PROTOCOL_VERSION, PROTOCOL)
            .env_remove(LISTEN_FD);
        if let Some(across) = across {
            command
                .env(ADDRESS, &across.address)
                .env(PORT, across.port.to_string())
                .env(TOKEN_FILE, &across.token_file)
                .env_remove(TOKEN_FD);
        }
        if let Some(listener) = inherited.listener {
            command.env(LISTEN_FD, listener.as_raw_fd().to_string());
        }
        let before_exec = inherited.before_exec();
        // SAFETY: the closure makes system calls only, on descriptors that the child has its own copies of; it neither
        // allocates nor locks.
        unsafe { command.pre_exec(before_exec) };
        command.spawn().map_err(|error| self.cannot_start(rank, error))
    }

    fn cannot_start(&self, rank: usize, error: io::Error) -> Error {
        let program = self.program.to_string_lossy();
        let what = match error.kind() {
            io::ErrorKind::NotFound => {
                format!("program `{program}` was not found (or its interpreter); give a path, or check PATH")
            }
            io::ErrorKind::PermissionDenied => {
                format!("program `{program}` may not be executed; check its permissions")
            }
            _ => return refused_by_system(&format!("start rank {rank} (`{program}`)"), self.ranks, error),
        };
        Error::config(format!("cannot start rank {rank}: {what}")).with_source(error)
    }
}

#[derive(Default)]
struct Started {
    processes: Vec<RankProcess>,
    sources: Vec<Source>,
}

/// What one rank gets from the launcher besides its environment.
struct Inherited<'a> {
    control: BorrowedFd<'a>,
    life: BorrowedFd<'a>,
    /// What rank 0 of a job on several hosts listens on.
    listener: Option<BorrowedFd<'a>>,
    guardian: BorrowedFd<'a>,
    cpu: Option<CpuSet>,
    /// The limit on descriptors to go back to.
    limit: Rlimit,
}

impl Inherited<'_> {
    /// What the child does between fork and exec. It is already the leader of its own process group.
    fn before_exec(&self) -> impl FnMut() -> io::Result<()> + Send + Sync + 'static {
        let [control, life, guardian] = [self.control, self.life, self.guardian].map(|fd| fd.as_raw_fd());
        let listener = self.listener.map(|fd| fd.as_raw_fd());
        let (cpu, limit) = (self.cpu, self.limit);
        let launcher = rustix::process::getpid();
        move || {
            // SAFETY: the descriptors are open in the launcher while it spawns, so they are in this copy of it.
            let borrow = |fd: RawFd| unsafe { BorrowedFd::borrow_raw(fd) };
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The launcher may have died before that took effect.
            if rustix::process::getppid() != Some(launcher) {
                return Err(Errno::SRCH.into());
            }
            let group = rustix::process::getpid().as_raw_nonzero().get();
            rustix::io::write(borrow(guardian), &group.to_ne_bytes())?;
            if let Some(cpu) = &cpu {
                rustix::thread::sched_setaffinity(None, cpu)?;
            }
            rustix::io::fcntl_setfd(borrow(control), FdFlags::empty())?;
            rustix::io::fcntl_setfd(borrow(life), FdFlags::empty())?;
            if let Some(listener) = listener {
                rustix::io::fcntl_setfd(borrow(listener), FdFlags::empty())?;
            }
            let _ = setrlimit(Resource::Nofile, limit);
            Ok(())
        }
    }
}

/// Makes room for the launcher's descriptors, as far as the hard limit goes; returns the limit as it was.
fn raise_descriptor_limit(ranks: usize) -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // And descriptors of exchanges under way.
    let need = descriptors_needed(ranks) + 4 * ranks as u64 + 256;
    if before.current.is_some_and(|current| current < need) {
        let current = Some(before.maximum.map_or(need, |maximum| maximum.min(need)));
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: before.maximum });
    }
    before
}
