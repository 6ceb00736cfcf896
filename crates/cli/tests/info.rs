//! `rankwise info`.

use std::process::Command;

fn info(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_rankwise")).arg("info").args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn json_has_the_promised_fields() {
    let facts: serde_json::Value = serde_json::from_str(&info(&["--format", "json"])).unwrap();
    assert_eq!(facts["version"], env!("CARGO_PKG_VERSION"));
    assert!(facts["machine"]["cpus"].as_u64().unwrap() >= 1);
    let names: Vec<_> = facts["backends"].as_array().unwrap().iter().map(|backend| &backend["name"]).collect();
    assert!(names.contains(&&"shm".into()), "{names:?}");
    let variables = facts["environment"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["name"] == "RANKWISE_BACKEND"));
    assert!(variables.iter().any(|variable| variable["name"] == "RANKWISE_CONTROL_FD"));
}

#[test]
fn text_names_the_same_things() {
    let text = info(&[]);
    for name in ["shm", "RANKWISE_TIMEOUT", "RANKWISE_RANK", "cpus", "kernels"] {
        assert!(text.contains(name), "{name} is missing:\n{text}");
    }
}
