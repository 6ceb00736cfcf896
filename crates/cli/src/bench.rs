//! `rankwise bench`: how fast collectives are on this machine, every result checked.
//!
//! `job` starts the ranks and prints; `rank` is what each of them does. `args` and `size` read the command line into cells
//! (`cell`, `op`); `pattern` and `elem` are the values; `calls` is one cell on one rank, `measure` times it with the clock of
//! `clock` and the barrier of `page`; `report` prints.
//!
//! `workload` replays the communication of models instead.
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
mod workload;

pub(crate) use args::BenchArgs;

use std::process::ExitCode;

impl BenchArgs {
    /// The command itself.
    pub(crate) fn run(self) -> ExitCode {
        match (self.list_workloads, self.workload.is_empty()) {
            (true, _) => workload::list(),
            (false, true) => job::run(&self),
            (false, false) => workload::run(&self),
        }
    }

    /// One rank of it.
    pub(crate) fn run_rank(self) -> ExitCode {
        let result = if self.workload.is_empty() { rank::run(&self) } else { workload::run_rank(&self) };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }
    }
}
