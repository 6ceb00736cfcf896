//! Collectives as plans: what each member sends, receives, copies and folds, round by round, over any transport.
//!
//! | file | holds |
//! |---|---|
//! | `transport.rs` | [`Transport`]: nonblocking messages; tags and envelopes |
//! | `plan/` | [`Plan`]: pure functions from sizes and position to rounds; an algorithm a file |
//! | `select.rs` | [`Table`]: which plan for which call; `default.plans` is the built-in one |
//! | `memory.rs` | [`Memory`]: what regions are made of; [`HostMemory`] is real |
//! | `operation.rs`, `executor.rs` | one call on its way; [`Executor`]: all calls of a rank |
//! | `loopback.rs` | [`loopback`]: a transport between members of one process, for tests |
//!
//! What this crate is not: it opens no connection, knows no fabric and does not look whether ranks live. A backend gives it a transport, and
//! watches while it waits.
//!
//! ```
//! use rankwise_core::backend::{RawBuf, RawCall};
//! use rankwise_core::{DType, Group, OpKind, ReduceOp, Result};
//! use rankwise_schedule::{Algorithm, Choice, Executor, HostMemory, Stamp, Start, loopback};
//! use std::time::Duration;
//!
//! # fn main() -> Result<()> {
//! let group = Group::world(3);
//! let inputs = [[1.0f32, 10.0], [2.0, 20.0], [3.0, 30.0]];
//! let mut outputs = [[0.0f32; 2]; 3];
//! let mut ranks: Vec<_> = loopback::world(3, loopback::Settings::default()).into_iter().map(Executor::new).collect();
//! let mut tickets = Vec::new();
//! for (me, rank) in ranks.iter_mut().enumerate() {
//!     let mut call = RawCall::new(OpKind::AllReduce, DType::F32, 2);
//!     call.op = Some(ReduceOp::Sum);
//!     call.src = RawBuf::host(inputs[me].as_ptr().cast(), 8);
//!     call.dst = RawBuf::host(outputs[me].as_mut_ptr().cast(), 8);
//!     let stamp = Stamp::new(1, 1, &call, 0);
//!     let choice = Choice::whole(Algorithm::Ring);
//!     let start = Start { group: &group, me, stamp, choice, deadline: Duration::MAX };
//!     // SAFETY: the arrays outlive the loop below, which runs until all calls are idle.
//!     let ticket = unsafe {
//!         rank.start(&call, &start, |memory: &mut HostMemory, plan| memory.arm(&call, 3, plan.scratch()))
//!     };
//!     tickets.push(ticket?);
//! }
//! while ranks.iter().zip(&tickets).any(|(rank, ticket)| !rank.is_idle(*ticket)) {
//!     ranks.iter_mut().for_each(|rank| _ = rank.progress());
//! }
//! assert_eq!(outputs, [[6.0, 60.0]; 3]);
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod executor;
pub mod loopback;
mod memory;
mod operation;
pub mod plan;
pub mod select;
pub mod sim;
pub mod transport;

pub use executor::{Executor, Start, Status, Ticket};
pub use memory::{HostMemory, Memory};
pub use operation::Stamp;
pub use plan::{Algorithm, Choice, Plan};
pub use select::{Selection, Table};
pub use transport::{Envelope, Lent, Tag, Transport, mismatch};
