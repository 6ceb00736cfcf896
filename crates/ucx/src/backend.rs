//! The driver: probing, joining and making communicators.

use crate::channel::Channel;
use crate::communicator::UcxCommunicator;
use crate::core::Core;
use crate::engine::Engine;
use crate::library::library;
use crate::transport::{Options, UcxTransport};
use rankwise_core::backend::{CommSpec, RawBackend, RawCommunicator};
use rankwise_core::fork::Generation;
use rankwise_core::{
    Capabilities, Config, DType, DTypeSet, DeadlineSupport, Determinism, Error, ErrorKind, OpKind, ReduceOp, Result,
};
use rankwise_schedule::Table;
use rankwise_world::{Attachment, Driver, ProbeReport, World};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Version of what members say to each other.
const PROTOCOL: u32 = 1;

/// Communicators of a rank, since it joined.
const MOST: u64 = 65_535;

/// The driver of the backend over UCX.
pub fn driver() -> &'static dyn Driver {
    &UcxDriver
}

struct UcxDriver;

impl Driver for UcxDriver {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn description(&self) -> &'static str {
        "messages over UCX: RDMA, TCP and shared memory between any hosts, without MPI"
    }

    fn probe(&self, _world: &World) -> Result<ProbeReport> {
        let (major, minor, patch) = library()?.version;
        Ok(ProbeReport::default()
            .with("version", format!("UCX {major}.{minor}.{patch}"))
            .with("protocol", PROTOCOL)
            .with("kernels", rankwise_reduce::Isa::best().name()))
    }

    fn join(&self, world: &World, config: &Config) -> Result<Arc<dyn RawBackend>> {
        if let Some(mode) = rankwise_reduce::ftz::flush_mode() {
            tracing::warn!(mode, "the program flushes subnormal numbers; reductions of them will not be exact");
        }
        let settings = config.resolve()?;
        let options = Options { deadline: settings.join_timeout, ..Options::default() };
        let transport = UcxTransport::join(world, options)?;
        let engine = Engine::new(Core::new(transport), world.clone(), settings)?;
        Ok(Arc::new(UcxBackend { engine: Arc::new(engine), table: Table::default() }))
    }
}

fn table() -> Capabilities {
    let mut table = Capabilities::none()
        .with_kinds(&OpKind::DATA)
        .with_moves(DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits()))
        .with_spaces(true, false)
        .with_determinism(Determinism::Fixed)
        .with_deadline(DeadlineSupport::Enforced)
        .with_agreement(true)
        .with_nonblocking(true, false)
        .with_max_bytes(i64::MAX as u64)
        .with_threshold("with the descriptor", crate::request::TOGETHER as u64);
    for (op, types) in ReduceOp::ALL.into_iter().zip(rankwise_reduce::supported()) {
        table = table.with_reduce(op, types);
    }
    table
}

struct UcxBackend {
    engine: Arc<Engine>,
    /// Which plan for which call.
    table: Table,
}

// SAFETY: the communicators keep the promises of `RawCommunicator`, see there.
unsafe impl RawBackend for UcxBackend {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn rank(&self) -> usize {
        self.engine.world.rank()
    }

    fn world_size(&self) -> usize {
        self.engine.world.size()
    }

    fn capabilities(&self) -> Capabilities {
        table()
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let group = &spec.group;
        let me = group.position(self.rank()).ok_or_else(|| {
            Error::new(ErrorKind::NotMember, "only members make a communicator").with_group(group, self.rank())
        })?;
        let number = self.agree(spec, deadline)?;
        let selection = self.table.select(group.len(), spec.determinism);
        let mut core = self.engine.lock();
        core.transport().adopt(number);
        core.channels.insert(number, Channel::new(spec.clone(), me, selection));
        let early = std::mem::take(&mut core.early);
        // Those of other communicators are put back.
        early.into_iter().for_each(|word| core.hear(word));
        drop(core);
        Ok(Arc::new(UcxCommunicator {
            engine: self.engine.clone(),
            number,
            group: group.clone(),
            capabilities: table(),
            generation: Generation::current(),
        }))
    }
}

impl UcxBackend {
    /// All members are there, mean the same, and none of them has used the number that is returned.
    fn agree(&self, spec: &CommSpec, deadline: Duration) -> Result<u16> {
        let began = Instant::now();
        let group = &spec.group;
        let store = self.engine.world.store();
        let key = format!("ucx/comm/{:x}/{group:?}/{:x}", spec.tag, group.stable_hash());
        let what = match spec.tag {
            0 => format!("group {group}"),
            _ => format!("split communicator {group}"),
        };
        let ours = format!(
            "protocol {PROTOCOL}, check {}, determinism {:?}, plans {:016x}",
            spec.check,
            spec.determinism,
            self.table.stable_hash()
        );
        let highest = self.engine.lock().numbers.iter().copied().max().unwrap_or(0);
        let mut payload = (u64::from(highest) + 1).to_le_bytes().to_vec();
        payload.extend(ours.as_bytes());
        let parts = store.exchange(&key, &what, group, &payload, Attachment::None, deadline)?;
        let mut number = 0;
        for (member, (payload, _)) in parts.iter().enumerate() {
            let (theirs, settings) = payload.split_first_chunk().unwrap_or((&[0; 8], payload));
            number = number.max(u64::from_le_bytes(*theirs));
            if settings != ours.as_bytes() {
                let theirs = String::from_utf8_lossy(settings).into_owned();
                return Err(Error::new(
                    ErrorKind::Refused { key: "settings of the ucx backend".into(), ours, theirs },
                    "all ranks must run with the same settings and the same version of rankwise",
                )
                .with_peers(group.global(member)));
            }
        }
        loop {
            if number > MOST {
                let kind = ErrorKind::Limit { which: "communicators of a rank".into(), have: MOST, need: number };
                return Err(Error::new(kind, "join again to make more"));
            }
            let free = self.engine.lock().numbers.insert(number as u16);
            let left = deadline.saturating_sub(began.elapsed());
            let key = format!("{key}/{number}");
            let parts = store.exchange(&key, &what, group, &[u8::from(free)], Attachment::None, left)?;
            if parts.iter().all(|(free, _)| free[..] == [1]) {
                return Ok(number as u16);
            }
            number += 1;
        }
    }
}
