//! The executors of all ranks of a job over one simulated network.

#![allow(unsafe_code)]

use super::memory::SimulatedMemory;
use super::model::Model;
use super::network::{Hub, Port, Traffic};
use crate::executor::{Executor, Start, Status, Ticket};
use crate::operation::Stamp;
use crate::plan::{Choice, Plan};
use rankwise_core::backend::RawCall;
use rankwise_core::{Error, ErrorKind, Group, OpKind, Result};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// All ranks of a job, in one thread. Nothing depends on the machine or on chance: equal calls take equal times.
///
/// Calls start at the moment of [`Simulation::start`]; time passes in [`Simulation::run`].
pub struct Simulation {
    hub: Rc<RefCell<Hub>>,
    ranks: Vec<Executor<Port, SimulatedMemory>>,
    /// When a rank had nothing more to do, in picoseconds.
    finished: Vec<u64>,
}

impl Simulation {
    /// Ranks that send lengths only: memory and time of this machine don't depend on the sizes of calls.
    pub fn without_data(model: Model, ranks: usize) -> Result<Simulation> {
        Simulation::new(model, ranks, false)
    }

    /// Ranks that send what their buffers hold.
    pub fn with_data(model: Model, ranks: usize) -> Result<Simulation> {
        Simulation::new(model, ranks, true)
    }

    fn new(model: Model, ranks: usize, with_data: bool) -> Result<Simulation> {
        model.check(ranks)?;
        let hub = Rc::new(RefCell::new(Hub::new(model, ranks, with_data)));
        let executor = |rank| Executor::new(Port { rank, hub: hub.clone() });
        Ok(Simulation { ranks: (0..ranks).map(executor).collect(), finished: vec![0; ranks], hub })
    }

    /// Starts a call on a rank, as [`Executor::start`]. Deadlines are not looked at: [`Simulation::run`] finds calls that never end.
    ///
    /// # Safety
    ///
    /// With data: the buffers are valid as [`HostMemory::arm`](crate::HostMemory::arm) says until the call has ended or this value is dropped. Without, they
    /// are not looked at.
    pub unsafe fn start(&mut self, rank: usize, call: &RawCall<'_>, start: &Start<'_>) -> Result<Ticket> {
        let hub = self.hub.borrow();
        let (model, with_data, processor) = (hub.model, hub.with_data, hub.processor(rank).clone());
        drop(hub);
        let executor = &mut self.ranks[rank];
        let arm = |memory: &mut SimulatedMemory, plan: &Plan| {
            // SAFETY: the caller's promise with data; a network without data touches no memory.
            unsafe { memory.arm(&model, &processor, call, plan.members(), plan.scratch(), with_data) }
        };
        // SAFETY: as above.
        let ticket = unsafe { executor.start(call, start, arm) }?;
        self.finished[rank] = processor.get();
        Ok(ticket)
    }

    /// Lets time pass until all calls have ended. `Timeout` when some never will, because no message is under way any more.
    pub fn run(&mut self) -> Result<()> {
        loop {
            let next = self.hub.borrow_mut().next();
            let Some(rank) = next else { break };
            let executor = &mut self.ranks[rank];
            if executor.active() == 0 {
                continue;
            }
            executor.progress();
            if executor.active() == 0 {
                self.finished[rank] = self.hub.borrow().processor(rank).get();
            }
        }
        let stuck: Vec<usize> = (0..self.ranks.len()).filter(|rank| self.ranks[*rank].active() > 0).collect();
        let Some(first) = stuck.first() else { return Ok(()) };
        let message = format!(
            "{} ranks, rank {first} first, wait for messages that nobody sends; make every member call the same operations",
            stuck.len()
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// How far a call is.
    pub fn status(&self, rank: usize, ticket: Ticket) -> Status {
        self.ranks[rank].status(ticket)
    }

    /// Ends the use of a ticket, as [`Executor::finish`].
    pub fn finish(&mut self, rank: usize, ticket: Ticket) {
        self.ranks[rank].finish(ticket);
    }

    /// When the last call of a rank ended, on the virtual clock.
    pub fn finished(&self, rank: usize) -> Duration {
        Duration::from_nanos((self.finished[rank] + 500) / 1000)
    }

    /// What a rank has sent since the beginning.
    pub fn sent(&self, rank: usize) -> Traffic {
        self.hub.borrow().sent(rank)
    }
}

/// What a collective costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// From the start, at which all ranks call at once, until the last rank has its result.
    pub time: Duration,
    /// Rounds of the plan, for each chunk.
    pub rounds: usize,
    /// Chunks.
    pub chunks: usize,
    /// The most that a rank sends; the most messages and the most bytes need not be of one rank.
    pub most: Traffic,
    /// What all ranks send.
    pub all: Traffic,
}

/// Runs a call on `ranks` ranks without data. Kinds with a count per rank and messages between two ranks are refused, and so is what the plan does not offer.
///
/// ```
/// use rankwise_core::{DType, OpKind, ReduceOp};
/// use rankwise_schedule::sim::{Model, simulate};
/// use rankwise_schedule::{Algorithm, Choice};
/// use rankwise_core::backend::RawCall;
/// use std::time::Duration;
///
/// let model = Model::flat(Duration::from_micros(2), 12.5e9, Duration::ZERO);
/// let mut call = RawCall::new(OpKind::AllReduce, DType::F32, 2);
/// call.op = Some(ReduceOp::Sum);
/// let outcome = simulate(&model, 1024, &call, Choice::whole(Algorithm::RecursiveDoubling)).unwrap();
/// // Ten rounds of 2 us and 8 bytes.
/// assert_eq!(outcome.rounds, 10);
/// assert_eq!(outcome.time.as_nanos(), 10 * 2000 + 6);
/// ```
pub fn simulate(model: &Model, ranks: usize, call: &RawCall<'_>, choice: Choice) -> Result<Outcome> {
    use OpKind::*;
    if matches!(call.kind, AllGatherV | ReduceScatterV | AllToAllV | GatherV | ScatterV | Send | Recv) {
        return Err(Error::config(format!("{} can't be simulated by sizes alone; choose its even form", call.kind)));
    }
    let mut simulation = Simulation::without_data(*model, ranks)?;
    if call.root >= ranks {
        return Err(Error::config(format!("root {} is not one of {ranks} ranks; choose a smaller one", call.root)));
    }
    let plan = Plan::new(call, 0, ranks, choice)?;
    let group = Group::world(ranks);
    let stamp = Stamp::new(0, 1, call, 0);
    let mut tickets = Vec::with_capacity(ranks);
    for me in 0..ranks {
        let start = Start { group: &group, me, stamp, choice, deadline: Duration::MAX };
        // SAFETY: without data.
        tickets.push(unsafe { simulation.start(me, call, &start) }?);
    }
    simulation.run()?;
    let (mut most, mut all, mut time) = (Traffic::default(), Traffic::default(), Duration::ZERO);
    for (rank, ticket) in tickets.into_iter().enumerate() {
        if let Status::Failed(error) | Status::Draining(error) = simulation.status(rank, ticket) {
            return Err(error);
        }
        let sent = simulation.sent(rank);
        most.messages = most.messages.max(sent.messages);
        most.bytes = most.bytes.max(sent.bytes);
        all.messages += sent.messages;
        all.bytes += sent.bytes;
        time = time.max(simulation.finished(rank));
    }
    Ok(Outcome { time, rounds: plan.rounds(), chunks: plan.chunks(), most, all })
}
