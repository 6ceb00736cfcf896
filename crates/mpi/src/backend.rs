//! The backend of a rank: what it offers, and how members make a communicator.

use crate::api::Api;
use crate::base::Base;
use crate::channel::Channel;
use crate::communicator::MpiCommunicator;
use crate::watch::{self, Watched};
use rankwise_core::backend::{CommSpec, RawBackend, RawCommunicator};
use rankwise_core::{
    Capabilities, DType, DTypeSet, DeadlineMode, DeadlineSupport, Determinism, Error, ErrorKind, OpKind, ReduceOp,
    Result, Settings,
};
use rankwise_world::{Attachment, World};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Version of what ranks say to each other while joining.
const PROTOCOL: u32 = 1;
/// The longest group whose table of positions is sent to MPI at once.
const MOST_MEMBERS: usize = 1 << 20;
/// Tags below this are valid everywhere.
const TAGS: u64 = 32_767;

pub(crate) struct MpiBackend<A: Api> {
    pub(crate) name: &'static str,
    pub(crate) base: Arc<Base<A>>,
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
        self.base.rank
    }

    fn world_size(&self) -> usize {
        self.base.size
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
        self.base.expect_post(id);
        let comm = self.create(spec).inspect_err(|_| self.base.refuse_post(id))?;
        let channel = Arc::new(Channel::new(self, comm, spec.clone(), id, me));
        self.base.deliver_post(id, Arc::downgrade(&channel));
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
            "protocol {PROTOCOL}, check {}, determinism {:?}, deadline {:?}, {}",
            spec.check,
            spec.determinism,
            self.settings.deadline,
            crate::large::described(&self.base.library)
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
        let (library, all_ranks) = (&self.base.library, self.base.comm);
        let api = &library.api;
        let ranks: Vec<c_int> = spec.group.ranks().map(|rank| rank as c_int).collect();
        let tag = ((spec.tag ^ spec.group.stable_hash()) % TAGS) as c_int;
        let mut comm = api.comm_null();
        let mut all = std::mem::MaybeUninit::uninit();
        let mut members = std::mem::MaybeUninit::uninit();
        // SAFETY: the groups are made before they are used and freed once; the ranks are those of the world.
        unsafe {
            library.succeeded(api.comm_group(all_ranks, all.as_mut_ptr()))?;
            let mut all = all.assume_init();
            let code = api.group_incl(all, ranks.len() as c_int, ranks.as_ptr(), members.as_mut_ptr());
            api.group_free(&mut all);
            library.succeeded(code)?;
            let mut members = members.assume_init();
            let code = api.comm_create_group(all_ranks, members, tag, &mut comm);
            api.group_free(&mut members);
            library.succeeded(code)?;
            library.succeeded(api.comm_set_errhandler(comm, api.errors_return()))?;
        }
        Ok(comm)
    }
}
