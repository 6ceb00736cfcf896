//! The suite tests itself: it passes on the backend as it is, and every deliberately broken version of it is noticed.

use crate::case::Case;
use crate::job::RankCommand;
use crate::mutants::Mutation;
use crate::report::{CaseReport, Reporter, Verdict};
use crate::runner::{Options, run_world, selected};
use rankwise_core::{Error, Result};

/// Runs the cases on the backend itself, which must pass them, and then on every mutant, in which a case must find
/// something wrong: a mutant that only ends with errors or hangs is not noticed, since a backend that works nowhere does
/// the same. Cases are those of the mutant's families, or those that the pattern selects.
pub(crate) fn run(backend: &str, options: &Options, command: &RankCommand, reporter: &mut Reporter<'_>) -> Result<()> {
    let worlds: Vec<usize> = options.ranks.iter().copied().filter(|ranks| *ranks > 1).take(2).collect();
    if worlds.is_empty() {
        return Err(Error::invalid("the self-test needs a world of two ranks or more: groups of one use no engine"));
    }
    let mode = options.modes[0];
    let is_for = |mutation: Mutation, case: &str| options.pattern.is_some() || mutation.concerns(case);
    let cases: Vec<Case> = selected(options)
        .into_iter()
        .filter(|case| Mutation::ALL.iter().any(|(mutation, _)| is_for(*mutation, case.id)))
        .collect();
    let run_worlds = |mutant: Option<&str>, cases: &[Case]| -> Result<Vec<CaseReport>> {
        let mut reports = Vec::new();
        for &ranks in &worlds {
            reports.extend(run_world(backend, mutant, mode, ranks, cases, options, command)?);
        }
        Ok(reports)
    };
    let line = |case: String, title: &str, result, detail: String| CaseReport {
        case,
        title: title.into(),
        backend: backend.into(),
        mode: Some(mode),
        ranks: worlds.iter().copied().max().unwrap_or(2),
        result,
        detail,
        wrong_result: false,
        millis: 0,
    };

    let unbroken = run_worlds(None, &cases)?;
    let failed: Vec<&CaseReport> = unbroken.iter().filter(|report| report.result == Verdict::Fail).collect();
    let passed = |concerned: &dyn Fn(&str) -> bool| {
        unbroken.iter().filter(|report| report.result == Verdict::Pass && concerned(&report.case)).count()
    };
    let all = passed(&|_| true);
    reporter.say(&format!("{backend} as it is: {all} passed, {} failed", failed.len()));
    if !failed.is_empty() || all == 0 {
        failed.iter().for_each(|report| reporter.add(report));
        let why = format!("{all} cases passed, {} failed; without this the mutants would show nothing", failed.len());
        reporter.add(&line("self-test".into(), "the backend as it is passes", Verdict::Fail, why));
        reporter.say("skipped: the mutants, since the backend as it is does not pass");
        return reporter.check();
    }
    reporter.add(&line("self-test".into(), "the backend as it is passes", Verdict::Pass, format!("{all} cases")));

    for (mutation, name) in Mutation::ALL {
        let (case, title) = (format!("mutant {name}"), "the suite notices a broken backend");
        if passed(&|case| is_for(mutation, case)) == 0 {
            let why = "no case that could notice it passes on the backend as it is".to_string();
            reporter.add(&line(case, title, Verdict::Unsupported, why));
            continue;
        }
        let concerned: Vec<Case> = cases.iter().filter(|case| is_for(mutation, case.id)).copied().collect();
        let reports = run_worlds(Some(name), &concerned)?;
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
        reporter.say(&format!("{backend}+{name}: {detail}"));
        let result = if red.is_empty() { Verdict::Fail } else { Verdict::Pass };
        reporter.add(&line(case, title, result, detail));
        reporter.check()?;
    }
    Ok(())
}
