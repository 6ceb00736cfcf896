//! `rankwise simulate`.

use std::process::{Command, Output};

/// Exit code, standard output, standard error.
fn simulate(arguments: &str) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_rankwise"))
        .arg("simulate")
        .args(arguments.split(' ').filter(|word| !word.is_empty()))
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// A network of textbooks.
const FLAT: &str = "--ranks-per-host 1 --hosts-per-rack 0 --overhead 0 --latency 2us --copy inf --reduce inf";

#[test]
fn a_table_is_printed() {
    let (code, table, errors) =
        simulate(&format!("{FLAT} --ranks 2,1024,4096 --size 8 --algorithm recursive_doubling"));
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..4], ["op", "ranks", "bytes", "plan"]);
    // 2 us for each of 1, 10 and 12 rounds.
    assert_eq!(rows[1][..9], ["all_reduce", "2", "8", "recursive_doubling", "-", "1", "1", "8", "2.00"]);
    assert_eq!(rows[2][5..9], ["10", "10", "80", "20.01"]);
    assert_eq!(rows[3][5..9], ["12", "12", "96", "24.01"]);
    assert_eq!(rows.len(), 4);
}

#[test]
fn the_table_of_plans_chooses() {
    let folder = std::env::temp_dir().join(format!("rankwise-simulate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (plans, svg) = (folder.join("my.plans"), folder.join("ranks.svg"));
    std::fs::write(&plans, "all_reduce 3-4 * * ring chunk=1K\n").unwrap();
    let (code, json, errors) =
        simulate(&format!("--ranks 2,4 --size 8K --plans {} --svg {} --format json", plans.display(), svg.display()));
    assert_eq!(code, Some(0), "{errors}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["plan"], &rows[0]["chunk"]), (&"direct".into(), &serde_json::Value::Null));
    assert_eq!((&rows[1]["plan"], &rows[1]["chunk"]), (&"ring".into(), &1024.into()));
    assert_eq!(rows[1]["bytes_per_rank"], 2 * 3 * 8192 / 4);
    assert_eq!((&rows[1]["chunks"], &rows[1]["messages_per_rank"]), (&8.into(), &(8 * 6).into()));
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("all_reduce, 8192 bytes"), "{picture}");
    assert_eq!(picture.matches("ranks: ").count(), 2, "two points: {picture}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn all_plans_stand_side_by_side_and_what_is_too_much_is_left_out() {
    let (code, table, errors) =
        simulate("--ranks 64,4096 --op all_gather --size 1K --algorithm all --most-messages 100000");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for plan in ["direct", "ring", "recursive_doubling", "bruck"] {
        assert_eq!(table.lines().filter(|line| line.contains(&format!(" {plan} "))).count(), 2, "{table}");
    }
    let left_out = |why: &str| table.lines().filter(|line| line.contains(why)).count();
    assert_eq!(left_out("left out: too many messages at once"), 1, "{table}");
    assert_eq!(left_out("left out: 16773120 messages; raise --most-messages"), 1, "{table}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    for (arguments, expected) in [
        ("--op send", "can't be simulated"),
        ("--ranks 0", "0 ranks"),
        ("--ranks 70000", "70000 ranks"),
        ("--size 7", "no whole number of f32"),
        ("--dtype f31", "is not a type"),
        ("--algorithm circle", "is not a plan"),
        ("--algorithm ring --op gather", "does not offer gather"),
        ("--bandwidth 7", "--bandwidth"),
        ("--latency 7", "--latency"),
        ("--oversubscription NaN", "--oversubscription"),
        ("--ranks-per-host 0", "a host has a rank"),
        ("--chunk 1K", "--chunk is for named plans"),
        ("--chunk 0 --algorithm ring", "--chunk is one size"),
        ("--plans /nowhere/at/all", "--plans /nowhere/at/all"),
    ] {
        let (code, output, errors) = simulate(arguments);
        assert_eq!((code, output.as_str()), (Some(2), ""), "{arguments}: {errors}");
        assert!(errors.contains(expected), "{arguments}: {errors}");
    }
}
