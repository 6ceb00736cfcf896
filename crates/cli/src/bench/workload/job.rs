//! The launcher's side of a replay: one job for each backend and number of ranks, and the report.

use super::builtin;
use super::file::{self, Workload};
use super::plan::Plan;
use super::report::{Report, Row, Said};
use super::selected;
use crate::bench::args::{BenchArgs, Format, Pin};
use crate::bench::job::{RANK_COMMAND, RANK_OVERHEAD, available_memory, cpus, machine};
use crate::bench::report::MARK;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rankwise_world::launch::{Event, Launch, Output, Pin as Binding, Stream};
use std::io::{self, Stdout, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Why the replay ended early.
enum Trouble {
    /// Nothing was run, the arguments cannot work.
    Usage(String),
    /// Ended by a signal.
    Interrupted(i32),
    /// Nobody reads the output.
    Output,
}

impl From<io::Error> for Trouble {
    fn from(_: io::Error) -> Trouble {
        Trouble::Output
    }
}

/// Prints the workloads that come with the command.
pub(crate) fn list() -> ExitCode {
    let mut text = String::new();
    for (file, content) in builtin::FILES {
        match file::parse(file, content) {
            Ok(workload) => text += &format!("{:<28} {}\n", workload.name, workload.description),
            Err(error) => {
                eprintln!("rankwise: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(141),
    }
}

/// Replays all workloads of the arguments.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    let mut report = Report::new(io::stdout(), args.format);
    let mut failures = 0;
    let result = fitting(args).map_err(Trouble::Usage).and_then(|workloads| {
        header(&workloads, &mut report)?;
        replay_all(args, &workloads, &mut report, &mut failures)
    });
    let finished = match &result {
        Err(Trouble::Usage(message)) => {
            eprintln!("rankwise: {message}");
            return ExitCode::from(2);
        }
        Err(Trouble::Output) => return ExitCode::from(141),
        Err(Trouble::Interrupted(signal)) => {
            let _ = report.comment(&format!("interrupted by signal {signal}; what was measured so far is above"));
            report.finish()
        }
        Ok(()) => report.finish(),
    };
    match (finished, result) {
        (_, Err(Trouble::Interrupted(signal))) => ExitCode::from(128_u8.wrapping_add(signal as u8)),
        (Ok(true), _) if failures == 0 => ExitCode::SUCCESS,
        (Ok(false), _) => {
            eprintln!("rankwise: results were wrong; see the #wrong column");
            ExitCode::FAILURE
        }
        _ => ExitCode::FAILURE,
    }
}

/// The workloads, when all of them fit the numbers of ranks and the memory.
fn fitting(args: &BenchArgs) -> Result<Vec<Workload>, String> {
    if args.format == Format::Csv {
        return Err("workloads print text or JSON, not CSV; use --format json".into());
    }
    let workloads = selected(args)?;
    for name in &args.backend {
        rankwise::driver(name).map_err(|error| error.message().to_string())?;
    }
    let available = available_memory().unwrap_or(u64::MAX);
    for ranks in &args.ranks {
        let overhead = RANK_OVERHEAD.saturating_mul(u64::from(*ranks));
        // Before the plans, whose counts may be one for each pair of ranks.
        if overhead > available {
            return Err(format!(
                "{ranks} ranks need about {} MiB, and {} are available",
                overhead >> 20,
                available >> 20
            ));
        }
        for workload in &workloads {
            for variant in &workload.variants {
                let need = Plan::new(workload, variant, *ranks as usize)?.memory().saturating_add(overhead);
                if need > available {
                    return Err(format!(
                        "{} {} with {ranks} ranks needs about {} MiB, and {} MiB are available here; use fewer ranks or a \
                         smaller workload",
                        workload.name,
                        variant.label,
                        need >> 20,
                        available >> 20
                    ));
                }
            }
        }
    }
    Ok(workloads)
}

fn header(workloads: &[Workload], report: &mut Report<Stdout>) -> io::Result<()> {
    report.comment(&format!("rankwise bench {}: workloads", env!("CARGO_PKG_VERSION")))?;
    report.comment(&machine())?;
    report.comment(
        "time: communication of one unit, the sum over its calls of the slowest rank's time; median and p99",
    )?;
    report.comment("each call starts on all ranks together, its source freshly written; computation is left out")?;
    for workload in workloads {
        report.comment("")?;
        report.comment(&format!("{}: {}", workload.name, workload.description))?;
        report.comment(&format!("  shapes: {}", workload.source))?;
    }
    Ok(())
}

fn replay_all(
    args: &BenchArgs,
    workloads: &[Workload],
    report: &mut Report<Stdout>,
    failures: &mut usize,
) -> Result<(), Trouble> {
    let rows: usize = workloads.iter().map(|workload| workload.variants.len()).sum();
    let jobs = args.backend.len() * args.ranks.len();
    let bar = ProgressBar::with_draw_target(Some((jobs * rows) as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} workloads, {eta} left, {msg}") {
        bar.set_style(style);
    }
    for backend in &args.backend {
        for ranks in &args.ranks {
            bar.set_message(format!("{backend}, {ranks} ranks"));
            if let Some(failure) = replay_job(args, backend, *ranks, report, &bar)? {
                *failures += 1;
                bar.suspend(|| eprintln!("rankwise: {backend} with {ranks} ranks: {failure}"));
                report.comment(&format!("failed: {backend} with {ranks} ranks: {failure}"))?;
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Runs the ranks of one job; what went wrong, if anything.
fn replay_job(
    args: &BenchArgs,
    backend: &str,
    ranks: u32,
    report: &mut Report<Stdout>,
    bar: &ProgressBar,
) -> Result<Option<String>, Trouble> {
    let program = std::env::current_exe()
        .map_err(|error| Trouble::Usage(format!("this program's own path cannot be found: {error}")))?;
    let pinned = match args.pin {
        Pin::None => false,
        Pin::Cores => true,
        Pin::Auto => ranks as usize <= cpus(),
    };
    let job = Launch::new(ranks as usize, program)
        .arg(RANK_COMMAND)
        .args(for_ranks(args, backend, ranks))
        .pin(if pinned { Binding::Cores } else { Binding::None })
        .output(Output::Lines)
        .term_grace(Duration::from_millis(500))
        .handle_signals(true)
        .spawn()
        .map_err(|error| Trouble::Usage(error.message().to_string()))?;
    let handle = job.handle();
    let pin = if pinned { "cores" } else { "none" };
    let mut broken = false;
    let outcome = job.run(&mut |event| {
        let Event::Line { rank, stream, text } = event else { return };
        let text = String::from_utf8_lossy(&text);
        let said = text.strip_prefix(MARK).filter(|_| stream == Stream::Stdout && rank == 0);
        match said.map(serde_json::from_str::<Said>) {
            Some(Ok(said)) => {
                let progress = !matches!(said, Said::Ranks { .. });
                if bar.suspend(|| print(said, backend, ranks, pin, report)).is_err() {
                    broken = true;
                    handle.kill_all();
                }
                bar.inc(u64::from(progress));
            }
            _ => bar.suspend(|| {
                let _ = writeln!(io::stderr(), "[{rank}] {text}");
            }),
        }
    });
    if broken {
        return Err(Trouble::Output);
    }
    if let Some(signal) = outcome.interrupted {
        return Err(Trouble::Interrupted(signal));
    }
    Ok(outcome.failure().or_else(|| (outcome.code() != 0).then(|| format!("exit code {}", outcome.code()))))
}

/// The arguments for the ranks of one job.
fn for_ranks(args: &BenchArgs, backend: &str, ranks: u32) -> Vec<String> {
    let effort = match args.iters {
        Some(iterations) => format!("--iters={iterations}"),
        None => format!("--budget-ms={}", args.budget_ms),
    };
    let workloads = format!("--workload={}", args.workload.join(","));
    vec![format!("--backend={backend}"), format!("--ranks={ranks}"), workloads, effort]
}

fn print(said: Said, backend: &str, ranks: u32, pin: &str, report: &mut Report<Stdout>) -> io::Result<()> {
    match said {
        Said::Ranks { ranks: facts, clock } => {
            report.comment("")?;
            let placed = if pin == "cores" { "pinned to CPUs in turn" } else { "not pinned" };
            report.comment(&format!("backend {backend}, {ranks} ranks, {placed}, clock: {clock}"))?;
            for facts in facts.iter().take(64) {
                let (rank, pid, host, cpus) = (facts.rank, facts.pid, &facts.host, &facts.cpus);
                report.comment(&format!("rank {rank:>3}  pid {pid:>7}  host {host}  cpu {cpus}"))?;
            }
            report.head()
        }
        Said::Row(row) => report.row(&Row { pin: pin.into(), ..*row }),
        Said::Skipped { what, reason } => report.skipped(&what, &reason),
    }
}
