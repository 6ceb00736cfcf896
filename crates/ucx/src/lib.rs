//! UCX backend of rankwise: messages between ranks over RDMA, TCP and shared memory, without MPI, and collectives as plans over them.
//!
//! | file | holds |
//! |---|---|
//! | `library.rs`, `log.rs` | UCX, found once; its statuses and its log as errors |
//! | `settings.rs` | which transports and devices it may use |
//! | `worker.rs`, `peer.rs` | a worker for each rank, an endpoint for each peer |
//! | `meeting.rs` | how the ranks learn each other's addresses |
//! | `transport.rs`, `request.rs` | [`UcxTransport`]: what plans of `rankwise-schedule` run on |
//! | `first.rs` | the first message of a call, with its descriptor |
//! | `discarded.rs` | messages that nobody wants |
//! | `word.rs` | short messages outside every call |
//! | `backend.rs`, `communicator.rs` | the backend: [`driver`], communicators, works |
//! | `engine.rs`, `core.rs`, `job.rs`, `channel.rs` | the lock, the calls of a rank, its communicators |
//! | `spoken.rs`, `trouble.rs` | what members tell each other, and what they do about failures |
//! | `watch.rs` | [`Watch`]: waiting, with an eye on the others and on the clock |
//!
//! UCX is found when the program runs; `RANKWISE_UCX_LIBRARY` names another one than the system's.
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
//! On one host UCX does not watch connections (`UCP_ERR_HANDLING_MODE_NONE`): its shared memory can't, and asked to it fails, or falls back to TCP where it may:
//! 8 bytes then take 4.0 us for half a round trip instead of 0.14, and 16 MiB 3.7 ms instead of 2.2. Over TCP alone it makes no difference (4.0 us either
//! way). Between hosts UCX does watch (`PEER`). In both cases [`Watch`] asks the world, which knows from the kernel, every 10 ms: in the tests a
//! receive from a rank that has died ends 10 to 12 ms after the wait began, a send that nobody takes within 33 ms.
//!
//! # Threads
//!
//! [`UcxTransport`] may be used by one thread at a time (`UCS_THREAD_MODE_SERIALIZED`), and is behind the lock of whoever shares it: the executor of plans needs
//! that lock anyway, one for a whole pass. With `UCS_THREAD_MODE_MULTI` UCX would take one of its own in every call: 12 ns more for half a round trip of
//! 8 bytes, which takes 94 ns over shared memory.

mod backend;
mod channel;
mod communicator;
mod core;
mod discarded;
mod engine;
mod first;
mod job;
mod library;
mod log;
mod meeting;
mod peer;
mod request;
mod settings;
mod spoken;
mod transport;
mod trouble;
mod watch;
mod word;
mod worker;

pub use backend::driver;
pub use library::{LIBRARY_VARIABLE, library};
pub use peer::Watching;
pub use request::Request;
pub use transport::{Options, UcxTransport};
pub use watch::{Stuck, Watch};
pub use word::Word;
