//! Plans: what one member does in a collective, as a pure function of the call's sizes and the member's position.
//!
//! A [`Plan`] is not a list. It says how many rounds there are and computes any one of them ([`Plan::round`]), so that a plan for thousands of members takes no more
//! memory than a round. Sizes are in elements.
//!
//! *Chunks* divide the data of a call; each runs through all rounds by itself, in a *lane*. Several lanes are under way at once, which is how rings
//! and trees are pipelined and how arithmetic overlaps with messages.
//!
//! Empty messages are sent like others: every pair of ranks that a plan lets meet does meet, and compares descriptors.

#![forbid(unsafe_code)]

mod blocks;
mod bruck;
mod cost;
mod direct;
mod k_nomial;
mod pairwise;
mod recursive_doubling;
mod recursive_halving;
mod ring;
mod round;
mod two_shot;
mod view;

use blocks::Blocks;
pub use cost::Cost;
use rankwise_core::backend::RawCall;
use rankwise_core::{Error, ErrorKind, OpKind, ReduceOp, Result};
pub use round::{Buffer, Fold, Local, Message, Region, Round};
use std::fmt;
pub(crate) use view::View;

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Algorithm {
    /// One round, everybody to everybody. Reductions fold all contributions in group order.
    Direct,
    /// Two direct rounds: parts to their owners, who fold them in group order, and the parts to all.
    TwoShot,
    /// Neighbour to neighbour.
    Ring,
    /// Partners at distances 1, 2, 4, … exchange all they have.
    RecursiveDoubling,
    /// Partners at distances …, 4, 2, 1 exchange halves of what is left; for an all-reduce, doubling follows.
    RecursiveHalving,
    /// A tree in which each round multiplies the number of members reached by the radix; 2 is the binomial tree.
    KNomial(u8),
    /// Messages go around a circle in distances of 1, 2, 4, …: the fewest rounds for any number of members.
    Bruck,
    /// A round for each distance: send that far up, receive from that far down.
    Pairwise,
}

impl Algorithm {
    /// One of each, trees with the radices 2 and 4.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Direct,
        Algorithm::TwoShot,
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::RecursiveHalving,
        Algorithm::KNomial(2),
        Algorithm::KNomial(4),
        Algorithm::Bruck,
        Algorithm::Pairwise,
    ];

    /// Whether the algorithm can carry out this kind of operation.
    pub fn offers(self, kind: OpKind) -> bool {
        use OpKind::*;
        let form = Form::of(kind);
        match self {
            Algorithm::Direct => form.is_some(),
            Algorithm::TwoShot => matches!(form, Some(Form::AllReduce | Form::Reduce | Form::Broadcast)),
            Algorithm::Ring => matches!(
                form,
                Some(Form::AllReduce | Form::AllGather | Form::ReduceScatter | Form::Broadcast | Form::Reduce)
            ),
            Algorithm::RecursiveDoubling => matches!(form, Some(Form::AllReduce | Form::AllGather)),
            Algorithm::RecursiveHalving => matches!(form, Some(Form::AllReduce | Form::ReduceScatter)),
            Algorithm::KNomial(radix) => {
                radix >= 2
                    && matches!(
                        form,
                        Some(Form::AllReduce | Form::Broadcast | Form::Reduce | Form::Gather | Form::Scatter)
                    )
            }
            // A member of an uneven exchange does not know what passes through it.
            Algorithm::Bruck => {
                matches!(form, Some(Form::AllReduce | Form::AllGather | Form::AllToAll)) && kind != AllToAllV
            }
            Algorithm::Pairwise => matches!(form, Some(Form::AllToAll | Form::ReduceScatter)),
        }
    }

    /// Whether reductions of this kind fold all contributions to an element at once, in group order: the same bits as
    /// `Determinism::Fixed` demands, and the only plans for operators that scale (`Avg`, `PreMulSum`).
    pub fn folds_whole(self, kind: OpKind) -> bool {
        match self {
            Algorithm::Direct | Algorithm::TwoShot => true,
            Algorithm::Bruck => Form::of(kind) == Some(Form::AllReduce),
            _ => false,
        }
    }

    /// Whether a call of this kind can be divided into chunks.
    pub fn chunks(self, kind: OpKind) -> bool {
        match Form::of(kind) {
            Some(Form::AllReduce | Form::Reduce | Form::Broadcast) => true,
            Some(Form::AllGather | Form::ReduceScatter) => {
                matches!(self, Algorithm::Direct | Algorithm::Ring | Algorithm::Pairwise)
            }
            _ => false,
        }
    }

    /// The inverse of `Display`.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        match name.split_once('-') {
            None if name == "binomial" => Some(Algorithm::KNomial(2)),
            Some((radix, "nomial")) => radix.parse().ok().filter(|radix| *radix >= 2).map(Algorithm::KNomial),
            _ => Algorithm::ALL.into_iter().find(|known| known.to_string() == name),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Direct => f.write_str("direct"),
            Algorithm::TwoShot => f.write_str("two_shot"),
            Algorithm::Ring => f.write_str("ring"),
            Algorithm::RecursiveDoubling => f.write_str("recursive_doubling"),
            Algorithm::RecursiveHalving => f.write_str("recursive_halving"),
            Algorithm::KNomial(2) => f.write_str("binomial"),
            Algorithm::KNomial(radix) => write!(f, "{radix}-nomial"),
            Algorithm::Bruck => f.write_str("bruck"),
            Algorithm::Pairwise => f.write_str("pairwise"),
        }
    }
}

/// An algorithm and the size of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// How.
    pub algorithm: Algorithm,
    /// Bytes of a chunk: of the whole data where all members have as much, else of the longest block. `None`: one chunk.
    pub chunk: Option<usize>,
}

impl Choice {
    /// The algorithm in one chunk.
    pub fn whole(algorithm: Algorithm) -> Choice {
        Choice { algorithm, chunk: None }
    }
}

/// What a kind of operation does, whether the blocks are even or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// Also the barrier, of nothing.
    #[default]
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    /// Send or Recv.
    Message,
}

impl Form {
    fn of(kind: OpKind) -> Option<Form> {
        Some(match kind {
            OpKind::AllReduce | OpKind::Barrier => Form::AllReduce,
            OpKind::AllGather | OpKind::AllGatherV => Form::AllGather,
            OpKind::ReduceScatter | OpKind::ReduceScatterV => Form::ReduceScatter,
            OpKind::AllToAll | OpKind::AllToAllV => Form::AllToAll,
            OpKind::Broadcast => Form::Broadcast,
            OpKind::Reduce => Form::Reduce,
            OpKind::Gather | OpKind::GatherV => Form::Gather,
            OpKind::Scatter | OpKind::ScatterV => Form::Scatter,
            OpKind::Send | OpKind::Recv => Form::Message,
            _ => return None,
        })
    }
}

/// What one member does in one call.
#[derive(Clone, Debug)]
pub struct Plan {
    kind: OpKind,
    form: Form,
    algorithm: Algorithm,
    me: usize,
    n: usize,
    root: usize,
    /// How the divided buffer is divided; of an all-to-all the source.
    blocks: Blocks,
    /// Of an all-to-all: the destination.
    received: Blocks,
    chunks: usize,
    rounds: usize,
    lane_scratch: usize,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            kind: OpKind::Barrier,
            form: Form::AllReduce,
            algorithm: Algorithm::Direct,
            me: 0,
            n: 1,
            root: 0,
            blocks: Blocks::default(),
            received: Blocks::default(),
            chunks: 1,
            rounds: 1,
            lane_scratch: 0,
        }
    }
}

impl Plan {
    /// The plan of member `me` of `n` for a call, which is as [`RawCall`] promises. Its buffers don't matter.
    ///
    /// `Unsupported` when the algorithm does not offer the kind or the operator. All members get the same answer.
    pub fn new(call: &RawCall<'_>, me: usize, n: usize, choice: Choice) -> Result<Plan> {
        let mut plan = Plan::default();
        plan.set(call, me, n, choice)?;
        Ok(plan)
    }

    /// As [`Plan::new`], in place of an older plan; allocates only if the memory of that does not suffice.
    pub fn set(&mut self, call: &RawCall<'_>, me: usize, n: usize, choice: Choice) -> Result<()> {
        let algorithm = choice.algorithm;
        let form = Form::of(call.kind).filter(|_| algorithm.offers(call.kind));
        let scales = matches!(call.op, Some(ReduceOp::Avg | ReduceOp::PreMulSum(_)));
        let (Some(form), false) = (form, scales && !algorithm.folds_whole(call.kind)) else {
            return Err(not_offered(call, algorithm));
        };
        (self.kind, self.form, self.algorithm) = (call.kind, form, algorithm);
        (self.me, self.n, self.root) = (me, n, call.root);
        let counts = call.counts;
        self.received.even(0);
        match call.kind {
            OpKind::AllToAll => {
                self.blocks.even(call.count);
                self.received.even(call.count);
            }
            OpKind::AllToAllV => {
                self.blocks.uneven(counts.send);
                self.received.uneven(counts.recv);
            }
            OpKind::AllGatherV | OpKind::GatherV => self.blocks.uneven(counts.recv),
            OpKind::ReduceScatterV | OpKind::ScatterV => self.blocks.uneven(counts.send),
            _ if self.divides_one_length() => self.blocks.parts(call.count),
            _ => self.blocks.even(call.count),
        }
        self.chunks = 1;
        if let (Some(chunk), true) = (choice.chunk, algorithm.chunks(call.kind)) {
            let whole = if self.divides_one_length() { call.count } else { self.blocks.longest(n) };
            self.chunks = whole.div_ceil((chunk / call.elem_size).max(1)).max(1);
        }
        self.rounds = self.count_rounds();
        self.lane_scratch = self.measure_scratch();
        Ok(())
    }

    /// Whether all members have data of one length, so that parts of it are the plan's own division.
    fn divides_one_length(&self) -> bool {
        matches!(self.form, Form::AllReduce | Form::Reduce | Form::Broadcast | Form::Message)
    }

    /// The kind of operation.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    /// How it is carried out.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// This member's position.
    pub fn me(&self) -> usize {
        self.me
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.n
    }

    /// Number of chunks, at least 1.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Chunks under way at once.
    pub fn lanes(&self) -> usize {
        self.chunks.min(MAX_LANES_OF_A_PLAN)
    }

    /// Rounds of each chunk: the same on all members; a member may have nothing to do in some.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// Elements of scratch for all lanes.
    pub fn scratch(&self) -> usize {
        self.lanes() * self.lane_scratch
    }

    /// Computes a round of a chunk, in place of what `out` holds.
    pub fn round(&self, chunk: usize, round: usize, out: &mut Round) {
        out.clear();
        let view = self.view(chunk, chunk % self.lanes() * self.lane_scratch);
        if self.n == 1 {
            return view.alone(out);
        }
        match self.algorithm {
            Algorithm::Direct => direct::round(view, out),
            Algorithm::TwoShot => two_shot::round(view, round, out),
            Algorithm::Ring => ring::round(view, round, out),
            Algorithm::RecursiveDoubling => recursive_doubling::round(view, round, out),
            Algorithm::RecursiveHalving => recursive_halving::round(view, round, out),
            Algorithm::KNomial(radix) => k_nomial::round(view, radix.into(), round, out),
            Algorithm::Bruck => bruck::round(view, round, out),
            Algorithm::Pairwise => pairwise::round(view, round, out),
        }
    }

    fn count_rounds(&self) -> usize {
        let view = self.view(0, 0);
        if self.n == 1 {
            return 1;
        }
        match self.algorithm {
            Algorithm::Direct => 1,
            Algorithm::TwoShot => 2,
            Algorithm::Ring => ring::rounds(view),
            Algorithm::RecursiveDoubling => recursive_doubling::rounds(view),
            Algorithm::RecursiveHalving => recursive_halving::rounds(view),
            Algorithm::KNomial(radix) => k_nomial::rounds(view, radix.into()),
            Algorithm::Bruck => bruck::rounds(view),
            Algorithm::Pairwise => self.n - 1,
        }
    }

    /// Elements of scratch that one lane needs.
    fn measure_scratch(&self) -> usize {
        // The first chunk is as long as any.
        let view = self.view(0, 0);
        if self.n == 1 {
            return 0;
        }
        match self.algorithm {
            Algorithm::Direct => direct::scratch(view),
            Algorithm::TwoShot => two_shot::scratch(view),
            Algorithm::Ring => ring::scratch(view),
            Algorithm::RecursiveDoubling => recursive_doubling::scratch(view),
            Algorithm::RecursiveHalving => recursive_halving::scratch(view),
            Algorithm::KNomial(radix) => k_nomial::scratch(view, radix.into()),
            Algorithm::Bruck => bruck::scratch(view),
            Algorithm::Pairwise => pairwise::scratch(view),
        }
    }

    fn view(&self, chunk: usize, scratch: usize) -> View<'_> {
        View { plan: self, form: self.form, me: self.me, n: self.n, root: self.root, chunk, scratch }
    }
}

/// Chunks under way at once: enough that arithmetic and messages overlap.
const MAX_LANES_OF_A_PLAN: usize = 4;
const _: () = assert!(MAX_LANES_OF_A_PLAN <= crate::transport::MAX_LANES);

#[cold]
fn not_offered(call: &RawCall<'_>, algorithm: Algorithm) -> Error {
    let op = call.op.map_or(String::new(), |op| format!(" {op}"));
    Error::new(
        ErrorKind::Unsupported {
            function: format!("{}{op}", call.kind),
            needs: "a plan that offers it".into(),
            have: algorithm.to_string(),
        },
        format!("the plan {algorithm} has no {}{op}; choose another in the table of plans", call.kind),
    )
}
