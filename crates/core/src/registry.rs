//! [`Backend`]: a joined engine on this rank and the groups registered on it.

use crate::backend::{CommSpec, RawBackend};
use crate::caps::Capabilities;
use crate::comm::Communicator;
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::Generation;
use crate::group::Group;
use crate::member::{Member, not_member};
use crate::op::OpKind;
use std::collections::HashMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// One joined engine on this rank. Cloning is cheap; the engine is left when the last clone and the last communicator
/// are gone.
///
/// Collectives by group go through [`CommBackend`](crate::CommBackend), which it implements; typed ones through
/// [`Backend::communicator`].
#[derive(Clone)]
pub struct Backend(Arc<Joined>);

struct Joined {
    raw: ManuallyDrop<Arc<dyn RawBackend>>,
    settings: Settings,
    capabilities: Capabilities,
    groups: RwLock<HashMap<Group, Slot>>,
    generation: Generation,
}

enum Slot {
    /// A thread of this rank is registering it.
    Registering,
    Ready(Arc<Member>),
}

impl Drop for Joined {
    fn drop(&mut self) {
        // In a forked child the engine belongs to the parent.
        if self.generation.is_current() {
            drop_raw(&mut self.raw);
        }
    }
}

#[allow(unsafe_code)]
fn drop_raw(raw: &mut ManuallyDrop<Arc<dyn RawBackend>>) {
    // SAFETY: called once, from the Drop of the owner.
    unsafe { ManuallyDrop::drop(raw) };
}

impl Backend {
    /// Wraps a joined engine. No communication.
    pub fn new(raw: Arc<dyn RawBackend>, settings: Settings) -> Backend {
        Backend(Arc::new(Joined {
            capabilities: raw.capabilities(),
            raw: ManuallyDrop::new(raw),
            settings,
            groups: RwLock::default(),
            generation: Generation::current(),
        }))
    }

    /// The engine's name, as in `RANKWISE_BACKEND`.
    pub fn name(&self) -> &'static str {
        self.0.raw.name()
    }

    /// This rank's global rank.
    pub fn rank(&self) -> usize {
        self.0.raw.rank()
    }

    /// Number of ranks in the world.
    pub fn world_size(&self) -> usize {
        self.0.raw.world_size()
    }

    /// What this rank could offer; a communicator's table is the intersection over its members.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// The settings it was joined with.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Registers a group. Collective over its members, who register their groups in the same order; waits for them
    /// within [`Settings::join_timeout`]. A second time it returns at once.
    ///
    /// `InvalidArgument` when a rank of the group is not in the world; `NotMember` when this rank is not in the group;
    /// `Busy` while another thread registers the same group; `Timeout` naming the missing members; `UnsupportedMode`
    /// when the engine does not offer [`Settings::determinism`].
    pub fn register(&self, group: &Group) -> Result<()> {
        self.registered(group).map(drop)
    }

    /// Whether [`Backend::register`] has succeeded for this group.
    pub fn is_registered(&self, group: &Group) -> bool {
        matches!(self.groups().get(group), Some(Slot::Ready(_)))
    }

    /// A typed handle of the group, which is registered when it is not yet (see [`Backend::register`]).
    ///
    /// All handles of one group share its sequence of calls and its busy flag.
    pub fn communicator(&self, group: &Group) -> Result<Communicator> {
        Ok(Communicator::new(self.clone(), self.registered(group)?))
    }

    /// The communicator of all ranks in order.
    pub fn world(&self) -> Result<Communicator> {
        self.communicator(&Group::world(self.world_size()))
    }

    pub(crate) fn raw(&self) -> &dyn RawBackend {
        &**self.0.raw
    }

    /// The group if it is registered: `NotMember` before `UnknownGroup`.
    pub(crate) fn lookup(&self, group: &Group, kind: OpKind) -> Result<Arc<Member>> {
        if let Some(Slot::Ready(member)) = self.groups().get(group) {
            return Ok(member.clone());
        }
        let error = if group.contains(self.rank()) {
            Error::new(
                ErrorKind::UnknownGroup,
                format!("the group {group} is not registered on this backend; call register on all its members first"),
            )
        } else {
            not_member(group, self.rank())
        };
        Err(error.with_operation(kind).with_group(group, self.rank()))
    }

    fn registered(&self, group: &Group) -> Result<Arc<Member>> {
        let blame = |error: Error| error.with_operation(OpKind::Register).with_group(group, self.rank());
        self.register_new(group).map_err(blame)
    }

    fn register_new(&self, group: &Group) -> Result<Arc<Member>> {
        let world = self.world_size();
        if let Some(rank) = group.ranks().find(|rank| *rank >= world) {
            return Err(Error::invalid(format!(
                "global rank {rank} of the group {group} is not in this world of {world}; ranks count from 0"
            )));
        }
        if !group.contains(self.rank()) {
            return Err(not_member(group, self.rank()));
        }
        if !self.0.generation.is_current() {
            return Err(Error::new(
                ErrorKind::ForkedProcess,
                "this backend was joined before a fork; use it in the parent, and start ranks by exec, not by fork",
            ));
        }
        match self.groups().get(group) {
            Some(Slot::Ready(member)) => return Ok(member.clone()),
            Some(Slot::Registering) => return Err(being_registered()),
            None => {}
        }
        {
            let mut groups = self.groups_mut();
            match groups.get(group) {
                Some(Slot::Ready(member)) => return Ok(member.clone()),
                Some(Slot::Registering) => return Err(being_registered()),
                None => groups.insert(group.clone(), Slot::Registering),
            };
        }
        let pending = Pending { backend: self, group };
        let member = Arc::new(self.join(group, 0)?);
        pending.succeed(&member);
        Ok(member)
    }

    /// Makes this rank's member of a new communicator. Collective when the group has more than one.
    pub(crate) fn join(&self, group: &Group, tag: u64) -> Result<Member> {
        let settings = self.settings();
        let raw = if group.len() > 1 {
            let spec = CommSpec { group: group.clone(), tag, determinism: settings.determinism, check: settings.check };
            Some(self.raw().communicator(&spec, settings.join_timeout)?)
        } else {
            None
        };
        Member::new(raw, group, self.rank(), tag, self.capabilities())
    }

    fn groups(&self) -> RwLockReadGuard<'_, HashMap<Group, Slot>> {
        self.0.groups.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn groups_mut(&self) -> RwLockWriteGuard<'_, HashMap<Group, Slot>> {
        self.0.groups.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registration under way; withdrawn when it fails or panics.
struct Pending<'a> {
    backend: &'a Backend,
    group: &'a Group,
}

impl Pending<'_> {
    fn succeed(self, member: &Arc<Member>) {
        self.backend.groups_mut().insert(self.group.clone(), Slot::Ready(member.clone()));
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut groups = self.backend.groups_mut();
        if matches!(groups.get(self.group), Some(Slot::Registering)) {
            groups.remove(self.group);
        }
    }
}

#[cold]
fn being_registered() -> Error {
    Error::new(ErrorKind::Busy, "another thread is registering this group; let one thread register groups")
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({}, rank {} of {})", self.name(), self.rank(), self.world_size())
    }
}
