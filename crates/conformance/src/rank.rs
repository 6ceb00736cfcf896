//! What one rank of a job does: run the plan's cases in order and report each.

use crate::case::{Case, CaseResult, Failure};
use crate::cases;
use crate::ctx::{Ctx, LastCall, Place, join};
use crate::drills;
use crate::expectations::CallLog;
use crate::mutants;
use crate::plan::{Ending, Mode, PLAN_VARIABLE, Plan, Record, Role};
use crate::refusal;
use crate::sequences;
use rankwise_core::{Backend, Communicator, Config};
use rankwise_world::{Driver, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Seconds before the outside kills a hanging job that its ranks report what they called last.
pub(crate) const STUCK_MARGIN: Duration = Duration::from_secs(2);

/// Deadline of the communicator that fresh ones are made from.
pub(crate) const BASE_TIMEOUT: Duration = Duration::from_secs(90);

/// The plan of this process, when the suite started it.
pub(crate) fn plan_from_env() -> Option<Plan> {
    serde_json::from_str(&std::env::var(PLAN_VARIABLE).ok()?).ok()
}

/// Plays the part of the process that the suite has started with a plan; `None` when it has not.
///
/// A program that offers the suite calls this before anything else, with every backend it has.
pub fn run_planned(drivers: &[&dyn Driver]) -> Option<ExitCode> {
    let plan = plan_from_env()?;
    if let Role::Launcher(inner) = &plan.role {
        return Some(drills::run_launcher(inner));
    }
    let Some(driver) = drivers.iter().find(|driver| driver.name() == plan.backend) else {
        let why = format!("backend {} is not compiled into this program", plan.backend);
        Record::Broken { rank: 0, why }.emit();
        return Some(ExitCode::from(2));
    };
    let mutant = plan.mutant.as_deref().and_then(|name| mutants::mutate(*driver, name));
    let driver = mutant.as_deref().unwrap_or(*driver);
    let run = |world: World| match &plan.role {
        Role::Cases(ids) => run_cases(&world, driver, &plan, ids),
        Role::Drill(part) => drills::play(&world, driver, part),
        Role::Script(part) => sequences::run_part(&world, driver, &plan, part),
        Role::Describe => sequences::describe(&world, driver),
        Role::Launcher(_) => true,
    };
    let ranks = match plan.mode {
        Mode::Threads => World::threads(plan.ranks, run),
        Mode::Processes | Mode::Outer => driver.world().map(|world| vec![run(world)]),
    };
    Some(match ranks {
        Ok(ranks) if ranks.iter().all(|fine| *fine) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            Record::Broken { rank: 0, why: error.to_string() }.emit();
            ExitCode::FAILURE
        }
    })
}

fn run_cases(world: &World, driver: &dyn Driver, plan: &Plan, ids: &[String]) -> bool {
    let position = |list: &[usize], value| list.iter().position(|x| *x == value).unwrap_or(0);
    let place = Place {
        seed: plan.seed,
        full: plan.full,
        world: (position(&plan.worlds, plan.ranks), plan.worlds.len().max(1)),
        mode: (plan.modes.iter().position(|mode| *mode == plan.mode).unwrap_or(0), plan.modes.len().max(1)),
        promise: plan.promise.clone(),
        deviations: plan.deviations.clone(),
    };
    let selected: Vec<Case> = ids.iter().filter_map(|id| cases::find(id)).collect();
    let rank = world.rank();
    let allowed = |case| allowed(case, plan.case_seconds, plan.full);
    let selected: Vec<Case> = selected.into_iter().map(allowed).collect();
    let finished = Joined::new(world, driver, &place).and_then(|joined| run_in_order(joined, &selected));
    match finished {
        Ok(()) => Record::Done { rank }.emit(),
        Err(failure) => Record::Broken { rank, why: failure.text }.emit(),
    }
    true
}

/// The case with the time it may take in this run.
pub(crate) fn allowed(case: Case, seconds: Option<u64>, full: bool) -> Case {
    Case { seconds: seconds.unwrap_or(case.seconds) * if full { 20 } else { 1 }, ..case }
}

/// Runs the cases and reports each.
fn run_in_order(mut joined: Joined<'_>, selected: &[Case]) -> CaseResult {
    let rank = joined.world.rank();
    let (watchdog, watched) = Watchdog::pair();
    std::thread::spawn(move || {
        watched.watch(STUCK_MARGIN, &|case, last_call| {
            Record::Stuck { rank, case: case.id.into(), last_call: last_call.text() }.emit();
        });
    });
    for case in selected {
        let last_call = watchdog.enter(case);
        Record::Begin { rank, case: case.id.into() }.emit();
        let Outcome { ending, millis, calls } = joined.run(case, last_call);
        if !calls.tried.is_empty() {
            Record::Calls { rank, case: case.id.into(), calls }.emit();
        }
        Record::End { rank, case: case.id.into(), ending, millis }.emit();
        joined.check_base(case)?;
    }
    Ok(())
}

/// A joined backend, and the communicator that fresh ones are made from.
pub(crate) struct Joined<'a> {
    world: &'a World,
    driver: &'a dyn Driver,
    place: &'a Place,
    backend: Backend,
    base: Communicator,
}

/// How a case went on this rank.
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) millis: u64,
    /// Calls that are known to deviate.
    pub(crate) calls: CallLog,
}

impl<'a> Joined<'a> {
    /// Collective.
    pub(crate) fn new(world: &'a World, driver: &'a dyn Driver, place: &'a Place) -> CaseResult<Joined<'a>> {
        let joined = join(world, driver, Config::new()).and_then(|backend| Ok((backend.world()?, backend)));
        let (mut base, backend) = joined.map_err(|e| Failure::error(format!("joining: {e}")))?;
        // Longer than any case: a rank waits here for those that need their deadlines inside a case.
        base.set_timeout(BASE_TIMEOUT);
        Ok(Joined { world, driver, place, backend, base })
    }

    /// Runs a case on a fresh communicator.
    pub(crate) fn run(&mut self, case: &Case, last_call: LastCall) -> Outcome {
        let start = Instant::now();
        let (backend, base) = (&self.backend, &mut self.base);
        let mut ctx = Ctx::new(self.world, self.driver, backend, base, self.place, case.id, last_call);
        let ending = run_one(&mut ctx, case);
        Outcome { ending, millis: start.elapsed().as_millis() as u64, calls: std::mem::take(&mut ctx.deviating) }
    }

    /// The base is not part of any case: when it fails, the case before has damaged more than its own. Collective.
    pub(crate) fn check_base(&mut self, case: &Case) -> CaseResult {
        let usable = self.base.barrier();
        usable.map_err(|e| Failure::error(format!("the base communicator after {}: {e}", case.id)))
    }
}

fn run_one(ctx: &mut Ctx<'_>, case: &Case) -> Ending {
    if let Some(what) = cases::conditions::missing(case.id, ctx.capabilities()) {
        return Ending::Unsupported(format!("not in the capability table: {what}"));
    }
    let missing: Vec<_> = case.needs.iter().filter(|need| !need.is_met(ctx.capabilities())).copied().collect();
    let body = |ctx: &mut Ctx<'_>| -> CaseResult {
        if missing.is_empty() {
            return (case.run)(ctx);
        }
        missing.iter().try_for_each(|need| refusal::check(ctx, *need))
    };
    match catch_unwind(AssertUnwindSafe(|| body(ctx))) {
        Ok(Ok(())) if missing.is_empty() => Ending::Pass,
        Ok(Ok(())) => {
            let names: Vec<String> = missing.iter().map(|need| need.to_string()).collect();
            Ending::Unsupported(format!("not in the capability table: {}", names.join(", ")))
        }
        Ok(Err(failure)) if failure.is_wrong_result => Ending::Wrong(failure.text),
        Ok(Err(failure)) => Ending::Fail(failure.text),
        Err(panic) => Ending::Fail(panic_text(panic.as_ref())),
    }
}

/// What a caught panic says.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
    format!("panicked: {}", text.unwrap_or_else(|| "with no text".into()))
}

/// Tells a watching thread which case this rank is in.
pub(crate) struct Watchdog(Sender<(Case, LastCall)>);

/// The watching thread's end.
pub(crate) struct Watched(Receiver<(Case, LastCall)>);

impl Watchdog {
    pub(crate) fn pair() -> (Watchdog, Watched) {
        let (sender, receiver) = channel();
        (Watchdog(sender), Watched(receiver))
    }

    /// The case before is over, and this one begins.
    pub(crate) fn enter(&self, case: &Case) -> LastCall {
        let last_call = LastCall::default();
        // The thread lives until the sender is dropped.
        let _ = self.0.send((*case, last_call.clone()));
        last_call
    }
}

impl Watched {
    /// Until the other end is dropped: calls `late` once, `margin` before a case has taken as long as it may.
    pub(crate) fn watch(self, margin: Duration, late: &dyn Fn(&Case, &LastCall)) {
        let Ok(mut current) = self.0.recv() else { return };
        loop {
            match self.0.recv_timeout(Duration::from_secs(current.0.seconds).saturating_sub(margin)) {
                Ok(next) => current = next,
                Err(RecvTimeoutError::Timeout) => {
                    late(&current.0, &current.1);
                    match self.0.recv() {
                        Ok(next) => current = next,
                        Err(_) => return,
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
