//! Groups, calls, errors, capabilities and the backend interface of rankwise.
pub mod dtype;
pub mod error;
pub mod group;
pub mod op;
pub use dtype::{DType, DTypeSet, Elem};
pub use error::{Error, ErrorKind, Result};
pub use group::Group;
pub use op::{OpKind, ReduceOp};
