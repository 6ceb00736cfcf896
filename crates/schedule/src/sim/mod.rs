//! The executor over a network in virtual time: what a plan costs on thousands of ranks, in one thread.
//!
//! | file | holds |
//! |---|---|
//! | `model.rs` | [`Model`]: hosts, racks, latencies, bandwidths, overheads; the textbook formula |
//! | `links.rs` | the links of hosts and racks, which take messages one after the other |
//! | `network.rs`, `queues.rs` | events, and the transport of a rank |
//! | `memory.rs` | local work takes time, with data or without |
//! | `simulation.rs` | [`Simulation`] of any calls, [`simulate`] for one |
//!
//! Time is counted in picoseconds by whole numbers, and events of one time happen in the order in which they were made: equal input, equal
//! result. What the model leaves out stands in `docs/simulate.md`.

mod links;
mod memory;
mod model;
mod network;
mod queues;
mod simulation;

pub use model::{MAX_RANKS, Model};
pub use network::Traffic;
pub use simulation::{Outcome, Simulation, simulate};
