//! The command line of `rankwise bench` around the sweep: result files, baseline, `compare`.

use super::args::BenchArgs;
use super::pictures::PictureFiles;
use clap::{Args, Subcommand};

/// Measure collectives between processes of this host, every result checked.
///
/// Each time is that of the slowest rank, all ranks released together; the figures are median and 99th percentile over
/// iterations. Before each call every rank rewrites its source outside the timed window ("fresh"), so that no reader finds it
/// in its own cache. Exit code: 0; 1 when a result was wrong, a rank failed or a cell is slower than the baseline; 2 on wrong
/// arguments or files; 128 + signal when interrupted, after printing what was measured so far.
///
/// Sizes are bytes: of the vector for all_reduce, reduce, broadcast and send_recv; of what each rank contributes for all_gather
/// and gather; of a rank's result for reduce_scatter and scatter; per pair for all_to_all. Forms with counts are uneven with
/// the same totals.
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: rankwise bench --backend shm --op all_reduce,all_gather --size 8:16M:x8 --ranks 2 --format json"
)]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    pub(crate) part: Option<Part>,
    #[command(flatten)]
    pub(crate) files: Files,
    #[command(flatten)]
    pub(crate) peers: PeerArgs,
    #[command(flatten)]
    pub(crate) sweep: BenchArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Part {
    Compare(Box<CompareArgs>),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Files {
    /// Also write raw results there, JSON lines with the iterations' times; an existing file is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<String>,
    /// Results to compare with; exit code 1 when a cell is slower than there, beyond noise and tolerance
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<String>,
    /// How many times as long as in the baseline a cell may take
    #[arg(long, value_name = "RATIO", default_value_t = 1.1, requires = "baseline", value_parser = tolerance)]
    pub(crate) tolerance: f64,
    #[command(flatten)]
    pub(crate) pictures: PictureFiles,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct PeerArgs {
    /// Also measure the libraries that `peers/setup DIR` prepared, taking turns, and print their times by the first backend's
    #[arg(long, value_name = "DIR", conflicts_with_all = ["baseline", "workload", "list_workloads"])]
    pub(crate) peers: Option<String>,
    /// Only these of them
    #[arg(long, value_delimiter = ',', value_name = "NAME", requires = "peers")]
    pub(crate) peer: Vec<String>,
    /// Rounds, each with its share of the budget [default: 9]
    #[arg(long, value_name = "N", requires = "peers", value_parser = clap::value_parser!(u32).range(6..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Give a peer up that says nothing for so long [default: 60 and what 20 budgets take]
    #[arg(long, value_name = "SECONDS", requires = "peers", value_parser = seconds)]
    pub(crate) peer_timeout: Option<f64>,
}

/// Compare backends or result files, cell by cell, with 95 % intervals.
///
/// Backends are measured in turn, round by round; the ratio is the median of the rounds' ratios. Files are compared as they
/// are; the ratio is that of the medians. Ratios are times relative to the first: above 1 is slower. An interval with 1 in it
/// is marked "same". A name that is both a backend and a file means the backend; write ./NAME for the file.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("backend", |arg| arg.hide(true).conflicts_with("what")),
    mut_arg("workload", |arg| arg.hide(true).conflicts_with("what")),
    mut_arg("list_workloads", |arg| arg.hide(true).conflicts_with("what")),
    after_help = "Example: rankwise bench compare before.jsonl after.jsonl"
)]
pub(crate) struct CompareArgs {
    /// Backends, or files written by `rankwise bench --output`; the first is what the others are compared with. Or one file that
    /// holds several backends
    #[arg(required = true, num_args = 1..=26, value_name = "BACKEND|FILE")]
    pub(crate) what: Vec<String>,
    /// Rounds, each with its share of the budget [default: 9]. For backends, like the options of the sweep below
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(6..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Also write raw results there, JSON lines with the iterations' times. For backends
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<String>,
    #[command(flatten)]
    pub(crate) pictures: PictureFiles,
    #[command(flatten)]
    pub(crate) sweep: BenchArgs,
}

fn tolerance(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| *ratio >= 1.0 && ratio.is_finite());
    ratio.ok_or_else(|| "not a ratio of at least 1, for example 1.1".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= 1e6);
    seconds.ok_or_else(|| "not a number of seconds above 0 and at most 1e6".into())
}
