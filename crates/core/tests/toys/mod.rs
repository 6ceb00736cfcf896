//! Three toy backends that prove the backend interface, and what they share: meeting, poison, sequence numbers.
//!
//! Ranks are threads. `direct` copies into a [`table`], `transport` moves messages in [`steps`], `stream` enqueues calls on
//! worker threads that meet in a [`table`]. [`exchange`] is rank arithmetic. Liveness is no toy: here nobody shrinks, and
//! ranks that leave are missed at the deadline.

/// The methods that are the same for every toy's communicator.
macro_rules! toy_members {
    () => {
        fn group(&self) -> &rankwise_core::Group {
            &self.member.group
        }

        fn capabilities(&self) -> &rankwise_core::Capabilities {
            &self.member.capabilities
        }

        fn shrink(&self, _: Duration) -> Result<Arc<dyn RawCommunicator>> {
            Err(super::no_shrink())
        }

        fn finalize(&self, deadline: Duration) -> Result<()> {
            let until = ends(deadline);
            self.settle(until)?;
            let goodbye = super::Member::agreement(rankwise_core::OpKind::Finalize, 0);
            // SAFETY: the call lends no memory.
            unsafe { self.run(&[goodbye], until.saturating_duration_since(Instant::now())) }
        }
    };
}

pub(crate) mod device;
pub(crate) mod direct;
pub(crate) mod event;
pub(crate) mod exchange;
pub(crate) mod refusals;
pub(crate) mod segment;
pub(crate) mod spi;
pub(crate) mod steps;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod table;
pub(crate) mod transport;
pub(crate) mod typed;

use exchange::Exchange;
use rankwise_core::backend::{CommSpec, RawBackend, RawCall, RawCommunicator, Refusal};
use rankwise_core::{Capabilities, DType, DTypeSet, Determinism, Error, ErrorKind, Group, OpKind, ReduceOp, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The kinds all three toys offer; the tables decline reduce, gather, scatter and their v-forms.
pub(crate) const KINDS: [OpKind; 11] = [
    OpKind::AllReduce,
    OpKind::AllGather,
    OpKind::ReduceScatter,
    OpKind::AllToAll,
    OpKind::Broadcast,
    OpKind::Barrier,
    OpKind::AllGatherV,
    OpKind::ReduceScatterV,
    OpKind::AllToAllV,
    OpKind::Send,
    OpKind::Recv,
];

/// What the toys have in common: sums of f32 and i32 in group order, any movement, host memory.
pub(crate) fn offers(determinism: Determinism, alloc: bool) -> Capabilities {
    Capabilities::none()
        .with_kinds(&KINDS)
        .with_reduce(ReduceOp::Sum, DTypeSet::of(&[DType::F32, DType::I32]))
        .with_moves(DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits()))
        .with_spaces(true, false)
        .with_determinism(determinism)
        .with_deadline(rankwise_core::DeadlineSupport::Enforced)
        .with_agreement(true)
        .with_nonblocking(true, alloc)
        .with_max_bytes(1 << 30)
}

/// A lock that a failed test elsewhere does not turn into a second failure here.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The moment a deadline ends; far away instead of overflowing.
pub(crate) fn ends(deadline: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(deadline).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}

/// The calls that are numbered together: those of all members, or those from one position to another.
type Channel = Option<(usize, usize)>;

/// Where a call meets its peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(Channel, u64);

/// The calls of one launch, each with where it meets its peers.
pub(crate) type Parts = VecDeque<(Key, Exchange)>;

/// Whether the call is between two members only.
pub(crate) fn is_pair(kind: OpKind) -> bool {
    matches!(kind, OpKind::Send | OpKind::Recv)
}

/// One member of a communicator: what every toy's communicator needs to know about itself.
pub(crate) struct Member {
    pub(crate) group: Group,
    /// Position in the group.
    pub(crate) me: usize,
    pub(crate) capabilities: Capabilities,
    counters: Mutex<Vec<(Channel, u64)>>,
    told: AtomicBool,
}

impl Member {
    pub(crate) fn new(spec: &CommSpec, rank: usize, capabilities: Capabilities) -> Result<Member> {
        if spec.determinism > capabilities.determinism() {
            return Err(Error::new(ErrorKind::UnsupportedMode, "this toy folds in no fixed order; ask for less"));
        }
        let me = spec.group.position(rank).ok_or_else(|| Error::new(ErrorKind::NotMember, "not a member"))?;
        let (counters, told) = (Mutex::default(), AtomicBool::new(false));
        Ok(Member { group: spec.group.clone(), me, capabilities, counters, told })
    }

    /// Takes the next sequence number of the call's channel.
    pub(crate) fn key(&self, kind: OpKind, root: usize) -> Key {
        let channel = match kind {
            OpKind::Send => Some((self.me, root)),
            OpKind::Recv => Some((root, self.me)),
            _ => None,
        };
        let mut counters = lock(&self.counters);
        match counters.iter_mut().find(|(known, _)| *known == channel) {
            Some((_, next)) => *next += 1,
            None => counters.push((channel, 1)),
        }
        Key(channel, counters.iter().find(|(known, _)| *known == channel).map_or(1, |(_, next)| *next))
    }

    /// Takes the sequence numbers of calls that are launched as one.
    pub(crate) fn parts(&self, calls: &[RawCall<'_>]) -> Parts {
        let (mut place, total) = (0, calls.iter().filter(|call| !is_pair(call.kind)).count());
        let part = |call: &RawCall<'_>| {
            let x = Exchange::new(call, self.me, self.group.len(), (place, total));
            place += usize::from(!is_pair(call.kind));
            (self.key(call.kind, call.root), x)
        };
        calls.iter().map(part).collect()
    }

    /// Takes the sequence numbers of a refused call; with the positions that meet there, this member's included.
    pub(crate) fn refused(&self, refusal: &Refusal<'_>) -> (Vec<Key>, Vec<usize>) {
        let meet = match (is_pair(refusal.kind), refusal.peer) {
            (true, Some(peer)) => vec![self.me, peer],
            // There is no such peer, so nobody waits for it.
            (true, None) => return (Vec::new(), Vec::new()),
            _ => (0..self.group.len()).collect(),
        };
        let keys = (0..refusal.calls).map(|_| self.key(refusal.kind, refusal.peer.unwrap_or(0))).collect();
        (keys, meet)
    }

    /// What a peer learns from a rejection by the member at `by`.
    pub(crate) fn peer_rejected(&self, by: usize, why: &Error) -> Error {
        let rank = self.group.global(by).unwrap_or(by);
        let text = format!("rank {rank} refused its own arguments ({why}); correct them there and call again");
        Error::new(ErrorKind::PeerRejected, text).with_peers([rank])
    }

    /// The error of a call whose deadline passed before the members at `missing` came.
    pub(crate) fn timeout(&self, missing: impl IntoIterator<Item = usize>) -> Error {
        let missing: Vec<usize> = missing.into_iter().filter_map(|p| self.group.global(p)).collect();
        let text = format!("ranks {missing:?} have not arrived; look at what they do");
        Error::new(ErrorKind::Timeout, text).with_peers(missing)
    }

    pub(crate) fn aborted(&self) -> Error {
        let rank = self.group.global(self.me).unwrap_or(self.me);
        let text = format!("rank {rank} aborted, or cancelled a call in flight; make a new communicator");
        Error::new(ErrorKind::Aborted, text).with_peers([rank])
    }

    /// Refuses a call on a broken communicator: the first call after an abort learns `Aborted`, later ones `Poisoned`.
    pub(crate) fn enter(&self, fate: &Fate) -> Result<()> {
        let Some(cause) = fate.cause() else { return Ok(()) };
        if cause.kind() == &ErrorKind::Aborted && !self.told.swap(true, Ordering::Relaxed) {
            return Err(cause);
        }
        Err(Error::new(ErrorKind::Poisoned, "an earlier call failed; make a new communicator").with_source(cause))
    }

    /// The cause for a call that was running when the communicator broke.
    pub(crate) fn interrupted(&self, fate: &Fate) -> Result<()> {
        fate.cause().map_or(Ok(()), |cause| {
            self.told.store(true, Ordering::Relaxed);
            Err(cause)
        })
    }

    /// The arguments of a collective that moves nothing but must be met by all with the same numbers.
    pub(crate) fn agreement(kind: OpKind, count: usize) -> RawCall<'static> {
        RawCall::new(kind, DType::U8, count)
    }
}

/// The refusal of a stream by a toy that has none; no capability says so, hence each backend must.
pub(crate) fn host_only(queue: rankwise_core::Queue) -> Result<()> {
    match queue {
        rankwise_core::Queue::Host => Ok(()),
        _ => Err(Error::new(ErrorKind::UnsupportedMode, "this backend has no streams; use the host queue")),
    }
}

/// Tells the peers of calls that the backend itself refuses; returns why.
pub(crate) fn refuse_all(comm: &dyn RawCommunicator, calls: &[RawCall<'_>], why: Error) -> Error {
    for call in calls {
        let mut refusal = Refusal::new(call.kind, &why, 1);
        refusal.peer = is_pair(call.kind).then_some(call.root);
        comm.reject(&refusal);
    }
    why
}

pub(crate) fn no_shrink() -> Error {
    let (function, needs, have) = ("shrink".into(), "a backend with liveness".into(), "a toy".into());
    Error::new(ErrorKind::Unsupported { function, needs, have }, "toys can't shrink; make a new world")
}

/// Why a communicator is broken; the first cause stays.
#[derive(Default)]
pub(crate) struct Fate(Mutex<Option<Error>>);

impl Fate {
    /// Breaks the communicator unless it is broken; returns the cause that counts.
    pub(crate) fn set(&self, error: Error) -> Error {
        lock(&self.0).get_or_insert(error).clone()
    }

    pub(crate) fn cause(&self) -> Option<Error> {
        lock(&self.0).clone()
    }
}

type Make<S> = Box<dyn Fn(Member, Arc<S>) -> Arc<dyn RawCommunicator> + Send + Sync>;

/// A backend: meeting is the same for all toys, `make` is the toy.
pub(crate) struct Toy<S> {
    pub(crate) name: &'static str,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) capabilities: Capabilities,
    pub(crate) meeting: Arc<Meeting<S>>,
    pub(crate) make: Make<S>,
    /// Advances what is in flight on this rank.
    pub(crate) progress: Box<dyn Fn() + Send + Sync>,
}

// SAFETY: each `make` returns a communicator that keeps the promises of `RawCommunicator`.
unsafe impl<S: Default + Send + Sync + 'static> RawBackend for Toy<S> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn rank(&self) -> usize {
        self.rank
    }
    fn world_size(&self) -> usize {
        self.size
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }
    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let member = Member::new(spec, self.rank, self.capabilities())?;
        Ok((self.make)(member, self.meeting.join(self.rank, spec, deadline, &self.progress)?))
    }
}

/// Where the members of a group meet to make a communicator with the shared state `S`.
pub(crate) struct Meeting<S> {
    waiting: Mutex<Vec<Waiting<S>>>,
    changed: Condvar,
}

struct Waiting<S> {
    group: Group,
    tag: u64,
    /// Global ranks.
    joined: Vec<usize>,
    shared: Arc<S>,
}

impl<S: Default> Meeting<S> {
    pub(crate) fn new() -> Arc<Meeting<S>> {
        Arc::new(Meeting { waiting: Mutex::default(), changed: Condvar::new() })
    }

    /// Returns when every member has come with the same tuple and tag; makes progress meanwhile.
    pub(crate) fn join(&self, rank: usize, spec: &CommSpec, deadline: Duration, progress: &dyn Fn()) -> Result<Arc<S>> {
        let until = ends(deadline);
        let mut waiting = lock(&self.waiting);
        let found = waiting.iter().position(|entry| entry.group == spec.group && entry.tag == spec.tag);
        let found = found.unwrap_or_else(|| {
            let (group, tag, joined, shared) = (spec.group.clone(), spec.tag, Vec::new(), Arc::default());
            waiting.push(Waiting { group, tag, joined, shared });
            waiting.len() - 1
        });
        waiting[found].joined.push(rank);
        let shared = Arc::clone(&waiting[found].shared);
        if waiting[found].joined.len() == spec.group.len() {
            waiting.remove(found);
            self.changed.notify_all();
            return Ok(shared);
        }
        loop {
            let Some(entry) = waiting.iter_mut().find(|entry| Arc::ptr_eq(&entry.shared, &shared)) else {
                return Ok(shared);
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing: Vec<usize> = spec.group.ranks().filter(|rank| !entry.joined.contains(rank)).collect();
                entry.joined.retain(|joined| *joined != rank);
                let others = waiting.iter().filter(|other| other.joined.iter().any(|rank| missing.contains(rank)));
                let others: Vec<String> = others.map(|other| other.group.to_string()).collect();
                let text = format!("ranks {missing:?} did not register {}, they registered {others:?}", spec.group);
                return Err(Error::new(ErrorKind::Timeout, text).with_peers(missing));
            }
            progress();
            let slice = left.min(Duration::from_micros(200));
            waiting = self.changed.wait_timeout(waiting, slice).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}
