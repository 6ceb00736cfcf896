//! `--sequences`: random sequences are run; the first that fails is made small and written to a file.

use super::attempt::{Outcome, Patience, Subject, Way, attempt};
use super::generate::Choices;
use super::script::Script;
use super::shrink::{Scripts, script_of};
use super::table::table_of;
use crate::job::RankCommand;
use crate::report::{CaseReport, Reporter, Verdict};
use crate::runner::Options;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use rankwise_core::{Error, Result};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most scripts that are tried to make a failing one smaller, and the longest that it may take.
const MOST_TRIES: u32 = 500;
/// A script of so few calls is small enough when making it smaller has taken so long: hangs take their deadline each time.
const FEW_CALLS: usize = 3;
const LONG_FOR_FEW: Duration = Duration::from_secs(10);
/// Calls of a sequence of a run that names no number.
const DEFAULT_CALLS: usize = 10_000;
const MOST_TIME: Duration = Duration::from_secs(300);

/// Lines of a script that are printed; the file has all.
const MOST_SHOWN: usize = 40;

/// What a search found on one subject.
struct Found {
    script: Script,
    outcome: Outcome,
    tries: usize,
    first_calls: usize,
}

/// Runs `options.sequences` sequences of `options.calls` calls in every world and mode.
pub(crate) fn search(
    (backend, mutant): (&str, Option<&str>),
    options: &Options,
    command: &RankCommand,
    reporter: &mut Reporter<'_>,
) -> Result<()> {
    for &mode in &options.modes {
        let table = table_of(backend, mode, command)?;
        for &ranks in &options.ranks {
            let subject = Subject { backend, mutant, mode, ranks, command, seconds: options.case_seconds };
            let choices = Choices { thresholds: table.thresholds.clone(), rounding: table.fixed, ..Choices::default() };
            search_one(&subject, &choices, options, reporter)?;
            reporter.check()?;
        }
    }
    Ok(())
}

fn search_one(subject: &Subject<'_>, choices: &Choices, options: &Options, reporter: &mut Reporter<'_>) -> Result<()> {
    let sequences = options.sequences.unwrap_or(1);
    let mut passed = Vec::new();
    let found = first_failure(subject, choices, options, sequences, &mut |seed, outcome| {
        passed.push((seed, outcome.left_out, outcome.elapsed));
    })?;
    let place = format!("{} {} {} ranks", subject.name(), subject.mode.name(), subject.ranks);
    let calls = calls_of(options);
    for (seed, left_out, elapsed) in passed {
        let seconds = elapsed.as_secs_f64();
        let less = if left_out > 0 { format!(", of which {left_out} are not offered") } else { String::new() };
        reporter.say(&format!("{place}: sequence with seed {seed}: {calls} calls{less}, all right, in {seconds:.1} s"));
        reporter.add(&line(subject, seed, calls, Verdict::Pass, String::new(), false, elapsed));
    }
    let Some(found) = found else { return Ok(()) };
    let Found { mut script, mut outcome, tries, first_calls } = found;
    // The small one has failed under short deadlines: it has to fail under long ones too.
    let mut how = format!("made smaller from {first_calls} calls to {} in {tries} runs", script.calls());
    let confirmed = attempt(subject, &script, None, Patience::Long)?;
    if confirmed.failure.is_some() {
        outcome = confirmed;
    } else {
        let small = script.calls();
        script = script_of(script.seed, subject.ranks, calls_of(options), choices);
        how = format!("smaller ones do not fail every time, for example one of {small} calls; the whole one");
    }
    let (way, why) = outcome.failure.unwrap_or((Way::Error, String::new()));
    let file = write_script(&options.scripts_in, subject, &script, &why)?;
    let detail = format!("{why}; {how}: {}; repeat with: {}", file.display(), repetition(subject, &file),);
    reporter.add(&line(
        subject,
        script.seed,
        calls_of(options),
        Verdict::Fail,
        detail,
        way == Way::Wrong,
        outcome.elapsed,
    ));
    for text in script.to_string().lines().take(MOST_SHOWN) {
        reporter.say(&format!("    {text}"));
    }
    Ok(())
}

fn line(
    subject: &Subject<'_>,
    seed: u64,
    calls: usize,
    result: Verdict,
    detail: String,
    wrong_result: bool,
    elapsed: Duration,
) -> CaseReport {
    CaseReport {
        case: format!("sequence {seed}"),
        title: format!("sequence: {calls} mixed calls on random groups"),
        backend: subject.name(),
        mode: Some(subject.mode),
        ranks: subject.ranks,
        result,
        detail,
        wrong_result,
        millis: elapsed.as_millis() as u64,
    }
}

fn calls_of(options: &Options) -> usize {
    options.calls.unwrap_or(DEFAULT_CALLS)
}

/// The command that runs a script again.
pub(crate) fn repetition(subject: &Subject<'_>, file: &Path) -> String {
    let (name, mode, ranks) = (subject.name(), subject.mode.name(), subject.ranks);
    // A program for one backend is its own command and names none.
    let program = Path::new(&subject.command.program).file_name().map(|name| name.to_string_lossy().into_owned());
    let (command, backend) = match program {
        Some(program) if subject.command.args.is_empty() => (program, String::new()),
        _ => ("rankwise conformance".to_string(), format!(" --backend {name}")),
    };
    format!("{command} --replay {}{backend} --mode {mode} --ranks {ranks}", file.display())
}

fn write_script(folder: &Path, subject: &Subject<'_>, script: &Script, why: &str) -> Result<PathBuf> {
    let (name, mode, seed) = (subject.name(), subject.mode.name(), script.seed);
    let file = folder.join(format!("sequence-{name}-{mode}-{}-{seed}.txt", subject.ranks));
    let why = why.replace(['\n', '\r'], " ");
    std::fs::write(&file, format!("{script}# {why}\n")).map_err(|error| {
        Error::config(format!("cannot write the failing script to {}; run where files can be made", file.display()))
            .with_source(error)
    })?;
    Ok(file)
}

/// Runs sequences until one fails, and makes that one small. `passed` hears of the others.
fn first_failure(
    subject: &Subject<'_>,
    choices: &Choices,
    options: &Options,
    sequences: usize,
    passed: &mut dyn FnMut(u64, Outcome),
) -> Result<Option<Found>> {
    let failed_in = Rc::new(Cell::new(None));
    let scripts = Scripts {
        next_seed: Cell::new(options.seed),
        ranks: subject.ranks,
        calls: calls_of(options),
        choices: choices.clone(),
        failed_in: failed_in.clone(),
    };
    let first: RefCell<Option<(Way, usize)>> = RefCell::new(None);
    let last: RefCell<Option<Outcome>> = RefCell::new(None);
    let broken: RefCell<Option<Error>> = RefCell::new(None);
    let tries = Cell::new(0_usize);
    let (few, since) = (Cell::new(false), Cell::new(Instant::now()));
    let passed = RefCell::new(passed);
    let config = Config {
        cases: u32::try_from(sequences).unwrap_or(u32::MAX),
        max_shrink_iters: MOST_TRIES,
        max_shrink_time: MOST_TIME.as_millis() as u32,
        failure_persistence: None,
        verbose: 0,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&scripts, |script| {
        if broken.borrow().is_some() {
            return Ok(());
        }
        let known = *first.borrow();
        if known.is_some() && few.get() && since.get().elapsed() > LONG_FOR_FEW {
            return Ok(());
        }
        let patience = if known.is_some() { Patience::Short } else { Patience::Long };
        let outcome = match attempt(subject, &script, None, patience) {
            Ok(outcome) => outcome,
            Err(error) => {
                broken.borrow_mut().get_or_insert(error);
                return Ok(());
            }
        };
        let Some((way, why)) = outcome.failure.clone() else {
            if known.is_none() {
                (passed.borrow_mut())(script.seed, outcome);
            }
            return Ok(());
        };
        tries.set(tries.get() + 1);
        match known {
            None => {
                *first.borrow_mut() = Some((way, script.calls()));
                since.set(Instant::now());
            }
            // Another fault: not what is looked for.
            Some((known, _)) if known != way => return Ok(()),
            Some(_) => {}
        }
        few.set(script.calls() <= FEW_CALLS);
        failed_in.set(outcome.step);
        *last.borrow_mut() = Some(outcome);
        Err(TestCaseError::fail(why))
    });
    if let Some(error) = broken.into_inner() {
        return Err(error);
    }
    let first_calls = first.into_inner().map_or(0, |(_, calls)| calls);
    let tries = tries.get();
    match (result, last.into_inner()) {
        (Ok(()), _) | (_, None) => Ok(None),
        (Err(TestError::Fail(_, script)), Some(outcome)) => Ok(Some(Found { script, outcome, tries, first_calls })),
        (Err(TestError::Abort(why)), _) => Err(Error::config(format!("no sequence could be made: {}", why.message()))),
    }
}
