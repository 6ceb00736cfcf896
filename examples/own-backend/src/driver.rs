//! How the backend is found, what it offers, and how the members of a group get connected.

#![allow(unsafe_code)]

use crate::communicator::StarCommunicator;
use crate::hub;
use rankwise_core::backend::{CommSpec, RawBackend, RawCommunicator};
use rankwise_core::{
    Capabilities, Config, DType, DTypeSet, DeadlineSupport, Determinism, Error, ErrorKind, OpKind, ReduceOp, Result,
};
use rankwise_world::{Attachment, Driver, ProbeReport, World};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The largest buffer of a call.
pub(crate) const MAX_BYTES: u64 = 1 << 28;

/// Finds and joins the backend.
pub struct StarDriver;

impl Driver for StarDriver {
    fn name(&self) -> &'static str {
        "star"
    }

    fn description(&self) -> &'static str {
        "ranks of one host, through Unix sockets to the first of them"
    }

    fn probe(&self, _: &World) -> Result<ProbeReport> {
        // Nothing to look for: the standard library is all it needs. An engine would be loaded here, without joining it.
        Ok(ProbeReport::default().with("version", env!("CARGO_PKG_VERSION")))
    }

    fn join(&self, world: &World, _: &Config) -> Result<Arc<dyn RawBackend>> {
        Ok(Arc::new(StarBackend { world: world.clone() }))
    }
}

/// One joined rank, which makes communicators.
struct StarBackend {
    world: World,
}

pub(crate) fn table() -> Capabilities {
    Capabilities::none()
        .with_kinds(&[OpKind::AllReduce, OpKind::AllGather, OpKind::Broadcast, OpKind::Barrier])
        .with_reduce(ReduceOp::Sum, DTypeSet::of(&[DType::F32]))
        .with_moves(DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits()))
        .with_spaces(true, false)
        .with_determinism(Determinism::Fixed)
        .with_deadline(DeadlineSupport::Enforced)
        .with_agreement(true)
        .with_nonblocking(false, false)
        .with_max_bytes(MAX_BYTES)
}

// SAFETY: the communicators it makes keep the promises of `RawCommunicator`; see there.
unsafe impl RawBackend for StarBackend {
    fn name(&self) -> &'static str {
        "star"
    }

    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn world_size(&self) -> usize {
        self.world.size()
    }

    fn capabilities(&self) -> Capabilities {
        table()
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let group = &spec.group;
        let me = group.position(self.rank()).ok_or_else(|| Error::new(ErrorKind::NotMember, "not a member"))?;
        let (mine, theirs) = UnixStream::pair().map_err(|error| cannot("make a socket pair", error))?;

        // Everybody offers one end of a pair; the first member keeps them all. The key tells communicators of equal members
        // apart; the members' tables would travel in the payload if they could differ.
        let (key, what) = (format!("star/{:x}/{group}", spec.tag), format!("group {group}"));
        let offer = Attachment::Fd(OwnedFd::from(theirs));
        let offers = self.world.store().exchange(&key, &what, group, &[], offer, deadline)?;
        if me == 0 {
            let ends: Vec<UnixStream> = offers
                .into_iter()
                .filter_map(|(_, end)| match end {
                    Attachment::Fd(end) => Some(UnixStream::from(end)),
                    _ => None,
                })
                .collect();
            if ends.len() != group.len() {
                return Err(Error::config("a member offered no socket; are the versions equal?"));
            }
            hub::serve(group, ends).map_err(|error| cannot("start the hub", error))?;
        } else {
            // Only the hub may hold the far ends: a member is gone when its own end closes.
            drop(offers);
        }
        let communicator = StarCommunicator::new(group.clone(), mine);
        Ok(Arc::new(communicator.map_err(|error| cannot("connect to the hub", error))?))
    }
}

fn cannot(what: &str, error: std::io::Error) -> Error {
    Error::config(format!("star can't {what}; see the limits of threads and open files")).with_source(error)
}
