//! The suite inside a job that something else has started: the entry for backends with a launcher of their own.

use crate::case::{Case, CaseResult};
use crate::cases;
use crate::ctx::Place;
use crate::expectations;
use crate::plan::Ending;
use crate::rank::{BASE_TIMEOUT, run_in_order, run_planned};
use rankwise_core::Group;
use rankwise_world::{Attachment, Driver, World};
use std::process::ExitCode;
use std::time::Duration;

/// Deadline of the exchange at the end: ranks that stopped early wait for those that notice it by a deadline.
const EXCHANGE_TIMEOUT: Duration = BASE_TIMEOUT.saturating_mul(2);

/// How a case ended on a rank, as the ranks tell one another: one byte a case, so that hundreds of cases fit into one
/// exchange.
const NOT_REACHED: u8 = 0;
const PASSED: u8 = 1;
const UNSUPPORTED: u8 = 2;
const FAILED: u8 = 3;

/// Runs the suite on one backend from inside a job that something else has started, on every rank of it: the entry for
/// backends outside this workspace that come with a launcher of their own. Collective.
///
/// This rank's results go to stdout as lines `PASS`, `FAIL` or `UNSUPPORTED`. "Unsupported" counts as `FAIL` where every
/// backend, or this one by what it has promised, must offer the case. At the end the ranks exchange their results through
/// the world's store: a case that is unsupported on some ranks only is a `FAIL`, too, and printed by all of them. Success
/// when no case failed on any rank and all ranks have run all of them.
///
/// When the suite's runner has started the process, it does what the runner's plan says instead.
pub fn rank_main(driver: &dyn Driver) -> ExitCode {
    if let Some(code) = run_planned(&[driver]) {
        return code;
    }
    let world = match World::from_env() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let place = Place { seed: 1, full: false, world: (0, 1), mode: (0, 1) };
    let selected: Vec<Case> =
        cases::all().into_iter().filter(|case| case.inapplicable(world.size(), false).is_none()).collect();
    let mut endings = Vec::new();
    let rank = world.rank();
    let finished = run_in_order(&world, driver, &place, &selected, &mut |case, ending, _| {
        let (word, why, byte) = match judged(driver.name(), case, ending) {
            Ending::Pass => ("PASS", String::new(), PASSED),
            Ending::Unsupported(why) => ("UNSUPPORTED", format!(": {why}"), UNSUPPORTED),
            Ending::Wrong(why) | Ending::Fail(why) => ("FAIL", format!(": {why}"), FAILED),
        };
        println!("{word} {} on rank {rank}{why}", case.id);
        endings.push(byte);
    });
    if let Err(failure) = &finished {
        println!("BROKEN on rank {rank}: {}", failure.text);
    }
    endings.resize(selected.len(), NOT_REACHED);
    let all = match exchanged(&world, &endings) {
        Ok(all) => all,
        Err(failure) => {
            println!("BROKEN on rank {rank}: exchanging the results: {}", failure.text);
            return ExitCode::FAILURE;
        }
    };
    let split = split_support(&all, selected.len());
    for (case, ranks) in &split {
        println!("FAIL {} on rank {rank}: unsupported on ranks {ranks:?} only", selected[*case].id);
    }
    let fine = all.iter().flatten().all(|ending| matches!(*ending, PASSED | UNSUPPORTED));
    if fine && split.is_empty() && finished.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The ending, or a failure when the backend has promised what it says is unsupported.
fn judged(backend: &str, case: &Case, ending: Ending) -> Ending {
    match (ending, expectations::broken_promise(backend, case)) {
        (Ending::Unsupported(why), Some(promise)) => Ending::Fail(format!("{why}, but {promise}")),
        (ending, _) => ending,
    }
}

fn exchanged(world: &World, endings: &[u8]) -> CaseResult<Vec<Vec<u8>>> {
    let members = Group::world(world.size());
    let (key, what) = ("conformance/endings", "results of the conformance suite");
    let met = world.store().exchange(key, what, &members, endings, Attachment::None, EXCHANGE_TIMEOUT)?;
    Ok(met.into_iter().map(|(bytes, _)| bytes).collect())
}

/// The cases, by position, that passed on some ranks and are unsupported on others, with those others.
fn split_support(all: &[Vec<u8>], cases: usize) -> Vec<(usize, Vec<usize>)> {
    let ending = |rank: usize, case: usize| all[rank].get(case).copied().unwrap_or(NOT_REACHED);
    let ranks_with = |case, wanted| -> Vec<usize> { (0..all.len()).filter(|r| ending(*r, case) == wanted).collect() };
    (0..cases)
        .filter(|case| !ranks_with(*case, PASSED).is_empty())
        .map(|case| (case, ranks_with(case, UNSUPPORTED)))
        .filter(|(_, ranks)| !ranks.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn support_on_some_ranks_only_is_found() {
        let all = [vec![PASSED, UNSUPPORTED, UNSUPPORTED, FAILED], vec![PASSED, UNSUPPORTED, PASSED, UNSUPPORTED]];
        assert_eq!(split_support(&all, 4), [(2, vec![0])]);
        assert_eq!(split_support(&[vec![PASSED], Vec::new()], 1), []);
    }

    #[test]
    fn a_promised_case_cannot_be_unsupported() {
        let case = cases::find("AR-1").unwrap();
        let unsupported = || Ending::Unsupported("not in the table".into());
        assert!(matches!(judged("shm", &case, unsupported()), Ending::Fail(why) if why.contains("promised")));
        assert_eq!(judged("somebody-elses", &case, unsupported()), unsupported());
        assert_eq!(judged("shm", &case, Ending::Pass), Ending::Pass);
    }

    #[test]
    fn ranks_learn_the_endings_of_all() {
        let got = World::threads(3, |world| exchanged(&world, &[world.rank() as u8; 2]).unwrap()).unwrap();
        assert!(got.iter().all(|all| *all == [[0, 0], [1, 1], [2, 2]]), "{got:?}");
        assert!(cases::all().len() <= 4096, "one exchange carries a byte a case");
    }
}
