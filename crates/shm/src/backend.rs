//! The driver: probing, joining and making communicators.

use crate::comm::Comm;
use crate::communicator::{ShmCommunicator, new_segment, open_segments};
use crate::layout::{self, Layout};
use crate::pause::WaitRules;
use crate::rank_state::RankState;
use crate::segment::Segment;
use crate::sync::PAYLOAD;
use rankwise_core::backend::{CommSpec, RawBackend, RawCommunicator};
use rankwise_core::{
    Capabilities, Config, DTypeSet, DeadlineSupport, Determinism, Error, ErrorKind, OpKind, ReduceOp, Result,
};
use rankwise_world::{Driver, Placement, ProbeReport, World};
use std::sync::Arc;
use std::time::Duration;

/// Version of the layout and the protocol; ranks of different versions refuse each other.
const PROTOCOL: u32 = 1;

/// Members that one ring step can serve with a cache line each.
const MOST_MEMBERS: usize = layout::CHUNK / 64;

/// The driver of the shared-memory backend.
pub fn driver() -> &'static dyn Driver {
    &ShmDriver
}

struct ShmDriver;

impl Driver for ShmDriver {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn description(&self) -> &'static str {
        "shared memory between the processes or threads of one host; nothing to install"
    }

    fn probe(&self, world: &World) -> Result<ProbeReport> {
        check_placement(world)?;
        let layout = Layout::new(world.size().max(2));
        Ok(ProbeReport::default()
            .with("protocol", PROTOCOL)
            .with("kernels", rankwise_reduce::Isa::best().name())
            .with("waiting", if fits(world) { "spin, then sleep" } else { "yield, then sleep" })
            .with("memory per rank and communicator", format!("{} KiB", layout.bytes / 1024)))
    }

    fn join(&self, world: &World, config: &Config) -> Result<Arc<dyn RawBackend>> {
        check_placement(world)?;
        if let Some(mode) = rankwise_reduce::ftz::flush_mode() {
            tracing::warn!(mode, "the program flushes subnormal numbers; reductions of them will not be exact");
        }
        let settings = config.resolve()?;
        Ok(Arc::new(ShmBackend { rank: Arc::new(RankState::new(world.clone(), settings)) }))
    }
}

fn check_placement(world: &World) -> Result<()> {
    let possible = match world.placement() {
        Placement::Solo | Placement::Threads => true,
        Placement::Processes => cfg!(target_os = "linux") && world.local_size() == world.size(),
        #[allow(unreachable_patterns)]
        _ => false,
    };
    if possible {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NoBackend,
        format!(
            "shm reaches the {} ranks of this host only, and the world has {}; choose a backend that crosses hosts",
            world.local_size(),
            world.size()
        ),
    ))
}

fn fits(world: &World) -> bool {
    world.local_size() <= world.cpus()
}

struct ShmBackend {
    rank: Arc<RankState>,
}

fn table() -> Capabilities {
    let mut table = Capabilities::none()
        .with_kinds(&OpKind::DATA)
        .with_moves(DTypeSet::from_bits(
            DTypeSet::NUMERIC.bits() | DTypeSet::of(&[rankwise_core::DType::Opaque]).bits(),
        ))
        .with_spaces(true, false)
        .with_determinism(Determinism::Fixed)
        .with_deadline(DeadlineSupport::Enforced)
        .with_agreement(true)
        .with_nonblocking(true, true)
        .with_max_bytes(i64::MAX as u64)
        .with_threshold("inline", PAYLOAD as u64)
        .with_threshold("one-shot", layout::STAGE as u64)
        .with_threshold("chunk", layout::CHUNK as u64);
    for (op, types) in ReduceOp::ALL.into_iter().zip(rankwise_reduce::supported()) {
        table = table.with_reduce(op, types);
    }
    table
}

// SAFETY: the communicators keep the promises of `RawCommunicator`, see there.
unsafe impl RawBackend for ShmBackend {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn rank(&self) -> usize {
        self.rank.world.rank()
    }

    fn world_size(&self) -> usize {
        self.rank.world.size()
    }

    fn capabilities(&self) -> Capabilities {
        table()
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let rank = &self.rank;
        let group = &spec.group;
        let not_member =
            || Error::new(ErrorKind::NotMember, "only members make a communicator").with_group(group, self.rank());
        let me = group.position(self.rank()).ok_or_else(not_member)?;
        if group.len() > MOST_MEMBERS {
            return Err(Error::new(
                ErrorKind::Limit {
                    which: "members of an shm group".into(),
                    have: MOST_MEMBERS as u64,
                    need: group.len() as u64,
                },
                "use smaller groups",
            ));
        }
        let layout = Layout::new(group.len());
        let (own, attachment) = new_segment(rank, layout.bytes, group.len())?;
        let mut payload = PROTOCOL.to_le_bytes().to_vec();
        payload.extend(table().to_bytes());
        let key = format!("shm/comm/{:x}/{group:?}/{:x}", spec.tag, group.stable_hash());
        let what = match spec.tag {
            0 => format!("group {group}"),
            _ => format!("split communicator {group}"),
        };
        // From here on peers may hold this rank's segment: if no communicator comes of it they must see that it left.
        let mut unfinished = Unfinished { own, finished: false };
        let parts = rank.exchange(&key, &what, group, &payload, attachment, deadline)?;
        let mut caps = table();
        let mut attachments = Vec::new();
        for (member, (bytes, attachment)) in parts.into_iter().enumerate() {
            let (theirs, member_table) = read_offer(&bytes);
            if theirs != PROTOCOL {
                return Err(Error::new(
                    ErrorKind::Refused {
                        key: "shm protocol".into(),
                        ours: PROTOCOL.to_string(),
                        theirs: theirs.to_string(),
                    },
                    "all ranks must run the same version of rankwise",
                )
                .with_peers(group.global(member)));
            }
            if let Some(member_table) = member_table {
                caps = caps.intersection(&member_table);
            }
            attachments.push(attachment);
        }
        let segments = open_segments(me, unfinished.own.clone(), attachments.into_iter())?;
        unfinished.finished = true;
        let rules = WaitRules::new(rank.settings.wait, fits(&rank.world));
        let comm = Comm::new(spec.clone(), me, caps, rules, rank.clone(), segments);
        Ok(Arc::new(ShmCommunicator(Arc::new(comm))))
    }
}

/// The own segment of a communicator in the making.
struct Unfinished {
    own: Arc<Segment>,
    finished: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished {
            Comm::leave_segment(&self.own);
        }
    }
}

/// A member's protocol version and capability table.
fn read_offer(bytes: &[u8]) -> (u32, Option<Capabilities>) {
    match bytes.split_first_chunk() {
        Some((version, table)) => (u32::from_le_bytes(*version), Capabilities::from_bytes(table)),
        None => (0, None),
    }
}
