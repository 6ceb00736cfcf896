//! `rankwise bench`: how fast collectives are on this machine, every result checked.
//!
//! `job` starts the ranks and prints; `rank` is what each of them does. `args` and `size` read the command line into cells
//! (`cell`, `op`); `pattern` and `elem` are the values; `calls` is one cell on one rank, `measure` times it with the clock of
//! `clock` and the barrier of `page`; `report` prints, and `osu` in OSU's form.
//!
//! `command` is the command line around the sweep. `results` reads and writes files of raw results (`origin` is their first
//! line, `measured` the others), `baseline` and `compare` judge them by the intervals of `interval`; `rounds` measures
//! backends in turn, `comparison` prints. `sink` is where the rows of a job go.
//!
//! Not here: the backends, which are used through their public interface like any program uses them.

mod args;
mod baseline;
mod calls;
mod cell;
mod clock;
mod command;
mod compare;
mod comparison;
mod elem;
mod interval;
mod job;
mod measure;
mod measured;
mod op;
mod origin;
mod osu;
mod page;
mod pattern;
mod rank;
mod report;
mod results;
mod rounds;
mod sink;
mod size;

pub(crate) use args::BenchArgs;
pub(crate) use command::BenchCommand;
use command::Part;

use std::process::ExitCode;

impl BenchCommand {
    /// The command itself.
    pub(crate) fn run(self) -> ExitCode {
        match &self.part {
            Some(Part::Compare(args)) => compare::run(args),
            None => job::run(&self.sweep, &self.files),
        }
    }
}

impl BenchArgs {
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
