//! `rankwise bench` as a user runs it.

#![cfg(target_os = "linux")]

use serde_json::Value;
use std::process::{Command, Output};

fn bench(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankwise"));
    command.arg("bench").args(arguments.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn json_has_one_correct_cell_a_line() {
    let found =
        bench("--op barrier,all_reduce,all_gather --dtype bf16 --size 8,4K --ranks 1,2,3 --iters 5 --format json");
    assert!(found.status.success(), "{}", text(&found.stderr));
    let rows: Vec<Value> = text(&found.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3 * 5);
    for row in &rows {
        assert_eq!((&row["backend"], &row["wrong"], &row["iters"]), (&"shm".into(), &0.into(), &5.into()), "{row}");
        assert!(row["p50_us"].as_f64().unwrap() > 0.0 && row["p99_us"].as_f64() >= row["p50_us"].as_f64(), "{row}");
        let barrier = row["op"] == "barrier";
        assert_eq!(row["redop"], if row["op"] == "all_reduce" { "sum" } else { "none" });
        assert_eq!(row["dtype"], if barrier { "none" } else { "bf16" });
        assert_eq!(row["count"].as_u64().unwrap() * 2, row["bytes"].as_u64().unwrap());
        let (algorithm, bus) = (row["algbw_gbs"].as_f64().unwrap(), row["busbw_gbs"].as_f64().unwrap());
        let n = row["ranks"].as_f64().unwrap();
        let factor = if row["op"] == "all_reduce" { 2.0 * (n - 1.0) / n } else { (n - 1.0) / n };
        assert!(barrier || (bus - factor * algorithm).abs() < 1e-3, "{row}");
    }
}

#[test]
fn all_operations_and_variants_print_a_table() {
    let found = bench("--op all --size 96 --ranks 2 --iters 5 --in-place --warm --alloc");
    let table = text(&found.stdout);
    assert!(found.status.success(), "{table}{}", text(&found.stderr));
    assert!(table.contains("wrong elements: 0 OK"), "{table}");
    let data = table.lines().filter(|line| !line.starts_with('#')).count();
    // A barrier, and fourteen operations fresh and warm on ordinary and on alloc buffers.
    assert_eq!(data, 1 + 14 * 4, "{table}");
    assert_eq!(table.lines().filter(|line| line.starts_with("# rank ")).count(), 2);
}

#[test]
fn what_cannot_be_measured_is_said_and_does_not_fail() {
    let found = bench("--op all_reduce --dtype i32 --redop avg,max --size 8,6 --ranks 2 --iters 5");
    let table = text(&found.stdout);
    assert!(found.status.success(), "{table}");
    assert!(table.contains("# skipped: all_reduce i32 avg:"), "{table}");
    assert!(table.contains("# skipped: all_reduce i32 max: 6 bytes are no whole number of i32"), "{table}");
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 1, "{table}");
}

#[test]
fn wrong_arguments_are_named_before_anything_runs() {
    for (arguments, named) in [
        ("--op allreduce", "allreduce"),
        ("--dtype float32", "float32"),
        ("--redop mean", "mean"),
        ("--size 4Q", "4Q"),
        ("--backend tin-cans", "tin-cans"),
        ("--ranks 0", "0"),
        ("--ranks 64 --size 1T", "available"),
        ("--ranks 3000000000 --op barrier", "3000000000"),
    ] {
        let found = bench(arguments);
        let message = text(&found.stderr);
        assert_eq!(found.status.code(), Some(2), "{arguments}: {message}");
        assert!(message.contains(named) && found.stdout.is_empty(), "{arguments}: {message}");
    }
}

#[test]
fn a_closed_output_ends_it() {
    use std::io::Read;
    use std::process::Stdio;
    let mut child = Command::new(env!("CARGO_BIN_EXE_rankwise"))
        .args(["bench", "--op", "barrier", "--ranks", "2,3,4,5", "--iters", "100000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141));
}
