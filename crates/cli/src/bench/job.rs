//! The launcher's side: one job for each backend and number of ranks, and the report.

use super::args::{BenchArgs, Format, Sweep, once};
use super::baseline::Baseline;
use super::command::Files;
use super::comparison::Comparison;
use super::contenders::Contenders;
use super::launched::{self, Job, Placement, Terminal};
use super::origin::Origin;
use super::pictures::Figures;
use super::report::{Message, Report};
use super::results::{Cells, Writer, same_file};
use super::sink::{Sink, SweepSink};
use crate::mpirun::Mpirun;
use std::io;
use std::process::ExitCode;

/// Memory of a rank besides its buffers.
pub(crate) const RANK_OVERHEAD: u64 = 8 << 20;

/// Why the benchmark ended early or badly.
pub(crate) enum Trouble {
    /// Nothing was run, the arguments cannot work.
    Usage(String),
    /// Ended by a signal.
    Interrupted(i32),
    /// Nobody reads the output.
    Output(io::Error),
    /// The result file cannot be written.
    File(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Output(error)
    }
}

/// Runs the whole benchmark.
pub(crate) fn run(args: &BenchArgs, files: &Files) -> ExitCode {
    let (sweep, baseline, mut sink) = match prepare(args, files) {
        Ok(prepared) => prepared,
        Err(Trouble::Usage(message) | Trouble::File(message)) => return refuse(&message),
        Err(_) => return ExitCode::FAILURE,
    };
    let (origin, mut failures) = (Origin::here(), 0);
    let result = header(args, &mut sink.report)
        .map_err(Trouble::from)
        .and_then(|()| measure_all(args, &sweep, &mut sink, &mut failures));
    let report = &mut sink.report;
    let finished = match &result {
        Err(Trouble::Usage(message)) => return refuse(message),
        Err(Trouble::Output(error)) => return crate::output_failed(error),
        Err(Trouble::Interrupted(signal)) => {
            sink.remarks.push(format!("interrupted by signal {signal}"));
            let _ = report.comment(&format!("interrupted by signal {signal}; what was measured so far is above"));
            report.finish()
        }
        Err(Trouble::File(message)) => {
            eprintln!("rankwise: {message}");
            report.finish()
        }
        Ok(()) => report.finish(),
    };
    let judgement = baseline.zip(sink.kept.as_ref()).map(|(baseline, now)| baseline.judge(now)).unwrap_or_default();
    for line in &judgement.lines {
        if report.remark(line).is_err() {
            return ExitCode::from(141);
        }
    }
    let contenders = Contenders::of(&sink.kept.unwrap_or_default());
    if args.format == Format::Text && once(args.backend.clone()).len() > 1 && side_by_side(&contenders).is_err() {
        return ExitCode::from(141);
    }
    let drawn = files.pictures.draw(|| Figures::of(contenders, origin, sink.remarks));
    match (finished, result) {
        (_, Err(Trouble::Interrupted(signal))) => ExitCode::from(128_u8.wrapping_add(signal as u8)),
        (Ok(true), Ok(())) if failures > 0 || judgement.slower > 0 || !drawn => ExitCode::FAILURE,
        (Ok(true), Ok(())) if judgement.missing > 0 => ExitCode::from(2),
        (Ok(true), Ok(())) => ExitCode::SUCCESS,
        (Ok(false), _) => {
            eprintln!("rankwise: nothing could be measured, or results were wrong; see the table");
            ExitCode::FAILURE
        }
        _ => ExitCode::FAILURE,
    }
}

/// Arguments or files that cannot work.
pub(crate) fn refuse(message: &str) -> ExitCode {
    eprintln!("rankwise: {message}");
    ExitCode::from(2)
}

/// Everything that can be wrong before any rank is started.
fn prepare(args: &BenchArgs, files: &Files) -> Result<(Sweep, Option<Baseline>, SweepSink), Trouble> {
    let sweep = sweep_of(args)?;
    let baseline = files.baseline.as_deref().map(|path| Baseline::read(path, files.tolerance));
    let baseline = baseline.transpose().map_err(Trouble::File)?;
    if let Some(baseline) = &baseline {
        baseline.check_overlap(args, &sweep).map_err(Trouble::File)?;
    }
    if let (Some(output), Some(path)) = (&files.output, &files.baseline)
        && same_file(output, path)
    {
        return Err(Trouble::Usage(format!("--output would replace the baseline {path}; name another file")));
    }
    let others = [&files.output, &files.baseline].into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
    files.pictures.check(&others).map_err(Trouble::Usage)?;
    let output = files.output.as_deref().map(|path| Writer::create(path, &Origin::here()));
    let output = output.transpose().map_err(Trouble::File)?;
    let report = Report::new(io::stdout(), args.format, args.in_place);
    let beside = once(args.backend.clone()).len() > 1;
    let kept = (baseline.is_some() || beside || files.pictures.wanted()).then(Cells::default);
    Ok((sweep, baseline, SweepSink { report, output, kept, remarks: Vec::new() }))
}

/// Checks what can be checked before any rank is started.
pub(crate) fn sweep_of(args: &BenchArgs) -> Result<Sweep, Trouble> {
    let sweep = args.sweep().map_err(Trouble::Usage)?;
    for name in &args.backend {
        rankwise::driver(name).map_err(|error| Trouble::Usage(error.message().to_string()))?;
        Mpirun::of(name).map_err(Trouble::Usage)?;
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
    let here = Origin::here();
    report.comment(&here.tool)?;
    report.comment(&format!("machine: {}", here.machine()))?;
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
    format!("machine: {}", Origin::here().machine())
}

/// The backends of a sweep in one table, cell by cell.
fn side_by_side(contenders: &Contenders) -> io::Result<()> {
    if contenders.names.len() < 2 {
        return Ok(());
    }
    let mut table = Comparison::new(io::stdout(), false, contenders.names.clone());
    table.comment("")?;
    table.legend(
        "ratio: that of the medians above, measured one after the other; `rankwise bench compare` takes turns",
    )?;
    contenders.cells.iter().try_for_each(|cell| table.cell(cell))?;
    table.finish()
}

fn measure_all(args: &BenchArgs, sweep: &Sweep, sink: &mut SweepSink, failures: &mut usize) -> Result<(), Trouble> {
    let (backends, worlds) = (once(args.backend.clone()), once(args.ranks.clone()));
    let jobs: usize = worlds.iter().map(|ranks| backends.len() * Placement::of(&args.pin, *ranks).len()).sum();
    let terminal = Terminal::open(jobs * sweep.cells.len(), "cells")?;
    // What is compared is measured close together.
    for &ranks in &worlds {
        for placement in Placement::of(&args.pin, ranks) {
            for backend in &backends {
                terminal.bar.set_message(format!("{backend}, {ranks} ranks"));
                let job = Job { backend, ranks, placement };
                *failures += usize::from(!measure_job(args, job, sink, &terminal)?);
            }
        }
    }
    terminal.bar.finish_and_clear();
    Ok(())
}

/// Runs the ranks of one job; whether that went well. What went wrong is told to the user and the sink.
pub(crate) fn measure_job(
    args: &BenchArgs,
    job: Job<'_>,
    sink: &mut dyn Sink,
    terminal: &Terminal,
) -> Result<bool, Trouble> {
    let arguments = args.for_ranks(job.backend, job.ranks);
    let mut done = false;
    let failure = launched::run(job, arguments, terminal, &mut |message| {
        done |= message == Message::Done {};
        tell(sink, job, message)
    })?;
    let early = || (!done).then(|| "its first rank ended before it was done".to_string());
    let Some(failure) = failure.or_else(early) else { return Ok(true) };
    let text = format!("{} with {} ranks: {failure}", job.backend, job.ranks);
    terminal.bar.suspend(|| eprintln!("rankwise: {text}"));
    sink.failed(&text)?;
    Ok(false)
}

/// Hands a message on; whether it is about a cell.
pub(crate) fn tell(sink: &mut dyn Sink, job: Job<'_>, message: Message) -> Result<bool, Trouble> {
    match message {
        Message::Ranks { ranks, clock } => sink.ranks(job, &ranks, &clock).map(|()| false),
        Message::Row(mut measured) => {
            measured.row.pin = job.placement.name().into();
            sink.row(*measured).map(|()| true)
        }
        Message::Skipped { what, reason } => sink.skipped(&what, &reason).map(|()| true),
        Message::Slow { what, call_ms } => sink.slow(job, &what, call_ms).map(|()| true),
        Message::Done {} => Ok(false),
    }
}
