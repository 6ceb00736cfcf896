//! The ranks of one job, started by our own launcher or by an MPI's, and what the first of them says.

use super::args::Pin;
use super::job::Trouble;
use super::report::MARK;
use super::watch::Watch;
use crate::mpirun::Mpirun;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rankwise_world::launch::{Event, Interrupts, Launch, Output, Pin as Binding, Stream};
use serde::de::DeserializeOwned;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Hidden subcommand that the ranks run.
pub(crate) const RANK_COMMAND: &str = "__bench-rank";

/// How long an MPI's launcher may take until the first rank says something.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Processors this program may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One job of a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) backend: &'a str,
    pub(crate) ranks: u32,
    pub(crate) placement: Placement,
}

impl Job<'_> {
    /// For a comment.
    pub(crate) fn describe(&self, clock: &str) -> String {
        let placed = self.placement.words();
        format!("backend {}, {} ranks, {placed}, clock: {clock}", self.backend, self.ranks)
    }
}

/// Whether the ranks of a job are bound to CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Cores,
    Free,
}

impl Placement {
    /// As in a row's `pin`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::Cores => "cores",
            Placement::Free => "none",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Placement::Cores => "pinned to CPUs in turn",
            Placement::Free => "not pinned",
        }
    }

    /// What the choices mean for so many ranks, each placement once.
    pub(crate) fn of(pins: &[Pin], ranks: u32) -> Vec<Placement> {
        let placement = |pin: &Pin| match pin {
            Pin::Cores => Placement::Cores,
            Pin::Auto if ranks as usize <= cpus() => Placement::Cores,
            Pin::Auto | Pin::None => Placement::Free,
        };
        super::args::once(pins.iter().map(placement).collect())
    }
}

/// The user's side of several jobs: progress, and Ctrl-C also between two of them.
pub(crate) struct Terminal {
    /// On a terminal; nothing elsewhere.
    pub(crate) bar: ProgressBar,
    pub(crate) interrupts: Interrupts,
}

impl Terminal {
    /// For that many things of a kind, such as cells.
    pub(crate) fn open(many: usize, what: &str) -> Result<Terminal, Trouble> {
        let interrupts = Interrupts::catch().map_err(|error| Trouble::Usage(error.to_string()))?;
        let bar = ProgressBar::with_draw_target(Some(many as u64), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {what}, {{eta}} left, {{msg}}"))
        {
            bar.set_style(style);
        }
        Ok(Terminal { bar, interrupts })
    }
}

/// Starts this program once for each rank with these arguments and hands each message of rank 0 to `hear`, which says whether
/// it is a step forward. Everything else the ranks print goes to standard error. What went wrong with the ranks, if anything.
pub(crate) fn run<M: DeserializeOwned>(
    job: Job<'_>,
    arguments: Vec<String>,
    terminal: &Terminal,
    hear: &mut dyn FnMut(M) -> Result<bool, Trouble>,
) -> Result<Option<String>, Trouble> {
    let bar = &terminal.bar;
    let program = std::env::current_exe()
        .map_err(|error| Trouble::Usage(format!("this program's own path cannot be found: {error}")))?;
    let mpirun = Mpirun::of(job.backend).map_err(Trouble::Usage)?;
    let running = launch(job, &program, arguments, mpirun.as_ref())
        .output(Output::Lines)
        .term_grace(Duration::from_millis(500))
        .spawn_under(&terminal.interrupts)
        .map_err(|error| Trouble::Usage(error.message().to_string()))?;
    let handle = running.handle();
    let mut watch = mpirun.as_ref().map(|_| Watch::start(running.handle(), START_PATIENCE));
    let mut broken = None;
    let outcome = running.run(&mut |event| {
        let Event::Line { rank, stream, text } = event else { return };
        let text = String::from_utf8_lossy(&text);
        let message = text.strip_prefix(MARK).filter(|_| stream == Stream::Stdout && rank == 0);
        match message.map(serde_json::from_str::<M>) {
            Some(Ok(message)) => {
                // From here on the ranks have deadlines of their own.
                let _ = watch.take().map(Watch::end);
                match bar.suspend(|| hear(message)) {
                    Ok(forward) => bar.inc(u64::from(forward)),
                    Err(error) => {
                        broken = Some(error);
                        handle.kill_all();
                    }
                }
            }
            _ => bar.suspend(|| {
                let _ = match &mpirun {
                    Some(mpirun) => writeln!(io::stderr(), "[{}] {text}", mpirun.name()),
                    None => writeln!(io::stderr(), "[{rank}] {text}"),
                };
            }),
        }
    });
    let silent = watch.is_some_and(Watch::end);
    if let Some(error) = broken {
        return Err(error);
    }
    if let Some(signal) = outcome.interrupted.or_else(|| terminal.interrupts.next()) {
        return Err(Trouble::Interrupted(signal));
    }
    Ok(match (&mpirun, outcome.first_failure) {
        (Some(mpirun), _) if silent => Some(format!(
            "{} was ended after {} s without a word of its ranks",
            mpirun.name(),
            START_PATIENCE.as_secs()
        )),
        (Some(mpirun), Some((_, exit))) => Some(format!("{} {exit}", mpirun.name())),
        _ => outcome.failure().or_else(|| (outcome.code() != 0).then(|| format!("exit code {}", outcome.code()))),
    })
}

/// What starts the ranks: one process each, or one `mpirun`.
fn launch(job: Job<'_>, program: &Path, arguments: Vec<String>, mpirun: Option<&Mpirun>) -> Launch {
    let Some(mpirun) = mpirun else {
        let binding = match job.placement {
            Placement::Cores => Binding::Cores,
            Placement::Free => Binding::None,
        };
        return Launch::new(job.ranks as usize, program).arg(RANK_COMMAND).args(arguments).pin(binding);
    };
    let arguments: Vec<String> = [RANK_COMMAND.to_string()].into_iter().chain(arguments).collect();
    mpirun.launch(job.ranks, program, job.placement == Placement::Cores, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_is_measured_once() {
        let many = cpus() as u32 + 1;
        assert_eq!(Placement::of(&[Pin::Auto, Pin::Cores], 1), [Placement::Cores]);
        assert_eq!(Placement::of(&[Pin::Auto, Pin::Cores, Pin::None], many), [Placement::Free, Placement::Cores]);
    }
}
