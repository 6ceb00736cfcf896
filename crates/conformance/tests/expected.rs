//! Promises and known deviations, on the reference backend and one that panics.

#![cfg(target_os = "linux")]

#[allow(dead_code)]
mod reference;

use rankwise_conformance::{Expectations, Mode, Options, RankCommand, Summary, run, run_planned};
use rankwise_world::Driver;
use reference::{Fault, Reference};

const DRIVERS: [&dyn Driver; 2] = [&Reference(Fault::Nothing), &Reference(Fault::Panic)];

/// Not a test: the suite starts this program again, with this function selected, for the ranks of its jobs.
#[test]
fn rank_entry() {
    if let Some(code) = run_planned(&DRIVERS) {
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    }
}

fn suite(backend: &str, pattern: &str, expected: &str) -> (Summary, String) {
    let expected = format!("backend = \"{backend}\"\n{expected}");
    let options = Options {
        backends: vec![backend.into()],
        ranks: vec![3],
        modes: vec![Mode::Threads],
        pattern: Some(pattern.into()),
        expectations: vec![Expectations::parse("mine.toml", &expected).unwrap()],
        ..Options::default()
    };
    let command = RankCommand::current(&["rank_entry", "--exact", "--nocapture", "--test-threads=1"]).unwrap();
    let mut out = Vec::new();
    let summary = run(&DRIVERS, &options, &command, &mut out).unwrap();
    (summary, String::from_utf8(out).unwrap())
}

#[test]
fn a_failure_that_is_listed_is_reported_and_does_not_count() {
    let listed =
        "[[deviation]]\ncase = \"AA-79\"\nranks = \"2-\"\nreason = \"panics\"\nlink = \"https://example.org/1\"";
    let (summary, text) = suite("panicking", "AA-79", listed);
    assert_eq!((summary.passed, summary.failed, summary.known), (0, 0, 1), "{text}");
    assert!(text.contains("KNOWN AA-79 panicking threads 3 ranks"), "{text}");
    assert!(text.contains("known deviation: panics, see https://example.org/1 [mine.toml:2]: rank 0: "), "{text}");
    // Listed for another world only: it counts.
    let (summary, text) = suite("panicking", "AA-79", &listed.replace("2-", "2"));
    assert_eq!((summary.failed, summary.known), (1, 0), "{text}");
}

#[test]
fn what_is_listed_and_passes_fails() {
    let (summary, text) = suite("reference", "AA-79", "[[deviation]]\ncase = \"AA-79\"\nreason = \"panicked once\"");
    assert_eq!((summary.passed, summary.failed, summary.known), (0, 1, 0), "{text}");
    assert!(text.contains("passes, but mine.toml:2 lists it") && text.contains("remove the entry"), "{text}");
}

#[test]
fn calls_that_are_listed_go_wrong_or_the_entry_fails() {
    let listed = "[[deviation]]\noperation = \"all_to_all_v\"\nreason = \"panicked once\"";
    let (summary, text) = suite("reference", "AA-79", listed);
    assert_eq!((summary.passed, summary.failed), (1, 1), "{text}");
    assert!(text.contains("FAIL mine.toml:2 reference") && text.contains("all such calls were right"), "{text}");
}

#[test]
fn a_promise_that_the_table_does_not_keep_fails() {
    let promise =
        "[promise]\noperations = [\"all_reduce\", \"send\", \"recv\"]\nreductions = { sum = [\"f32\", \"f64\"] }";
    let (summary, text) = suite("reference", "TB-153", promise);
    assert_eq!((summary.passed, summary.failed), (0, 1), "{text}");
    assert!(text.contains("promised, but the table says no: send, recv, sum of f64"), "{text}");
    let (summary, text) = suite("reference", "PP-100", promise);
    assert_eq!(summary.failed, 1, "{text}");
    assert!(text.contains("reference has promised what this case needs"), "{text}");
    let (summary, text) = suite("reference", "TB-153", "");
    assert_eq!((summary.failed, summary.skipped), (0, 1), "{text}");
    assert!(text.contains("nothing is promised"), "{text}");
}
