//! The launcher's side: one job for each backend and number of ranks, and the report.

use super::args::{BenchArgs, Pin, Sweep, once};
use super::report::{MARK, Message, Report, Row};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rankwise_world::launch::{Event, Launch, Output, Stream};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Hidden subcommand that the ranks run.
pub(crate) const RANK_COMMAND: &str = "__bench-rank";

/// Memory of a rank besides its buffers.
pub(crate) const RANK_OVERHEAD: u64 = 8 << 20;

/// Why the benchmark ended early or badly.
enum Trouble {
    /// Nothing was run, the arguments cannot work.
    Usage(String),
    /// Ended by a signal.
    Interrupted(i32),
    /// Nobody reads the output.
    Output(io::Error),
}

/// Runs the whole benchmark.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    let mut report = Report::new(io::stdout(), args.format, args.in_place);
    let mut failures = 0;
    let result = sweep_of(args).and_then(|sweep| {
        header(args, &mut report).map_err(Trouble::Output)?;
        measure_all(args, &sweep, &mut report, &mut failures)
    });
    let finished = match &result {
        Err(Trouble::Usage(message)) => {
            eprintln!("rankwise: {message}");
            return ExitCode::from(2);
        }
        Err(Trouble::Output(error)) => return crate::output_failed(error),
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
            eprintln!("rankwise: nothing could be measured, or results were wrong; see the table");
            ExitCode::FAILURE
        }
        _ => ExitCode::FAILURE,
    }
}

/// Checks what can be checked before any rank is started.
fn sweep_of(args: &BenchArgs) -> Result<Sweep, Trouble> {
    let sweep = args.sweep().map_err(Trouble::Usage)?;
    for name in &args.backend {
        rankwise::driver(name).map_err(|error| Trouble::Usage(error.message().to_string()))?;
    }
    if let Some(available) = available_memory() {
        for ranks in &args.ranks {
            let n = *ranks as usize;
            let samples = (sweep.effort.most_iterations() * 8) as u64;
            for cell in &sweep.cells {
                // Copies in a shared-memory segment may double what the buffers take.
                let need = (cell.memory(n).saturating_mul(1 + u64::from(cell.alloc)))
                    .saturating_add(RANK_OVERHEAD + samples)
                    .saturating_mul(n as u64);
                if need > available {
                    return Err(Trouble::Usage(format!(
                        "{n} ranks with {} of {} bytes need about {} MiB, and {} MiB are available here; use fewer ranks or \
                         smaller sizes",
                        cell.op.name(),
                        cell.bytes,
                        need >> 20,
                        available >> 20
                    )));
                }
            }
        }
    }
    Ok(sweep)
}

/// Bytes that can still be used: of the machine, or of this control group if that is less.
pub(crate) fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10;
    let number =
        |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    let group = number("memory.max").map(|most| most.saturating_sub(number("memory.current").unwrap_or(0)));
    Some(group.map_or(machine, |group| group.min(machine)))
}

fn header(args: &BenchArgs, report: &mut Report<io::Stdout>) -> io::Result<()> {
    report.begin()?;
    report.comment(&format!("rankwise bench {}", env!("CARGO_PKG_VERSION")))?;
    report.comment(&machine())?;
    report.comment(
        "time: median over iterations of the slowest rank's time, all ranks released together; p99 likewise",
    )?;
    report.comment(match args.warm {
        false => "sources: fresh, each rank rewrites its source before each call, outside the timed window",
        true => "sources: fresh (each rank rewrites its source before each call, outside the timed window) and warm",
    })
}

/// Processor, kernel and number of CPUs, in words.
pub(crate) fn machine() -> String {
    let system = rustix::system::uname();
    let processor = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_string())
        })
        .unwrap_or_else(|| system.machine().to_string_lossy().into_owned());
    format!(
        "machine: {}, {} CPUs, {} {}",
        processor,
        cpus(),
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy()
    )
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn measure_all(
    args: &BenchArgs,
    sweep: &Sweep,
    report: &mut Report<io::Stdout>,
    failures: &mut usize,
) -> Result<(), Trouble> {
    let (backends, worlds) = (once(args.backend.clone()), once(args.ranks.clone()));
    let jobs = backends.len() * worlds.len();
    let bar = ProgressBar::with_draw_target(Some((jobs * sweep.cells.len()) as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} cells, {eta} left, {msg}") {
        bar.set_style(style);
    }
    for backend in &backends {
        for ranks in &worlds {
            bar.set_message(format!("{backend}, {ranks} ranks"));
            let failure = measure_job(args, backend, *ranks, report, &bar)?;
            if let Some(failure) = failure {
                *failures += 1;
                bar.suspend(|| eprintln!("rankwise: {backend} with {ranks} ranks: {failure}"));
                report.comment(&format!("failed: {backend} with {ranks} ranks: {failure}")).map_err(Trouble::Output)?;
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Runs the ranks of one job; what went wrong, if anything.
fn measure_job(
    args: &BenchArgs,
    backend: &str,
    ranks: u32,
    report: &mut Report<io::Stdout>,
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
        .args(args.for_ranks(backend, ranks))
        .pin(if pinned { rankwise_world::launch::Pin::Cores } else { rankwise_world::launch::Pin::None })
        .output(Output::Lines)
        .term_grace(Duration::from_millis(500))
        .handle_signals(true)
        .spawn()
        .map_err(|error| Trouble::Usage(error.to_string()))?;
    let handle = job.handle();
    let pin = if pinned { "cores" } else { "none" };
    let mut broken = None;
    let mut rows = 0;
    let outcome = job.run(&mut |event| {
        let Event::Line { rank, stream, text } = event else { return };
        let text = String::from_utf8_lossy(&text);
        let message = text.strip_prefix(MARK).filter(|_| stream == Stream::Stdout && rank == 0);
        match message.map(serde_json::from_str::<Message>) {
            Some(Ok(message)) => {
                rows += usize::from(matches!(message, Message::Row(_)));
                let progress = !matches!(message, Message::Ranks { .. });
                let printed = bar.suspend(|| print(message, backend, ranks, pin, report));
                if progress {
                    bar.inc(1);
                }
                if let Err(error) = printed {
                    broken = Some(error);
                    handle.kill_all();
                }
            }
            _ => bar.suspend(|| {
                let _ = writeln!(io::stderr(), "[{rank}] {text}");
            }),
        }
    });
    if let Some(error) = broken {
        return Err(Trouble::Output(error));
    }
    if let Some(signal) = outcome.interrupted {
        return Err(Trouble::Interrupted(signal));
    }
    Ok(outcome.failure().or_else(|| (outcome.code() != 0).then(|| format!("exit code {}", outcome.code()))))
}

fn print(message: Message, backend: &str, ranks: u32, pin: &str, report: &mut Report<io::Stdout>) -> io::Result<()> {
    match message {
        Message::Ranks { ranks: facts, clock } => {
            report.comment("")?;
            let placed = if pin == "cores" { "pinned to CPUs in turn" } else { "not pinned" };
            report.comment(&format!("backend {backend}, {ranks} ranks, {placed}, clock: {clock}"))?;
            for facts in facts.iter().take(64) {
                let (rank, pid, host, cpus) = (facts.rank, facts.pid, &facts.host, &facts.cpus);
                report.comment(&format!("rank {rank:>3}  pid {pid:>7}  host {host}  cpu {cpus}"))?;
            }
            if facts.len() > 64 {
                report.comment(&format!("... and {} more", facts.len() - 64))?;
            }
            Ok(())
        }
        Message::Row(row) => report.row(Row { pin: pin.into(), ..*row }),
        Message::Skipped { what, reason } => report.skipped(&what, &reason),
    }
}
