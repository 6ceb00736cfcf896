//! Groups, calls, errors, capabilities and the backend interface of rankwise.
//!
//! This crate knows no engine and does no input or output. It holds what every backend and every user shares.
//!
//! From the user down to the engine:
//! - [`Backend`] (`registry.rs`) is a joined engine with its registered groups. [`CommBackend`] (`comm_backend.rs`, done
//!   by `tensor_ops.rs`) addresses collectives on tensors to a group; [`Communicator`] (`comm.rs`, `ops.rs`, `split.rs`)
//!   is the typed handle of one.
//! - [`Call`] (`call.rs`) is one operation as a value, over the buffers of `buffer.rs`. It is run, started as a [`Work`]
//!   (`work.rs`) or started in a [`Scope`] (`scope.rs`).
//! - `member.rs` is the one path that all of them take: fork, end and busy flag first, then `check.rs`, then the engine
//!   through [`backend`], or `solo.rs` in a group of one.
//!
//! ```
//! use rankwise_core::{Backend, ReduceOp, Result};
//!
//! /// Every rank passes its part; every rank gets the sum.
//! fn sum(backend: &Backend, part: &[f32]) -> Result<Vec<f32>> {
//!     let mut world = backend.world()?;
//!     let mut total = vec![0.0; part.len()];
//!     world.all_reduce(part, &mut total, ReduceOp::Sum)?;
//!     Ok(total)
//! }
//! ```

pub mod backend;
mod buffer;
mod bytes;
mod call;
pub mod caps;
mod check;
mod comm;
mod comm_backend;
pub mod config;
pub mod descriptor;
pub mod dtype;
pub mod error;
pub mod fork;
mod fp8;
pub mod group;
pub mod mem;
mod member;
pub mod op;
mod ops;
mod registry;
mod scope;
mod segbuf;
mod solo;
mod split;
mod tag;
mod tensor;
mod tensor_ops;
mod work;

pub use buffer::{Absent, Buffer, Dest, InPlace, Owned, Source};
pub use call::{Call, Part};
pub use caps::{Capabilities, DeadlineSupport, Determinism, Threshold};
pub use comm::{AbortHandle, Communicator};
pub use comm_backend::CommBackend;
pub use config::{Config, DeadlineMode, OnStuck, Settings, Wait};
pub use dtype::{DType, DTypeSet, Elem};
pub use error::{Error, ErrorKind, Result};
pub use group::Group;
pub use mem::{MemorySpace, Queue};
pub use op::{OpKind, ReduceOp};
pub use registry::Backend;
pub use scope::{Scope, ScopedWork};
pub use segbuf::SegBuf;
pub use tensor::{Tensor, TensorMut, TensorRef};
pub use work::{Work, WorkError};
