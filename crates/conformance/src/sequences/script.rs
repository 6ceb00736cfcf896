//! What a sequence is: steps that all ranks take in one order, and what makes them fit each other.
//!
//! Every member of a communicator meets the steps on it in the order of the script, and steps on different communicators
//! have one order too: nobody can wait for somebody who waits for him.

use crate::number::elem_size;
use crate::operation::{Memory, Operation};
use crate::runner::MOST_RANKS;
use rankwise_core::{DType, OpKind};
use std::collections::{BTreeMap, BTreeSet};

/// The communicator of all ranks of a script.
pub(crate) const ALL: usize = 0;
/// The most bytes of one buffer.
const MOST_BYTES: usize = 1 << 28;

/// One operation, and the number that its values are made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Numbered {
    pub(crate) operation: Operation,
    pub(crate) values: u64,
}

/// What all ranks do next. Communicators and works have numbers that are never used again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// The members at these positions of a communicator become one of their own, in this order.
    Split { new: usize, of: usize, positions: Vec<usize> },
    /// These ranks register their group.
    Group { new: usize, ranks: Vec<usize> },
    /// Works on it are waited for, then it is dropped.
    Drop { comm: usize },
    /// A blocking call.
    Call { comm: usize, call: Numbered },
    /// A call that a later step waits for, or else the end.
    Start { work: usize, comm: usize, call: Numbered },
    /// Every member of their communicators waits for these works, each in an order of its own.
    Wait { works: Vec<usize> },
    /// Calls in flight at once on borrowed buffers, some of them not waited for.
    Scope { comm: usize, calls: Vec<Numbered> },
    /// One member sends, another receives.
    Message { comm: usize, from: usize, to: usize, dtype: DType, count: usize, values: u64 },
    /// One member makes a call with wrong lengths: all learn it, and the communicator stays usable.
    Refuse { comm: usize, by: usize },
    /// One member calls differently: all learn it, and the communicator is poisoned and dropped.
    Mismatch { comm: usize, by: usize },
    /// One rank of the world is late.
    Pause { rank: usize, micros: u64 },
}

impl Step {
    /// Calls that move data or make communicators fail.
    pub(crate) fn calls(&self) -> usize {
        match self {
            Step::Scope { calls, .. } => calls.len(),
            Step::Call { .. } | Step::Start { .. } | Step::Message { .. } => 1,
            Step::Refuse { .. } | Step::Mismatch { .. } => 1,
            _ => 0,
        }
    }
}

/// A whole sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Script {
    /// Number of ranks it is made for.
    pub(crate) ranks: usize,
    /// What all values, and the orders of waiting, are made of.
    pub(crate) seed: u64,
    /// Whether fixed determinism is asked for, so that results are the same bits everywhere.
    pub(crate) fixed: bool,
    pub(crate) steps: Vec<Step>,
}

impl Script {
    pub(crate) fn calls(&self) -> usize {
        self.steps.iter().map(Step::calls).sum()
    }

    /// Leaves out the steps that have lost what they need.
    pub(crate) fn repaired(mut self) -> Script {
        let mut state = State::new(self.ranks);
        self.steps.retain_mut(|step| {
            if let Step::Wait { works } = step {
                works.retain(|work| state.works.contains_key(work));
            }
            state.admit(step).is_ok()
        });
        self
    }
}

/// What exists after some steps.
#[derive(Clone, Debug)]
pub(crate) struct State {
    ranks: usize,
    /// The members of each live communicator, by global rank, and whether a split has made it.
    pub(crate) comms: BTreeMap<usize, (Vec<usize>, bool)>,
    /// The communicator of each work that is not waited for.
    pub(crate) works: BTreeMap<usize, usize>,
    used_comms: BTreeSet<usize>,
    used_works: BTreeSet<usize>,
}

impl State {
    /// The state before the first step.
    pub(crate) fn new(ranks: usize) -> State {
        let all = (ALL, ((0..ranks).collect(), false));
        State {
            ranks,
            comms: BTreeMap::from([all]),
            works: BTreeMap::new(),
            used_comms: BTreeSet::from([ALL]),
            used_works: BTreeSet::new(),
        }
    }

    fn members(&self, comm: usize) -> Result<&Vec<usize>, String> {
        let gone = || format!("there is no communicator c{comm} here, or no more");
        self.comms.get(&comm).map(|(members, _)| members).ok_or_else(gone)
    }

    fn position(&self, comm: usize, position: usize) -> Result<(), String> {
        let members = self.members(comm)?.len();
        let outside = || format!("c{comm} has {members} members; positions are 0 to {}", members - 1);
        (position < members).then_some(()).ok_or_else(outside)
    }

    /// The state after the step, or why it can't come here.
    pub(crate) fn admit(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Split { new, of, positions } => {
                let parent = self.members(*of)?;
                let members = distinct(positions, parent.len())?.map(|position| parent[position]).collect();
                self.add(*new, members, true)?;
            }
            Step::Group { new, ranks } => {
                let members = distinct(ranks, self.ranks)?.collect();
                self.add(*new, members, false)?;
            }
            Step::Drop { comm } => {
                self.members(*comm)?;
                if *comm == ALL {
                    return Err(format!("c{ALL} lives to the end"));
                }
                self.remove(*comm);
            }
            Step::Call { comm, call } => fits(&call.operation, self.members(*comm)?.len())?,
            Step::Start { work, comm, call } => {
                fits(&call.operation, self.members(*comm)?.len())?;
                if call.operation.offset > 0 || call.operation.memory != Memory::Heap {
                    return Err("a started call owns ordinary buffers: no offset and no memory".into());
                }
                if !self.used_works.insert(*work) {
                    return Err(format!("there was a work w{work} before"));
                }
                self.works.insert(*work, *comm);
            }
            Step::Wait { works } => {
                let works: Vec<usize> = distinct(works, usize::MAX)?.collect();
                if let Some(work) = works.iter().find(|work| !self.works.contains_key(work)) {
                    return Err(format!("there is no work w{work} in flight here"));
                }
                self.works.retain(|work, _| !works.contains(work));
            }
            Step::Scope { comm, calls } => {
                if calls.is_empty() {
                    return Err("a scope has one call or more".into());
                }
                let members = self.members(*comm)?.len();
                calls.iter().try_for_each(|call| fits(&call.operation, members))?;
            }
            Step::Message { comm, from, to, dtype, count, .. } => {
                self.position(*comm, *from)?;
                self.position(*comm, *to)?;
                if from == to {
                    return Err("nobody sends to himself".into());
                }
                within_memory(*dtype, Some(*count))?;
            }
            Step::Refuse { comm, by } => self.position(*comm, *by)?,
            Step::Mismatch { comm, by } => {
                self.position(*comm, *by)?;
                if self.members(*comm)?.len() < 2 {
                    return Err("a mismatch needs two members".into());
                }
                if !self.comms[comm].1 {
                    return Err("a mismatch needs a communicator that a split has made: it is lost afterwards".into());
                }
                self.remove(*comm);
            }
            Step::Pause { rank, micros } => {
                if *rank >= self.ranks || *micros > 1_000_000 {
                    return Err(format!("a pause is for a rank below {} and at most 1000000 us", self.ranks));
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, new: usize, members: Vec<usize>, by_split: bool) -> Result<(), String> {
        if !self.used_comms.insert(new) {
            return Err(format!("there was a communicator c{new} before"));
        }
        self.comms.insert(new, (members, by_split));
        Ok(())
    }

    fn remove(&mut self, comm: usize) {
        self.comms.remove(&comm);
        self.works.retain(|_, on| *on != comm);
    }
}

fn distinct(list: &[usize], below: usize) -> Result<impl Iterator<Item = usize>, String> {
    let set: BTreeSet<usize> = list.iter().copied().collect();
    if list.is_empty() || set.len() < list.len() || set.last().is_some_and(|most| *most >= below) {
        let bound = if below == usize::MAX { String::new() } else { format!(" below {below}") };
        return Err(format!("needs one or more different numbers{bound}"));
    }
    Ok(list.iter().copied())
}

/// Whether the operation is one that `members` can call.
fn fits(o: &Operation, members: usize) -> Result<(), String> {
    if o.kind.reduces() && o.op.is_none_or(|op| !op.is_meaningful_for(o.dtype)) {
        return Err(format!("{} needs an operator that has a meaning for {}", o.kind, o.dtype));
    }
    if o.root >= members {
        return Err(format!("root {} of {members} members", o.root));
    }
    let wanted = match o.kind {
        OpKind::AllToAllV => members * members,
        OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV => members,
        _ => 0,
    };
    if o.counts.len() != wanted {
        return Err(format!("{} of {members} members takes {wanted} counts, not {}", o.kind, o.counts.len()));
    }
    if o.token && !matches!(o.kind, OpKind::AllGatherV | OpKind::ReduceScatterV) || (o.width != 1 && !o.token) {
        return Err("only all_gather_v and reduce_scatter_v have a token form, and only that has a width".into());
    }
    if o.in_place && !matches!(o.kind, OpKind::AllReduce | OpKind::AllGather | OpKind::ReduceScatter) {
        return Err(format!("{} has no form in place", o.kind));
    }
    let counted = o.counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
    let rows = counted.and_then(|sum| sum.checked_mul(o.width));
    let even = o.count.checked_mul(members.min(MOST_RANKS));
    within_memory(o.dtype, rows.zip(even).and_then(|(a, b)| a.checked_add(b)?.checked_add(o.offset)))
}

fn within_memory(dtype: DType, elements: Option<usize>) -> Result<(), String> {
    let bytes = elements.and_then(|elements| elements.checked_mul(elem_size(dtype)));
    let large = || format!("a buffer would have more than {MOST_BYTES} bytes");
    bytes.filter(|bytes| *bytes <= MOST_BYTES).map(drop).ok_or_else(large)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn barrier() -> Numbered {
        Numbered { operation: Operation::new(OpKind::Barrier, DType::U8), values: 1 }
    }

    #[test]
    fn a_step_that_loses_what_it_needs_is_left_out() {
        let steps = vec![
            Step::Call { comm: 1, call: barrier() },
            Step::Split { new: 2, of: 0, positions: vec![1, 0] },
            Step::Start { work: 7, comm: 2, call: barrier() },
            Step::Wait { works: vec![7, 8] },
            Step::Drop { comm: 2 },
            Step::Call { comm: 2, call: barrier() },
        ];
        let script = Script { ranks: 2, seed: 1, fixed: false, steps }.repaired();
        assert_eq!(script.steps.len(), 4, "{script:?}");
        assert_eq!(script.steps[2], Step::Wait { works: vec![7] });
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let refused = |step: Step| State::new(3).admit(&step).unwrap_err();
        assert!(refused(Step::Drop { comm: 0 }).contains("lives to the end"));
        assert!(refused(Step::Group { new: 1, ranks: vec![0, 3] }).contains("below 3"));
        assert!(refused(Step::Group { new: 1, ranks: vec![1, 1] }).contains("different"));
        assert!(refused(Step::Mismatch { comm: 0, by: 1 }).contains("split"));
        let mut call = barrier();
        call.operation = Operation { count: usize::MAX / 2, ..Operation::new(OpKind::AllReduce, DType::F64) };
        assert!(refused(Step::Call { comm: 0, call: call.clone() }).contains("bytes"));
        call.operation = Operation { count: 1, root: 3, ..Operation::new(OpKind::Broadcast, DType::F64) };
        assert!(refused(Step::Call { comm: 0, call }).contains("root 3 of 3"));
    }
}
