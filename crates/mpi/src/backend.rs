//! The backend of a rank: what it offers, and how members make a communicator.

use crate::api::Api;
use crate::base::Base;
use crate::channel::Channel;
use crate::communicator::MpiCommunicator;
use crate::end;
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
/// Bits of a communicator's number that count those of its first member; the others are that member's rank.
const COUNT_BITS: u32 = 40;

/// The tag with which MPI makes a communicator, which no other may have that shares members and is made at the same time, by another thread. Each
/// first member has some of its own, unless there are too many ranks for that.
fn tag(id: u64, ranks: usize, hash: u64) -> c_int {
    let each = TAGS / (ranks as u64).max(1);
    let (first, count) = (id >> COUNT_BITS, id & ((1 << COUNT_BITS) - 1));
    let tag = if each == 0 { hash % TAGS } else { first * each + count % each };
    tag as c_int
}

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
        let _inside = end::enter()?;
        self.base.collect();
        let id = self.meet(spec, deadline)?;
        self.base.expect_post(id);
        let comm = self.create(spec, id, deadline).inspect_err(|_| self.base.refuse_post(id))?;
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
        let mine = (self.rank() as u64) << COUNT_BITS | MADE.fetch_add(1, Ordering::Relaxed);
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

    /// MPI makes it: all members are there.
    fn create(&self, spec: &CommSpec, id: u64, deadline: Duration) -> Result<crate::api::Comm<A>> {
        let (library, all_ranks) = (&self.base.library, self.base.comm);
        let api = &library.api;
        let ranks: Vec<c_int> = spec.group.ranks().map(|rank| rank as c_int).collect();
        let tag = tag(id, self.base.size, spec.group.stable_hash());
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
            let create = || api.comm_create_group(all_ranks, members, tag, &mut comm);
            let code = watch::starting(
                "MPI_Comm_create_group",
                "though all members had come",
                deadline,
                self.settings.on_stuck,
                create,
            );
            api.group_free(&mut members);
            library.succeeded(code)?;
            library.succeeded(api.comm_set_errhandler(comm, api.errors_return()))?;
        }
        Ok(comm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_two_first_members_differ_and_are_valid() {
        let of = |first: u64, count: u64, ranks| tag(first << COUNT_BITS | count, ranks, 1 << 40);
        let all: std::collections::HashSet<c_int> =
            (0..8).flat_map(|first| (0..100).map(move |count| of(first, count, 8))).collect();
        assert_eq!(all.len(), 800);
        for ranks in [1, 2, 32_766, 32_767, 32_768, 1 << 20] {
            for (first, count) in [(0, 0), (ranks as u64 - 1, (1 << COUNT_BITS) - 1)] {
                assert!((0..TAGS as c_int).contains(&of(first, count, ranks)), "{ranks}");
            }
        }
    }
}
