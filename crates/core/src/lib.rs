//! Groups, calls, errors, capabilities and the backend interface of rankwise.
//!
//! This crate knows no engine and does no input or output. It holds what every backend and every user shares.

pub mod backend;
pub mod caps;
pub mod config;
pub mod dtype;
pub mod error;
pub mod fork;
pub mod group;
pub mod mem;
pub mod op;

pub use caps::{Capabilities, DeadlineSupport, Determinism, Threshold};
pub use config::{Config, OnStuck, Settings, Wait};
pub use dtype::{DType, DTypeSet, Elem};
pub use error::{Error, ErrorKind, Result};
pub use group::Group;
pub use mem::{MemorySpace, Queue};
pub use op::{OpKind, ReduceOp};
