//! Random sequences from a seed.

use super::script::{ALL, Numbered, Script, State, Step};
use crate::number::elem_size;
use crate::operation::{Memory, Operation};
use crate::random::Random;
use crate::sizes::COMMON;
use crate::values::Pattern;
use rankwise_core::{DType, OpKind, ReduceOp};

/// What a sequence is made of.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// Bytes at which the backend changes its method.
    pub(crate) thresholds: Vec<u64>,
    /// Calls without an effect on others only: no errors, no works, ordinary memory.
    pub(crate) plain: bool,
    /// Floats whose sum depends on the order of addition too; asks for fixed determinism.
    pub(crate) rounding: bool,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices { thresholds: vec![480, 32 * 1024, 64 * 1024], plain: false, rounding: false }
    }
}

/// The most communicators, and works, alive at once.
const MOST_COMMS: usize = 8;
const MOST_WORKS: usize = 12;
/// The most bytes that the parts of all members have together.
const MOST_BYTES: usize = 600_000;

/// A sequence of at least this many calls for this many ranks; the same for the same arguments.
pub(crate) fn generate(seed: u64, ranks: usize, calls: usize, choices: &Choices) -> Script {
    let random = Random::labelled(seed, &[ranks as u64]);
    let mut maker = Maker { random, choices, ranks, next: 1, done: 0, last: None };
    let mut state = State::new(ranks);
    let mut steps = Vec::new();
    while maker.done < calls {
        let step = maker.step(&state);
        // What doesn't fit, such as a name for nobody, is drawn again.
        if state.admit(&step).is_ok() {
            maker.done += step.calls();
            steps.push(step);
        }
    }
    Script { ranks, seed, fixed: choices.rounding, steps }
}

struct Maker<'a> {
    random: Random,
    choices: &'a Choices,
    ranks: usize,
    /// The next number for a communicator, a work or the values of a call.
    next: usize,
    done: usize,
    /// The call made last.
    last: Option<Operation>,
}

impl Maker<'_> {
    fn number(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len())]
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    /// Some of `0..of`, in a random order.
    fn some(&mut self, of: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        self.random.shuffle(&mut all);
        all.truncate(1 + self.random.below(of));
        all
    }

    fn step(&mut self, state: &State) -> Step {
        let live: Vec<usize> = state.comms.keys().copied().collect();
        let comm = if self.chance(3) { ALL } else { self.pick(&live) };
        let members = state.comms[&comm].0.len();
        if self.chance(20) && live.len() < MOST_COMMS {
            return match self.chance(2) {
                // Sometimes with the same members: such communicators are the easiest to mix up.
                true if self.chance(4) => {
                    Step::Split { new: self.number(), of: comm, positions: (0..members).collect() }
                }
                true => Step::Split { new: self.number(), of: comm, positions: self.some(members) },
                false => Step::Group { new: self.number(), ranks: self.some(self.ranks) },
            };
        }
        if self.chance(40) && comm != ALL {
            return Step::Drop { comm };
        }
        if self.choices.plain {
            return Step::Call { comm, call: self.call(members, true) };
        }
        match self.random.below(60) {
            0 => Step::Pause { rank: self.random.below(self.ranks), micros: 50 + self.random.below(500) as u64 },
            1 => Step::Refuse { comm, by: self.random.below(members) },
            2 if self.chance(2) => Step::Mismatch { comm, by: self.random.below(members) },
            3..=8 if members > 1 => {
                let (from, step) = (self.random.below(members), 1 + self.random.below(members - 1));
                let dtype = self.dtype();
                let count = self.count(dtype, 1);
                Step::Message { comm, from, to: (from + step) % members, dtype, count, values: self.number() as u64 }
            }
            9..=20 if state.works.len() < MOST_WORKS => {
                Step::Start { work: self.number(), comm, call: self.call(members, false) }
            }
            21..=25 => {
                let mut works: Vec<usize> = state.works.keys().copied().collect();
                self.random.shuffle(&mut works);
                works.truncate(1 + self.random.below(works.len().max(1)));
                Step::Wait { works }
            }
            26..=28 => {
                let calls = (0..1 + self.random.below(4)).map(|_| self.call(members, true)).collect();
                Step::Scope { comm, calls }
            }
            _ => Step::Call { comm, call: self.call(members, true) },
        }
    }

    fn dtype(&mut self) -> DType {
        if self.chance(10) { DType::Opaque } else { self.pick(&DType::NUMERIC) }
    }

    /// A count of elements of which each of `parts` members has one part, or the destination that many.
    fn count(&mut self, dtype: DType, parts: usize) -> usize {
        let size = elem_size(dtype);
        let most = MOST_BYTES / size / parts.max(1);
        let count = match self.random.below(100) {
            0..=49 => self.random.below(41),
            50..=79 => self.pick(&COMMON).min(1025),
            80..=93 if !self.choices.thresholds.is_empty() => {
                let bytes = self.pick(&self.choices.thresholds.clone()) as usize;
                // Thresholds are of a part or of the whole.
                let parts = if self.chance(2) { parts.max(1) } else { 1 };
                (bytes / size / parts + self.random.below(3)).saturating_sub(1)
            }
            _ => self.random.below(5000),
        };
        count.min(most)
    }

    fn call(&mut self, members: usize, borrowed: bool) -> Numbered {
        // Calls that look alike are the easiest to mix up.
        let last = if self.chance(5) { self.last.clone() } else { None };
        let is_owned = |o: &Operation| o.offset == 0 && o.memory == Memory::Heap;
        let operation = match last.filter(|last| borrowed || is_owned(last)) {
            Some(last) => last,
            None => self.operation(members, borrowed),
        };
        self.last = Some(operation.clone());
        Numbered { operation, values: self.number() as u64 }
    }

    fn operation(&mut self, members: usize, borrowed: bool) -> Operation {
        let kinds = OpKind::DATA;
        let favourite = [OpKind::AllReduce, OpKind::AllGather, OpKind::ReduceScatter, OpKind::AllToAll];
        let mut kind = if self.chance(3) { self.pick(&favourite) } else { self.pick(&kinds) };
        if matches!(kind, OpKind::Send | OpKind::Recv) {
            kind = OpKind::AllReduce;
        }
        let mut dtype = self.dtype();
        let mut o = if kind == OpKind::Barrier {
            Operation::new(kind, DType::U8)
        } else if kind.reduces() {
            let op = if self.chance(2) { ReduceOp::Sum } else { self.pick(&ReduceOp::ALL) };
            let meaningful: Vec<DType> = op.meaningful().iter().collect();
            if !op.is_meaningful_for(dtype) {
                dtype = self.pick(&meaningful);
            }
            let mut o = Operation::reducing(kind, dtype, op, 0);
            if matches!(op, ReduceOp::Min | ReduceOp::Max) && self.chance(3) {
                o.pattern = Pattern::Bits;
            }
            if self.choices.rounding && dtype.is_float() && self.chance(2) {
                o.pattern = Pattern::Rounding;
            }
            o
        } else {
            Operation::new(kind, dtype)
        };
        match kind {
            OpKind::Barrier => {}
            OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV => {
                o.token = matches!(kind, OpKind::AllGatherV | OpKind::ReduceScatterV) && self.chance(2);
                o.width = if o.token { self.pick(&[1, 2, 7, 64]) } else { 1 };
                o.counts = (0..members).map(|_| self.uneven(o.dtype, members) / o.width).collect();
            }
            OpKind::AllToAllV => {
                o.counts = (0..members * members).map(|_| self.uneven(o.dtype, members * members)).collect();
            }
            OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast => o.count = self.count(o.dtype, 1),
            _ => o.count = self.count(o.dtype, members),
        }
        if kind.has_root() {
            o.root = self.random.below(members);
        }
        let has_in_place = matches!(kind, OpKind::AllReduce | OpKind::AllGather | OpKind::ReduceScatter);
        o.in_place = has_in_place && self.chance(3);
        if borrowed && kind != OpKind::Barrier {
            o.offset = if self.chance(4) { 1 + self.random.below(3) } else { 0 };
            if !self.choices.plain && self.chance(12) {
                o.memory = self.pick(&[Memory::AllocSource, Memory::AllocDestination, Memory::AllocBoth]);
            }
        }
        o
    }

    /// The count of one of `parts` members in an uneven call: often nothing.
    fn uneven(&mut self, dtype: DType, parts: usize) -> usize {
        if self.chance(4) { 0 } else { self.count(dtype, parts) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sequences_have_everything_and_depend_on_the_seed_alone() {
        let choices = Choices::default();
        let script = generate(5, 4, 3000, &choices);
        assert!((3000..3010).contains(&script.calls()), "{}", script.calls());
        assert_eq!(script, generate(5, 4, 3000, &choices));
        assert_ne!(script, generate(6, 4, 3000, &choices));
        let names: BTreeSet<String> =
            script.steps.iter().filter_map(|step| step.to_string().split(' ').next().map(String::from)).collect();
        assert_eq!(names.len(), 11, "{names:?}");
        let mut kinds = BTreeSet::new();
        let mut types = BTreeSet::new();
        for step in &script.steps {
            if let Step::Call { call, .. } = step {
                kinds.insert(call.operation.kind.name());
                types.insert(call.operation.dtype.name());
            }
        }
        assert_eq!((kinds.len(), types.len()), (14, 15), "{kinds:?} {types:?}");
    }

    #[test]
    fn sequences_have_what_is_easily_mixed_up() {
        let script = generate(5, 3, 3000, &Choices::default());
        let has_all =
            |step: &&Step| matches!(step, Step::Split { of: ALL, positions, .. } if positions[..] == [0, 1, 2]);
        assert!(script.steps.iter().filter(has_all).count() > 1);
        let calls: Vec<&Operation> = script
            .steps
            .iter()
            .filter_map(|step| if let Step::Call { call, .. } = step { Some(&call.operation) } else { None })
            .collect();
        let repeated = calls.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(repeated > calls.len() / 20, "{repeated} of {}", calls.len());
    }

    #[test]
    fn alone_there_is_something_to_do_too() {
        assert!(generate(1, 1, 200, &Choices::default()).calls() >= 200);
    }
}
