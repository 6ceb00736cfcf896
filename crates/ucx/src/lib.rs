//! Messages between the ranks of a world over UCX: RDMA, TCP, shared memory, without MPI.
//!
//! | file | holds |
//! |---|---|
//! | `library.rs`, `log.rs` | UCX, found once; its statuses and its log as errors |
//! | `settings.rs` | which transports and devices it may use |
//! | `worker.rs`, `peer.rs` | a worker for each rank, an endpoint for each peer |
//! | `meeting.rs` | how the ranks learn each other's addresses |
//! | `transport.rs`, `request.rs` | [`UcxTransport`]: what plans of `rankwise-schedule` run on |
//! | `watch.rs` | [`Watch`]: waiting, with an eye on the others and on the clock |
//!
//! It has no collectives: those are plans. UCX is found when the program runs; `RANKWISE_UCX_LIBRARY` names another one than the system's.
//!
//! # Tags
//!
//! A message is matched by all 64 bits of [`Tag::pack`](rankwise_schedule::Tag::pack): from the top 16 bits each of sender, communicator and
//! sequence, 4 of lane, 12 of round. The fields wrap: call 65536 of a communicator has the tags of call 0. That is safe, because messages with equal tags
//! match in the order in which they were sent and received, and a plan never has two of one round under way.
//!
//! # The first message of a call
//!
//! It begins with 32 bytes: the call's descriptor, and the length of the payload. Up to 4096 bytes follow in the same message, in memory of our own that is
//! used again; longer payloads are a second message with the same tag, from and into the caller's memory. A receiver whose descriptor differs takes the payload
//! and throws it away, so that the sender is not left waiting.
//!
//! # Death
//!
//! On one host UCX does not watch connections (`UCP_ERR_HANDLING_MODE_NONE`): its shared memory can't, and asked to it falls back to TCP. Between hosts it does
//! (`PEER`). In both cases [`Watch`] asks the world, which knows from the kernel.

mod library;
mod log;
mod meeting;
mod peer;
mod request;
mod settings;
mod transport;
mod watch;
mod worker;

pub use library::{LIBRARY_VARIABLE, library};
pub use peer::Watching;
pub use request::Request;
pub use transport::{Options, UcxTransport};
pub use watch::{Stuck, Watch};
