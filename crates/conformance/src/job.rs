//! One launched job: starts the ranks, collects what they report, and kills them from outside when a case hangs (H5).

use crate::ctx::SKIPPED;
use crate::expectations::CallLog;
use crate::plan::{Ending, Mode, PLAN_VARIABLE, Plan, Record};
use crate::sequences::{PlayedPart, TablePart};
use rankwise_core::{Error, Result};
use rankwise_world::launch::{Event, Exit, JobHandle, Launch, Output, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long ranks may take between two cases, joining included.
const BETWEEN_CASES: Duration = Duration::from_secs(120);
/// Lines of standard error that are kept of a job.
const KEPT_LINES: usize = 20;

/// How to start a process that plays a part in a job.
#[derive(Clone, Debug)]
pub struct RankCommand {
    /// The program; it calls [`crate::run_planned`] first.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl RankCommand {
    /// This program with these arguments.
    pub fn current(args: &[&str]) -> Result<RankCommand> {
        let program = std::env::current_exe()
            .map_err(|error| Error::config("cannot find the path of this program").with_source(error))?;
        Ok(RankCommand { program: program.into(), args: args.iter().map(OsString::from).collect() })
    }

    /// The launch of a plan, its lines coming back as events.
    pub(crate) fn launch(&self, plan: &Plan) -> Result<Launch> {
        let text = serde_json::to_string(plan)
            .map_err(|error| Error::config("cannot write the plan of a job").with_source(error))?;
        let processes = match plan.mode {
            Mode::Threads => 1,
            Mode::Processes | Mode::Outer => plan.ranks,
        };
        Ok(Launch::new(processes, &self.program)
            .args(self.args.iter())
            .env(PLAN_VARIABLE, text)
            .output(Output::Lines)
            .term_grace(Duration::from_millis(500)))
    }
}

/// How a job went.
#[derive(Debug, Default)]
pub(crate) struct JobReport {
    /// Per case, per rank: how it ended.
    pub endings: BTreeMap<String, BTreeMap<usize, (Ending, u64)>>,
    /// Per case: the calls of all ranks that are known to deviate.
    pub calls: BTreeMap<String, CallLog>,
    /// Per rank: what of a sequence it has played.
    pub played: BTreeMap<usize, PlayedPart>,
    /// What the capability table holds, when asked.
    pub table: Option<TablePart>,
    /// The case in which a rank hung.
    pub hung: Option<String>,
    /// What each rank that is still in a case called last.
    pub last_calls: BTreeMap<usize, String>,
    /// Why ranks could not go on.
    pub broken: Vec<String>,
    /// The case that each rank was in at the end.
    pub inside: BTreeMap<usize, String>,
    /// Ranks that have run everything.
    pub done: usize,
    /// The last lines on standard error.
    pub complaints: Vec<String>,
    /// What cases have said of parts of them that were not run.
    pub skipped: BTreeSet<String>,
    /// How the processes ended, if not well.
    pub exits: Vec<String>,
}

#[derive(Default)]
struct Progress {
    report: JobReport,
    since: BTreeMap<usize, Instant>,
    last_record: Option<Instant>,
}

/// Runs a job of cases. `limit` says how long a case may take.
pub(crate) fn run(plan: &Plan, command: &RankCommand, limit: impl Fn(&str) -> Duration + Send) -> Result<JobReport> {
    let job = command.launch(plan)?.spawn()?;
    let progress = Arc::new(Mutex::new(Progress { last_record: Some(Instant::now()), ..Progress::default() }));
    let over = AtomicBool::new(false);
    let handle = job.handle();
    let outcome = std::thread::scope(|scope| {
        let (watched, over) = (progress.clone(), &over);
        scope.spawn(move || watch(&watched, over, &handle, &limit));
        let outcome = job.run(&mut |event| lock(&progress).take(event));
        over.store(true, Ordering::Release);
        outcome
    });
    let mut report = std::mem::take(&mut lock(&progress).report);
    for (rank, exit) in outcome.exits.iter().enumerate() {
        if *exit != Exit::Code(0) {
            report.exits.push(match plan.mode {
                Mode::Threads => format!("the process of all ranks {exit}"),
                Mode::Processes | Mode::Outer => format!("rank {rank} {exit}"),
            });
        }
    }
    Ok(report)
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    fn take(&mut self, event: Event) {
        let Event::Line { rank, stream, text } = event else { return };
        let text = String::from_utf8_lossy(&text);
        let Some(record) = Record::parse(&text) else {
            if let Some(what) = text.trim_end().strip_prefix(SKIPPED).filter(|_| stream == Stream::Stderr) {
                self.report.skipped.insert(what.to_string());
            } else if stream == Stream::Stderr && !text.trim().is_empty() {
                if self.report.complaints.len() == KEPT_LINES {
                    self.report.complaints.remove(0);
                }
                self.report.complaints.push(format!("[{rank}] {text}"));
            }
            return;
        };
        let now = Instant::now();
        self.last_record = Some(now);
        match record {
            Record::Begin { rank, case } => {
                self.since.insert(rank, now);
                self.report.inside.insert(rank, case);
            }
            Record::End { rank, case, ending, millis } => {
                self.since.remove(&rank);
                self.report.inside.remove(&rank);
                self.report.endings.entry(case).or_default().insert(rank, (ending, millis));
            }
            Record::Calls { case, calls, .. } => self.report.calls.entry(case).or_default().extend(&calls),
            Record::Stuck { rank, last_call, .. } => {
                self.report.last_calls.insert(rank, last_call);
            }
            Record::Broken { rank, why } => self.report.broken.push(format!("rank {rank}: {why}")),
            Record::Done { .. } => self.report.done += 1,
            Record::Played { rank, part } => self.report.played.entry(rank).or_default().extend(part),
            Record::Table(table) => self.report.table = Some(table),
            Record::Event { .. } => {}
        }
    }

    /// The case that has taken too long, or an empty text when nothing happens between cases.
    fn hanging(&self, limit: &impl Fn(&str) -> Duration) -> Option<String> {
        for (rank, since) in &self.since {
            let case = self.report.inside.get(rank).map_or("", String::as_str);
            if since.elapsed() > limit(case) {
                return Some(case.to_string());
            }
        }
        let silent = self.since.is_empty() && self.last_record.is_some_and(|when| when.elapsed() > BETWEEN_CASES);
        silent.then(String::new)
    }
}

fn watch(progress: &Mutex<Progress>, over: &AtomicBool, job: &JobHandle, limit: &impl Fn(&str) -> Duration) {
    while !over.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(20));
        let mut progress = lock(progress);
        if progress.report.hung.is_none()
            && let Some(case) = progress.hanging(limit)
        {
            progress.report.hung = Some(case);
            drop(progress);
            job.kill_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_case_skips_is_no_complaint() {
        let mut progress = Progress::default();
        let line = |stream, text: &str| Event::Line { rank: 0, stream, text: text.into() };
        progress.take(line(Stream::Stderr, "skipped: the large ones"));
        progress.take(line(Stream::Stderr, "a warning"));
        progress.take(line(Stream::Stdout, "skipped: somebody else's words"));
        assert_eq!(progress.report.skipped, BTreeSet::from(["the large ones".to_string()]));
        assert_eq!(progress.report.complaints, ["[0] a warning"]);
    }
}
