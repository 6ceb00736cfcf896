//! Tests the backend against rankwise's contract; `--help` shows how. Alone it starts its ranks itself; as a rank of a job that
//! mpirun, torchrun or `rankwise launch` has started, it runs inside that job.

#![forbid(unsafe_code)]

use own_backend::StarDriver;
use rankwise_conformance::{Expectations, rank_main_expecting};
use std::process::ExitCode;

fn main() -> ExitCode {
    // What the backend promises, apart from its own table, so that a cell that gets lost is noticed.
    match Expectations::parse("expected.toml", include_str!("../expected.toml")) {
        Ok(expected) => rank_main_expecting(&StarDriver, vec![expected]),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
