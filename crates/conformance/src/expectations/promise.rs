//! What a backend has promised to offer. A capability table that says no where this says yes is wrong.

use super::File;
use crate::case::{Case, Need};
use crate::cases::conditions;
use rankwise_core::{
    Capabilities, DType, DTypeSet, DeadlineSupport, Determinism, MemorySpace, OpKind, ReduceOp, Result,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use toml::Spanned;

/// A promise, by the names that operations, operators and types have in tables and on command lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    pub(super) operations: BTreeSet<String>,
    pub(super) moves: BTreeSet<String>,
    pub(super) reductions: BTreeMap<String, BTreeSet<String>>,
    pub(super) host: bool,
    pub(super) cuda: bool,
    pub(super) fixed: bool,
    pub(super) enforced: bool,
    pub(super) agreement: bool,
    pub(super) start: bool,
    pub(super) alloc: bool,
    pub(super) largest_buffer: u64,
}

/// The table of a file, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct Written {
    operations: Vec<Spanned<String>>,
    moves: Option<Spanned<Types>>,
    reductions: BTreeMap<Spanned<String>, Spanned<Types>>,
    memory: Vec<Spanned<String>>,
    determinism: Option<Spanned<String>>,
    deadline: Option<Spanned<String>>,
    agreement: bool,
    start: bool,
    alloc: bool,
    largest_buffer: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Types {
    Word(String),
    List(Vec<String>),
}

impl Promise {
    pub(super) fn read(file: &File<'_>, written: &Written) -> Result<Promise> {
        let mut promise = Promise {
            agreement: written.agreement,
            start: written.start,
            alloc: written.alloc,
            largest_buffer: written.largest_buffer,
            ..Promise::default()
        };
        for name in &written.operations {
            if OpKind::from_name(name.get_ref()).is_none() {
                return Err(file.error(&name.span(), &no_operation(name.get_ref())));
            }
            promise.operations.insert(name.get_ref().clone());
        }
        if let Some(types) = &written.moves {
            promise.moves = read_types(file, types)?.iter().map(|dtype| dtype.name().to_string()).collect();
        }
        for (name, types) in &written.reductions {
            let op = match ReduceOp::ALL.into_iter().find(|op| op.name() == name.get_ref()) {
                Some(op) => op,
                None => return Err(file.error(&name.span(), &no_operator(name.get_ref()))),
            };
            let types: Vec<DType> =
                read_types(file, types)?.into_iter().filter(|dtype| *dtype != DType::Opaque).collect();
            if let Some(dtype) = types.iter().find(|dtype| !op.is_meaningful_for(**dtype)) {
                return Err(file.error(&name.span(), &format!("{} has no meaning for {dtype}", op.name())));
            }
            promise.reductions.insert(op.name().into(), types.iter().map(|dtype| dtype.name().to_string()).collect());
        }
        for space in &written.memory {
            match space.get_ref().as_str() {
                "host" => promise.host = true,
                "cuda" => promise.cuda = true,
                _ => return Err(file.error(&space.span(), "memory is \"host\" or \"cuda\"")),
            }
        }
        if let Some(word) = &written.determinism {
            promise.fixed = match word.get_ref().as_str() {
                "fixed" => true,
                "same topology" => false,
                _ => return Err(file.error(&word.span(), "determinism is \"fixed\" or \"same topology\"")),
            };
        }
        if let Some(word) = &written.deadline {
            promise.enforced = match word.get_ref().as_str() {
                "enforced" => true,
                "watched" => false,
                _ => return Err(file.error(&word.span(), "deadline is \"enforced\" or \"watched\"")),
            };
        }
        Ok(promise)
    }

    /// Whether it includes an operator on a type.
    pub(super) fn reduces(&self, op: ReduceOp, dtype: DType) -> bool {
        self.reductions.get(op.name()).is_some_and(|types| types.contains(dtype.name()))
    }

    /// Whether it includes everything that a case needs.
    pub(crate) fn meets_all(&self, case: &Case) -> bool {
        conditions::lacking(case.id, self.agreement, self.enforced).is_none()
            && case.needs.iter().all(|need| self.meets(*need))
    }

    /// Whether it includes what a case needs.
    fn meets(&self, need: Need) -> bool {
        match need {
            Need::Kind(kind) => self.operations.contains(kind.name()),
            Need::Reduce(op, dtype) => self.reduces(op, dtype),
            Need::Nonblocking => self.start,
            Need::Alloc => self.alloc,
            Need::Fixed => self.fixed,
        }
    }

    /// What is promised and not in the table.
    pub(crate) fn missing_from(&self, table: &Capabilities) -> Vec<String> {
        let mut missing = Vec::new();
        let mut require = |offered: bool, promised: bool, what: String| {
            if promised && !offered {
                missing.push(what);
            }
        };
        for kind in OpKind::DATA {
            require(table.has_kind(kind), self.operations.contains(kind.name()), kind.to_string());
        }
        for op in ReduceOp::ALL {
            for dtype in DType::NUMERIC {
                let offered = table.reduces(op).contains(dtype);
                require(offered, self.reduces(op, dtype), format!("{} of {dtype}", op.name()));
            }
        }
        for dtype in every_type().iter() {
            let promised = self.moves.contains(dtype.name());
            require(table.moves().contains(dtype), promised, format!("moving {dtype}"));
        }
        require(table.has_space(MemorySpace::Host), self.host, "host memory".into());
        require(table.has_space(MemorySpace::Cuda(0)), self.cuda, "cuda memory".into());
        require(table.determinism() >= Determinism::Fixed, self.fixed, "fixed determinism".into());
        require(table.deadline() == DeadlineSupport::Enforced, self.enforced, "enforced deadlines".into());
        require(table.agreement(), self.agreement, "mismatches found and told".into());
        require(table.nonblocking(), self.start, "start and scope".into());
        require(table.alloc(), self.alloc, "alloc".into());
        let size = format!("buffers of {} bytes", self.largest_buffer);
        require(table.max_bytes() >= self.largest_buffer, true, size);
        missing
    }
}

fn read_types(file: &File<'_>, types: &Spanned<Types>) -> Result<Vec<DType>> {
    let list = match types.get_ref() {
        Types::List(list) => list,
        Types::Word(word) => {
            let set = match word.as_str() {
                "all" => every_type(),
                "floats" => DTypeSet::FLOATS,
                "integers" => DTypeSet::INTEGERS,
                _ => {
                    let text = "types are \"all\", \"floats\", \"integers\" or a list, for example [\"f32\", \"bf16\"]";
                    return Err(file.error(&types.span(), text));
                }
            };
            return Ok(set.iter().collect());
        }
    };
    let known = |name: &String| DType::from_name(name).ok_or_else(|| file.error(&types.span(), &no_type(name)));
    list.iter().map(known).collect()
}

fn every_type() -> DTypeSet {
    DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits())
}

pub(super) fn no_operation(name: &str) -> String {
    let known: Vec<&str> = OpKind::DATA.iter().map(|kind| kind.name()).collect();
    format!("there is no operation {name:?}; there are {}", known.join(", "))
}

pub(super) fn no_operator(name: &str) -> String {
    let known: Vec<&str> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
    format!("there is no operator {name:?}; there are {}", known.join(", "))
}

pub(super) fn no_type(name: &str) -> String {
    let known: Vec<&str> = every_type().iter().map(DType::name).collect();
    format!("there is no type {name:?}; there are {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::Expectations;
    use super::*;

    #[test]
    fn a_missing_cell_is_named() {
        let text = "backend = \"x\"\n[promise]\noperations = [\"all_reduce\", \"send\"]\nmoves = [\"u8\"]\nmemory = [\"host\"]\n\
                    deadline = \"enforced\"\nreductions = { sum = [\"f32\", \"bf16\"] }";
        let promise = Expectations::parse("x.toml", text).unwrap().promise.unwrap();
        let table = Capabilities::none()
            .with_kinds(&[OpKind::AllReduce])
            .with_reduce(ReduceOp::Sum, DTypeSet::of(&[DType::F32]))
            .with_spaces(true, false);
        assert_eq!(promise.missing_from(&table), ["send", "sum of bf16", "moving u8", "enforced deadlines"]);
        assert!(promise.meets(Need::Kind(OpKind::Send)) && !promise.meets(Need::Alloc));
        assert!(Promise::default().missing_from(&Capabilities::none()).is_empty());
    }
}
