//! Result files, `bench compare`, `--baseline` and `--format osu` as a user meets them.

#![cfg(target_os = "linux")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rankwise-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(arguments: &[&str]) -> (Option<i32>, String, String) {
    let words = arguments.iter().flat_map(|words| words.split(' ')).filter(|word| !word.is_empty());
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_rankwise")).arg("bench").args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

fn lines(path: &str) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The same file with every time multiplied, as if the machine had been so much slower.
fn scaled(from: &str, to: &str, factor: f64) {
    let scale = |mut line: Value| {
        for sample in line["samples_us"].as_array_mut().into_iter().flatten() {
            *sample = (sample.as_f64().unwrap() * factor).into();
        }
        if let Some(median) = line["p50_us"].as_f64() {
            line["p50_us"] = (median * factor).into();
        }
        line.to_string()
    };
    std::fs::write(to, lines(from).into_iter().map(scale).collect::<Vec<_>>().join("\n")).unwrap();
}

const SWEEP: &str = "--op barrier,all_reduce --size 64,4K --ranks 2 --iters 40";

#[test]
fn output_holds_origin_rows_and_samples() {
    let folder = Folder::new("output");
    let path = folder.file("a.jsonl");
    let (code, table, errors) = bench(&[SWEEP, "--output", &path]);
    assert_eq!(code, Some(0), "{table}{errors}");
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 3, "{table}");
    let lines = lines(&path);
    assert_eq!(lines.len(), 4);
    let origin = &lines[0];
    assert_eq!(origin["schema"], 1);
    for field in ["tool", "date", "host", "kernel", "cpu"] {
        assert!(!origin[field].as_str().unwrap().is_empty(), "{origin}");
    }
    assert!(origin["cpus"].as_u64().unwrap() > 0 && origin["settings"].is_object(), "{origin}");
    assert!(origin["git"].is_null() || origin["git"].as_str().unwrap().len() >= 40, "{origin}");
    assert!(origin["arguments"].as_array().unwrap().contains(&"--iters".into()), "{origin}");
    for row in &lines[1..] {
        let samples: Vec<f64> = row["samples_us"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!((samples.len(), &row["iters"], &row["sample_step"]), (40, &40.into(), &1.into()), "{row}");
        let (least, most) = samples.iter().fold((f64::MAX, 0.0_f64), |(l, m), x| (l.min(*x), m.max(*x)));
        assert_eq!((row["min_us"].as_f64(), row["max_us"].as_f64()), (Some(least), Some(most)), "{row}");
        assert_eq!((&row["wrong"], &row["pin"]), (&0.into(), &"cores".into()));
    }
}

#[test]
fn files_compare_with_the_right_verdicts() {
    let folder = Folder::new("files");
    let (a, b) = (folder.file("a.jsonl"), folder.file("b.jsonl"));
    assert_eq!(bench(&[SWEEP, "--output", &a]).0, Some(0));
    scaled(&a, &b, 1000.0);
    let (code, table, errors) = bench(&["compare", &a, &a, &b]);
    assert_eq!(code, Some(0), "{errors}");
    let data: Vec<Vec<&str>> =
        table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(data.len(), 3, "{table}");
    for line in &data {
        assert_eq!((line[6], line[8], line[10], line[12]), ("1.000", "same", "1000.000", "slower"), "{table}");
    }
    let (code, json, _) = bench(&["compare", &b, &a, "--format json"]);
    assert_eq!((code, json.lines().count()), (Some(0), 3), "{json}");
    for line in json.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&object["verdict"], &object["base"]), (&"faster".into(), &b.as_str().into()), "{object}");
        let [low, ratio, high] = ["low", "ratio", "high"].map(|name| object[name].as_f64().unwrap());
        assert!(low <= ratio && ratio <= high && (ratio - 0.001).abs() < 1e-6, "{object}");
    }
}

#[test]
fn backends_compare_in_rounds() {
    let folder = Folder::new("rounds");
    let path = folder.file("rounds.jsonl");
    let sweep = "compare shm shm --op all_reduce --size 64,6 --ranks 2,3 --iters 20 --rounds 6 --output";
    let (code, table, errors) = bench(&[sweep, &path]);
    assert_eq!(code, Some(0), "{table}{errors}");
    assert!(table.contains("# A: shm\n# B: shm#2\n"), "{table}");
    assert!(table.contains("# skipped: shm: all_reduce f32 sum: 6 bytes are no whole number of f32"), "{table}");
    let data: Vec<Vec<&str>> =
        table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(data.len(), 2, "{table}");
    for line in &data {
        assert!(line[7].contains("..") && ["same", "slower", "faster"].contains(&line[8]), "{table}");
    }
    let rows = lines(&path);
    assert_eq!(rows.len(), 1 + 2 * 6 * 2);
    let order: Vec<_> = rows[1..5].iter().map(|row| (row["backend"].clone(), row["round"].clone())).collect();
    let turn = |name: &str, round: u64| (Value::from(name), Value::from(round));
    assert_eq!(order, [turn("shm", 0), turn("shm#2", 0), turn("shm#2", 1), turn("shm", 1)]);
    // The rounds of a stored comparison count as its values.
    let (code, table, errors) = bench(&["compare", &path, &path]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(table.lines().filter(|line| !line.starts_with('#')).count(), 4, "{table}");
}

#[test]
fn a_baseline_finds_what_is_slower() {
    let folder = Folder::new("baseline");
    let [now, faster, slower] = ["now", "faster", "slower"].map(|name| folder.file(name));
    assert_eq!(bench(&[SWEEP, "--output", &now]).0, Some(0));
    scaled(&now, &faster, 0.0001);
    scaled(&now, &slower, 10_000.0);
    let (code, table, errors) = bench(&[SWEEP, "--baseline", &faster]);
    assert_eq!(code, Some(1), "{table}{errors}");
    assert_eq!(table.lines().filter(|line| line.starts_with("# slower: shm ")).count(), 3, "{table}");
    let (code, table, _) = bench(&[SWEEP, "--baseline", &slower]);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("# baseline: 3 cells compared, 0 slower"), "{table}");
    let (code, table, _) = bench(&[SWEEP, "--baseline", &faster, "--tolerance 1e9"]);
    assert_eq!(code, Some(0), "{table}");
    // JSON keeps standard output for rows.
    let (code, json, errors) = bench(&[SWEEP, "--format json --baseline", &faster]);
    assert_eq!((code, json.lines().count()), (Some(1), 3), "{json}");
    assert!(errors.contains("# slower: shm barrier"), "{errors}");
    // A cell the baseline lacks.
    let more = "--op all_reduce --size 64,128 --ranks 2 --iters 40 --baseline";
    let (code, table, _) = bench(&[more, &slower]);
    assert_eq!(code, Some(2), "{table}");
    assert!(table.contains("has no cell shm all_reduce f32 sum 128 bytes, 2 ranks"), "{table}");
}

#[test]
fn unusable_files_and_arguments_are_named() {
    let folder = Folder::new("unusable");
    let (good, bad) = (folder.file("good"), folder.file("bad"));
    assert_eq!(bench(&["--op barrier --ranks 1 --iters 5 --output", &good]).0, Some(0));
    let text = std::fs::read_to_string(&good).unwrap();
    let refused = |arguments: &[&str], named: &str| {
        let (code, out, errors) = bench(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {errors}");
        assert!(errors.contains(named), "{arguments:?}: {errors}");
    };
    std::fs::write(&bad, text.replace("\"schema\":1", "\"schema\":2")).unwrap();
    refused(&["compare", &good, &bad], &format!("{bad}:1: has schema version 2"));
    refused(&["--op barrier --ranks 1 --baseline", &bad], &format!("{bad}:1: has schema version 2"));
    std::fs::write(&bad, &text[..text.len() - 9]).unwrap();
    refused(&["compare", &good, &bad], &format!("{bad}:2: is no JSON, or cut off"));
    refused(&["compare", &good, &folder.file("none")], "is no file");
    refused(&["compare", &good, "shm"], "measure the backend with --output first");
    refused(&["compare", &good], "holds nothing to compare; name a second file");
    refused(&["compare shm"], "name a second backend to compare shm with");
    refused(&["compare", &good, &good, "--rounds 9"], "--rounds is for backends");
    refused(&["compare", &good, &good, "--format csv"], "--format json");
    refused(&["compare shm shm --backend shm"], "--backend");
    refused(&["compare shm shm --rounds 5"], "--rounds");
    refused(&["--tolerance 2"], "--baseline");
    refused(&["--tolerance 0.5 --baseline", &good], "at least 1");
    refused(&["--op barrier --ranks 1 --baseline", &folder.file("none")], "cannot be read");
    refused(&["--op barrier --ranks 2 --baseline", &good], "has none of the cells");
    refused(&["--op barrier --ranks 1 --baseline", &good, "--output", &good], "would replace the baseline");
    refused(&["--op barrier --ranks 1 --output", &folder.file("no/such/folder")], "cannot be written");
    assert_eq!(std::fs::read_to_string(&good).unwrap(), text);
    // Wrong arguments leave an old file alone.
    refused(&["--op nonsense --output", &good], "nonsense");
    assert_eq!(std::fs::read_to_string(&good).unwrap(), text);
    let (code, _, errors) = bench(&["--op barrier --ranks 1 --iters 5 --output /dev/full"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("/dev/full: cannot be written"), "{errors}");
}

#[test]
fn osu_has_a_block_an_operation() {
    let (code, text, errors) = bench(&["--op all_reduce,all_gather --size 64,128 --ranks 2 --iters 5 --format osu"]);
    assert_eq!(code, Some(0), "{errors}");
    let heads: Vec<_> = text.lines().filter(|line| line.starts_with("# Size")).collect();
    assert_eq!(heads.len(), 2, "{text}");
    let data: Vec<Vec<f64>> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
        .collect();
    assert_eq!(data.len(), 4, "{text}");
    for line in data {
        let [size, average, min, max, p50, p99] = line[..] else { panic!("{line:?}") };
        assert!(size >= 64.0 && min <= p50 && p50 <= p99 && p99 <= max && min <= average && average <= max, "{text}");
    }
}

#[test]
fn an_interruption_keeps_what_was_measured() {
    let folder = Folder::new("interrupted");
    for (name, arguments, waits_for) in [
        // Ends that are out of reach.
        ("sweep", "--op all_reduce --size 64:256M:x2 --ranks 2 --budget-ms 1000 --output", 1),
        ("compare", "compare shm shm --op barrier --ranks 2 --iters 20 --rounds 1000 --output", 4),
    ] {
        let path = folder.file(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_rankwise"));
        command.arg("bench").args(arguments.split(' '));
        let child = command.arg(&path).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::fs::read_to_string(&path).map_or(0, |text| text.lines().count()) < 1 + waits_for {
            assert!(std::time::Instant::now() < deadline, "{name}: nothing was measured");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(130), "{name}: {text}");
        assert!(text.contains("interrupted by signal 2"), "{name}: {text}");
        assert!(text.lines().any(|line| !line.starts_with('#')), "{name}: {text}");
        assert!(lines(&path).len() > waits_for, "{name}");
    }
}
