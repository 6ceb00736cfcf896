//! Runs one call on all ranks of a world in this thread, with any memory.

// Each test uses some of it.
#![allow(dead_code)]

use rankwise_core::backend::{Counts, RawBuf, RawCall};
use rankwise_core::{DType, Group, OpKind, ReduceOp};
use rankwise_schedule::loopback::{self, Loopback, Settings};
use rankwise_schedule::{Choice, Executor, Memory, Plan, Stamp, Start, Status};
use std::time::Duration;

/// Memory a test can hand a call's buffers to.
pub(crate) trait Armed: Memory + Default {
    /// As `HostMemory::arm`.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn arm(&mut self, call: &RawCall<'_>, plan: &Plan) -> rankwise_core::Result<()>;
}

impl Armed for rankwise_schedule::HostMemory {
    unsafe fn arm(&mut self, call: &RawCall<'_>, plan: &Plan) -> rankwise_core::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.arm(call, plan.members(), plan.scratch()) }
    }
}

/// One collective call as all ranks make it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) n: usize,
    pub(crate) count: usize,
    /// Of the v-forms but the all-to-all.
    pub(crate) counts: Vec<usize>,
    /// Of the uneven all-to-all: `pairs[i][j]` goes from i to j.
    pub(crate) pairs: Vec<Vec<usize>>,
    pub(crate) root: usize,
    pub(crate) in_place: bool,
    pub(crate) choice: Choice,
}

impl Job {
    pub(crate) fn new(kind: OpKind, dtype: DType, n: usize, choice: Choice) -> Job {
        let op = kind.reduces().then_some(ReduceOp::Sum);
        let (counts, pairs) = (Vec::new(), Vec::new());
        Job { kind, dtype, op, n, count: 0, counts, pairs, root: 0, in_place: false, choice }
    }

    /// With counts per rank that differ; some are 0.
    pub(crate) fn with_size(mut self, count: usize) -> Job {
        let uneven = |seed: usize| if seed % 5 == 3 { 0 } else { (seed * 7 + count) % (2 * count + 1) };
        match self.kind {
            OpKind::AllToAllV => {
                self.pairs = (0..self.n).map(|i| (0..self.n).map(|j| uneven(3 * i + j)).collect()).collect();
            }
            OpKind::Barrier => {}
            kind if is_uneven(kind) => self.counts = (0..self.n).map(uneven).collect(),
            _ => self.count = count,
        }
        self
    }

    /// Elements that a rank contributes to or gets as its block.
    pub(crate) fn block(&self, q: usize) -> usize {
        self.counts.get(q).copied().unwrap_or(self.count)
    }

    /// Where block q begins in the divided buffer.
    pub(crate) fn offset(&self, q: usize) -> usize {
        (0..q).map(|p| self.block(p)).sum()
    }

    pub(crate) fn source_len(&self, rank: usize) -> usize {
        let all = self.offset(self.n);
        match self.kind {
            OpKind::AllReduce | OpKind::Reduce => self.count,
            OpKind::AllGather | OpKind::AllGatherV | OpKind::Gather | OpKind::GatherV => self.block(rank),
            OpKind::ReduceScatter | OpKind::ReduceScatterV | OpKind::AllToAll => all,
            OpKind::Broadcast if rank == self.root => self.count,
            OpKind::Scatter | OpKind::ScatterV if rank == self.root => all,
            OpKind::AllToAllV => self.pairs[rank].iter().sum(),
            _ => 0,
        }
    }

    pub(crate) fn destination_len(&self, rank: usize) -> usize {
        let all = self.offset(self.n);
        match self.kind {
            OpKind::AllReduce | OpKind::Broadcast => self.count,
            OpKind::Reduce if rank == self.root => self.count,
            OpKind::AllGather | OpKind::AllGatherV | OpKind::AllToAll => all,
            OpKind::Gather | OpKind::GatherV if rank == self.root => all,
            OpKind::ReduceScatter | OpKind::ReduceScatterV | OpKind::Scatter | OpKind::ScatterV => self.block(rank),
            OpKind::AllToAllV => self.pairs.iter().map(|row| row[rank]).sum(),
            _ => 0,
        }
    }

    /// In place: where the shorter buffer begins in the longer one, in elements; `None` where the kind has no such form here.
    fn overlap(&self, rank: usize) -> Option<usize> {
        let here = match self.kind {
            OpKind::AllReduce => Some(0),
            OpKind::Reduce | OpKind::Broadcast => (rank == self.root).then_some(0),
            OpKind::AllGather | OpKind::AllGatherV | OpKind::ReduceScatter | OpKind::ReduceScatterV => {
                Some(self.offset(rank))
            }
            OpKind::Gather | OpKind::GatherV => (rank == self.root).then(|| self.offset(rank)),
            _ => None,
        };
        here.filter(|_| self.in_place)
    }

    /// The call of a rank, without buffers. `columns` is room for the counts.
    pub(crate) fn call<'a>(&'a self, rank: usize, columns: &'a mut Vec<usize>) -> RawCall<'a> {
        let mut call = RawCall::new(self.kind, self.dtype, self.count);
        call.op = self.op;
        call.root = self.root;
        columns.clear();
        match self.kind {
            OpKind::AllToAllV => {
                columns.extend(self.pairs.iter().map(|row| row[rank]));
                call.counts = Counts { send: &self.pairs[rank], recv: columns };
            }
            OpKind::AllGatherV | OpKind::GatherV => call.counts = Counts { send: &[], recv: &self.counts },
            OpKind::ReduceScatterV | OpKind::ScatterV => call.counts = Counts { send: &self.counts, recv: &[] },
            _ => {}
        }
        call
    }
}

pub(crate) fn is_uneven(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(kind, AllGatherV | ReduceScatterV | AllToAllV | GatherV | ScatterV)
}

/// The buffers of one rank: in place there is one only.
pub(crate) struct Buffers {
    source: Vec<u8>,
    destination: Vec<u8>,
    /// In bytes.
    overlap: Option<usize>,
    lens: (usize, usize),
}

impl Buffers {
    fn new(job: &Job, rank: usize, input: &[u8]) -> Buffers {
        let size = job.dtype.size().expect("numeric");
        let lens = (job.source_len(rank) * size, job.destination_len(rank) * size);
        assert_eq!(input.len(), lens.0);
        let overlap = job.overlap(rank).map(|start| start * size);
        let (mut source, mut destination) = (input.to_vec(), vec![0xee; lens.1]);
        match overlap {
            Some(start) if lens.1 >= lens.0 => {
                destination[start..start + lens.0].copy_from_slice(input);
                source.clear();
            }
            Some(_) => destination.clear(),
            None => {}
        }
        Buffers { source, destination, overlap, lens }
    }

    fn lend(&mut self) -> (RawBuf, RawBuf) {
        let (source, destination) = (self.source.as_mut_ptr(), self.destination.as_mut_ptr());
        let (source, destination) = match self.overlap {
            Some(start) if self.lens.1 >= self.lens.0 => (destination.wrapping_add(start), destination),
            Some(start) => (source, source.wrapping_add(start)),
            None => (source, destination),
        };
        (RawBuf::host(source, self.lens.0), RawBuf::host(destination, self.lens.1))
    }

    /// The result; panics if the call wrote to its source.
    fn result(self, input: &[u8], what: &dyn Fn() -> String) -> Vec<u8> {
        match self.overlap {
            Some(_) if self.lens.1 >= self.lens.0 => self.destination,
            Some(start) => {
                let result = start..start + self.lens.1;
                assert_eq!(self.source[..start], input[..start], "{}: source written", what());
                assert_eq!(self.source[result.end..], input[result.end..], "{}: source written", what());
                self.source[result].to_vec()
            }
            None => {
                assert_eq!(self.source, input, "{}: source written", what());
                self.destination
            }
        }
    }
}

/// The results of all ranks; panics when one fails or they block each other.
pub(crate) fn run<M: Armed>(job: &Job, settings: Settings, input: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut world: Vec<Executor<Loopback, M>> =
        loopback::world(job.n, settings).into_iter().map(Executor::new).collect();
    run_in(&mut world, 1, job, input)
}

/// As [`run`], in a world that may be used again.
pub(crate) fn run_in<M: Armed>(
    world: &mut [Executor<Loopback, M>],
    sequence: u64,
    job: &Job,
    input: impl Fn(usize) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    let group = Group::world(job.n);
    let inputs: Vec<Vec<u8>> = (0..job.n).map(input).collect();
    let mut buffers: Vec<Buffers> = (0..job.n).map(|rank| Buffers::new(job, rank, &inputs[rank])).collect();
    let mut tickets = Vec::new();
    for (me, executor) in world.iter_mut().enumerate() {
        let mut columns = Vec::new();
        let mut call = job.call(me, &mut columns);
        (call.src, call.dst) = buffers[me].lend();
        let stamp = Stamp::new(7, sequence, &call, 0);
        let start = Start { group: &group, me, stamp, choice: job.choice, deadline: Duration::MAX };
        // SAFETY: the buffers are not touched before all calls are idle, below.
        let ticket = unsafe { executor.start(&call, &start, |memory, plan| memory.arm(&call, plan)) };
        tickets.push(ticket.unwrap_or_else(|error| panic!("{job:?}: {error}")));
    }
    let mut still = 0;
    while world.iter().zip(&tickets).any(|(rank, ticket)| !rank.is_idle(*ticket)) {
        still += 1;
        for rank in world.iter_mut() {
            if rank.progress() {
                still = 0;
            }
        }
        assert!(still < 1000, "{job:?}: the ranks wait for each other");
    }
    for (rank, ticket) in world.iter_mut().zip(tickets) {
        match rank.status(ticket) {
            Status::Done => {}
            status => panic!("{job:?}: {status:?}"),
        }
        assert_eq!((rank.transport().outstanding(), rank.held(ticket).count(), rank.active()), (0, 0, 0));
        rank.finish(ticket);
    }
    let what = || format!("{job:?}");
    buffers.into_iter().zip(&inputs).map(|(buffers, input)| buffers.result(input, &what)).collect()
}
