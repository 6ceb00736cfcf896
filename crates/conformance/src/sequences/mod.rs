//! Random sequences of mixed calls on random groups, made smaller when they fail, and scripts that repeat them.
//!
//! `script` is what a sequence is, `text` its written form, `generate` makes one from a seed. `play` is one rank's part, with
//! `flight` for calls in flight; `attempt` runs a script in a job of its own, and `shrink` makes a failing one small.
//! `digest` is what is left of a result when backends are compared; `search` and `replay` are what a user asks for.

mod attempt;
mod digest;
mod flight;
pub(crate) mod generate;
mod play;
mod replay;
pub(crate) mod script;
mod search;
mod shrink;
mod table;
mod text;

pub(crate) use attempt::{Outcome, Patience, PlayedPart, Subject, attempt, run_part};
pub(crate) use digest::{Digest, Form};
pub(crate) use play::play;
pub(crate) use replay::replay;
pub(crate) use search::search;
pub(crate) use table::{TablePart, describe, table_of};
