//! What a case is: a plain function in one table, with what it needs and where it comes from.

use crate::ctx::Ctx;
use rankwise_core::{Capabilities, DType, Determinism, OpKind, ReduceOp};
use std::fmt;

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For a human.
    pub text: String,
    /// Whether a call did something wrong: a result, a touched buffer, `Ok` where an error belongs. Otherwise the case
    /// ended with an error or a panic and says nothing about results.
    pub is_wrong_result: bool,
}

impl Failure {
    /// A call did something wrong.
    pub fn wrong(text: String) -> Failure {
        Failure { text, is_wrong_result: true }
    }

    /// The case could not go on.
    pub fn error(text: String) -> Failure {
        Failure { text, is_wrong_result: false }
    }

    /// The same with what it happened in before the text.
    #[must_use]
    pub fn within(self, what: &str) -> Failure {
        Failure { text: format!("{what}: {}", self.text), ..self }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::error(format!("unexpected error: {error}"))
    }
}

/// The result of a case on one rank.
pub type CaseResult<T = ()> = Result<T, Failure>;

/// Fails the case with a formatted text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {{
        let holds: bool = $condition;
        if !holds {
            return Err($crate::case::Failure::wrong(format!($($text)+)));
        }
    }};
}
pub(crate) use ensure;

/// How binding a case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every backend passes it.
    Must,
    /// Only where the capability table offers what it needs.
    Capability,
    /// Large: only in full runs.
    Large,
}

/// What the capability table must offer for a case to make sense.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// A kind of operation.
    Kind(OpKind),
    /// An operator on a type.
    Reduce(ReduceOp, DType),
    /// Nonblocking calls.
    Nonblocking,
    /// Collective allocation.
    Alloc,
    /// The same bits for any length, split and alignment.
    Fixed,
}

impl Need {
    /// Whether the table offers it.
    pub fn is_met(self, capabilities: &Capabilities) -> bool {
        match self {
            Need::Kind(kind) => capabilities.has_kind(kind),
            Need::Reduce(op, dtype) => capabilities.reduces(op).contains(dtype),
            Need::Nonblocking => capabilities.nonblocking(),
            Need::Alloc => capabilities.alloc(),
            Need::Fixed => capabilities.determinism() >= Determinism::Fixed,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Kind(kind) => write!(f, "{kind}"),
            Need::Reduce(op, dtype) => write!(f, "{op} of {dtype}"),
            Need::Nonblocking => f.write_str("nonblocking calls"),
            Need::Alloc => f.write_str("collective allocation"),
            Need::Fixed => f.write_str("fixed determinism"),
        }
    }
}

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, for example `AR-1`: the family and the number it has in the list of cases.
    pub id: &'static str,
    /// What it checks, in a few words.
    pub title: &'static str,
    /// How binding it is.
    pub level: Level,
    /// What it needs of the backend.
    pub needs: &'static [Need],
    /// The smallest world it makes sense in.
    pub least_ranks: usize,
    /// The largest world it is run in.
    pub most_ranks: usize,
    /// Seconds after which a rank that has not finished it counts as hung.
    pub seconds: u64,
    /// Whether it compares the table with what was promised.
    pub about_promise: bool,
    /// What every rank runs.
    pub run: fn(&mut Ctx<'_>) -> CaseResult,
}

impl Case {
    /// A case that every backend passes in every world.
    pub const fn must(id: &'static str, title: &'static str, run: fn(&mut Ctx<'_>) -> CaseResult) -> Case {
        Case {
            id,
            title,
            level: Level::Must,
            needs: &[],
            least_ranks: 1,
            most_ranks: usize::MAX,
            seconds: 60,
            about_promise: false,
            run,
        }
    }

    /// The same for backends that have promised something.
    pub const fn about_promise(mut self) -> Case {
        self.about_promise = true;
        self
    }

    /// The same with these needs.
    pub const fn needs(mut self, needs: &'static [Need]) -> Case {
        self.needs = needs;
        self
    }

    /// The same as a case of the capability level.
    pub const fn offered(mut self, needs: &'static [Need]) -> Case {
        self.level = Level::Capability;
        self.needs = needs;
        self
    }

    /// The same for worlds of at least and at most these sizes.
    pub const fn ranks(mut self, least: usize, most: usize) -> Case {
        self.least_ranks = least;
        self.most_ranks = most;
        self
    }

    /// The same for full runs only.
    pub const fn large(mut self) -> Case {
        self.level = Level::Large;
        self
    }

    /// Why the case does not apply to a world of this size, if so.
    pub fn inapplicable(&self, ranks: usize, full: bool) -> Option<String> {
        if self.level == Level::Large && !full {
            return Some("large: runs with --full".into());
        }
        if ranks < self.least_ranks {
            return Some(format!("needs {} ranks or more", self.least_ranks));
        }
        (ranks > self.most_ranks).then(|| format!("made for at most {} ranks", self.most_ranks))
    }
}
