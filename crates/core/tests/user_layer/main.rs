//! The user's layer over a backend that records what reaches it.

#![allow(unsafe_code, missing_docs, unreachable_pub)]

mod arguments;
mod bad_input;
mod fake;
mod groups;
mod in_flight;
mod segments;
mod solo;
mod splits;
mod tensors;
