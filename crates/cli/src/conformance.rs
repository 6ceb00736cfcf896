//! `rankwise conformance`: the suite on the backends of this program.

mod under_mpirun;

use clap::{Args, ValueEnum};
use rankwise::Error;
use rankwise_conformance::expectations::{Expectations, fill, tables};
use rankwise_conformance::{Format, Mode, Options, RankCommand, list, run, run_in_job, run_planned};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit code when there is nothing to run, or it can't be run.
const UNUSABLE: u8 = 2;
/// The subcommand of the processes that the suite starts.
pub(crate) const RANK_SUBCOMMAND: &str = "__conformance-rank";

#[derive(Clone, Copy, ValueEnum)]
enum Placement {
    Threads,
    Processes,
    Outer,
    Mpirun,
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
    /// World sizes [default: 1,2,3,4,5,7,8,13; under mpirun 1,2; sequences and comparisons 4, replays what the script says; drills always
    /// have 3]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    ranks: Vec<usize>,
    /// How ranks are placed; `outer`: this process is a rank of a job that something else has started, such as mpirun, and the
    /// suite runs inside that job; `mpirun`: started by the launcher of the backend's MPI, which is found, or named by
    /// RANKWISE_MPIRUN [default: threads and processes]
    #[arg(long, value_enum)]
    mode: Option<Placement>,
    /// Only cases (or drills) whose id or title contains this
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// What a backend has promised and where it is known to deviate, beside what is built in; may be repeated
    #[arg(long, value_name = "FILE", alias = "deviations")]
    expectations: Vec<String>,
    /// Print what backends have promised, as the tables of docs/backends.md; with a file, put them into it
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    matrix: Option<Option<PathBuf>>,
    /// Whole products instead of samples, and the large cases
    #[arg(long)]
    full: bool,
    /// Run deliberately broken backends instead, each of which must be noticed
    #[arg(long)]
    self_test: bool,
    /// Kill, stop and confuse ranks instead, and look for what is left
    #[arg(long, conflicts_with = "self_test")]
    drills: bool,
    /// Run N random sequences of mixed calls instead; one that fails is made small and written to a file
    #[arg(long, value_name = "N", conflicts_with_all = ["self_test", "drills", "case"])]
    sequences: Option<usize>,
    /// Calls of a sequence or a comparison [default: 10000, comparisons 1000]
    #[arg(long, value_name = "N")]
    calls: Option<usize>,
    /// Where scripts of sequences that failed are written [default: here]
    #[arg(long, value_name = "FOLDER", requires = "sequences")]
    scripts_in: Option<PathBuf>,
    /// Run the script in this file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["self_test", "drills", "case", "sequences", "calls"])]
    replay: Option<PathBuf>,
    /// Compare the results of the backends, in every mode and made in several ways, instead
    #[arg(long, conflicts_with_all = ["self_test", "drills", "case", "sequences", "replay"])]
    differential: bool,
    /// Print the cases and drills
    #[arg(long)]
    list: bool,
    /// Seed of samples, values and delays [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    format: Output,
    /// Write the results to this file too, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl Conformance {
    /// Runs the suite; prints to standard output.
    pub(crate) fn run(self) -> ExitCode {
        if self.list {
            let written = io::stdout().write_all(list().as_bytes()).and_then(|()| io::stdout().flush());
            return written.map_or_else(|error| crate::output_failed(&error), |()| ExitCode::SUCCESS);
        }
        let expectations = match self.expectations.iter().map(|path| Expectations::read_file(path)).collect() {
            Ok(read) => read,
            Err(error) => return unusable(&error),
        };
        if let Some(file) = &self.matrix {
            return print_matrix(&self.backend, expectations, file.as_deref());
        }
        let defaults = Options::default();
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = self.seed.unwrap_or_else(|| clock.map_or(1, |now| now.as_secs()));
        if let Some(Placement::Mpirun) = self.mode {
            if self.backend.is_empty() || self.junit.is_some() {
                return unusable(&Error::config("--mode mpirun needs --backend, and has no --junit"));
            }
            return under_mpirun::run(&self.backend, &self.ranks, seed);
        }
        let options = Options {
            backends: self.backend,
            ranks: match () {
                () if !self.ranks.is_empty() => self.ranks,
                () if self.replay.is_some() => Vec::new(),
                () if self.sequences.is_some() || self.differential => vec![4],
                () => defaults.ranks,
            },
            modes: match self.mode {
                None => defaults.modes,
                Some(Placement::Threads) => vec![Mode::Threads],
                Some(Placement::Processes) => vec![Mode::Processes],
                Some(Placement::Outer | Placement::Mpirun) => vec![Mode::Outer],
            },
            pattern: self.case,
            full: self.full,
            self_test: self.self_test,
            drills: self.drills,
            seed,
            format: match self.format {
                Output::Text => Format::Text,
                Output::Json => Format::Json,
            },
            sequences: self.sequences,
            calls: self.calls,
            scripts_in: self.scripts_in.unwrap_or(defaults.scripts_in),
            replay: self.replay,
            differential: self.differential,
            junit: self.junit,
            case_seconds: None,
            expectations,
        };
        let mut out = WatchedOutput::default();
        let backends = rankwise::backends();
        let result = match options.modes[..] {
            [Mode::Outer] => run_in_job(&backends, &options, &mut out),
            _ => RankCommand::current(&[RANK_SUBCOMMAND])
                .and_then(|command| run(&backends, &options, &command, &mut out)),
        };
        if let Some(error) = &out.failed {
            return crate::output_failed(error);
        }
        match result {
            Ok(summary) if summary.failed == 0 => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => unusable(&error),
        }
    }
}

fn unusable(error: &Error) -> ExitCode {
    eprintln!("rankwise conformance: {error:?}");
    ExitCode::from(UNUSABLE)
}

/// The promises of these backends, or of all that are known, as the tables of a page.
fn print_matrix(backends: &[String], given: Vec<Expectations>, file: Option<&Path>) -> ExitCode {
    let known = match Expectations::built_in() {
        Ok(built_in) => built_in.into_iter().chain(given),
        Err(error) => return unusable(&error),
    };
    let chosen: Vec<_> = known.filter(|one| backends.is_empty() || backends.contains(&one.backend)).collect();
    if let Some(unknown) = backends.iter().find(|name| !chosen.iter().any(|one| one.backend == **name)) {
        let text = format!("nothing is promised for a backend {unknown:?}; give a file with --expectations");
        return unusable(&Error::config(text));
    }
    let Some(file) = file else {
        let tables: String = chosen
            .iter()
            .flat_map(tables)
            .map(|(name, lines)| format!("<!-- {name} -->\n{lines}<!-- end -->\n"))
            .collect();
        let written = io::stdout().write_all(tables.as_bytes()).and_then(|()| io::stdout().flush());
        return written.map_or_else(|error| crate::output_failed(&error), |()| ExitCode::SUCCESS);
    };
    let failed = |error| Error::config(format!("{} can't be changed", file.display())).with_source(error);
    let done = std::fs::read_to_string(file).map_err(failed).and_then(|page| {
        let filled = chosen.into_iter().try_fold(page, |page, one| fill(&page, &one))?;
        std::fs::write(file, filled).map_err(failed)
    });
    done.map_or_else(|error| unusable(&error), |()| ExitCode::SUCCESS)
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
