//! MPI backend of rankwise.
#![allow(unsafe_code)]
#[cfg(any(feature = "linked", feature = "abi"))]
mod api;
#[cfg(feature = "linked")]
mod linked;
