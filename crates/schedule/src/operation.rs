//! One call on its way through its plan.

#![allow(unsafe_code)]

use crate::memory::Memory;
use crate::plan::{Local, Plan, Round};
use crate::transport::{Envelope, FIRST, Lent, PAIR_LANE, Tag, Transport, mismatch};
use rankwise_core::backend::RawCall;
use rankwise_core::descriptor::{self, Words};
use rankwise_core::{Error, ErrorKind, Group, OpKind, Result};

/// What the messages of a call are marked with.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The communicator, agreed by its members.
    pub communicator: u16,
    /// The call's number on its communicator; for sends and receives, among those of its pair of ranks and direction.
    pub sequence: u64,
    /// The call's descriptor; of a receive that of the send it waits for.
    pub words: Words,
}

impl Stamp {
    /// The stamp of a call. `launch` is as in [`descriptor::words`].
    pub fn new(communicator: u16, sequence: u64, call: &RawCall<'_>, launch: u64) -> Stamp {
        let mut call = *call;
        if call.kind == OpKind::Recv {
            call.kind = OpKind::Send;
        }
        Stamp { communicator, sequence, words: descriptor::words(&call, launch) }
    }
}

/// One call: a plan, its memory, and the messages under way. Small, and reused for later calls.
///
/// [`Operation::poll`] moves it on as far as the transport allows and returns at once.
pub(crate) struct Operation<R, M> {
    pub(crate) plan: Plan,
    pub(crate) memory: M,
    group: Group,
    stamp: Stamp,
    lanes: Vec<Lane<R>>,
    met: Met,
    state: State,
}

enum State {
    Running,
    /// Failed; waits until the transport has let go of all memory.
    Draining(Error),
    Idle(Option<Error>),
}

/// A chunk on its way.
struct Lane<R> {
    chunk: usize,
    round: usize,
    /// Whether the current round has been posted; its steps are `steps`.
    posted: bool,
    steps: Round,
    pending: Vec<Pending<R>>,
}

struct Pending<R> {
    request: R,
    lent: Lent,
    /// Global rank of the other side.
    peer: usize,
}

/// The members that the first chunk has sent to and received from: a first message carries the descriptor.
#[derive(Default)]
struct Met {
    sent: Vec<u64>,
    received: Vec<u64>,
}

impl<R, M: Memory + Default> Operation<R, M> {
    pub(crate) fn new() -> Operation<R, M> {
        Operation {
            plan: Plan::default(),
            memory: M::default(),
            group: Group::world(1),
            stamp: Stamp { communicator: 0, sequence: 0, words: [0; 3] },
            lanes: Vec::new(),
            met: Met::default(),
            state: State::Idle(None),
        }
    }
}

impl<R, M: Memory> Operation<R, M> {
    /// Begins with the plan and the memory as they are now. Nothing is posted before the first poll.
    ///
    /// # Safety
    ///
    /// The memory is valid as [`Memory`] says, until the operation is idle.
    pub(crate) unsafe fn begin(&mut self, group: &Group, stamp: Stamp) {
        self.group = group.clone();
        self.stamp = stamp;
        let lanes = self.plan.lanes();
        self.lanes.resize_with(lanes.max(self.lanes.len()), || Lane {
            chunk: 0,
            round: 0,
            posted: false,
            steps: Round::default(),
            pending: Vec::new(),
        });
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            // Lanes beyond those of the plan are beyond its chunks, too.
            (lane.chunk, lane.round, lane.posted) = (index, 0, false);
        }
        self.met.forget(self.plan.members());
        self.state = State::Running;
    }

    /// Whether the transport touches nothing of this call's memory any more.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Why it failed.
    pub(crate) fn error(&self) -> Option<&Error> {
        match &self.state {
            State::Running => None,
            State::Draining(error) => Some(error),
            State::Idle(error) => error.as_ref(),
        }
    }

    /// The memory that the transport may still touch.
    pub(crate) fn held(&self) -> impl Iterator<Item = Lent> + '_ {
        self.lanes.iter().flat_map(|lane| lane.pending.iter().map(|pending| pending.lent))
    }

    /// The error of a call whose deadline has passed: it names the members whose messages are missing.
    pub(crate) fn timeout(&self) -> Error {
        let mut peers: Vec<usize> = self.lanes.iter().flat_map(|lane| lane.pending.iter().map(|p| p.peer)).collect();
        peers.sort_unstable();
        peers.dedup();
        let names = peers.iter().take(8).map(usize::to_string).collect::<Vec<_>>().join(", ");
        let more = if peers.len() > 8 { format!(" and {} more", peers.len() - 8) } else { String::new() };
        let message = format!(
            "messages from or to rank {names}{more} are missing; do these ranks still compute, or have they called something else?"
        );
        self.tell(Error::new(ErrorKind::Timeout, message).with_peers(peers))
    }

    fn tell(&self, error: Error) -> Error {
        error
            .with_operation(self.plan.kind())
            .with_group(&self.group, self.global(self.plan.me()))
            .with_sequence(self.stamp.sequence)
    }

    /// Moves on as far as possible; a thorough poll looks at every message for an error, others stop at the first that is missing. True once idle.
    pub(crate) fn poll<T: Transport<Request = R>>(&mut self, transport: &T, thorough: bool) -> bool {
        if let State::Running = self.state {
            let mut lanes = std::mem::take(&mut self.lanes);
            let mut all_done = true;
            let mut failed = None;
            for lane in &mut lanes {
                match self.advance(lane, transport, thorough) {
                    Ok(done) => all_done &= done,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            self.lanes = lanes;
            if thorough && !all_done && failed.is_none() && !self.is_of_a_pair() {
                let stray = transport.stray(Tag { round: FIRST, ..self.tag(0, 0) }, self.stamp.words);
                failed = stray.map(|(peer, theirs)| mismatch(peer, theirs, self.stamp.words));
            }
            match failed {
                Some(error) => self.stop(transport, self.tell(error)),
                None if all_done => self.state = State::Idle(None),
                None => {}
            }
        }
        if let State::Draining(_) = self.state
            && self.lanes.iter_mut().all(|lane| lane.drain(transport))
            && let State::Draining(error) = std::mem::replace(&mut self.state, State::Running)
        {
            self.state = State::Idle(Some(error));
        }
        self.is_idle()
    }

    /// Ends it early: cancels its messages. It is idle when the transport has let go of them. The first error stays.
    pub(crate) fn stop<T: Transport<Request = R>>(&mut self, transport: &T, error: Error) {
        if let State::Running = self.state {
            for pending in self.lanes.iter_mut().flat_map(|lane| &mut lane.pending) {
                transport.cancel(&mut pending.request);
            }
            self.state = State::Draining(error);
        }
    }

    /// Moves a lane on as far as possible. True once there is nothing left for it.
    fn advance<T>(&mut self, lane: &mut Lane<R>, transport: &T, thorough: bool) -> Result<bool>
    where
        T: Transport<Request = R>,
    {
        while lane.chunk < self.plan.chunks() {
            if !lane.posted {
                self.plan.round(lane.chunk, lane.round, &mut lane.steps);
                lane.posted = true;
                self.post(lane, transport)?;
                self.carry_out(&lane.steps.meanwhile, &lane.steps);
            }
            if !lane.settle(transport, thorough)? {
                return Ok(false);
            }
            self.carry_out(&lane.steps.after, &lane.steps);
            lane.posted = false;
            lane.round += 1;
            if lane.round == self.plan.rounds() {
                (lane.chunk, lane.round) = (lane.chunk + self.plan.lanes(), 0);
            }
        }
        Ok(true)
    }

    fn post<T: Transport<Request = R>>(&mut self, lane: &mut Lane<R>, transport: &T) -> Result<()> {
        let tag = self.tag(lane.chunk, lane.round);
        for message in &lane.steps.receives {
            let from = self.envelope(tag, lane.chunk, message.peer, |met| &mut met.received);
            let (lent, peer) = (self.memory.lend(message.region), from.peer);
            // SAFETY: the memory is valid until idle, by `begin`; a request is kept until it has ended.
            let request = unsafe { transport.receive(from, lent) }?;
            lane.pending.extend(request.map(|request| Pending { request, lent, peer }));
        }
        for message in &lane.steps.sends {
            let to = self.envelope(tag, lane.chunk, message.peer, |met| &mut met.sent);
            let (lent, peer) = (self.memory.lend(message.region), to.peer);
            // SAFETY: as above.
            let request = unsafe { transport.send(to, lent) }?;
            lane.pending.extend(request.map(|request| Pending { request, lent, peer }));
        }
        Ok(())
    }

    /// Whether it is a send or a receive, which other pairs may have at the same number.
    fn is_of_a_pair(&self) -> bool {
        matches!(self.plan.kind(), OpKind::Send | OpKind::Recv)
    }

    fn tag(&self, chunk: usize, round: usize) -> Tag {
        Tag {
            communicator: self.stamp.communicator,
            sequence: self.stamp.sequence,
            lane: if self.is_of_a_pair() { PAIR_LANE } else { (chunk % self.plan.lanes()) as u8 },
            round: round as u32,
        }
    }

    fn envelope(&mut self, mut tag: Tag, chunk: usize, member: usize, side: fn(&mut Met) -> &mut Vec<u64>) -> Envelope {
        let first = chunk == 0 && Met::insert(side(&mut self.met), member);
        if first {
            tag.round = FIRST;
        }
        Envelope { peer: self.global(member), tag, words: first.then_some(self.stamp.words) }
    }

    fn carry_out(&mut self, steps: &[Local], round: &Round) {
        for step in steps {
            match *step {
                Local::Copy { from, to } => self.memory.copy(from, to),
                Local::Reduce { fold, from, to } => self.memory.reduce(fold, &round.sources[from.0..from.1], to),
            }
        }
    }

    fn global(&self, position: usize) -> usize {
        self.group.global(position).unwrap_or(position)
    }
}

impl<R> Lane<R> {
    /// Whether all messages have ended. Unless thorough it looks no further than the last that has not: all have to, in whichever order.
    fn settle<T: Transport<Request = R>>(&mut self, transport: &T, thorough: bool) -> Result<bool> {
        if thorough {
            let mut failed = Ok(());
            self.pending.retain_mut(|pending| match transport.test(&mut pending.request) {
                Ok(ended) => !ended,
                Err(error) => {
                    failed = std::mem::replace(&mut failed, Ok(())).and(Err(error));
                    false
                }
            });
            return failed.map(|()| self.pending.is_empty());
        }
        while let Some(last) = self.pending.last_mut() {
            match transport.test(&mut last.request) {
                Ok(false) => return Ok(false),
                Ok(true) => drop(self.pending.pop()),
                Err(error) => {
                    // A failed request is spent.
                    self.pending.pop();
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// As [`Lane::settle`], whatever the messages end with.
    fn drain<T: Transport<Request = R>>(&mut self, transport: &T) -> bool {
        self.pending.retain_mut(|pending| matches!(transport.test(&mut pending.request), Ok(false)));
        self.pending.is_empty()
    }
}

impl Met {
    fn forget(&mut self, members: usize) {
        for side in [&mut self.sent, &mut self.received] {
            side.clear();
            side.resize(members.div_ceil(64), 0);
        }
    }

    /// Whether it is the first time.
    fn insert(side: &mut [u64], member: usize) -> bool {
        let (word, bit) = (&mut side[member / 64], 1 << (member % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}
