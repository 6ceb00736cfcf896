//! `rankwise conformance`: scripts over real processes, and what is left of a run that is interrupted.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn conformance(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankwise"));
    command.arg("conformance").args(args);
    command
}

fn stored_script(name: &str) -> String {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/tests/scripts");
    scripts.join(name).to_str().unwrap().to_string()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_stored_scripts_pass_over_shared_memory() {
    for name in ["two-groups.txt", "refused-in-flight.txt", "uneven-scope.txt"] {
        let output = conformance(&["--backend", "shm", "--replay", &stored_script(name)]).output().unwrap();
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("2 passed, 0 failed") && !text.contains("not offered"), "{text}");
    }
}

#[test]
fn the_script_of_the_page_is_one() {
    let page = include_str!("../../../docs/conformance.md");
    let script = page.split("```").map(|block| block.trim_start_matches("text\n"));
    let script = script.into_iter().find(|block| block.starts_with("rankwise-sequence 1")).unwrap();
    let file = std::env::temp_dir().join(format!("rankwise-page-{}.txt", std::process::id()));
    std::fs::write(&file, script).unwrap();
    let output = conformance(&["--backend", "shm", "--mode", "threads", "--replay"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success() && text(&output).contains("1 passed"), "{}", text(&output));
}

#[test]
fn the_page_names_every_kind_of_run() {
    let page = include_str!("../../../docs/conformance.md");
    for flag in ["--self-test", "--drills", "--sequences", "--replay", "--differential", "--junit", "--scripts-in"] {
        assert!(page.contains(flag), "{flag}");
    }
}

#[test]
fn a_replay_that_cannot_be_is_a_usage_error() {
    let script = stored_script("two-groups.txt");
    let refused = |args: &[&str], why: &str| {
        let output = conformance(args).output().unwrap();
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(why), "{text}");
    };
    refused(&["--backend", "shm", "--replay", &script, "--ranks", "3"], "is for 4 ranks, not 3; give --ranks 4");
    refused(&["--backend", "shm", "--replay", "/no/such/script"], "cannot read the script /no/such/script");
    let not_a_script = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    refused(&["--backend", "shm", "--replay", not_a_script.to_str().unwrap()], "line 1: a script begins with");
    refused(&["--backend", "shm", "--replay", &script, "--sequences", "1"], "cannot be used with");
}

#[test]
fn a_matrix_of_a_backend_without_a_promise_is_a_usage_error() {
    let output = conformance(&["--matrix", "--backend", "tin-cans"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("nothing is promised for a backend \"tin-cans\""), "{}", text(&output));
    let output = conformance(&["--matrix", "--backend", "shm"]).output().unwrap();
    assert!(output.status.success() && text(&output).contains("| all_reduce | yes |"), "{}", text(&output));
}

#[test]
fn sequences_and_a_comparison_pass_over_shared_memory() {
    let sequences = ["--backend", "shm", "--sequences", "1", "--calls", "300", "--ranks", "3", "--seed", "4"];
    let output = conformance(&sequences).output().unwrap();
    assert!(output.status.success() && text(&output).contains("2 passed, 0 failed"), "{}", text(&output));
    let comparison = ["--backend", "shm", "--differential", "--calls", "100", "--ranks", "3", "--seed", "4"];
    let output = conformance(&comparison).output().unwrap();
    assert!(output.status.success() && text(&output).contains("8 of 8 runs agree"), "{}", text(&output));
}

#[test]
fn an_interrupted_run_leaves_a_whole_junit_file_that_says_so() {
    let file: PathBuf = std::env::temp_dir().join(format!("rankwise-interrupted-{}.xml", std::process::id()));
    let args = ["--backend", "shm", "--ranks", "2,3", "--mode", "threads", "--case", "all-gather: ", "--junit"];
    let mut run = conformance(&args).arg(&file).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    while !read().contains("before its last case") {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", read());
        std::thread::sleep(Duration::from_millis(1));
    }
    // The suite handles no signal: this is what Ctrl-C does to it.
    run.kill().unwrap();
    run.wait().unwrap();
    let left = read();
    assert!(left.starts_with("<?xml") && left.ends_with("</testsuites>\n"), "{left}");
    assert!(left.contains("<error message=\"the run ended, or was interrupted"), "{left}");

    let output = conformance(&args).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let whole = read();
    std::fs::remove_file(&file).unwrap();
    // Of the run that was killed, if it was just being written.
    let _ = std::fs::remove_file(file.with_extension("xml.partial"));
    assert!(!whole.contains("<error") && whole.contains("name=\"shm threads 3 ranks\""), "{whole}");
}

#[test]
fn an_mpi_starts_only_the_ranks_of_backends_over_an_mpi() {
    for (args, named) in [(&["--backend", "shm"][..], "shm is none"), (&[], "--backend")] {
        let output = conformance(&["--mode", "mpirun"]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(named), "{}", text(&output));
    }
}
