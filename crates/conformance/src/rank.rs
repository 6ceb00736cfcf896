//! What one rank of a job does: run the plan's cases in order and report each.

use crate::case::{Case, CaseResult, Failure};
use crate::cases;
use crate::ctx::{Ctx, LastCall, Place, join};
use crate::drills;
use crate::mutants;
use crate::plan::{Ending, Mode, PLAN_VARIABLE, Plan, Record, Role};
use crate::refusal;
use rankwise_core::{Backend, Communicator, Config, Result};
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
        Role::Launcher(_) => true,
    };
    let ranks = match plan.mode {
        Mode::Threads => World::threads(plan.ranks, run),
        Mode::Processes => World::from_env().map(|world| vec![run(world)]),
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
    };
    let selected: Vec<Case> = ids.iter().filter_map(|id| cases::find(id)).collect();
    let rank = world.rank();
    let selected: Vec<Case> = selected
        .into_iter()
        .map(|case| Case {
            seconds: plan.case_seconds.unwrap_or(case.seconds) * if plan.full { 20 } else { 1 },
            ..case
        })
        .collect();
    let finished = run_in_order(world, driver, &place, &selected, &mut |case, ending, millis| {
        Record::End { rank, case: case.id.into(), ending, millis }.emit();
    });
    match finished {
        Ok(()) => Record::Done { rank }.emit(),
        Err(failure) => Record::Broken { rank, why: failure.text }.emit(),
    }
    true
}

/// Runs the cases, each on a fresh communicator of one joined backend.
pub(crate) fn run_in_order(
    world: &World,
    driver: &dyn Driver,
    place: &Place,
    selected: &[Case],
    report: &mut dyn FnMut(&Case, Ending, u64),
) -> CaseResult {
    let joined = join(world, driver, Config::new()).and_then(|backend| Ok((backend.world()?, backend)));
    let (mut base, backend): (Communicator, Backend) = joined.map_err(|e| Failure::error(format!("joining: {e}")))?;
    // Longer than any case: a rank waits here for those that need their deadlines inside a case.
    base.set_timeout(BASE_TIMEOUT);
    let watchdog = Watchdog::start(world.rank());
    for case in selected {
        let last_call = watchdog.enter(case);
        Record::Begin { rank: world.rank(), case: case.id.into() }.emit();
        let start = Instant::now();
        let mut ctx = Ctx::new(world, driver, &backend, &mut base, place, case.id, last_call);
        let ending = run_one(&mut ctx, case);
        report(case, ending, start.elapsed().as_millis() as u64);
        // The base is not part of any case: when it fails, the case before has damaged more than its own.
        base_is_usable(&mut base)
            .map_err(|e| Failure::error(format!("the base communicator after {}: {e}", case.id)))?;
    }
    Ok(())
}

fn base_is_usable(base: &mut Communicator) -> Result<()> {
    base.barrier()
}

fn run_one(ctx: &mut Ctx<'_>, case: &Case) -> Ending {
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
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
            Ending::Fail(format!("panicked: {}", text.unwrap_or_else(|| "with no text".into())))
        }
    }
}

/// A thread that reports what this rank called last when a case takes too long; the outside does the killing.
struct Watchdog(Sender<(String, Duration, LastCall)>);

impl Watchdog {
    fn start(rank: usize) -> Watchdog {
        let (sender, receiver) = channel();
        std::thread::spawn(move || watch(rank, &receiver));
        Watchdog(sender)
    }

    fn enter(&self, case: &Case) -> LastCall {
        let last_call = LastCall::default();
        let limit = Duration::from_secs(case.seconds).saturating_sub(STUCK_MARGIN);
        // The thread lives until the sender is dropped.
        let _ = self.0.send((case.id.to_string(), limit, last_call.clone()));
        last_call
    }
}

fn watch(rank: usize, entered: &Receiver<(String, Duration, LastCall)>) {
    let Ok(mut current) = entered.recv() else { return };
    loop {
        match entered.recv_timeout(current.1) {
            Ok(next) => current = next,
            Err(RecvTimeoutError::Timeout) => {
                let (case, last_call) = (current.0.clone(), current.2.text());
                Record::Stuck { rank, case, last_call }.emit();
                match entered.recv() {
                    Ok(next) => current = next,
                    Err(_) => return,
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
