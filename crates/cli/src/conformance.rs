//! `rankwise conformance`: the suite on the backends of this program.

use clap::{Args, ValueEnum};
use rankwise_conformance::{Format, Mode, Options, RankCommand, list, run, run_planned};
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit code when there is nothing to run, or it can't be run.
const UNUSABLE: u8 = 2;
/// The subcommand of the processes that the suite starts.
pub(crate) const RANK_SUBCOMMAND: &str = "__conformance-rank";

#[derive(Clone, Copy, ValueEnum)]
enum Placement {
    Threads,
    Processes,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Flags of `rankwise conformance`.
#[derive(Args)]
pub(crate) struct Conformance {
    /// Backends to test
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    backend: Vec<String>,
    /// World sizes [default: 1,2,3,4,5,7,8,13; drills always have 3]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    ranks: Vec<usize>,
    /// How ranks are placed [default: both]
    #[arg(long, value_enum)]
    mode: Option<Placement>,
    /// Only cases (or drills) whose id or title contains this
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// Whole products instead of samples, and the large cases
    #[arg(long)]
    full: bool,
    /// Run deliberately broken backends instead, each of which must be noticed
    #[arg(long)]
    self_test: bool,
    /// Kill, stop and confuse ranks instead, and look for what is left
    #[arg(long, conflicts_with = "self_test")]
    drills: bool,
    /// Print the cases and drills
    #[arg(long)]
    list: bool,
    /// Seed of samples, values and delays [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    format: Output,
}

impl Conformance {
    /// Runs the suite; prints to standard output.
    pub(crate) fn run(self) -> ExitCode {
        if self.list {
            let written = io::stdout().write_all(list().as_bytes()).and_then(|()| io::stdout().flush());
            return written.map_or_else(|error| crate::output_failed(&error), |()| ExitCode::SUCCESS);
        }
        let defaults = Options::default();
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let options = Options {
            backends: self.backend,
            ranks: if self.ranks.is_empty() { defaults.ranks } else { self.ranks },
            modes: match self.mode {
                None => defaults.modes,
                Some(Placement::Threads) => vec![Mode::Threads],
                Some(Placement::Processes) => vec![Mode::Processes],
            },
            pattern: self.case,
            full: self.full,
            self_test: self.self_test,
            drills: self.drills,
            seed: self.seed.unwrap_or_else(|| clock.map_or(1, |now| now.as_secs())),
            format: match self.format {
                Output::Text => Format::Text,
                Output::Json => Format::Json,
            },
            case_seconds: None,
        };
        let mut out = WatchedOutput::default();
        let result = RankCommand::current(&[RANK_SUBCOMMAND])
            .and_then(|command| run(&rankwise::backends(), &options, &command, &mut out));
        if let Some(error) = &out.failed {
            return crate::output_failed(error);
        }
        match result {
            Ok(summary) if summary.failed == 0 => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("rankwise conformance: {error:?}");
                ExitCode::from(UNUSABLE)
            }
        }
    }
}

/// Standard output, and why it could not be written.
#[derive(Default)]
struct WatchedOutput {
    failed: Option<io::Error>,
}

impl WatchedOutput {
    fn watched<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.failed.get_or_insert(error);
            }
            kind.into()
        })
    }
}

impl Write for WatchedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = io::stdout().write(bytes);
        self.watched(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = io::stdout().flush();
        self.watched(result)
    }
}

/// One rank of the suite.
pub(crate) fn run_rank() -> ExitCode {
    run_planned(&rankwise::backends()).unwrap_or_else(|| {
        eprintln!("rankwise {RANK_SUBCOMMAND} is started by `rankwise conformance` only");
        ExitCode::from(UNUSABLE)
    })
}
