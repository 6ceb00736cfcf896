//! The suite inside a job that somebody else has started: mpirun, torchrun, `rankwise launch`, a script.
//!
//! Every rank runs the cases in order on its main thread. After each the ranks exchange through the world's store how it ended,
//! so that all of them judge it alike, and rank 0 alone reports. A case that takes too long ends the job from within: a thread
//! of each rank says what its rank called last, rank 0 reports it, and all leave with the same exit code.

use crate::case::{Case, CaseResult, Failure};
use crate::ctx::{LastCall, Place};
use crate::expectations::{CallLog, Expectations, Settled};
use crate::plan::{Ending, Mode};
use crate::random::label;
use crate::rank::{Joined, Watchdog, allowed};
use crate::report::{CaseReport, Reporter, Summary, Verdict};
use crate::runner::{Options, checked, expected_of, has_wrong_result, merge, selected};
use rankwise_core::{Error, ErrorKind, Group, Result};
use rankwise_world::{Attachment, Driver, MAX_PAYLOAD, World};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Deadline of an exchange of results: longer than any case, since a rank that hangs is found by the watchdogs.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Deadline of the first exchange: the others may be starting.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long rank 0 waits for what the others called last.
const GATHER_TIME: Duration = Duration::from_secs(3);
/// How long leaving may take once everything is said.
const EXIT_TIME: Duration = Duration::from_secs(5);

/// What a rank says about itself before the first case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Opening {
    version: String,
    arguments: String,
    seed: u64,
    trouble: Option<String>,
}

/// What a rank says about a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Said {
    ending: Ending,
    millis: u64,
    calls: CallLog,
    /// Why the base communicator can't be used any more.
    broken: Option<String>,
}

/// As the first backend that is asked for sees it, or else the environment.
fn world(drivers: &[&dyn Driver], options: &Options) -> Result<World> {
    match drivers.iter().find(|driver| options.backends.first().is_some_and(|name| name == driver.name())) {
        Some(driver) => driver.world(),
        None => World::from_env(),
    }
}

/// Runs what `options` say inside the job that this process is a rank of. Collective; the ranks are started with equal
/// options, and rank 0's seed counts. Rank 0 prints to `out`; all return the same counts.
///
/// `NoBackend` and `InvalidArgument` as [`run`](crate::run), and when the ranks differ in their options. When a case hangs,
/// rank 0 reports it with what every rank called last, and the process of every rank ends with exit code 1.
pub fn run_in_job(drivers: &[&dyn Driver], options: &Options, out: &mut (dyn Write + Send)) -> Result<Summary> {
    let world = world(drivers, options)?;
    let prepared = prepare(drivers, options, &world);
    let opening = Opening {
        version: env!("CARGO_PKG_VERSION").into(),
        arguments: arguments(options),
        seed: options.seed,
        trouble: prepared.as_ref().err().map(ToString::to_string),
    };
    let all: Vec<Opening> = exchange(&world, "opening", &opening, START_TIMEOUT)?;
    let (mut options, chosen) = prepared?;
    agree(&all)?;
    options.seed = all[0].seed;

    let mut silence = io::sink();
    let out: &mut (dyn Write + Send) = if world.rank() == 0 { out } else { &mut silence };
    let mut reporter = Reporter::new(out, options.format);
    if world.rank() != 0 {
        options.junit = None;
    }
    options.ranks = vec![world.size()];
    reporter.begin(&options)?;
    let start = Instant::now();
    reporter.say(&format!(
        "seed {}; repeat with --seed {}; {} ranks, started by: {}",
        options.seed,
        options.seed,
        world.size(),
        world.source()
    ));
    for (driver, expected) in chosen {
        let job = ForeignJob { world: &world, driver, expected: &expected, options: &options };
        reporter = job.run(reporter)?;
    }
    reporter.say(&format!("{:.1} s", start.elapsed().as_secs_f64()));
    reporter.finish()
}

/// A backend to test, and what is expected of it.
type Chosen<'a> = (&'a dyn Driver, Expectations);

/// Everything that can be known before talking to the other ranks.
fn prepare<'a>(drivers: &[&'a dyn Driver], options: &Options, world: &World) -> Result<(Options, Vec<Chosen<'a>>)> {
    let other_kinds = [options.self_test, options.drills, options.differential];
    if other_kinds.contains(&true) || options.sequences.is_some() || options.replay.is_some() {
        let text =
            "only the cases run inside a job; the rest needs ranks that the suite starts: mode threads or processes";
        return Err(Error::invalid(text));
    }
    let options = checked(drivers, options)?;
    let mut chosen = Vec::new();
    for name in &options.backends {
        let found = drivers.iter().find(|driver| driver.name() == name);
        if let Some(driver) = found {
            chosen.push((*driver, expected_of(*driver, world, &options.expectations)?));
        }
    }
    Ok((options, chosen))
}

/// The options that must be equal on all ranks.
fn arguments(options: &Options) -> String {
    let files = label(&format!("{:?}", options.expectations));
    let Options { backends, pattern, full, case_seconds, .. } = options;
    format!("backends {backends:?}, cases {pattern:?}, full {full}, seconds {case_seconds:?}, expectations {files:x}")
}

fn agree(all: &[Opening]) -> Result<()> {
    for (rank, opening) in all.iter().enumerate() {
        if let Some(trouble) = &opening.trouble {
            return Err(
                Error::new(ErrorKind::NoBackend, format!("rank {rank} can't start: {trouble}")).with_peers([rank])
            );
        }
        for (what, ours, theirs) in
            [("version", &all[0].version, &opening.version), ("arguments", &all[0].arguments, &opening.arguments)]
        {
            if ours != theirs {
                let text = format!("rank {rank} has other {what} than rank 0: {theirs}, not {ours}; start all alike");
                return Err(Error::invalid(text).with_peers([rank]));
            }
        }
    }
    Ok(())
}

/// The suite over one backend.
struct ForeignJob<'a> {
    world: &'a World,
    driver: &'a dyn Driver,
    expected: &'a Expectations,
    options: &'a Options,
}

/// What has been said so far; gone once it is finished.
type Shared<'a, 'out> = &'a Mutex<Option<Reporter<'out>>>;

impl ForeignJob<'_> {
    fn run<'out>(&self, reporter: Reporter<'out>) -> Result<Reporter<'out>> {
        let place = Place {
            seed: self.options.seed,
            full: self.options.full,
            world: (0, 1),
            mode: (0, 1),
            promise: self.expected.promise.clone(),
            deviations: self.expected.of_calls(Mode::Outer, self.world.size()),
        };
        let shared = Mutex::new(Some(reporter));
        std::thread::scope(|scope| {
            let (watchdog, watched) = Watchdog::pair();
            scope.spawn(|| watched.watch(Duration::ZERO, &|case, last_call| self.hung(case, last_call, &shared)));
            // Dropped at the end, which ends the thread.
            self.run_cases(&place, &watchdog, &shared)
        })?;
        let reporter = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        reporter.ok_or_else(|| Error::config("the report was finished by another thread"))
    }

    fn run_cases(&self, place: &Place, watchdog: &Watchdog, shared: Shared<'_, '_>) -> Result<()> {
        let mut settled = Settled::new(self.expected);
        let ranks = self.world.size();
        let joined = Joined::new(self.world, self.driver, place);
        let trouble = joined.as_ref().err().map(|failure| failure.text.clone());
        let all: Vec<Option<String>> = exchange(self.world, &self.key("join"), &trouble, EXCHANGE_TIMEOUT)?;
        let failed = (0..).zip(all).filter_map(|(rank, why)| Some(format!("rank {rank}: {}", why?)));
        let failed: Vec<String> = failed.collect();
        let (Ok(mut joined), true) = (joined, failed.is_empty()) else {
            self.add(shared, &self.report("join", "all ranks join", Verdict::Fail, failed.join("; ")));
            return Ok(());
        };
        let cases = selected(self.options);
        for (i, case) in cases.iter().enumerate() {
            let case = &allowed(*case, self.options.case_seconds, self.options.full);
            if let Some(why) = case.inapplicable(ranks, place.full).or_else(|| self.expected.inapplicable(case)) {
                self.add(shared, &self.report(case.id, case.title, Verdict::Inapplicable, why));
                continue;
            }
            let last_call = watchdog.enter(case);
            let said = run_case(&mut joined, case, &last_call);
            last_call.set("finished the case, waits for the other ranks".into());
            let (mut report, goes_on) = match exchange(self.world, &self.key(case.id), &said, EXCHANGE_TIMEOUT) {
                Ok(all) => self.judged(case, &all, &mut settled),
                Err(error) => {
                    let own =
                        if said.ending == Ending::Pass { String::new() } else { format!("; here: {:?}", said.ending) };
                    let text = format!("the ranks can't compare their results: {error}{own}");
                    (self.report(case.id, case.title, Verdict::Fail, text), false)
                }
            };
            let rest = cases.len() - i - 1;
            if !goes_on && rest > 0 {
                report.detail += &format!("; {rest} cases after it were not run");
            }
            self.add(shared, &report);
            if !goes_on {
                return Ok(());
            }
        }
        if let Some(reporter) = lock(shared).as_mut() {
            settled.report_stale(self.driver.name(), reporter);
            reporter.check()?;
        }
        Ok(())
    }

    /// What all ranks say about a case, and whether they can go on.
    fn judged(&self, case: &Case, all: &[Said], settled: &mut Settled<'_>) -> (CaseReport, bool) {
        let endings: BTreeMap<usize, (Ending, u64)> =
            all.iter().enumerate().map(|(rank, said)| (rank, (said.ending.clone(), said.millis))).collect();
        let (result, detail, millis) = merge(self.expected, case, &endings);
        let mut report = CaseReport {
            millis,
            wrong_result: has_wrong_result(Some(&endings)),
            ..self.report(case.id, case.title, result, detail)
        };
        let mut calls = CallLog::default();
        all.iter().for_each(|said| calls.extend(&said.calls));
        settled.settle(Mode::Outer, &mut report, &BTreeMap::from([(case.id.to_string(), calls)]));
        let broken = all.iter().enumerate().find_map(|(rank, said)| Some((rank, said.broken.as_ref()?)));
        if let Some((rank, why)) = broken {
            report.result = Verdict::Fail;
            let own = if report.detail.is_empty() { "passed itself".into() } else { report.detail };
            report.detail = format!("{own}; took the job with it: rank {rank}: {why}");
        }
        (report, broken.is_none())
    }

    fn report(&self, case: &str, title: &str, result: Verdict, detail: String) -> CaseReport {
        CaseReport {
            case: case.into(),
            title: title.into(),
            backend: self.driver.name().into(),
            mode: Some(Mode::Outer),
            ranks: self.world.size(),
            result,
            detail,
            wrong_result: false,
            millis: 0,
        }
    }

    fn add(&self, shared: Shared<'_, '_>, report: &CaseReport) {
        if let Some(reporter) = lock(shared).as_mut() {
            reporter.add(report);
        }
    }

    fn key(&self, what: &str) -> String {
        format!("{}/{what}", self.driver.name())
    }

    /// Called by the watchdog: a rank, perhaps another one, has not finished the case in time. Ends the process.
    fn hung(&self, case: &Case, last_call: &LastCall, shared: Shared<'_, '_>) {
        let store = self.world.store();
        let key = |rank: usize| format!("conformance/{}/hung/{rank}", self.key(case.id));
        let told = format!("conformance/{}/told", self.key(case.id));
        let (rank, ranks) = (self.world.rank(), self.world.size());
        // What can't be said can't be helped: the process ends in any case.
        let _ = store.set(&key(rank), fitting(&last_call.text(), MAX_PAYLOAD).as_bytes());
        if rank == 0 {
            let until = Instant::now() + GATHER_TIME;
            let mut lines = vec![format!("hung for {} s", case.seconds)];
            for other in 0..ranks {
                let left = until.saturating_duration_since(Instant::now());
                let call = store.wait(&key(other), left.max(Duration::from_millis(10)));
                let call = call.map_or("no answer".into(), |bytes| String::from_utf8_lossy(&bytes).into_owned());
                lines.push(format!("rank {other} in {}: {call}", case.id));
            }
            if let Some(mut reporter) = lock(shared).take() {
                reporter.add(&self.report(case.id, case.title, Verdict::Fail, lines.join("; ")));
                reporter.say("the cases after it were not run");
                let _ = reporter.finish();
            }
            let _ = store.set(&told, b"1");
        } else {
            let _ = store.wait(&told, 2 * GATHER_TIME);
        }
        std::thread::spawn(|| {
            std::thread::sleep(EXIT_TIME);
            // An engine's exit handlers may wait for the call that hangs.
            std::process::abort();
        });
        std::process::exit(1);
    }
}

fn run_case(joined: &mut Joined<'_>, case: &Case, last_call: &LastCall) -> Said {
    let outcome = joined.run(case, last_call.clone());
    last_call.set("the barrier after the case".into());
    let usable: CaseResult = joined.check_base(case);
    let broken = usable.err().map(|Failure { text, .. }| text);
    Said { ending: outcome.ending, millis: outcome.millis, calls: outcome.calls, broken }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At most so many bytes of a text.
fn fitting(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Something with texts that may have to be shortened.
trait Shorten: Serialize + DeserializeOwned + Clone {
    /// The same with every text at most so long.
    fn shortened(&self, bytes: usize) -> Self;
}

fn shortened(text: &Option<String>, bytes: usize) -> Option<String> {
    text.as_deref().map(|text| fitting(text, bytes).to_string())
}

impl Shorten for Option<String> {
    fn shortened(&self, bytes: usize) -> Self {
        shortened(self, bytes)
    }
}

impl Shorten for Opening {
    fn shortened(&self, bytes: usize) -> Self {
        let arguments = fitting(&self.arguments, bytes).to_string();
        Opening { arguments, trouble: shortened(&self.trouble, bytes), ..self.clone() }
    }
}

impl Shorten for Said {
    fn shortened(&self, bytes: usize) -> Self {
        let fit = |text: &String| fitting(text, bytes).to_string();
        let ending = match &self.ending {
            Ending::Pass => Ending::Pass,
            Ending::Wrong(why) => Ending::Wrong(fit(why)),
            Ending::Fail(why) => Ending::Fail(fit(why)),
            Ending::Unsupported(why) => Ending::Unsupported(fit(why)),
        };
        Said { ending, broken: shortened(&self.broken, bytes), ..self.clone() }
    }
}

/// Everybody's, in rank order.
fn exchange<T: Shorten>(world: &World, what: &str, mine: &T, deadline: Duration) -> Result<Vec<T>> {
    let unreadable =
        |error| Error::config("a rank's results can't be read; are the versions equal?").with_source(error);
    let mut payload = serde_json::to_vec(mine).map_err(unreadable)?;
    let mut length = MAX_PAYLOAD;
    while payload.len() > MAX_PAYLOAD && length > 1 {
        length /= 2;
        payload = serde_json::to_vec(&mine.shortened(length)).map_err(unreadable)?;
    }
    let members = Group::world(world.size());
    let (key, words) = (format!("conformance/{what}"), format!("conformance suite, {what}"));
    let met = world.store().exchange(&key, &words, &members, &payload, Attachment::None, deadline)?;
    met.iter().map(|(bytes, _)| serde_json::from_slice(bytes).map_err(unreadable)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(trouble: Option<&str>, arguments: &str) -> Opening {
        Opening { version: "1".into(), arguments: arguments.into(), seed: 1, trouble: trouble.map(Into::into) }
    }

    #[test]
    fn ranks_that_differ_or_can_not_start_are_named() {
        agree(&[opening(None, "a"), opening(None, "a")]).unwrap();
        let error = agree(&[opening(None, "a"), opening(None, "b")]).unwrap_err();
        assert!(error.message().starts_with("rank 1 has other arguments"), "{error}");
        let error = agree(&[opening(None, "a"), opening(Some("no library"), "a")]).unwrap_err();
        assert_eq!((error.kind(), error.peers()), (&ErrorKind::NoBackend, &[1][..]));
    }

    #[test]
    fn long_texts_are_shortened_to_what_an_exchange_carries() {
        let got = World::threads(2, |world| {
            let ending = Ending::Wrong("\u{1}é".repeat(4000 * (1 + world.rank())));
            let said = Said { ending, millis: 1, calls: CallLog::default(), broken: None };
            exchange(&world, "x", &said, START_TIMEOUT).unwrap()
        })
        .unwrap();
        assert_eq!(got[0], got[1]);
        assert!(matches!(&got[0][1].ending, Ending::Wrong(text) if text.starts_with("\u{1}é") && text.len() > 300));
    }
}
