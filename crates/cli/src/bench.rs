//! `rankwise bench`: how fast collectives are on this machine, every result checked.
//!
//! `job` measures a sweep and prints, with ranks that `launched` starts, under the launcher that `mpirun` finds where a backend
//! needs an MPI's; `watch` ends such a job when it says nothing. `rank` is what each of them does. `args` and `size` read the command line into cells
//! (`cell`, `op`); `pattern` and `elem` are the values; `calls` is one cell on one rank, `measure` times it with the clock of
//! `clock` and the barrier of `page`; `report` prints, and `osu` in OSU's form.
//!
//! `command` is the command line around the sweep. `results` reads and writes files of raw results (`origin` is their first
//! line, `measured` the others), `baseline` and `compare` judge them by the intervals of `interval`; `rounds` measures
//! backends in turn, `comparison` prints, `contenders` finds them in a single file. `sink` is where the rows of a job go, and
//! `pictures` draws them.
//!
//! `peers` measures other libraries in the same rounds. `workload` replays the communication of models instead.
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
mod contenders;
mod elem;
mod interval;
mod job;
mod launched;
mod measure;
mod measured;
mod mpirun;
mod op;
mod origin;
mod osu;
mod page;
mod pattern;
mod peers;
mod pictures;
mod rank;
mod report;
mod results;
mod rounds;
mod sink;
mod size;
mod watch;
mod workload;

pub(crate) use args::BenchArgs;
pub(crate) use command::BenchCommand;
use command::Part;
pub(crate) use mpirun::START_COMMAND;

use clap::Args;
use std::process::ExitCode;

impl BenchCommand {
    /// The command itself.
    pub(crate) fn run(self) -> ExitCode {
        if let (None, Some(dir)) = (&self.part, &self.peers.peers) {
            return peers::run(dir, &self.sweep, &self.files, &self.peers);
        }
        match (&self.part, self.sweep.list_workloads, self.sweep.workload.is_empty()) {
            (Some(Part::Compare(args)), ..) => compare::run(args),
            (None, true, _) => workload::list(),
            (None, false, true) => job::run(&self.sweep, &self.files),
            (None, false, false) => workload::run(&self.sweep, &self.files),
        }
    }
}

/// Words of a rank that an MPI's launcher starts: how it is placed, then the arguments of the rank itself.
#[derive(Args)]
pub(crate) struct BenchStart {
    placement: String,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl BenchStart {
    /// Becomes the rank.
    pub(crate) fn run(self) -> ExitCode {
        match launched::Placement::from_name(&self.placement) {
            Some(placement) => mpirun::start(placement, &self.arguments),
            None => job::refuse(&format!("there is no placement {:?}", self.placement)),
        }
    }
}

impl BenchArgs {
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
