//! The whole run: which jobs, in which order, and what their results mean.

use crate::case::Case;
use crate::cases;
use crate::differential;
use crate::drills;
use crate::expectations::{CallLog, Expectations, Settled};
use crate::job::{self, JobReport, RankCommand};
use crate::mutants;
use crate::plan::{Ending, Mode, Plan, Role};
use crate::report::{CaseReport, Format, Reporter, Summary, Verdict};
use crate::self_test;
use crate::sequences;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_world::{Driver, World};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The world sizes of a run that names none (H4).
pub const DEFAULT_RANKS: [usize; 8] = [1, 2, 3, 4, 5, 7, 8, 13];
/// The most calls of a sequence.
pub const MOST_CALLS: usize = 1_000_000;
/// The most ranks a run takes.
pub const MOST_RANKS: usize = 256;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the backends.
    pub backends: Vec<String>,
    /// World sizes.
    pub ranks: Vec<usize>,
    /// Placements.
    pub modes: Vec<Mode>,
    /// Only cases whose id or title contains this.
    pub pattern: Option<String>,
    /// Whole products instead of samples, and large cases.
    pub full: bool,
    /// Run the mutants instead of the backends.
    pub self_test: bool,
    /// Run the drills instead of the cases.
    pub drills: bool,
    /// Seed of samples, values and delays.
    pub seed: u64,
    /// Seconds that a case may take before its job is killed, instead of each case's own.
    pub case_seconds: Option<u64>,
    /// What is expected of backends, beside what is built in.
    pub expectations: Vec<Expectations>,
    /// Run this many random sequences of calls instead of the cases.
    pub sequences: Option<usize>,
    /// Calls of a sequence (10,000 unless said) or of a comparison (1,000).
    pub calls: Option<usize>,
    /// Run this script instead of the cases.
    pub replay: Option<PathBuf>,
    /// The folder for scripts of sequences that failed.
    pub scripts_in: PathBuf,
    /// Compare the results of the backends with each other's instead of running the cases.
    pub differential: bool,
    /// Write the results to this file too, as JUnit XML.
    pub junit: Option<PathBuf>,
    /// How to print.
    pub format: Format,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backends: Vec::new(),
            ranks: DEFAULT_RANKS.to_vec(),
            modes: vec![Mode::Threads, Mode::Processes],
            pattern: None,
            full: false,
            self_test: false,
            drills: false,
            seed: 1,
            case_seconds: None,
            expectations: Vec::new(),
            sequences: None,
            calls: None,
            replay: None,
            scripts_in: PathBuf::from("."),
            differential: false,
            junit: None,
            format: Format::Text,
        }
    }
}

/// Runs what `options` say on backends among `drivers`, and prints to `out`.
///
/// `NoBackend` for a name that no driver has, `InvalidArgument` for ranks or a pattern that give nothing to run. Blocks
/// until everything has run; every job has a deadline.
pub fn run(
    drivers: &[&dyn Driver],
    options: &Options,
    command: &RankCommand,
    out: &mut (dyn Write + Send),
) -> Result<Summary> {
    let mut options = checked(drivers, options)?;
    if options.modes.contains(&Mode::Outer) {
        return Err(Error::invalid("mode outer is for ranks that are started already; it goes with no other mode"));
    }
    let mut reporter = Reporter::new(out, options.format);
    reporter.begin(&options)?;
    let start = Instant::now();
    reporter.say(&format!("seed {}; repeat with --seed {}", options.seed, options.seed));
    let (backends, files) = (options.backends.clone(), std::mem::take(&mut options.expectations));
    if options.differential {
        let subjects: Vec<_> = backends.iter().map(|name| base_and_mutant(name)).collect();
        differential::run(&subjects, &options, command, &mut reporter)?;
    }
    for name in backends.iter().filter(|_| !options.differential) {
        let subject = base_and_mutant(name);
        let Some(driver) = drivers.iter().find(|driver| driver.name() == subject.0) else { continue };
        options.expectations = vec![expected_of(*driver, &World::solo(), &files)?];
        let options = &options;
        if let Some(script) = &options.replay {
            sequences::replay(script, subject, options, command, &mut reporter)?;
        } else if options.sequences.is_some() {
            sequences::search(subject, options, command, &mut reporter)?;
        } else if options.drills {
            drills::run(name, options, command, &mut reporter)?;
        } else if options.self_test {
            self_test::run(*driver, options, command, &mut reporter)?;
        } else {
            suite(name, options, command, &mut reporter)?;
        }
    }
    reporter.say(&format!("{:.1} s", start.elapsed().as_secs_f64()));
    reporter.finish()
}

/// What is expected of this backend in the version that is installed here; `NoBackend` when it does not work here.
pub(crate) fn expected_of(driver: &dyn Driver, world: &World, files: &[Expectations]) -> Result<Expectations> {
    let name = driver.name();
    let probed = driver
        .probe(world)
        .map_err(|error| Error::new(ErrorKind::NoBackend, format!("backend {name} does not work here: {error}")))?;
    let version = probed.facts.iter().find(|(what, _)| what == "version").map(|(_, value)| value.as_str());
    Expectations::of(name, files)?.in_version(version)
}

/// The two parts of `shm+dropped-tail`.
fn base_and_mutant(name: &str) -> (&str, Option<&str>) {
    name.split_once('+').map_or((name, None), |(base, mutant)| (base, Some(mutant)))
}

/// Mutants are for what has no cases of its own; the self-test knows its mutants itself.
fn check_mutant(drivers: &[&dyn Driver], options: &Options, name: &str) -> Result<()> {
    let (base, Some(mutant)) = base_and_mutant(name) else { return Ok(()) };
    if options.sequences.is_none() && options.replay.is_none() && !options.differential {
        return Err(Error::invalid("mutants are for sequences, replays and comparisons, and run by the self-test"));
    }
    let known = drivers.iter().find(|driver| driver.name() == base).and_then(|driver| mutants::mutate(*driver, mutant));
    known.map(drop).ok_or_else(|| Error::new(ErrorKind::NoBackend, format!("there is no mutant {mutant:?}")))
}

/// The options, with every name of a backend once; an error for what can't be run.
pub(crate) fn checked(drivers: &[&dyn Driver], options: &Options) -> Result<Options> {
    let known: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
    let list = if known.is_empty() { "none".to_string() } else { known.join(", ") };
    if options.backends.is_empty() {
        return Err(Error::new(ErrorKind::NoBackend, format!("name a backend to test; compiled in: {list}")));
    }
    for name in &options.backends {
        if !known.contains(&base_and_mutant(name).0) {
            let text = format!("there is no backend {name:?} in this program; compiled in: {list}");
            return Err(Error::new(ErrorKind::NoBackend, text));
        }
    }
    options.backends.iter().try_for_each(|name| check_mutant(drivers, options, name))?;
    let kinds = [
        options.self_test,
        options.drills,
        options.sequences.is_some(),
        options.replay.is_some(),
        options.differential,
    ];
    if kinds.iter().filter(|chosen| **chosen).count() > 1 {
        let text = "choose one of the self-test, the drills, sequences, a replay and a comparison";
        return Err(Error::invalid(text));
    }
    if options.sequences == Some(0) || options.calls.is_some_and(|calls| !(1..=MOST_CALLS).contains(&calls)) {
        return Err(Error::invalid(format!("one sequence or more, of 1 to {MOST_CALLS} calls")));
    }
    let mut options = options.clone();
    options.ranks.sort_unstable();
    options.ranks.dedup();
    let named = std::mem::take(&mut options.backends);
    for name in named {
        if !options.backends.contains(&name) {
            options.backends.push(name);
        }
    }
    // A script says how many ranks it is for.
    let none = options.ranks.is_empty() && options.replay.is_none();
    if none || options.ranks.iter().any(|ranks| !(1..=MOST_RANKS).contains(ranks)) {
        return Err(Error::invalid(format!("the numbers of ranks are 1 to {MOST_RANKS}, for example 1,2,3")));
    }
    if options.modes.is_empty() {
        return Err(Error::invalid("choose threads, processes, or both"));
    }
    if let Some(pattern) = &options.pattern {
        let matched = if options.drills { drills::matching(pattern).len() } else { cases::matching(pattern).len() };
        if matched == 0 {
            return Err(Error::invalid(format!("nothing matches {pattern:?}; see what there is with --list")));
        }
    }
    if let Some(file) = options.expectations.iter().find(|file| !options.backends.contains(&file.backend)) {
        let text = format!("the expectations given are about backend {}, which is not tested", file.backend);
        return Err(Error::invalid(text));
    }
    Ok(options)
}

/// What `--list` prints: every case and drill with what it needs.
pub fn list() -> String {
    let mut text = String::new();
    for case in cases::all() {
        let needs: Vec<String> = case.needs.iter().map(ToString::to_string).collect();
        let ranks = match (case.least_ranks, case.most_ranks) {
            (1, usize::MAX) => String::new(),
            (least, usize::MAX) => format!(" [{least} ranks or more]"),
            (least, most) => format!(" [{least} to {most} ranks]"),
        };
        let needs = if needs.is_empty() { String::new() } else { format!(" (needs {})", needs.join(", ")) };
        text += &format!("{:8} {:?} {}{ranks}{needs}\n", case.id, case.level, case.title);
    }
    for drill in drills::matching("") {
        text += &format!("{drill} Drill\n");
    }
    text
}

/// The cases that the options select.
pub(crate) fn selected(options: &Options) -> Vec<Case> {
    options.pattern.as_deref().map_or_else(cases::all, cases::matching)
}

fn suite(backend: &str, options: &Options, command: &RankCommand, reporter: &mut Reporter<'_>) -> Result<()> {
    let cases = selected(options);
    let expected = expected_in(options, backend);
    let mut settled = Settled::new(&expected);
    for &mode in &options.modes {
        for &ranks in &options.ranks {
            let start = Instant::now();
            let reports = run_settled(backend, None, mode, ranks, &cases, options, command, &mut settled)?;
            reports.iter().for_each(|report| reporter.add(report));
            std::mem::take(&mut settled.skipped).iter().for_each(|what| reporter.say_skipped(what));
            reporter.check()?;
            let count = |verdict| reports.iter().filter(|report| report.result == verdict).count();
            let known = match count(Verdict::Known) {
                0 => String::new(),
                known => format!(", known deviations: {known}"),
            };
            reporter.say(&format!(
                "{backend} {} {ranks} ranks: {} passed, {} failed, {} skipped{known} in {:.1} s",
                mode.name(),
                count(Verdict::Pass),
                count(Verdict::Fail),
                count(Verdict::Unsupported) + count(Verdict::Inapplicable),
                start.elapsed().as_secs_f64()
            ));
        }
    }
    settled.report_stale(backend, reporter);
    reporter.check()
}

/// What is expected of a backend in this run.
fn expected_in(options: &Options, backend: &str) -> Expectations {
    let found = options.expectations.iter().find(|expected| expected.backend == backend);
    found.cloned().unwrap_or_else(|| Expectations { backend: backend.into(), ..Expectations::default() })
}

/// All cases in one world, as one job, and another for the rest after a case that took the job with it.
pub(crate) fn run_world(
    backend: &str,
    mutant: Option<&str>,
    mode: Mode,
    ranks: usize,
    cases: &[Case],
    options: &Options,
    command: &RankCommand,
) -> Result<Vec<CaseReport>> {
    let expected = expected_in(options, backend);
    run_settled(backend, mutant, mode, ranks, cases, options, command, &mut Settled::new(&expected))
}

/// [`run_world`] in the light of what is expected.
#[allow(clippy::too_many_arguments)]
fn run_settled(
    backend: &str,
    mutant: Option<&str>,
    mode: Mode,
    ranks: usize,
    cases: &[Case],
    options: &Options,
    command: &RankCommand,
    settled: &mut Settled<'_>,
) -> Result<Vec<CaseReport>> {
    let expected = settled.expected();
    let mut calls: BTreeMap<String, CallLog> = BTreeMap::new();
    let name = mutant.map_or(backend.to_string(), |mutant| format!("{backend}+{mutant}"));
    let report = |case: &Case, result, detail: String, millis| CaseReport {
        case: case.id.into(),
        title: case.title.into(),
        backend: name.clone(),
        mode: Some(mode),
        ranks,
        result,
        detail,
        wrong_result: false,
        millis,
    };
    let mut reports = Vec::new();
    let mut pending = Vec::new();
    for case in cases {
        match case.inapplicable(ranks, options.full).or_else(|| expected.inapplicable(case)) {
            Some(why) => reports.push(report(case, Verdict::Inapplicable, why, 0)),
            None => pending.push(*case),
        }
    }
    while !pending.is_empty() {
        let plan = Plan {
            role: Role::Cases(pending.iter().map(|case| case.id.to_string()).collect()),
            backend: backend.into(),
            mutant: mutant.map(Into::into),
            mode,
            ranks,
            worlds: options.ranks.clone(),
            modes: options.modes.clone(),
            seed: options.seed,
            full: options.full,
            case_seconds: options.case_seconds,
            promise: expected.promise.clone(),
            deviations: expected.of_calls(mode, ranks),
        };
        let limit = limit(options);
        let job = job::run(&plan, command, limit)?;
        settled.skipped.extend(job.skipped.iter().cloned());
        job.calls.iter().for_each(|(case, met)| calls.entry(case.clone()).or_default().extend(met));
        let complete = pending.iter().take_while(|case| is_complete(&job, case.id, ranks)).count();
        let intact = complete == pending.len() && job.broken.is_empty() && job.done >= ranks;
        for (i, case) in pending[..complete].iter().enumerate() {
            let (mut result, mut detail, millis) = merge(expected, case, &job.endings[case.id]);
            if i + 1 == complete && !intact && complete < pending.len() && job.inside.is_empty() {
                // The job ended between this case and the next.
                result = Verdict::Fail;
                let own = if detail.is_empty() { "passed itself".into() } else { detail };
                detail = format!("{own}; took the job with it: {}", why_it_ended(&job));
            }
            let wrong_result = has_wrong_result(job.endings.get(case.id));
            reports.push(CaseReport { wrong_result, ..report(case, result, detail, millis) });
        }
        pending.drain(..complete);
        let between = complete > 0 && job.inside.is_empty();
        if let Some(case) = pending.first().copied().filter(|_| !between) {
            let nothing_ran = complete == 0 && job.inside.is_empty();
            let why = why_it_ended(&job);
            if nothing_ran {
                reports.extend(pending.iter().map(|case| report(case, Verdict::Fail, why.clone(), 0)));
                break;
            }
            let mut detail = failures(job.endings.get(case.id));
            detail.extend([why]);
            let wrong_result = has_wrong_result(job.endings.get(case.id));
            reports.push(CaseReport { wrong_result, ..report(&case, Verdict::Fail, detail.join("; "), 0) });
            pending.remove(0);
        }
    }
    reports.iter_mut().for_each(|report| settled.settle(mode, report, &calls));
    Ok(reports)
}

/// How long a case may take before its job is killed.
fn limit(options: &Options) -> impl Fn(&str) -> Duration + Send + use<> {
    let (full, given) = (options.full, options.case_seconds);
    move |id| {
        let seconds = given.or_else(|| cases::find(id).map(|case| case.seconds)).unwrap_or(60);
        Duration::from_secs(if full { seconds * 20 } else { seconds })
    }
}

pub(crate) fn has_wrong_result(endings: Option<&BTreeMap<usize, (Ending, u64)>>) -> bool {
    endings.into_iter().flatten().any(|(_, (ending, _))| matches!(ending, Ending::Wrong(_)))
}

fn is_complete(job: &JobReport, case: &str, ranks: usize) -> bool {
    job.endings.get(case).is_some_and(|endings| endings.len() == ranks)
}

/// The result of a case that has ended on all ranks.
pub(crate) fn merge(
    expected: &Expectations,
    case: &Case,
    endings: &BTreeMap<usize, (Ending, u64)>,
) -> (Verdict, String, u64) {
    let millis = endings.values().map(|(_, millis)| *millis).max().unwrap_or(0);
    let failures = failures(Some(endings));
    if !failures.is_empty() {
        return (Verdict::Fail, failures.join("; "), millis);
    }
    let unsupported: Vec<&String> = endings
        .values()
        .filter_map(|(ending, _)| if let Ending::Unsupported(why) = ending { Some(why) } else { None })
        .collect();
    if unsupported.is_empty() {
        return (Verdict::Pass, String::new(), millis);
    }
    if unsupported.len() < endings.len() {
        return (Verdict::Fail, format!("unsupported on {} ranks only", unsupported.len()), millis);
    }
    match expected.broken_promise(case) {
        Some(promise) => (Verdict::Fail, format!("{}, but {promise}", unsupported[0]), millis),
        None => (Verdict::Unsupported, unsupported[0].clone(), millis),
    }
}

/// Ranks whose texts are shown when many differ.
const SHOWN_RANKS: usize = 4;

/// What failed on which ranks; ranks with the same text share one entry.
fn failures(endings: Option<&BTreeMap<usize, (Ending, u64)>>) -> Vec<String> {
    let mut texts: Vec<(String, Vec<String>)> = Vec::new();
    for (rank, (ending, _)) in endings.into_iter().flatten() {
        if let Ending::Wrong(why) | Ending::Fail(why) = ending {
            match texts.iter_mut().find(|(text, _)| text == why) {
                Some((_, ranks)) => ranks.push(rank.to_string()),
                None => texts.push((why.clone(), vec![rank.to_string()])),
            }
        }
    }
    let more = texts.iter().skip(SHOWN_RANKS).flat_map(|(_, ranks)| ranks).count();
    let shown = texts.into_iter().take(SHOWN_RANKS);
    let mut lines: Vec<String> = shown.map(|(why, ranks)| format!("rank {}: {why}", ranks.join(","))).collect();
    if more > 0 {
        lines.push(format!("and {more} more ranks"));
    }
    lines
}

pub(crate) fn why_it_ended(job: &JobReport) -> String {
    let mut parts = Vec::new();
    match &job.hung {
        Some(case) if case.is_empty() => parts.push("nothing happened between two cases".to_string()),
        Some(_) => {
            parts.push("hung".to_string());
            for (rank, case) in &job.inside {
                let call = job.last_calls.get(rank).map_or("no answer", String::as_str);
                parts.push(format!("rank {rank} in {case}: {call}"));
            }
        }
        None => parts.push("the job ended".to_string()),
    }
    parts.extend(job.broken.iter().take(SHOWN_RANKS).cloned());
    if job.hung.is_none() {
        parts.extend(job.exits.iter().cloned());
    }
    parts.extend(job.complaints.iter().rev().take(3).rev().cloned());
    parts.join("; ")
}
