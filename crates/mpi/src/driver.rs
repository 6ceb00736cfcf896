//! The driver: probing, the world of MPI's ranks, and joining.

use crate::api::{Api, Comm};
use crate::backend::MpiBackend;
use crate::base::Base;
use crate::channel::lock;
use crate::end;
use crate::library::Library;
use rankwise_core::backend::RawBackend;
use rankwise_core::{Config, Error, ErrorKind, Group, Result, Settings};
use rankwise_world::{Attachment, Driver, Placement, ProbeReport, World, announced};
use std::sync::{Arc, Mutex};

/// Where rank and size of MPI's own world come from.
const ALL_RANKS: &str = "MPI_COMM_WORLD";
/// And those of a communicator that the program has.
const SOME_RANKS: &str = "a communicator of MPI";

/// One way to MPI.
pub(crate) struct MpiDriver<A: Api> {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// Finds the library.
    pub(crate) find: fn() -> Result<A>,
    pub(crate) state: &'static Mutex<State<A>>,
    /// Held while the world of all ranks is made, which is collective; the state is not.
    pub(crate) making: &'static Mutex<()>,
    /// What ends MPI when the process does.
    pub(crate) at_exit: fn(),
}

/// What this process has of an MPI.
pub(crate) struct State<A: Api> {
    pub(crate) library: Option<Arc<Library<A>>>,
    /// Of all ranks, or why not: it can't be tried again, since MPI still waits for those who did not come.
    base: Option<Result<Arc<Base<A>>>>,
    world: Option<Result<World>>,
    /// Of worlds that were made from communicators, by their job.
    others: Vec<(u128, Arc<Base<A>>)>,
}

impl<A: Api> State<A> {
    pub(crate) const fn new() -> State<A> {
        State { library: None, base: None, world: None, others: Vec::new() }
    }

    /// Of all worlds.
    pub(crate) fn bases(&self) -> impl Iterator<Item = &Base<A>> {
        self.base.iter().flatten().chain(self.others.iter().map(|(_, base)| base)).map(|base| &**base)
    }
}

impl<A: Api> MpiDriver<A> {
    /// The library, started if it is not yet.
    fn library(&self, settings: &Settings) -> Result<Arc<Library<A>>> {
        let mut state = lock(self.state);
        if let Some(library) = &state.library {
            drop(end::enter()?);
            return Ok(library.clone());
        }
        let library = Arc::new(Library::start((self.find)()?, self.name, settings)?);
        if crate::library::is_ours() {
            (self.at_exit)();
        }
        state.library = Some(library.clone());
        Ok(library)
    }

    /// All ranks of MPI. The caller holds `making`.
    fn all_ranks(&self, settings: &Settings) -> Result<Arc<Base<A>>> {
        let library = self.library(settings)?;
        if let Some(made) = lock(self.state).base.clone() {
            return made;
        }
        let _inside = end::enter()?;
        // SAFETY: MPI is initialised, so its world exists.
        let base = unsafe { Base::of(&library, library.api.comm_world(), ALL_RANKS, settings.join_timeout) };
        let base = base.map(Arc::new);
        lock(self.state).base = Some(base.clone());
        base
    }

    /// The world of a communicator's ranks. Collective over them.
    ///
    /// # Safety
    ///
    /// The handle is of a communicator that exists.
    pub(crate) unsafe fn world_of(&self, communicator: Comm<A>) -> Result<World> {
        let settings = Config::new().resolve()?;
        let library = self.library(&settings)?;
        let _inside = end::enter()?;
        let mut between = 0;
        // SAFETY: the caller's promise.
        library.succeeded(unsafe { library.api.comm_test_inter(communicator, &mut between) })?;
        if between != 0 {
            return Err(Error::invalid(
                "an intercommunicator has no ranks of its own; merge it first (MPI_Intercomm_merge)",
            ));
        }
        // SAFETY: the caller's promise, and it is an intracommunicator.
        let base = Arc::new(unsafe { Base::of(&library, communicator, SOME_RANKS, settings.join_timeout) }?);
        let world = World::bootstrap(base.as_ref())?;
        lock(self.state).others.push((world.job(), base));
        Ok(world)
    }
}

impl<A: Api> Driver for MpiDriver<A> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn probe(&self, _world: &World) -> Result<ProbeReport> {
        let api = (self.find)()?;
        Ok(ProbeReport::default()
            .with("version", crate::library::version(&api, &api.constants()))
            .with("kernels", rankwise_reduce::Isa::best().name()))
    }

    /// MPI says who the ranks are, and how they find each other.
    fn world(&self) -> Result<World> {
        let _making = lock(self.making);
        if let Some(world) = &lock(self.state).world {
            return world.clone();
        }
        let base = self.all_ranks(&Config::new().resolve()?)?;
        let _inside = end::enter()?;
        if base.size == 1 {
            match announced().filter(|claim| claim.size > 1) {
                Some(claim) => return Err(elsewhere(&base, claim.source, claim.rank, claim.size)),
                None => tracing::info!("MPI has one rank: this is a world of one"),
            }
        }
        let world = World::bootstrap(base.as_ref());
        lock(self.state).world = Some(world.clone());
        world
    }

    fn join(&self, world: &World, config: &Config) -> Result<Arc<dyn RawBackend>> {
        if world.placement() == Placement::Threads && world.size() > 1 {
            return Err(Error::new(
                ErrorKind::NoBackend,
                "the ranks of this world are threads; MPI's ranks are processes: start the program with mpirun",
            ));
        }
        if let Some(mode) = rankwise_reduce::ftz::flush_mode() {
            tracing::warn!(mode, "the program flushes subnormal numbers; reductions of them will not be exact");
        }
        let settings = config.resolve()?;
        // MPI waits for all, and can't say for whom.
        let everybody = Group::world(world.size());
        let key = format!("{}/join", self.name);
        world.store().exchange(&key, "joining MPI", &everybody, &[], Attachment::None, settings.join_timeout)?;
        let known = lock(self.state).others.iter().find(|(job, _)| *job == world.job()).map(|(_, base)| base.clone());
        let base = match known {
            Some(base) => base,
            None => {
                let _making = lock(self.making);
                self.all_ranks(&settings)?
            }
        };
        // The launcher's ranks are MPI's only when the program runs the MPI of that launcher.
        if (base.rank, base.size) != (world.rank(), world.size()) {
            return Err(elsewhere(&base, world.source(), world.rank(), world.size()));
        }
        Ok(Arc::new(MpiBackend { name: self.name, base, world: world.clone(), settings }))
    }
}

/// MPI and the launcher disagree about who this process is.
fn elsewhere<A: Api>(base: &Base<A>, source: &str, rank: usize, size: usize) -> Error {
    let mixed = if base.size == 1 {
        "; this looks like the mpirun of one MPI and the library of another, or like ranks that mpirun did not start: \
         use the mpirun that belongs to the library (under srun, the plugin that `srun --mpi=list` has for it)"
    } else {
        ""
    };
    let library = &base.library.version;
    let message = format!(
        "MPI ({library}) says rank {} of {}, but {source} says rank {rank} of {size}{mixed}",
        base.rank, base.size
    );
    Error::new(ErrorKind::NoBackend, message)
}
