//! `rankwise bench`: how fast collectives are on this machine, every result checked.
//!
//! `job` measures a sweep and prints, with ranks that `launched` starts, under an MPI's launcher where a backend needs that; `watch` ends such a job when it says nothing. `rank` is what each of them does. `args` and `size` read the command line into cells
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
pub(crate) use pictures::{AgainstRanks, against_ranks};
pub(crate) use size::list as sizes;

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
