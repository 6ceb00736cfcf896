//! Shared-memory backend of rankwise: collectives between the processes or threads of one host.
//!
//! Every rank owns its memory, peers read it and never write it; what is posted, when memory may be reused, and why nobody
//! hangs is written in `docs/design/protocol.md`. How the files relate:
//!
//! - `ctl` and `sync`: the protocol core, run under loom by `models`;
//! - `layout`, `segment`, `alloc`: the memory;
//! - `comm`, `waiting`, `pause`, `futex`, `failure`, `exit`: one communicator, its waits and failures;
//! - `ops`: how each operation moves data; `queue`: started calls;
//! - `communicator`, `backend`, `rank_state`: the backend interface.
//!
//! Not here: joining (rankwise-world), argument checks (rankwise-core), arithmetic (rankwise-reduce), other hosts.

// Shared memory is read and written through raw pointers here and nowhere above.
#![allow(unsafe_code)]

#[cfg(not(loom))]
mod alloc;
#[cfg(not(loom))]
mod backend;
#[cfg(not(loom))]
mod comm;
#[cfg(not(loom))]
mod communicator;
#[cfg_attr(loom, allow(dead_code))]
mod ctl;
#[cfg(not(loom))]
mod exit;
#[cfg(not(loom))]
mod failure;
#[cfg(not(loom))]
mod futex;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod ops;
#[cfg(not(loom))]
mod outstanding;
#[cfg(not(loom))]
mod pause;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod rank_state;
#[cfg(not(loom))]
mod segment;
mod sync;
#[cfg(not(loom))]
mod waiting;

#[cfg(all(test, loom))]
mod models;

#[cfg(not(loom))]
pub use backend::driver;
