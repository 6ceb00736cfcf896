//! MPI backend of rankwise: every operation is the native collective of the MPI that the machine has, under rankwise's contract.
//!
//! How the files relate:
//!
//! - `api`: the part of MPI that is used, as a trait; `linked` has it from the MPI that the build found;
//! - `library`, `operators`: MPI in this process, and our own reductions as its operators;
//! - `way`, `native`, `room`: one call as one collective, with what is done before and after it;
//! - `channel`, `flight`, `work`, `watch`: one communicator, its blocking and started calls, and who watches them;
//! - `meeting`, `queue`, `header`, `post`: check mode, and words outside every call;
//! - `communicator`, `backend`: the backend interface.
//!
//! Everything needs the feature `linked`, and that an MPI (`mpicc`, or what `MPICC` names) and libclang at build time; without it the crate is
//! empty, so that a workspace builds without an MPI.

#![allow(unsafe_code)]

#[cfg(feature = "linked")]
mod api;
#[cfg(feature = "linked")]
mod backend;
#[cfg(feature = "linked")]
mod channel;
#[cfg(feature = "linked")]
mod communicator;
#[cfg(feature = "linked")]
mod flight;
#[cfg(feature = "linked")]
mod header;
#[cfg(feature = "linked")]
mod library;
#[cfg(feature = "linked")]
mod linked;
#[cfg(feature = "linked")]
mod meeting;
#[cfg(feature = "linked")]
mod native;
#[cfg(feature = "linked")]
mod operators;
#[cfg(feature = "linked")]
mod post;
#[cfg(feature = "linked")]
mod queue;
#[cfg(feature = "linked")]
mod room;
#[cfg(feature = "linked")]
mod watch;
#[cfg(feature = "linked")]
mod way;
#[cfg(feature = "linked")]
mod work;

#[cfg(feature = "linked")]
pub use linked::driver;
