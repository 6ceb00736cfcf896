//! Random scripts for proptest, and how a failing one becomes a small one.
//!
//! First the steps: what comes after the failure, what it does not depend on, then blocks of steps of half the size each
//! time. Then the steps that are left: plainer calls, smaller counts.

use super::generate::{Choices, generate};
use super::script::{ALL, Numbered, Script, Step};
use crate::operation::{Memory, Operation};
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rankwise_core::{DType, OpKind};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// Scripts of a number of calls, from a seed and its followers.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) next_seed: Cell<u64>,
    pub(crate) ranks: usize,
    pub(crate) calls: usize,
    pub(crate) choices: Choices,
    /// The step that the last failing run failed in, counted from 1: written by whoever runs the scripts.
    pub(crate) failed_in: Rc<Cell<Option<usize>>>,
}

impl Strategy for Scripts {
    type Tree = ScriptTree;
    type Value = Script;

    fn new_tree(&self, _: &mut TestRunner) -> NewTree<Scripts> {
        let seed = self.next_seed.get();
        self.next_seed.set(seed.wrapping_add(1));
        let script = script_of(seed, self.ranks, self.calls, &self.choices);
        Ok(ScriptTree::new(script, self.failed_in.clone()))
    }
}

/// The script of a seed. Odd ones ask for fixed determinism where that is offered.
pub(crate) fn script_of(seed: u64, ranks: usize, calls: usize, choices: &Choices) -> Script {
    generate(seed, ranks, calls, &Choices { rounding: choices.rounding && seed % 2 == 1, ..choices.clone() })
}

/// A failing script and what is tried to make it smaller.
pub(crate) struct ScriptTree {
    /// The smallest that failed.
    best: Script,
    /// What is being tried.
    candidate: Option<Script>,
    stage: Stage,
    failed_in: Rc<Cell<Option<usize>>>,
    /// Simpler forms still to try in the stage of simplification.
    queue: RefCell<VecDeque<Script>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Only what the failing step needs.
    Slice,
    /// Without what comes after it.
    Cut,
    /// Without `size` steps from `at`.
    Blocks {
        size: usize,
        at: usize,
    },
    /// Plainer steps.
    Plainer,
    /// Without the step at `at`: what plainer steps do not need.
    Single {
        at: usize,
    },
    Over,
}

impl ScriptTree {
    pub(crate) fn new(best: Script, failed_in: Rc<Cell<Option<usize>>>) -> ScriptTree {
        ScriptTree { best, candidate: None, stage: Stage::Slice, failed_in, queue: RefCell::default() }
    }

    /// The next script to try, after one that failed or one that did not.
    fn advance(&mut self, failed: bool) -> bool {
        if failed && let Some(candidate) = self.candidate.take() {
            self.best = candidate;
            self.queue.borrow_mut().clear();
        }
        self.candidate = loop {
            let found = self.propose();
            match found {
                Some(script) if script != self.best => break Some(script),
                Some(_) => {}
                None => break None,
            }
        };
        self.candidate.is_some()
    }

    fn propose(&mut self) -> Option<Script> {
        let failed_in = self.failed_in.get().filter(|step| *step <= self.best.steps.len());
        let steps = self.best.steps.len();
        match self.stage {
            Stage::Slice => {
                self.stage = Stage::Cut;
                Some(failed_in.map_or_else(|| self.best.clone(), |step| slice(&self.best, step - 1)))
            }
            Stage::Cut => {
                self.stage = Stage::Blocks { size: steps.div_ceil(2).max(1), at: 0 };
                let mut script = self.best.clone();
                script.steps.truncate(failed_in.unwrap_or(steps));
                Some(script)
            }
            Stage::Blocks { size, at } if at < steps => {
                // When this candidate fails, the steps behind it move up to `at`.
                let mut script = self.best.clone();
                script.steps.drain(at..(at + size).min(steps));
                let script = script.repaired();
                self.stage = Stage::Blocks { size, at: at + size };
                Some(script)
            }
            Stage::Blocks { size: 1, .. } => {
                self.stage = Stage::Plainer;
                Some(self.best.clone())
            }
            Stage::Blocks { size, .. } => {
                self.stage = Stage::Blocks { size: size.div_ceil(2).min(size - 1), at: 0 };
                Some(self.best.clone())
            }
            Stage::Plainer => {
                let mut queue = self.queue.borrow_mut();
                if queue.is_empty() {
                    queue.extend(plainer(&self.best));
                    queue.push_back(self.best.clone());
                }
                let next = queue.pop_front();
                if queue.is_empty() {
                    self.stage = Stage::Single { at: 0 };
                }
                next
            }
            Stage::Single { at } if at < steps => {
                self.stage = Stage::Single { at: at + 1 };
                let mut script = self.best.clone();
                script.steps.remove(at);
                Some(script.repaired())
            }
            Stage::Single { .. } | Stage::Over => {
                self.stage = Stage::Over;
                None
            }
        }
    }
}

impl ValueTree for ScriptTree {
    type Value = Script;

    fn current(&self) -> Script {
        self.candidate.as_ref().unwrap_or(&self.best).clone()
    }

    fn simplify(&mut self) -> bool {
        // What was just removed leaves its place to what comes next.
        if let (Stage::Blocks { size, at }, Some(_)) = (self.stage, &self.candidate) {
            self.stage = Stage::Blocks { size, at: at.saturating_sub(size) };
        }
        if let (Stage::Single { at }, Some(_)) = (self.stage, &self.candidate) {
            self.stage = Stage::Single { at: at.saturating_sub(1) };
        }
        self.advance(true)
    }

    fn complicate(&mut self) -> bool {
        self.candidate = None;
        self.advance(false)
    }
}

/// The step at `at` and what it needs: where its communicators and works come from.
fn slice(script: &Script, at: usize) -> Script {
    let mut comms = BTreeSet::new();
    let mut works = BTreeSet::new();
    let mut kept = Vec::new();
    for (i, step) in script.steps[..=at].iter().enumerate().rev() {
        let (needs, makes): (Vec<usize>, Option<usize>) = match step {
            Step::Split { new, of, .. } => (vec![*of], Some(*new)),
            Step::Group { new, .. } => (Vec::new(), Some(*new)),
            Step::Start { work, comm, .. } if works.contains(work) => {
                comms.insert(*comm);
                kept.push(step.clone());
                continue;
            }
            Step::Call { comm, .. } | Step::Start { comm, .. } | Step::Scope { comm, .. } | Step::Drop { comm } => {
                (vec![*comm], None)
            }
            Step::Message { comm, .. } | Step::Refuse { comm, .. } | Step::Mismatch { comm, .. } => (vec![*comm], None),
            Step::Wait { works: waited } => {
                if i == at {
                    works.extend(waited.iter().copied());
                }
                (Vec::new(), None)
            }
            Step::Pause { .. } => (Vec::new(), None),
        };
        if i == at || makes.is_some_and(|new| comms.contains(&new)) {
            comms.extend(needs);
            kept.push(step.clone());
        }
    }
    kept.reverse();
    Script { steps: kept, ..script.clone() }.repaired()
}

/// Scripts in which one step is plainer.
fn plainer(script: &Script) -> Vec<Script> {
    let mut scripts = Vec::new();
    for (i, step) in script.steps.iter().enumerate() {
        for simple in plainer_step(script.ranks, step) {
            let mut candidate = script.clone();
            candidate.steps[i] = simple;
            let candidate = candidate.repaired();
            // A form that does not fit has vanished.
            if candidate.steps.len() == script.steps.len() {
                scripts.push(candidate);
            }
        }
    }
    scripts
}

fn plainer_step(ranks: usize, step: &Step) -> Vec<Step> {
    match step {
        Step::Call { comm, call } => {
            let elsewhere = (*comm != ALL).then(|| Step::Call { comm: ALL, call: spread(call, ranks) });
            let calls = plainer_call(call).into_iter().map(|call| Step::Call { comm: *comm, call });
            elsewhere.into_iter().chain(calls).collect()
        }
        Step::Start { work, comm, call } => {
            let run = Step::Call { comm: *comm, call: call.clone() };
            let calls = plainer_call(call).into_iter().map(|call| Step::Start { work: *work, comm: *comm, call });
            std::iter::once(run).chain(calls).collect()
        }
        Step::Scope { comm, calls } => {
            let single = calls.iter().map(|call| Step::Call { comm: *comm, call: call.clone() });
            let without = (0..calls.len()).filter(|_| calls.len() > 1).map(|i| {
                let mut calls = calls.clone();
                calls.remove(i);
                Step::Scope { comm: *comm, calls }
            });
            single.chain(without).collect()
        }
        Step::Wait { works } if works.len() > 1 => (0..works.len())
            .map(|i| {
                let mut works = works.clone();
                works.remove(i);
                Step::Wait { works }
            })
            .collect(),
        Step::Message { comm, from, to, dtype, count, values } => smaller(*count)
            .map(|count| {
                let (comm, from, to, dtype, values) = (*comm, *from, *to, *dtype, *values);
                Step::Message { comm, from, to, dtype, count, values }
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The call as it can be made by all ranks.
fn spread(call: &Numbered, ranks: usize) -> Numbered {
    let mut call = call.clone();
    let o = &mut call.operation;
    if o.counts.is_empty() {
        return call;
    }
    let wanted = if o.kind == OpKind::AllToAllV { ranks * ranks } else { ranks };
    o.counts.resize(wanted, 1);
    call
}

fn smaller(count: usize) -> impl Iterator<Item = usize> {
    let closer = (1..usize::BITS).map(move |k| count - (count >> k)).take_while(move |smaller| *smaller < count);
    [0, 1, 2].into_iter().filter(move |smaller| *smaller < count).chain(closer)
}

fn plainer_call(call: &Numbered) -> Vec<Numbered> {
    let o = &call.operation;
    let mut forms = Vec::new();
    let mut try_with = |change: &dyn Fn(&mut Operation)| {
        let mut call = call.clone();
        change(&mut call.operation);
        if call.operation != *o {
            forms.push(call);
        }
    };
    try_with(&|o| o.memory = Memory::Heap);
    try_with(&|o| o.offset = 0);
    try_with(&|o| o.in_place = false);
    try_with(&|o| o.root = 0);
    if !o.counts.is_empty() {
        try_with(&|o| (o.token, o.width) = (false, 1));
        try_with(&|o| o.counts.iter_mut().for_each(|count| *count = 0));
        try_with(&|o| o.counts.iter_mut().for_each(|count| *count = 1));
        try_with(&|o| o.counts.iter_mut().for_each(|count| *count /= 2));
        for i in 0..o.counts.len().min(16) {
            try_with(&|o| o.counts[i] = 0);
        }
    }
    if !o.kind.reduces() && o.kind != OpKind::Barrier {
        try_with(&|o| o.dtype = DType::U8);
    }
    smaller(o.count).for_each(|count| try_with(&|o| o.count = count));
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::test_runner::{Config, TestCaseError, TestError};
    use rankwise_core::ReduceOp;

    /// The step that fails when the fault is an all-reduce of `f32` beyond 1000 elements after any message.
    fn fault(script: &Script) -> Option<usize> {
        let message = script.steps.iter().position(|step| matches!(step, Step::Message { .. }))?;
        let wrong = |step: &Step| {
            let Step::Call { call, .. } = step else { return false };
            let o = &call.operation;
            o.kind == OpKind::AllReduce && o.dtype == DType::F32 && o.count > 1000 && o.op == Some(ReduceOp::Sum)
        };
        script.steps[message..].iter().position(wrong).map(|at| message + at + 1)
    }

    #[test]
    fn a_fault_of_two_steps_is_found_and_stands_alone() {
        let failed_in = Rc::new(Cell::new(None));
        let choices = Choices::default();
        let scripts = Scripts { next_seed: Cell::new(3), ranks: 4, calls: 2000, choices, failed_in: failed_in.clone() };
        let tries = Cell::new(0);
        let config = Config { cases: 20, max_shrink_iters: 500, failure_persistence: None, ..Config::default() };
        let result = TestRunner::new(config).run(&scripts, |script| {
            tries.set(tries.get() + 1);
            match fault(&script) {
                None => Ok(()),
                Some(step) => {
                    failed_in.set(Some(step));
                    Err(TestCaseError::fail("wrong"))
                }
            }
        });
        let Err(TestError::Fail(_, script)) = result else { panic!("not found: {result:?}") };
        assert_eq!(script.steps.len(), 2, "{script}");
        assert!(
            matches!(&script.steps[1], Step::Call { comm: ALL, call }
            if call.operation.count == 1001 && call.operation.offset == 0 && !call.operation.in_place),
            "{script}"
        );
        assert!(matches!(&script.steps[0], Step::Message { count: 0, .. }), "{script}");
        assert!(tries.get() < 250, "{} tries", tries.get());
    }
}
