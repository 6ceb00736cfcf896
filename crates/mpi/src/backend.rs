//! The driver: probing, joining and making communicators.

use crate::api::Api;
use crate::channel::{Channel, lock};
use crate::communicator::MpiCommunicator;
use crate::library::Library;
use crate::watch::{self, Watched};
use rankwise_core::backend::{CommSpec, RawBackend, RawCommunicator};
use rankwise_core::{
    Capabilities, Config, DType, DTypeSet, DeadlineMode, DeadlineSupport, Determinism, Error, ErrorKind, OpKind,
    ReduceOp, Result, Settings,
};
use rankwise_world::{Attachment, Driver, Placement, ProbeReport, World};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Version of what ranks say to each other while joining.
const PROTOCOL: u32 = 1;
/// The longest group whose table of positions is sent to MPI at once.
const MOST_MEMBERS: usize = 1 << 20;
/// Tags below this are valid everywhere.
const TAGS: u64 = 32_767;

/// One way to MPI.
pub(crate) struct MpiDriver<A: Api> {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// Finds the library.
    pub(crate) find: fn() -> Result<A>,
    pub(crate) library: &'static Mutex<Option<Arc<Library<A>>>>,
    /// What ends MPI when the process does.
    pub(crate) at_exit: fn(),
}

impl<A: Api> MpiDriver<A> {
    /// The library, started if it is not yet.
    fn library(&self) -> Result<Arc<Library<A>>> {
        let mut library = lock(self.library);
        if let Some(library) = &*library {
            return Ok(library.clone());
        }
        let started = Arc::new(Library::start((self.find)()?, self.name)?);
        if crate::library::is_ours() {
            (self.at_exit)();
        }
        *library = Some(started.clone());
        Ok(started)
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
        let library = self.library()?;
        same_place(&library, world)?;
        Ok(Arc::new(MpiBackend { name: self.name, library, world: world.clone(), settings }))
    }
}

/// The launcher's ranks are MPI's only when the program runs the MPI of that launcher.
fn same_place<A: Api>(library: &Library<A>, world: &World) -> Result<()> {
    if (library.rank, library.size) == (world.rank(), world.size()) {
        return Ok(());
    }
    let mixed = if library.size == 1 {
        "; this looks like the mpirun of one MPI and the library of another, or like ranks that mpirun did not start: \
         use the mpirun that belongs to the library"
    } else {
        ""
    };
    Err(Error::new(
        ErrorKind::NoBackend,
        format!(
            "MPI ({}) says rank {} of {}, but {} says rank {} of {}{mixed}",
            library.version,
            library.rank,
            library.size,
            world.source(),
            world.rank(),
            world.size()
        ),
    ))
}

pub(crate) struct MpiBackend<A: Api> {
    name: &'static str,
    pub(crate) library: Arc<Library<A>>,
    pub(crate) world: World,
    pub(crate) settings: Settings,
}

impl<A: Api> MpiBackend<A> {
    /// What is offered with these settings.
    pub(crate) fn table(&self) -> Capabilities {
        table(&self.settings)
    }
}

fn table(settings: &Settings) -> Capabilities {
    let deadline = match settings.deadline {
        DeadlineMode::Enforce => DeadlineSupport::Enforced,
        _ => DeadlineSupport::Watched,
    };
    let mut table = Capabilities::none()
        .with_kinds(&OpKind::DATA)
        .with_moves(DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits()))
        .with_spaces(true, false)
        .with_determinism(Determinism::Fixed)
        .with_deadline(deadline)
        .with_agreement(settings.check)
        .with_nonblocking(true, false)
        .with_max_bytes(i64::MAX as u64);
    for (op, types) in ReduceOp::ALL.into_iter().zip(rankwise_reduce::supported()) {
        table = table.with_reduce(op, types);
    }
    table
}

// SAFETY: the communicators keep the promises of `RawCommunicator`, see there.
unsafe impl<A: Api> RawBackend for MpiBackend<A> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn rank(&self) -> usize {
        self.library.rank
    }

    fn world_size(&self) -> usize {
        self.library.size
    }

    fn capabilities(&self) -> Capabilities {
        self.table()
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let group = &spec.group;
        let me = group.position(self.rank()).ok_or_else(|| {
            Error::new(ErrorKind::NotMember, "only members make a communicator").with_group(group, self.rank())
        })?;
        if group.len() > MOST_MEMBERS {
            return Err(Error::invalid(format!("a group of {} members is too long", group.len())));
        }
        let id = self.meet(spec, deadline)?;
        self.library.expect_post(id);
        let comm = self.create(spec).inspect_err(|_| self.library.refuse_post(id))?;
        let channel = Arc::new(Channel::new(self, comm, spec.clone(), id, me));
        self.library.deliver_post(id, Arc::downgrade(&channel));
        let watched: Weak<dyn Watched> = Arc::downgrade(&channel) as _;
        watch::watch(watched);
        Ok(Arc::new(MpiCommunicator(channel)))
    }
}

impl<A: Api> MpiBackend<A> {
    /// All members are there, and mean the same: MPI itself would wait for ever for one that is not. Returns a number that no other
    /// communicator has.
    fn meet(&self, spec: &CommSpec, deadline: Duration) -> Result<u64> {
        let group = &spec.group;
        let key = format!("{}/comm/{:x}/{group:?}/{:x}", self.name, spec.tag, group.stable_hash());
        let what = match spec.tag {
            0 => format!("group {group}"),
            _ => format!("split communicator {group}"),
        };
        let ours = format!(
            "protocol {PROTOCOL}, check {}, determinism {:?}, deadline {:?}",
            spec.check, spec.determinism, self.settings.deadline
        );
        static MADE: AtomicU64 = AtomicU64::new(0);
        // The first member's count of the communicators that it has made, and who that is.
        let mine = (self.rank() as u64) << 40 | MADE.fetch_add(1, Ordering::Relaxed);
        let mut payload = mine.to_le_bytes().to_vec();
        payload.extend(ours.as_bytes());
        let parts = self.world.store().exchange(&key, &what, group, &payload, Attachment::None, deadline)?;
        let mut id = None;
        for (member, (payload, _)) in parts.iter().enumerate() {
            let (number, theirs) = payload.split_first_chunk().unwrap_or((&[0; 8], payload));
            id = id.or(Some(u64::from_le_bytes(*number)));
            if theirs != ours.as_bytes() {
                let theirs = String::from_utf8_lossy(theirs).into_owned();
                return Err(Error::new(
                    ErrorKind::Refused { key: "settings of the mpi backend".into(), ours, theirs },
                    "all ranks must run with the same settings and the same version of rankwise",
                )
                .with_peers(group.global(member)));
            }
        }
        Ok(id.unwrap_or(mine))
    }

    fn create(&self, spec: &CommSpec) -> Result<crate::api::Comm<A>> {
        let library = &self.library;
        let api = &library.api;
        let ranks: Vec<c_int> = spec.group.ranks().map(|rank| rank as c_int).collect();
        let tag = ((spec.tag ^ spec.group.stable_hash()) % TAGS) as c_int;
        let mut comm = api.comm_null();
        let mut all = std::mem::MaybeUninit::uninit();
        let mut members = std::mem::MaybeUninit::uninit();
        // SAFETY: the groups are made before they are used and freed once; the ranks are those of the world.
        unsafe {
            library.succeeded(api.comm_group(library.world, all.as_mut_ptr()))?;
            let mut all = all.assume_init();
            let code = api.group_incl(all, ranks.len() as c_int, ranks.as_ptr(), members.as_mut_ptr());
            api.group_free(&mut all);
            library.succeeded(code)?;
            let mut members = members.assume_init();
            let code = api.comm_create_group(library.world, members, tag, &mut comm);
            api.group_free(&mut members);
            library.succeeded(code)?;
            library.succeeded(api.comm_set_errhandler(comm, api.errors_return()))?;
        }
        Ok(comm)
    }
}
