//! `rankwise bench`: how fast collectives are on this machine, every result checked.
//!
//! `job` starts the ranks and prints; `rank` is what each of them does. `args` and `size` read the command line into cells
//! (`cell`, `op`); `pattern` and `elem` are the values; `calls` is one cell on one rank, `measure` times it with the clock of
//! `clock` and the barrier of `page`; `report` prints.
//!
//! Not here: the backends, which are used through their public interface like any program uses them.

mod args;
mod calls;
mod cell;
mod clock;
mod elem;
mod job;
mod measure;
mod op;
mod page;
mod pattern;
mod rank;
mod report;
mod size;

pub(crate) use args::BenchArgs;

use std::process::ExitCode;

impl BenchArgs {
    /// The command itself.
    pub(crate) fn run(self) -> ExitCode {
        job::run(&self)
    }

    /// One rank of it.
    pub(crate) fn run_rank(self) -> ExitCode {
        match rank::run(&self) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }
    }
}
