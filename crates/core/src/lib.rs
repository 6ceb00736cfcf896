//! Groups, calls, errors, capabilities and the backend interface of rankwise.
//!
//! This crate knows no engine and does no input or output. It holds what every backend and every user shares.

pub mod backend;
mod buffer;
mod bytes;
mod call;
pub mod caps;
mod check;
mod comm;
mod comm_backend;
pub mod config;
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
pub use config::{Config, OnStuck, Settings, Wait};
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
