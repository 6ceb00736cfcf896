//! Random sequences, replays and comparisons on the reference backend and on broken ones.

#![cfg(target_os = "linux")]

mod reference;

use rankwise_conformance::{Mode, Options, RankCommand, Summary, run, run_planned};
use rankwise_core::ErrorKind;
use rankwise_world::Driver;
use reference::{Fault, Reference};
use std::path::{Path, PathBuf};

const DRIVERS: [&dyn Driver; 3] = [&Reference(Fault::Nothing), &Reference(Fault::Hang), &Reference(Fault::Panic)];

/// Not a test: the suite starts this program again, with this function selected, for the ranks of its jobs.
#[test]
fn rank_entry() {
    if let Some(code) = run_planned(&DRIVERS) {
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    }
}

fn options(backend: &str, ranks: usize) -> Options {
    Options { backends: vec![backend.into()], ranks: vec![ranks], modes: vec![Mode::Threads], ..Options::default() }
}

fn run_with(options: &Options) -> (Summary, String) {
    let command = RankCommand::current(&["rank_entry", "--exact", "--nocapture", "--test-threads=1"]).unwrap();
    let mut out = Vec::new();
    let summary = run(&DRIVERS, options, &command, &mut out).unwrap();
    (summary, String::from_utf8(out).unwrap())
}

fn refused(options: &Options) -> String {
    let command = RankCommand::current(&["rank_entry"]).unwrap();
    let error = run(&DRIVERS, options, &command, &mut Vec::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::NoBackend), "{error}");
    error.to_string()
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rankwise-sequences-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// The one file in it.
    fn only_file(&self) -> PathBuf {
        let files: Vec<PathBuf> = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Searches with a backend that fails; gives what was printed and the small script.
fn searched(folder: &Folder, backend: &str, ranks: usize, case_seconds: Option<u64>) -> (String, PathBuf) {
    let scripts_in = folder.0.clone();
    let options =
        Options { sequences: Some(3), calls: Some(150), seed: 11, scripts_in, case_seconds, ..options(backend, ranks) };
    let (summary, text) = run_with(&options);
    assert_eq!(summary.failed, 1, "{text}");
    (text, folder.only_file())
}

/// The steps of a script that call something.
fn calls(script: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(script).unwrap();
    let steps = text.lines().skip(3).filter(|line| !line.starts_with('#'));
    let quiet = ["split", "group", "drop", "pause", "wait"];
    steps.filter(|line| !quiet.iter().any(|word| line.starts_with(word))).map(String::from).collect()
}

#[test]
fn sequences_pass_where_nothing_is_broken() {
    let options = Options { sequences: Some(2), calls: Some(200), ..options("reference", 3) };
    let (summary, text) = run_with(&options);
    assert_eq!((summary.passed, summary.failed), (2, 0), "{text}");
    assert!(text.contains("sequence with seed 2: ") && text.contains(" are not offered, all right"), "{text}");
}

#[test]
fn a_wrong_result_is_found_made_small_and_repeated() {
    let folder = Folder::new("wrong");
    let (text, script) = searched(&folder, "reference+dropped-tail", 3, None);
    let left = calls(&script);
    assert_eq!(left.len(), 1, "{text}");
    assert!(left[0].contains("all_reduce f32") && left[0].contains("count=2"), "{text}");
    assert!(text.contains("1 of 2 elements are wrong, the first at 1"), "{text}");
    let command = format!("--replay {} --backend reference+dropped-tail --mode threads --ranks 3", script.display());
    assert!(text.contains(&command), "{text}");

    let again = |backend| run_with(&Options { replay: Some(script.clone()), ..options(backend, 3) });
    let (summary, text) = again("reference+dropped-tail");
    assert_eq!((summary.passed, summary.failed), (0, 1), "{text}");
    assert!(text.contains("1 of 2 elements are wrong, the first at 1"), "{text}");
    let (summary, text) = again("reference");
    assert_eq!((summary.passed, summary.failed), (1, 0), "{text}");
}

#[test]
fn a_hang_is_found_and_made_small() {
    let folder = Folder::new("hang");
    let (text, script) = searched(&folder, "hanging", 2, Some(3));
    let left = calls(&script);
    assert!((1..=3).contains(&left.len()), "{left:?}\n{text}");
    assert!(left.iter().any(|call| call.contains("all_to_all_v")), "{text}");
    assert!(text.contains("hung; ") && text.contains("rank 1 in sequence: step"), "{text}");
}

#[test]
fn a_panic_is_found_and_made_small() {
    let folder = Folder::new("panic");
    let (text, script) = searched(&folder, "panicking", 3, None);
    let left = calls(&script);
    assert!(left.len() == 1 && left[0].contains("all_to_all_v"), "{text}");
    assert!(text.contains("panicked: a backend must not"), "{text}");
}

#[test]
fn the_stored_scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 3, "{scripts:?}");
    for script in scripts {
        let options = Options { replay: Some(script), ranks: Vec::new(), ..options("reference", 1) };
        let (summary, text) = run_with(&options);
        assert_eq!((summary.passed, summary.failed), (1, 0), "{text}");
    }
}

#[test]
fn a_script_that_cannot_be_run_is_said_at_once() {
    let folder = Folder::new("bad");
    let script = folder.0.join("script.txt");
    let replay = |text: &str, ranks: usize| {
        std::fs::write(&script, text).unwrap();
        refused(&Options { replay: Some(script.clone()), ..options("reference", ranks) })
    };
    let bad = replay("rankwise-sequence 1\nranks 2\nseed 1\n\ncall c0 all_reduce f32 sum cout=3\n", 2);
    assert!(bad.contains("script.txt, line 5: \"cout=3\" has no meaning here"), "{bad}");
    let more = replay("rankwise-sequence 1\nranks 4\nseed 1\ncall c0 barrier\n", 3);
    assert!(more.contains("is for 4 ranks, not 3; give --ranks 4"), "{more}");
    let missing = refused(&Options { replay: Some(folder.0.join("none")), ..options("reference", 2) });
    assert!(missing.contains("cannot read the script"), "{missing}");
    let unknown = refused(&Options { sequences: Some(1), ..options("reference+no-such", 2) });
    assert!(unknown.contains("no mutant \"no-such\""), "{unknown}");
    let both = Options { sequences: Some(1), differential: true, ..options("reference", 2) };
    assert!(refused(&both).contains("choose one"), "{}", refused(&both));
    let cases = refused(&options("reference+dropped-tail", 2));
    assert!(cases.contains("mutants are for sequences"), "{cases}");
}

#[test]
fn more_ranks_than_a_script_needs_stand_aside() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/two-groups.txt");
    let (summary, text) = run_with(&Options { replay: Some(script), ..options("reference", 5) });
    assert_eq!((summary.passed, summary.failed), (1, 0), "{text}");
}

#[test]
fn a_comparison_names_the_backend_that_differs() {
    let both = Options {
        differential: true,
        calls: Some(150),
        backends: ["reference", "reference+dropped-tail"].map(String::from).to_vec(),
        ..options("", 3)
    };
    let (summary, text) = run_with(&both);
    // Two forms each: nothing in flight, no collective memory.
    assert_eq!((summary.passed, summary.failed), (2, 2), "{text}");
    assert!(text.contains("skipped: reference threads started: not offered"), "{text}");
    let wrong = text.lines().find(|line| line.starts_with("FAIL differential plain reference+dropped-tail")).unwrap();
    assert!(wrong.contains("all_reduce f32") && wrong.contains(" elements are wrong, the first at "), "{wrong}");
    assert!(wrong.contains("as the reference: reference threads plain"), "{wrong}");
    assert!(wrong.contains("as here: reference+dropped-tail threads plain"), "{wrong}");
}

#[test]
fn results_are_written_as_junit_too() {
    let folder = Folder::new("junit");
    let junit = folder.0.join("results.xml");
    let pattern = Some("all-to-all: ".into());
    let options = Options { pattern, junit: Some(junit.clone()), ..options("panicking", 3) };
    let (summary, _) = run_with(&options);
    let xml = std::fs::read_to_string(&junit).unwrap();
    assert_eq!((summary.passed, summary.failed), (4, 2), "{xml}");
    assert!(xml.contains("<testsuite name=\"panicking threads 3 ranks\" tests=\"6\" failures=\"2\""), "{xml}");
    assert!(xml.contains("<testcase classname=\"panicking.all-to-all\" name=\"AA-73 all-to-all: "), "{xml}");
    assert!(xml.contains("panicked: a backend must not") && !xml.contains("<error"), "{xml}");

    let nowhere = Options { junit: Some("/no/such/folder/x.xml".into()), ..options };
    let command = RankCommand::current(&["rank_entry"]).unwrap();
    let error = run(&DRIVERS, &nowhere, &command, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("name a regular file in a folder that exists"), "{error}");
}
