//! The suite tests itself: it passes on the backend as it is, and every deliberately broken version of it is noticed.

use crate::case::Case;
use crate::job::RankCommand;
use crate::mutants::{self, Mutant};
use crate::report::{CaseReport, Reporter, Verdict};
use crate::runner::{Options, run_world, selected};
use rankwise_core::{Capabilities, Config, Error, Result};
use rankwise_world::{Driver, World};

/// Seconds that a case may take on a mutant: those that a mutant lets hang are not waited for long.
const CASE_SECONDS: u64 = 20;

/// Runs the cases on the backend itself, which must pass them, and then on every mutant, in which a case must find
/// something wrong: a mutant that only ends with errors or hangs is not noticed, since a backend that works nowhere does
/// the same. Cases are those that have to notice the mutant, as far as the pattern selects them; the world is the smallest
/// in which it does anything wrong.
pub(crate) fn run(
    driver: &dyn Driver,
    options: &Options,
    command: &RankCommand,
    reporter: &mut Reporter<'_>,
) -> Result<()> {
    let backend = driver.name();
    let worlds: Vec<usize> = options.ranks.iter().copied().filter(|ranks| *ranks > 1).collect();
    let Some(&least) = worlds.first() else {
        return Err(Error::invalid("the self-test needs a world of two ranks or more: groups of one use no engine"));
    };
    let mode = options.modes[0];
    let world_of = |mutant: &Mutant| worlds.iter().copied().find(|ranks| *ranks >= mutant.least_ranks);
    let limited = &Options { case_seconds: options.case_seconds.or(Some(CASE_SECONDS)), ..options.clone() };
    let line = |case: String, title: &str, ranks, result, detail: String| CaseReport {
        case,
        title: title.into(),
        backend: backend.into(),
        mode: Some(mode),
        ranks,
        result,
        detail,
        wrong_result: false,
        millis: 0,
    };

    // What a backend of one rank says of itself: who can't even do that fails below, with a reason.
    let table = driver.join(&World::solo(), &Config::new()).map(|backend| backend.capabilities());
    let lacking = |mutant: &Mutant| table.as_ref().ok().and_then(|table: &Capabilities| mutant.inapplicable(table));
    let mut mutants = mutants::all();
    let known = mutants.len();
    let cases = selected(options);
    mutants.retain(|mutant| cases.iter().any(|case| mutant.concerns(case.id)));
    if mutants.is_empty() {
        return Err(Error::invalid("no broken backend is to be noticed by the cases of this pattern; choose others"));
    }
    if mutants.len() < known {
        reporter.say(&format!("left out: {} mutants that other cases have to notice", known - mutants.len()));
    }
    let mut unbroken = Vec::new();
    for &ranks in &worlds {
        let here = |mutant: &Mutant| world_of(mutant) == Some(ranks) && lacking(mutant).is_none();
        let concerned = |case: &&Case| mutants.iter().any(|mutant| here(mutant) && mutant.concerns(case.id));
        let cases: Vec<Case> = cases.iter().filter(concerned).copied().collect();
        if !cases.is_empty() {
            unbroken.extend(run_world(backend, None, mode, ranks, &cases, options, command)?);
        }
    }
    let failed: Vec<&CaseReport> = unbroken.iter().filter(|report| report.result == Verdict::Fail).collect();
    let all = unbroken.iter().filter(|report| report.result == Verdict::Pass).count();
    let title = "the backend as it is passes";
    reporter.say(&format!("{backend} as it is: {all} passed, {} failed", failed.len()));
    if !failed.is_empty() || all == 0 {
        failed.iter().for_each(|report| reporter.add(report));
        let why = format!("{all} cases passed, {} failed; without this the mutants would show nothing", failed.len());
        reporter.add(&line("self-test".into(), title, least, Verdict::Fail, why));
        reporter.say("skipped: the mutants, since the backend as it is does not pass");
        return reporter.check();
    }
    reporter.add(&line("self-test".into(), title, least, Verdict::Pass, format!("{all} cases")));

    for mutant in &mutants {
        let case = format!("mutant {}", mutant.name);
        let title = format!("the suite notices: {}", mutant.fault);
        let Some(ranks) = world_of(mutant) else {
            let why = format!("needs a world of {} ranks or more", mutant.least_ranks);
            reporter.add(&line(case, &title, least, Verdict::Inapplicable, why));
            continue;
        };
        // A case that the backend as it is has not passed in this world says nothing about its mutants.
        let passed =
            |case: &str| unbroken.iter().any(|r| r.case == case && r.ranks == ranks && r.result == Verdict::Pass);
        let concerned: Vec<Case> =
            cases.iter().filter(|case| mutant.concerns(case.id) && passed(case.id)).copied().collect();
        let skipped = lacking(mutant).or_else(|| {
            concerned.is_empty().then(|| "no case that could notice it passes on the backend as it is".to_string())
        });
        if let Some(why) = skipped {
            reporter.say(&format!("{backend}+{}: skipped: {why}", mutant.name));
            reporter.add(&line(case, &title, ranks, Verdict::Unsupported, why));
            continue;
        }
        let reports = run_world(backend, Some(mutant.name), mode, ranks, &concerned, limited, command)?;
        let mut red: Vec<&str> =
            reports.iter().filter(|report| report.wrong_result).map(|report| report.case.as_str()).collect();
        red.sort_unstable();
        red.dedup();
        let otherwise = reports.iter().find(|report| report.result == Verdict::Fail);
        let detail = match (red.is_empty(), otherwise) {
            (false, _) => red.join(" "),
            (true, None) => format!("all {} cases stayed green", reports.len()),
            (true, Some(report)) => {
                format!("no case found anything wrong; {} failed otherwise: {}", report.case, report.detail)
            }
        };
        reporter.say(&format!("{backend}+{}: {detail}", mutant.name));
        let result = if red.is_empty() { Verdict::Fail } else { Verdict::Pass };
        reporter.add(&line(case, &title, ranks, result, detail));
        reporter.check()?;
    }
    Ok(())
}
