//! `rankwise bench --workload` as a user runs it.

#![cfg(target_os = "linux")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

fn bench(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankwise"));
    command.arg("bench").args(arguments.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn written(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// The example of the documentation, whose text is the only one in a fence for TOML.
fn documented() -> String {
    let page = include_str!("../../../docs/workloads.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0.to_string()
}

#[test]
fn a_model_comes_out_right_as_json() {
    let found = bench("--workload llama3-8b-decode,deepseek-v3-moe --ranks 1,2 --budget-ms 20 --format json");
    assert!(found.status.success(), "{}", text(&found.stderr));
    let rows: Vec<Value> = text(&found.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2 * (3 + 2));
    for row in &rows {
        assert_eq!(
            (&row["backend"], &row["wrong"], &row["unit"]),
            (&"shm".into(), &0.into(), &"token".into()),
            "{row}"
        );
        let (median, p99) = (row["us_per_unit"]["p50"].as_f64().unwrap(), row["us_per_unit"]["p99"].as_f64().unwrap());
        assert!(median > 0.0 && p99 >= median, "{row}");
        let calls = |of: &str| -> u64 {
            row[of].as_array().unwrap().iter().map(|share| share["calls"].as_u64().unwrap()).sum()
        };
        let wanted = if row["workload"] == "llama3-8b-decode" { 66 } else { 2 * 61 };
        assert_eq!((calls("by_op"), calls("by_size")), (wanted, wanted), "{row}");
    }
    let variants: Vec<_> = rows.iter().take(3).map(|row| row["variant"].as_str().unwrap()).collect();
    assert_eq!(variants, ["batch=1", "batch=16", "batch=64"]);
}

#[test]
fn the_documented_example_prints_a_table() {
    let path = written("documented.toml", &documented());
    let found = bench(&format!("--workload {} --ranks 2 --iters 3", path.display()));
    let table = text(&found.stdout);
    assert!(found.status.success(), "{table}{}", text(&found.stderr));
    assert!(table.contains("2 workloads replayed; wrong elements: 0 OK"), "{table}");
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 2, "{table}");
    assert!(table.contains("token_all_gather") && table.contains("calls by size"), "{table}");
}

#[test]
fn rows_go_to_a_file_too() {
    let path = written("rows.jsonl", "");
    let file = path.display();
    let found = bench(&format!("--workload llama3-8b-decode --ranks 2 --iters 3 --format json --output {file}"));
    assert!(found.status.success(), "{}", text(&found.stderr));
    let kept = std::fs::read_to_string(&path).unwrap();
    let (header, rows) = kept.split_once('\n').unwrap();
    assert_eq!(rows, text(&found.stdout));
    assert_eq!(serde_json::from_str::<Value>(header).unwrap()["schema"], 1);
    let compared = bench(&format!("compare {file} {file}"));
    assert!(text(&compared.stderr).contains(&format!("{file}:2: is a workload's row")), "{}", text(&compared.stderr));
}

#[test]
fn the_list_names_what_can_be_replayed() {
    let found = bench("--list-workloads");
    assert!(found.status.success());
    let list = text(&found.stdout);
    assert_eq!(list.lines().count(), 7, "{list}");
    let page = include_str!("../../../docs/workloads.md");
    for name in list.lines().map(|line| line.split_whitespace().next().unwrap()) {
        assert!(page.contains(&format!("`{name}`")), "{name} is not documented");
    }
}

#[test]
fn wrong_arguments_are_named_before_anything_runs() {
    let wrong_op = written("wrong-op.toml", &documented().replace("\"all_reduce\"", "\"allreduce\""));
    let too_large = "name = \"big\"\ndescription = \"\"\nsource = \"\"\nunit = \"step\"\n\
                     steps = [{ op = \"all_gather\", dtype = \"f64\", count = 1000000000000 }]\n";
    let too_large = written("too-large.toml", too_large);
    for (arguments, named) in [
        ("--workload llama9".to_string(), "llama3-8b-decode"),
        ("--workload no/such.toml".to_string(), "no/such.toml"),
        (format!("--workload {} --ranks 2", wrong_op.display()), "wrong-op.toml:16: there is no operation"),
        (format!("--workload {} --ranks 2", too_large.display()), "available"),
        ("--workload llama3-8b-decode --ranks 3".to_string(), "3 ranks do not divide heads = 32"),
        ("--workload llama3-8b-decode --ranks 3000000000".to_string(), "3000000000"),
        ("--workload llama3-8b-decode --backend tin-cans".to_string(), "tin-cans"),
        ("--workload llama3-8b-decode --format csv".to_string(), "json"),
        ("--workload llama3-8b-decode --format osu".to_string(), "json"),
        ("--workload llama3-8b-decode --baseline before.jsonl".to_string(), "--baseline"),
        ("compare shm shm --workload llama3-8b-decode".to_string(), "--workload"),
        ("--workload llama3-8b-decode --op barrier".to_string(), "--op"),
    ] {
        let found = bench(&arguments);
        let message = text(&found.stderr);
        assert_eq!(found.status.code(), Some(2), "{arguments}: {message}");
        assert!(message.contains(named) && found.stdout.is_empty(), "{arguments}: {message}");
    }
}
