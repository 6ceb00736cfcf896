//! A backend of somebody's own: a star of Unix sockets.
//!
//! Every member of a group holds one end of a socket pair; the other end is at the *hub*, a few threads in the first member's
//! process. A member sends its call there, and the hub, once it has heard all, sends everybody everything. It works for ranks
//! that are threads of a process or processes of a host, it is slow, and it keeps the contract.
//!
//! `driver` is how it is found and joined, `communicator` is a member's side, `hub` the other, `link` carries frames between
//! them. `main` tests it. `docs/adding-a-backend.md` of rankwise walks through all of it.

#![deny(unsafe_code)]

mod communicator;
mod driver;
mod hub;
mod link;

pub use driver::StarDriver;
