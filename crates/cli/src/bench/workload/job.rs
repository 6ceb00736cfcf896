//! The launcher's side of a replay: one job for each backend and number of ranks, and the report.

use super::builtin;
use super::file::{self, Workload};
use super::plan::Plan;
use super::report::{Report, Row, Said};
use super::{is_file, selected};
use crate::bench::args::{BenchArgs, Format, once};
use crate::bench::command::Files;
use crate::bench::job::{RANK_OVERHEAD, Trouble, available_memory, machine, refuse};
use crate::bench::launched::{self, Job, Placement, Terminal};
use crate::bench::origin::{self, Origin};
use crate::bench::report::each_rank;
use crate::bench::results::{Writer, same_file};
use crate::mpirun::Mpirun;
use std::io::{self, Stdout, Write};
use std::process::ExitCode;

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
pub(crate) fn run(args: &BenchArgs, files: &Files) -> ExitCode {
    let prepared = fitting(args, files).and_then(|workloads| {
        let output = files.output.as_deref();
        let read = || args.workload.iter().map(String::as_str).filter(|name| is_file(name));
        if let Some(path) = read().find(|path| output.is_some_and(|output| same_file(output, path))) {
            return Err(format!("--output would replace the workload {path}; name another file"));
        }
        files.pictures.check(&output.into_iter().chain(read()).collect::<Vec<_>>())?;
        let output = output.map(|path| Writer::create(path, &Origin::here()));
        Ok((workloads, output.transpose()?))
    });
    let (workloads, output) = match prepared {
        Ok(prepared) => prepared,
        Err(message) => return refuse(&message),
    };
    let mut report = Report::new(io::stdout(), args.format, output);
    let (origin, mut failures) = (Origin::here(), 0);
    let result = header(&workloads, &mut report)
        .map_err(Trouble::from)
        .and_then(|()| replay_all(args, &workloads, &mut report, &mut failures));
    let finished = match &result {
        Err(Trouble::Usage(message)) => return refuse(message),
        Err(Trouble::File(message)) => {
            eprintln!("rankwise: {message}");
            report.finish()
        }
        Err(Trouble::Output(error)) => return crate::output_failed(error),
        Err(Trouble::Interrupted(signal)) => {
            let _ = report.failed(&format!("interrupted by signal {signal}; what was measured so far is above"));
            report.finish()
        }
        Ok(()) => report.finish(),
    };
    let drawn = files.pictures.draw(|| report.figures(origin));
    match (finished, result) {
        (_, Err(Trouble::Interrupted(signal))) => ExitCode::from(128_u8.wrapping_add(signal as u8)),
        (Ok(true), Ok(())) if failures == 0 && drawn => ExitCode::SUCCESS,
        (Ok(false), _) => {
            eprintln!("rankwise: results were wrong; see the #wrong column");
            ExitCode::FAILURE
        }
        _ => ExitCode::FAILURE,
    }
}

/// The workloads, when all of them fit the numbers of ranks and the memory.
fn fitting(args: &BenchArgs, files: &Files) -> Result<Vec<Workload>, String> {
    if matches!(args.format, Format::Csv | Format::Osu) {
        return Err("workloads are printed with --format text or --format json".into());
    }
    if files.baseline.is_some() {
        return Err(
            "--baseline compares operations, not workloads; measure the operations of interest with --op".into()
        );
    }
    let workloads = selected(args)?;
    for name in &args.backend {
        rankwise::driver(name).map_err(|error| error.message().to_string())?;
        Mpirun::of(name)?;
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
    report.comment(&format!("{}: workloads", origin::tool()))?;
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
    let (backends, worlds) = (once(args.backend.clone()), once(args.ranks.clone()));
    let jobs: usize = worlds.iter().map(|ranks| backends.len() * Placement::of(&args.pin, *ranks).len()).sum();
    let terminal = Terminal::open(jobs * rows, "workloads")?;
    for backend in &backends {
        for &ranks in &worlds {
            terminal.bar.set_message(format!("{backend}, {ranks} ranks"));
            for placement in Placement::of(&args.pin, ranks) {
                let job = Job { backend, ranks, placement };
                let arguments = for_ranks(args, backend, ranks);
                let failure = launched::run(job, arguments, &terminal, &mut |said| tell(said, job, report))?;
                let Some(failure) = failure else { continue };
                *failures += 1;
                let text = format!("{backend} with {ranks} ranks: {failure}");
                terminal.bar.suspend(|| eprintln!("rankwise: {text}"));
                report.failed(&format!("failed: {text}"))?;
            }
        }
    }
    terminal.bar.finish_and_clear();
    Ok(())
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

/// Prints what a job says; whether it is about a workload.
fn tell(said: Said, job: Job<'_>, report: &mut Report<Stdout>) -> Result<bool, Trouble> {
    match said {
        Said::Ranks { ranks, clock } => {
            report.comment("")?;
            for line in [job.describe(&clock)].into_iter().chain(each_rank(&ranks)) {
                report.comment(&line)?;
            }
            report.head()?;
            return Ok(false);
        }
        Said::Row(row) => report.row(&Row { pin: job.placement.name().into(), ..*row })?,
        Said::Skipped { what, reason } => report.skipped(&what, &reason)?,
    }
    Ok(true)
}
