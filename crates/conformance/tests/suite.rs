//! The suite run on the reference backend, on mutants of it, and on backends that hang and panic.

#![cfg(target_os = "linux")]

mod reference;

use rankwise_conformance::{Format, Mode, Options, RankCommand, Summary, run, run_planned};
use rankwise_core::ErrorKind;
use rankwise_world::Driver;
use reference::{Fault, Reference};

const DRIVERS: [&dyn Driver; 5] = [
    &Reference(Fault::Nothing),
    &Reference(Fault::Hang),
    &Reference(Fault::Panic),
    &Reference(Fault::Mutants),
    &Reference(Fault::Mute),
];

/// Not a test: the suite starts this program again, with this function selected, for the ranks of its jobs.
#[test]
fn rank_entry() {
    if let Some(code) = run_planned(&DRIVERS) {
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    }
}

fn command() -> RankCommand {
    RankCommand::current(&["rank_entry", "--exact", "--nocapture", "--test-threads=1"]).unwrap()
}

fn options(ranks: &[usize]) -> Options {
    Options {
        backends: vec!["reference".into()],
        ranks: ranks.to_vec(),
        modes: vec![Mode::Threads],
        ..Options::default()
    }
}

fn run_suite(options: &Options) -> (Summary, String) {
    let mut out = Vec::new();
    let summary = run(&DRIVERS, options, &command(), &mut out).unwrap();
    (summary, String::from_utf8(out).unwrap())
}

#[test]
fn the_reference_backend_passes() {
    let (summary, text) = run_suite(&options(&[1, 2, 3, 4]));
    assert_eq!(summary.failed, 0, "{text}");
    assert!(summary.passed > 200, "{text}");
    assert!(text.contains("not in the capability table: send, recv"), "{text}");
}

/// What a case relies on is left out with its reason, and nothing else is.
#[test]
fn a_backend_whose_peers_hear_of_nothing_passes_the_rest() {
    let options = Options { backends: vec!["mute".into()], case_seconds: Some(20), ..options(&[1, 3]) };
    let (summary, text) = run_suite(&options);
    assert_eq!(summary.failed, 0, "{text}");
    assert!(summary.passed > 80, "{text}");
    for lacking in ["mismatches and refusals told to the peers", "calls stopped at their deadline"] {
        assert!(text.contains(&format!("not in the capability table: {lacking}")), "{text}");
    }
}

/// Those of a few families; all of them run over shared memory in the conformance job.
#[test]
fn mutants_are_caught() {
    for (pattern, noticed) in [
        ("SV-", "reference+nan-by-position: SV-"),
        ("AG-", "reference+swapped-parts: AG-"),
        ("TK-", "reference+ignored-counts: TK-"),
        ("TH-", "reference+off-by-one-at-first-threshold: TH-1"),
        ("ER-", "reference+swallowed-refusal: ER-"),
        ("MM-", "reference+swallowed-mismatch: MM-"),
        ("GR-1", "reference+cross-talk: GR-114"),
        ("RT-", "reference+barrier-that-does-not-wait: RT-"),
    ] {
        let options = Options { self_test: true, pattern: Some(pattern.into()), ..options(&[3]) };
        let (summary, text) = run_suite(&options);
        assert_eq!(summary.failed, 0, "{text}");
        assert!(summary.passed > 1 && text.contains(noticed), "{pattern}: {text}");
        assert!(text.contains("left out: "), "{text}");
    }
}

#[test]
fn a_mutant_without_a_place_is_skipped_with_its_reason() {
    let options = Options { self_test: true, pattern: Some("SV-".into()), ..options(&[2]) };
    let (summary, text) = run_suite(&options);
    assert!(summary.failed == 0 && summary.skipped > 0, "{text}");
    let skipped = text.lines().find(|line| line.starts_with("reference+saturated-i8")).unwrap_or_default();
    assert!(skipped.contains("skipped: needs sum of i8"), "{text}");
}

#[test]
fn the_self_test_fails_on_a_backend_that_works_nowhere() {
    let pattern = Some("AR-31".into());
    let options = Options { self_test: true, modes: vec![Mode::Processes], pattern, ..options(&[2]) };
    let (summary, text) = run_suite(&options);
    assert_eq!((summary.passed, summary.failed), (0, 2), "{text}");
    assert!(text.contains("joins threads only") && text.contains("skipped: the mutants"), "{text}");
}

#[test]
fn a_mutant_in_which_no_result_is_wrong_is_not_caught() {
    let pattern = Some("AG-53".into());
    let options = Options { self_test: true, backends: vec!["unmutable".into()], pattern, ..options(&[2]) };
    let (summary, text) = run_suite(&options);
    let mutants = rankwise_conformance::mutants::all().into_iter().filter(|mutant| mutant.concerns("AG-53")).count();
    assert_eq!((summary.passed, summary.failed), (1, mutants), "{text}");
    assert!(text.contains("no case found anything wrong") && text.contains("mutants are not joined"), "{text}");
}

#[test]
fn a_backend_named_twice_runs_once() {
    let mut options = options(&[2]);
    options.pattern = Some("AG-53".into());
    options.backends = ["reference", "panicking", "reference"].map(String::from).to_vec();
    let (summary, text) = run_suite(&options);
    assert_eq!(text.lines().filter(|line| line.starts_with("reference threads")).count(), 1, "{text}");
    assert_eq!(summary.passed + summary.failed, 2, "{text}");
}

#[test]
fn a_pattern_selects_and_json_has_one_object_a_line() {
    let options = Options { pattern: Some("ag-53".into()), format: Format::Json, ..options(&[2]) };
    let (summary, text) = run_suite(&options);
    assert_eq!((summary.passed, summary.failed, summary.skipped), (1, 0, 0), "{text}");
    let mut lines = text.lines().rev();
    assert!(lines.next().unwrap().contains("\"summary\":{\"failed\":0,"), "{text}");
    assert!(lines.next().unwrap().contains("\"case\":\"AG-53\""), "{text}");
    assert!(lines.next().unwrap().contains("\"seed\":1"), "{text}");
    assert_eq!(lines.next(), None);
}

#[test]
fn what_cannot_be_run_is_said_at_once() {
    let refused = |options: &Options| run(&DRIVERS, options, &command(), &mut Vec::new()).unwrap_err();
    let unknown = Options { backends: vec!["tin-cans".into()], ..options(&[2]) };
    assert_eq!(refused(&unknown).kind(), &ErrorKind::NoBackend);
    assert!(refused(&unknown).to_string().contains("compiled in: reference"));
    assert_eq!(refused(&options(&[])).kind(), &ErrorKind::InvalidArgument);
    assert_eq!(refused(&options(&[0])).kind(), &ErrorKind::InvalidArgument);
    let nothing = Options { pattern: Some("no such case".into()), ..options(&[2]) };
    assert_eq!(refused(&nothing).kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn a_backend_that_cannot_join_fails_with_its_reason() {
    let mut options = options(&[2]);
    options.modes = vec![Mode::Processes];
    options.pattern = Some("AR-1".into());
    let (summary, text) = run_suite(&options);
    assert_eq!((summary.passed, summary.failed), (0, 1), "{text}");
    assert!(text.contains("joins threads only"), "{text}");
}

fn faulty(name: &str) -> Options {
    let pattern = Some("all-to-all: ".into());
    Options { backends: vec![name.into()], pattern, case_seconds: Some(5), ..options(&[3]) }
}

#[test]
fn a_hang_is_killed_and_tells_what_was_called_last_and_the_rest_is_run() {
    let (summary, text) = run_suite(&faulty("hanging"));
    assert_eq!((summary.passed, summary.failed, summary.skipped), (4, 2, 0), "{text}");
    let hang = text.lines().find(|line| line.starts_with("FAIL AA-79")).unwrap();
    assert!(hang.contains("hung") && hang.contains("rank 1 in AA-79: all_to_all_v"), "{text}");
}

#[test]
fn a_panic_fails_its_case_only() {
    let (summary, text) = run_suite(&faulty("panicking"));
    assert_eq!((summary.passed, summary.failed, summary.skipped), (4, 2, 0), "{text}");
    assert!(text.contains("rank 1: panicked: a backend must not"), "{text}");
}
