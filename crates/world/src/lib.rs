//! Who am I and who are the others.
//!
//! A [`World`] is one rank's view of its job: rank, size, a [`Store`] through which ranks meet, and [`Liveness`], which
//! knows from the kernel who is still there. Ranks are processes started by [`Launch`] (`rankwise launch`), or threads.
//!
//! It is not a message layer: the store is for joining, and data goes through a communicator of a backend.
//!
//! ```
//! use rankwise_core::Group;
//! use rankwise_world::{Attachment, World};
//! use std::time::Duration;
//!
//! let names = World::threads(2, |world| {
//!     let mine = format!("I am {}", world.rank());
//!     let all = Group::world(world.size());
//!     let met = world.store().exchange("names", "names", &all, mine.as_bytes(), Attachment::None, Duration::from_secs(10))?;
//!     Ok(met.into_iter().map(|(bytes, _)| String::from_utf8_lossy(&bytes).into_owned()).collect::<Vec<_>>())
//! })?
//! .into_iter()
//! .collect::<rankwise_core::Result<Vec<_>>>()?;
//! assert_eq!(names[1], ["I am 0", "I am 1"]);
//! # Ok::<(), rankwise_core::Error>(())
//! ```
//!
//! Files: `world`, `environment`, `launchers` and `meeting_point` decide who we are. `joining` joins what our launcher started.
//! `meeting` is where ranks of one host come together that another launcher started: `door` is rank 0's listening socket,
//! `greeting` the first two packets. `remote` is the same over several hosts: `remote_door` listens on TCP (`tcp`), `handshake`
//! proves that both sides hold the `token`. After either, `roll_call` is the first exchange, `departure` the goodbye;
//! `join_errors` says what went wrong, `peer` who is behind a Unix socket. Ranks that an engine has brought together already
//! (MPI) need nothing of that kind set: `bootstrap` lets them tell each other where to meet.
//!
//! `store` and `liveness` are the two interfaces. `table` is the state of the store without any waiting; `thread_store` wraps
//! it for threads, `hub` serves it to processes, whose end is `process_store`, at the end of a `line` (`wire` has the frames, a
//! `link` carries them (`not_inherited` keeps it from forked children), `packet_socket` the packets). `life` is liveness from the kernel. `launch` starts a job and `job` ends
//! it; `guardian` and `leftovers` see to it that nobody is left. `driver` is how a backend is found.

#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod bootstrap;
mod deadline;
#[cfg(target_os = "linux")]
mod departure;
#[cfg(target_os = "linux")]
mod door;
mod driver;
mod environment;
#[cfg(target_os = "linux")]
mod exit;
mod failure;
#[cfg(target_os = "linux")]
mod greeting;
#[cfg(target_os = "linux")]
mod guardian;
#[cfg(target_os = "linux")]
mod handshake;
#[cfg(target_os = "linux")]
mod hub;
#[cfg(target_os = "linux")]
mod job;
#[cfg(target_os = "linux")]
mod join_errors;
#[cfg(target_os = "linux")]
mod joining;
#[cfg(target_os = "linux")]
pub mod launch;
mod launchers;
#[cfg(target_os = "linux")]
mod leftovers;
#[cfg(target_os = "linux")]
mod life;
mod limits;
#[cfg(target_os = "linux")]
mod line;
#[cfg(target_os = "linux")]
mod link;
mod liveness;
#[cfg(target_os = "linux")]
mod meeting;
mod meeting_point;
#[cfg(target_os = "linux")]
mod not_inherited;
#[cfg(target_os = "linux")]
mod outcome;
#[cfg(target_os = "linux")]
mod output;
#[cfg(target_os = "linux")]
mod packet_socket;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod pin;
#[cfg(target_os = "linux")]
mod process_store;
#[cfg(target_os = "linux")]
mod remote;
#[cfg(target_os = "linux")]
mod remote_door;
#[cfg(target_os = "linux")]
mod roll_call;
#[cfg(target_os = "linux")]
mod signals;
mod store;
mod table;
#[cfg(target_os = "linux")]
mod tcp;
mod thread_store;
#[cfg(target_os = "linux")]
mod token;
#[cfg(target_os = "linux")]
mod wire;
mod world;

#[cfg(target_os = "linux")]
pub use bootstrap::{Bootstrap, FRAME};
pub use driver::{Driver, ProbeReport};
pub use environment::{Announcement, LAUNCH_VARIABLES, PROTOCOL, announced};
pub use failure::RankEnd;
#[cfg(target_os = "linux")]
pub use launch::{Job, Launch};
pub use liveness::{Liveness, PeerStatus};
pub use meeting_point::MEETING_VARIABLES;
pub use store::{Attachment, MAX_KEY, MAX_PAYLOAD, MAX_STORE, MAX_VALUE, Store};
#[cfg(target_os = "linux")]
pub use token::Token;
pub use world::{Placement, World};
