//! MPI backend of rankwise: every operation is the native collective of the MPI that the machine has, under rankwise's contract.
//!
//! How the files relate:
//!
//! - `api`: the part of MPI that is used, as a trait; `linked` has it from the MPI that the build found, `standard` from one with MPI 5's
//!   standard ABI that is found at run time;
//! - `library`, `operators`: MPI in this process, and our own reductions as its operators; `base`: the ranks of a world;
//! - `way`, `native`, `room`: one call as one collective, with what is done before and after it;
//! - `large`, `wide`, `pieces`: calls whose counts MPI's `int` can't hold;
//! - `channel`, `flight`, `work`, `watch`: one communicator, its blocking and started calls, and who watches them;
//! - `meeting`, `queue`, `header`, `post`: check mode, and words outside every call;
//! - `goodbye`, `end`: leaving a communicator, and the end of MPI;
//! - `communicator`, `backend`, `driver`: the backend interface.
//!
//! The feature `linked` needs an MPI (`mpicc`, or what `MPICC` names) and libclang at build time, `abi` nothing; without either the crate is
//! empty, so that a workspace builds without an MPI.

#![allow(unsafe_code)]

#[cfg(any(feature = "linked", feature = "abi"))]
mod api;
#[cfg(any(feature = "linked", feature = "abi"))]
mod backend;
#[cfg(any(feature = "linked", feature = "abi"))]
mod base;
#[cfg(any(feature = "linked", feature = "abi"))]
mod channel;
#[cfg(any(feature = "linked", feature = "abi"))]
mod communicator;
#[cfg(any(feature = "linked", feature = "abi"))]
mod driver;
#[cfg(any(feature = "linked", feature = "abi"))]
mod end;
#[cfg(any(feature = "linked", feature = "abi"))]
mod flight;
#[cfg(any(feature = "linked", feature = "abi"))]
mod goodbye;
#[cfg(any(feature = "linked", feature = "abi"))]
mod header;
#[cfg(any(feature = "linked", feature = "abi"))]
mod large;
#[cfg(any(feature = "linked", feature = "abi"))]
mod library;
#[cfg(feature = "linked")]
mod linked;
#[cfg(any(feature = "linked", feature = "abi"))]
mod meeting;
#[cfg(any(feature = "linked", feature = "abi"))]
mod native;
#[cfg(any(feature = "linked", feature = "abi"))]
mod operators;
#[cfg(any(feature = "linked", feature = "abi"))]
mod pieces;
#[cfg(any(feature = "linked", feature = "abi"))]
mod post;
#[cfg(any(feature = "linked", feature = "abi"))]
mod queue;
#[cfg(any(feature = "linked", feature = "abi"))]
mod room;
#[cfg(feature = "abi")]
mod standard;
#[cfg(any(feature = "linked", feature = "abi"))]
mod watch;
#[cfg(any(feature = "linked", feature = "abi"))]
mod way;
#[cfg(any(feature = "linked", feature = "abi"))]
mod wide;
#[cfg(any(feature = "linked", feature = "abi"))]
mod work;

#[cfg(feature = "linked")]
pub use linked::{driver, world_of, world_of_raw};
#[cfg(feature = "abi")]
pub use standard::{abi_driver, abi_world_of_raw};
