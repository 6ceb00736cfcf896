//! One run of a script in a job of its own, so that a hang or a crash is a result like any other.

use super::digest::{Digest, Form};
use super::play::{named_step, play};
use super::script::Script;
use super::text::parse;
use crate::case::{CaseResult, Failure};
use crate::ctx::{Ctx, LastCall, Place, join};
use crate::job::{self, JobReport, RankCommand};
use crate::plan::{Ending, Mode, Plan, Record, Role, ScriptPart};
use crate::rank::{BASE_TIMEOUT, STUCK_MARGIN, panic_text};
use crate::runner::why_it_ended;
use rankwise_core::{Backend, Config, Determinism, Error, Result};
use rankwise_world::{Driver, World};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What stands for the script where a job's case would be named.
const NAME: &str = "sequence";
/// How long other ranks are given to say what they have found after one has failed.
const AFTER_FAILURE: Duration = Duration::from_millis(700);
/// Digests in one record.
const DIGESTS_A_RECORD: usize = 100;

/// Where scripts are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) backend: &'a str,
    pub(crate) mutant: Option<&'a str>,
    pub(crate) mode: Mode,
    /// Of the world; a script may be for fewer.
    pub(crate) ranks: usize,
    pub(crate) command: &'a RankCommand,
    /// Seconds after which a run is killed, instead of those that its length gives.
    pub(crate) seconds: Option<u64>,
}

/// How long calls and runs may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Long enough for any machine.
    Long,
    /// For the many runs that make a script smaller: a slow one counts as failed, which the end of it all would show.
    Short,
}

impl Subject<'_> {
    /// The backend's name with its mutation.
    pub(crate) fn name(&self) -> String {
        self.mutant.map_or(self.backend.to_string(), |mutant| format!("{}+{mutant}", self.backend))
    }
}

/// How a run failed. A smaller script shows the same fault only when it fails in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A wrong result, or another broken promise.
    Wrong,
    /// An error or a panic.
    Error,
    /// A rank did not come back, or others waited for it in vain.
    Hang,
    /// A process ended.
    Crash,
}

/// How a run went.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` when everything was right.
    pub(crate) failure: Option<(Way, String)>,
    /// The last step that a rank which failed was in, counted from 1, where that is known.
    pub(crate) step: Option<usize>,
    /// Calls that rank 0 left out because the table does not offer them.
    pub(crate) left_out: usize,
    pub(crate) digests: BTreeMap<usize, Vec<Digest>>,
    pub(crate) elapsed: Duration,
}

/// What `Record::Played` carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct PlayedPart {
    /// Calls left out because the table does not offer them.
    pub(crate) left_out: usize,
    pub(crate) digests: Vec<Digest>,
}

/// Runs the script in fresh processes or threads. With a form the results are recorded instead of judged.
pub(crate) fn attempt(
    subject: &Subject<'_>,
    script: &Script,
    form: Option<Form>,
    patience: Patience,
) -> Result<Outcome> {
    let start = Instant::now();
    let cannot = |error: std::io::Error| Error::config("cannot keep a script in memory").with_source(error);
    // Not in the environment, which is too small, and not in a file, which a killed run would leave behind.
    let fd = memfd_create("rankwise-sequence", MemfdFlags::CLOEXEC).map_err(|errno| cannot(errno.into()))?;
    let mut file = File::from(fd);
    file.write_all(script.to_string().as_bytes()).map_err(cannot)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let (call_seconds, base) = if patience == Patience::Long { (15, 60) } else { (4, 12) };
    let seconds = subject.seconds.unwrap_or(base + (script.calls() * subject.ranks / 200) as u64).max(1);
    let plan = Plan {
        role: Role::Script(ScriptPart { path, form, call_seconds }),
        backend: subject.backend.into(),
        mutant: subject.mutant.map(Into::into),
        mode: subject.mode,
        ranks: subject.ranks,
        worlds: vec![subject.ranks],
        modes: vec![subject.mode],
        seed: script.seed,
        full: false,
        case_seconds: Some(seconds),
        promise: None,
        deviations: Vec::new(),
    };
    let limit = Duration::from_secs(seconds);
    let job = job::run(&plan, subject.command, move |_| limit)?;
    Ok(outcome(job, subject.ranks, start.elapsed()))
}

fn outcome(mut job: JobReport, ranks: usize, elapsed: Duration) -> Outcome {
    let endings = job.endings.remove(NAME).unwrap_or_default();
    let digests = std::mem::take(&mut job.played);
    let left_out = digests.get(&0).map_or(0, |played| played.left_out);
    let digests = digests.into_iter().map(|(rank, played)| (rank, played.digests)).collect();
    let text = |rank: &usize, why: &String| (format!("rank {rank}: {why}"), named_step(why));
    let wrong = endings.iter().find_map(|(rank, (ending, _))| match ending {
        Ending::Wrong(why) => Some((Way::Wrong, text(rank, why))),
        _ => None,
    });
    // Of ranks that end with errors some only say that another has gone: the earliest step is the cause.
    let mut failed: Vec<_> = endings
        .iter()
        .filter_map(|(rank, (ending, _))| match ending {
            Ending::Fail(why) if why.contains("failed with Timeout") => Some((Way::Hang, text(rank, why))),
            Ending::Fail(why) => Some((Way::Error, text(rank, why))),
            _ => None,
        })
        .collect();
    failed.sort_by_key(|(_, (why, step))| (step.unwrap_or(usize::MAX), is_consequence(why)));
    let first_failed = failed.into_iter().next();
    let whole = endings.len() == ranks && job.done >= ranks;
    let (failure, step) = if let Some((way, (why, step))) = wrong {
        (Some((way, why)), step)
    } else if job.hung.is_some() {
        let step = job.last_calls.values().filter_map(|call| named_step(call)).max();
        (Some((Way::Hang, why_it_ended(&job))), step)
    } else if let Some((way, (why, step))) = first_failed {
        (Some((way, why)), step)
    } else if whole {
        (None, None)
    } else {
        (Some((Way::Crash, why_it_ended(&job))), None)
    };
    Outcome { failure, step, left_out, digests, elapsed }
}

impl PlayedPart {
    /// Puts what came later behind it.
    pub(crate) fn extend(&mut self, part: PlayedPart) {
        self.left_out = part.left_out;
        self.digests.extend(part.digests);
    }
}

/// Whether the error only says that another rank has failed.
fn is_consequence(why: &str) -> bool {
    ["Poisoned", "PeerLeft", "PeerLost", "Timeout"].iter().any(|kind| why.contains(&format!("failed with {kind}")))
}

/// The part of a process that [`attempt`] has started; runs on one rank.
pub(crate) fn run_part(world: &World, driver: &dyn Driver, plan: &Plan, part: &ScriptPart) -> bool {
    let rank = world.rank();
    let seconds = plan.case_seconds.unwrap_or(60);
    let limit = Duration::from_secs(seconds);
    let last_call = LastCall::default();
    let (watched, last, (over, ended)) = (last_call.clone(), last_call.clone(), channel::<()>());
    std::thread::spawn(move || {
        if ended.recv_timeout(limit - STUCK_MARGIN.min(limit / 2)) == Err(RecvTimeoutError::Timeout) {
            Record::Stuck { rank, case: NAME.into(), last_call: watched.text() }.emit();
        }
    });
    Record::Begin { rank, case: NAME.into() }.emit();
    let start = Instant::now();
    let played = catch_unwind(AssertUnwindSafe(|| played(world, driver, part, last_call)));
    let ending = match played {
        Ok(Ok(())) => Ending::Pass,
        Ok(Err(failure)) if failure.is_wrong_result => Ending::Wrong(failure.text),
        Ok(Err(failure)) => Ending::Fail(failure.text),
        Err(panic) => Ending::Fail(format!("{}: {}", last.text(), panic_text(panic.as_ref()))),
    };
    drop(over);
    let grace = match &ending {
        Ending::Pass | Ending::Unsupported(_) => None,
        // The cause comes from another rank, which may still be printing where it panicked.
        Ending::Fail(why) if is_consequence(why) => Some(5 * AFTER_FAILURE),
        Ending::Fail(_) | Ending::Wrong(_) => Some(AFTER_FAILURE),
    };
    Record::End { rank, case: NAME.into(), ending, millis: start.elapsed().as_millis() as u64 }.emit();
    if let Some(grace) = grace {
        // The others learn of it, or wait until their deadlines for a rank that has gone: nothing more is to be seen.
        std::thread::sleep(grace);
        std::process::exit(1);
    }
    Record::Done { rank }.emit();
    true
}

fn played(world: &World, driver: &dyn Driver, part: &ScriptPart, last_call: LastCall) -> CaseResult {
    let text = std::fs::read_to_string(&part.path)
        .map_err(|error| Failure::error(format!("cannot read the script at {}: {error}", part.path)))?;
    let script = parse(&text).map_err(Failure::error)?;
    let config = if script.fixed { Config::new().determinism(Determinism::Fixed) } else { Config::new() };
    let joined = join(world, driver, config).and_then(|backend| Ok((backend.world()?, backend)));
    let (mut base, backend): (_, Backend) = joined.map_err(|error| Failure::error(format!("joining: {error}")))?;
    base.set_timeout(BASE_TIMEOUT);
    let takes_part = world.rank() < script.ranks;
    let key = i64::try_from(world.rank()).unwrap_or(i64::MAX);
    let all = base.split(takes_part.then_some(0), key)?;
    let (promise, deviations) = (None, Vec::new());
    let place = Place { seed: script.seed, full: false, world: (0, 1), mode: (0, 1), promise, deviations };
    let mut ctx = Ctx::new(world, driver, &backend, &mut base, &place, NAME, last_call);
    let played = play(&mut ctx, &backend, all, &script, part.form, Duration::from_secs(part.call_seconds))?;
    let rank = world.rank();
    let left_out = played.left_out;
    let mut digests = played.digests.into_iter().peekable();
    while {
        let some = digests.by_ref().take(DIGESTS_A_RECORD).collect();
        Record::Played { rank, part: PlayedPart { left_out, digests: some } }.emit();
        digests.peek().is_some()
    } {}
    ctx.note(|| "the barrier at the end".into());
    base.barrier()?;
    Ok(())
}
