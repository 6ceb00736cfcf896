//! The world: who am I, who are the others, how do we meet.

use crate::environment::{self, Origin};
use crate::failure::RankEnd;
use crate::liveness::{Liveness, ThreadLiveness};
use crate::store::Store;
use crate::thread_store::{MeetingPlace, ThreadStore};
use rankwise_core::{Error, ErrorKind, Result};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;

/// How the ranks of a world are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One rank, alone.
    Solo,
    /// The ranks are threads of one process.
    Threads,
    /// The ranks are processes: of one host when [`World::local_size`] is [`World::size`], else of several.
    Processes,
}

/// One rank's view of its job. Cloning is cheap; all clones are the same rank.
#[derive(Clone)]
pub struct World(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
    pub(crate) job: u128,
    pub(crate) source: &'static str,
    pub(crate) placement: Placement,
    pub(crate) cpus: usize,
    pub(crate) store: Box<dyn Store>,
    pub(crate) liveness: Box<dyn Liveness>,
    /// The host of each rank; none when there is one host.
    pub(crate) hosts: Option<Vec<u32>>,
    /// Serves the store when this is rank 0 and no launcher of ours does.
    #[cfg(target_os = "linux")]
    #[allow(dead_code)]
    pub(crate) hub: Option<crate::hub::Hub>,
}

impl World {
    /// Joins the job that the environment describes: the first complete set of `RANKWISE_*` (`rankwise launch`), `RANK`,
    /// `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` (torchrun), `OMPI_COMM_WORLD_*` (Open MPI's mpirun), `PMI_*`
    /// (MPICH's and others' mpiexec), `SLURM_*` (srun; only inside a step); with none a world of one.
    ///
    /// The first call decides; later calls of the process return the same world or the same error. Under `rankwise launch`
    /// blocks for at most ten seconds. Under another launcher, and on several hosts, it is collective over all ranks and blocks
    /// up to `RANKWISE_JOIN_TIMEOUT`; ranks of one host find each other by what the launcher calls the job, else by
    /// `RANKWISE_JOB_ID`, and those of several hosts at a TCP port of rank 0, where all prove that they hold the same token.
    ///
    /// `Config` when a set is incomplete or wrong, or nothing tells this job from others; `Refused` when ranks or the launcher
    /// differ in version, size, or settings, or two processes come as one rank; `Timeout` names the ranks that did not
    /// come; `PeerLost` one that died.
    pub fn from_env() -> Result<World> {
        static JOINED: OnceLock<Result<World>> = OnceLock::new();
        JOINED
            .get_or_init(|| {
                let variables = environment::of_this_process();
                let world = match environment::origin(&variables, crate::launchers::socket_server)? {
                    Origin::Alone { source } => World::alone(source),
                    origin => World::join(origin)?,
                };
                tracing::info!(
                    rank = world.rank(),
                    size = world.size(),
                    source = world.source(),
                    "joined{}",
                    if world.source() == environment::ALONE {
                        ": no launcher found, this is a world of one"
                    } else {
                        ""
                    }
                );
                Ok(world)
            })
            .clone()
    }

    #[cfg(target_os = "linux")]
    fn join(origin: Origin) -> Result<World> {
        let inner = match origin {
            Origin::Alone { source } => return Ok(World::alone(source)),
            Origin::Launched(launched) => crate::joining::join(launched)?,
            Origin::Met { claim, key } => crate::meeting::join(claim.standing(), &key)?,
            Origin::Spread(spread) => crate::remote::join(spread)?,
        };
        Ok(World(Arc::new(inner)))
    }

    #[cfg(not(target_os = "linux"))]
    fn join(_: Origin) -> Result<World> {
        let kind = ErrorKind::Unsupported {
            function: "ranks as processes".into(),
            needs: "Linux".into(),
            have: std::env::consts::OS.into(),
        };
        Err(Error::new(kind, "use World::threads here"))
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn of(inner: Inner) -> World {
        World(Arc::new(inner))
    }

    /// A world of one rank.
    pub fn solo() -> World {
        World::alone(environment::ALONE)
    }

    pub(crate) fn alone(source: &'static str) -> World {
        let local = Local {
            size: 1,
            job: random_id(),
            source,
            placement: Placement::Solo,
            cpus: available_cpus(),
            meeting_place: MeetingPlace::new(1),
            liveness: ThreadLiveness::new(1),
        };
        local.world(0)
    }

    /// Runs `f` on `n` ranks that are threads of this process, and returns their results in rank order.
    ///
    /// A rank counts as gone as soon as its function returns or panics. When one panics the others go on, with
    /// `PeerLost` where they need it, and the first panic is resumed after the last rank has returned.
    ///
    /// `InvalidArgument` when `n` is zero; `Limit` when the threads cannot be created, in which case `f` ran nowhere.
    ///
    /// ```
    /// use rankwise_world::World;
    /// let ranks = World::threads(3, |world| world.rank() * 10)?;
    /// assert_eq!(ranks, [0, 10, 20]);
    /// # Ok::<(), rankwise_core::Error>(())
    /// ```
    pub fn threads<R: Send>(n: usize, f: impl Fn(World) -> R + Send + Sync) -> Result<Vec<R>> {
        if n == 0 {
            return Err(Error::invalid("a world has at least one rank; pass the number of threads to run"));
        }
        let local = Local {
            size: n,
            job: random_id(),
            source: "threads",
            placement: Placement::Threads,
            cpus: available_cpus(),
            meeting_place: MeetingPlace::new(n),
            liveness: ThreadLiveness::new(n),
        };
        let first_panic = Mutex::new(None);
        let gate = Gate::default();
        let results = thread::scope(|scope| {
            let mut ranks = Vec::with_capacity(n);
            for rank in 0..n {
                let world = local.world(rank);
                let (f, gate, first_panic, local) = (&f, &gate, &first_panic, &local);
                let body = move || {
                    if !gate.wait() {
                        return None;
                    }
                    let result = catch_unwind(AssertUnwindSafe(|| f(world)));
                    local.liveness.mark_gone(rank);
                    match result {
                        Ok(value) => {
                            local.meeting_place.rank_gone(rank, RankEnd::Left);
                            Some(value)
                        }
                        Err(payload) => {
                            local.meeting_place.rank_gone(rank, RankEnd::Lost("panicked".into()));
                            first_panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
                            None
                        }
                    }
                };
                match thread::Builder::new().name(format!("rank-{rank}")).spawn_scoped(scope, body) {
                    Ok(handle) => ranks.push(handle),
                    Err(error) => {
                        gate.open(false);
                        let kind =
                            ErrorKind::Limit { which: "threads".into(), have: ranks.len() as u64, need: n as u64 };
                        let message = "cannot create a thread for every rank; use fewer ranks or raise RLIMIT_NPROC";
                        return Err(Error::new(kind, message).with_source(error));
                    }
                }
            }
            gate.open(true);
            Ok(ranks.into_iter().map(|rank| rank.join().unwrap_or_default()).collect::<Vec<Option<R>>>())
        })?;
        if let Some(payload) = first_panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Global rank of this rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Rank among those of this host.
    pub fn local_rank(&self) -> usize {
        self.0.local_rank
    }

    /// Number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.0.local_size
    }

    /// The host of a rank, counted from 0 in the order of the hosts' lowest ranks; 0 for all when there is one host.
    pub fn host_of(&self, rank: usize) -> usize {
        self.0.hosts.as_ref().and_then(|hosts| hosts.get(rank)).map_or(0, |host| *host as usize)
    }

    /// Id of the job: the same on all ranks, different for every job.
    pub fn job(&self) -> u128 {
        self.0.job
    }

    /// Where rank and size come from, for people.
    pub fn source(&self) -> &str {
        self.0.source
    }

    /// Whether the ranks are processes, threads, or one alone.
    pub fn placement(&self) -> Placement {
        self.0.placement
    }

    /// Number of CPUs that the ranks of this host may use together, at least one.
    pub fn cpus(&self) -> usize {
        self.0.cpus
    }

    /// The store through which the ranks meet.
    pub fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    /// Who is still there.
    pub fn liveness(&self) -> &dyn Liveness {
        &*self.0.liveness
    }
}

/// A world within this process.
struct Local {
    size: usize,
    job: u128,
    source: &'static str,
    placement: Placement,
    cpus: usize,
    meeting_place: Arc<MeetingPlace>,
    liveness: ThreadLiveness,
}

impl Local {
    fn world(&self, rank: usize) -> World {
        World(Arc::new(Inner {
            rank,
            size: self.size,
            local_rank: rank,
            local_size: self.size,
            job: self.job,
            source: self.source,
            placement: self.placement,
            cpus: self.cpus,
            store: Box::new(ThreadStore::new(rank, self.size, self.meeting_place.clone())),
            liveness: Box::new(self.liveness.clone()),
            hosts: None,
            #[cfg(target_os = "linux")]
            hub: None,
        }))
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("placement", &self.placement())
            .field("source", &self.source())
            .finish_non_exhaustive()
    }
}

/// Holds threads back until it is known whether all of them exist.
#[derive(Default)]
struct Gate {
    verdict: Mutex<Option<bool>>,
    opened: Condvar,
}

impl Gate {
    fn open(&self, run: bool) {
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
        self.opened.notify_all();
    }

    fn wait(&self) -> bool {
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *verdict {
                Some(run) => return run,
                None => verdict = self.opened.wait(verdict).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

pub(crate) fn available_cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// 128 bits that no other job has.
pub(crate) fn random_id() -> u128 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Keyed from the system's random source; the time tells two calls of one thread further apart.
    let word = |salt: u64| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(salt);
        hasher.write_u32(std::process::id());
        if let Ok(now) = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            hasher.write_u128(now.as_nanos());
        }
        u128::from(hasher.finish())
    };
    (word(1) << 64) | word(2)
}
