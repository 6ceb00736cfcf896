//! `cargo xtask bench`: build for release, check quickly, then measure.

use crate::Outcome;
use crate::conformance::{build_rankwise, exit_code};
use std::path::Path;
use std::process::Command;

/// What `--quick` puts before the other arguments: a table in a few seconds.
const QUICK: [&str; 3] = ["--size=8,4K,1M", "--ranks=2", "--budget-ms=30"];

/// Builds the `rankwise` binary for release, checks the backends to measure on the smallest worlds, and passes the arguments
/// on to `rankwise bench`, which prints the table. Standard output is that of `rankwise bench` alone.
pub(crate) fn bench(arguments: &[String]) -> Outcome {
    let arguments = arguments_of_bench(arguments);
    let program = build_rankwise(&["--release"])?;
    if !arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        check(&program, backends(&arguments))?;
    }
    let status = Command::new(&program)
        .arg("bench")
        .args(&arguments)
        .status()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    Ok(exit_code(status))
}

/// A backend that computes wrong results is not worth measuring.
fn check(program: &Path, backends: &str) -> Result<(), Box<dyn std::error::Error>> {
    eprintln!("# checking {backends}: rankwise conformance --backend {backends} --ranks 2,4 --mode processes");
    let found = Command::new(program)
        .args(["conformance", "--backend", backends, "--ranks", "2,4", "--mode", "processes"])
        .output()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&found.stdout);
    if found.status.success() {
        eprintln!("# {}", text.trim_end().lines().last().unwrap_or("nothing was checked"));
        return Ok(());
    }
    eprint!("{text}{}", String::from_utf8_lossy(&found.stderr));
    Err(format!("{backends} does not pass the conformance suite (above), so nothing was measured").into())
}

/// The arguments without `--quick`, which is this task's own.
fn arguments_of_bench(arguments: &[String]) -> Vec<String> {
    let given = |name: &str| {
        let with_value = format!("{name}=");
        arguments.iter().any(|argument| argument == name || argument.starts_with(&with_value))
    };
    let mut passed = Vec::new();
    if given("--quick") {
        let unset = |argument: &&str| {
            let name = argument.split('=').next().unwrap_or_default();
            !(given(name) || name == "--budget-ms" && given("--iters"))
        };
        passed.extend(QUICK.iter().filter(|argument| unset(argument)).map(|argument| argument.to_string()));
    }
    passed.extend(arguments.iter().filter(|argument| *argument != "--quick").cloned());
    passed
}

/// The value of `--backend`, or the default of `rankwise bench`.
fn backends(arguments: &[String]) -> &str {
    let mut value = "shm";
    for (i, argument) in arguments.iter().enumerate() {
        if let Some(after) = argument.strip_prefix("--backend=") {
            value = after;
        } else if argument == "--backend" {
            value = arguments.get(i + 1).map_or(value, String::as_str);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn quick_fills_in_what_is_not_given() {
        assert_eq!(arguments_of_bench(&words("--op barrier")), words("--op barrier"));
        assert_eq!(arguments_of_bench(&words("--quick")), QUICK);
        assert_eq!(
            arguments_of_bench(&words("--ranks 3 --quick --iters=9")),
            words("--size=8,4K,1M --ranks 3 --iters=9")
        );
    }

    #[test]
    fn backends_to_check_are_those_to_measure() {
        assert_eq!(backends(&words("--op barrier")), "shm");
        assert_eq!(backends(&words("--backend mpi,shm --ranks 2")), "mpi,shm");
        assert_eq!(backends(&words("--backend=ucx --backend")), "ucx");
    }
}
