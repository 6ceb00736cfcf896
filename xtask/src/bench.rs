//! `cargo xtask bench`: build for release, check quickly, then measure.

use crate::Outcome;
use crate::conformance::{backends, build_rankwise, exit_code, names};
use crate::mpi::{self, Mpi};
use std::path::Path;
use std::process::Command;

/// What `--quick` puts before the other arguments: a table in a few seconds.
const QUICK: [&str; 3] = ["--size=8,4K,1M", "--ranks=2", "--budget-ms=30"];

/// Builds the `rankwise` binary for release, checks the backends to measure on the smallest worlds, and passes the arguments
/// on to `rankwise bench`, which prints the table. Standard output is that of `rankwise bench` alone.
///
/// Where an MPI is installed and nothing says what to measure, that is shared memory and the MPI side by side.
pub(crate) fn bench(arguments: &[String]) -> Outcome {
    let mut arguments = arguments_of_bench(arguments);
    let measures = !arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h" | "--list-workloads"));
    let compares = arguments.first().is_some_and(|first| first == "compare");
    let wanted = match backends(&arguments) {
        _ if compares => Some(compared(&arguments)),
        given => given.map(String::from),
    };
    let mpi = if measures { mpi_for(wanted.as_deref())? } else { None };
    let wanted = wanted.unwrap_or_else(|| if mpi.is_some() { "shm,mpi" } else { "shm" }.into());
    if measures && !compares && mpi.is_some() && backends(&arguments).is_none() {
        arguments.insert(0, format!("--backend={wanted}"));
    }
    let program = build_rankwise(&["--release"], mpi.as_ref())?;
    if measures {
        check(&program, &wanted)?;
    }
    let status = Command::new(&program)
        .arg("bench")
        .args(&arguments)
        .status()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    Ok(exit_code(status))
}

/// The MPI to build with, if these backends (nothing: whatever there is) take one.
fn mpi_for(wanted: Option<&str>) -> Result<Option<Mpi>, String> {
    match (wanted, mpi::find()) {
        (Some(wanted), _) if !names(wanted, "mpi") => Ok(None),
        (None, Ok(mpi)) => Ok(match mpi.refuses() {
            Some(why) => {
                eprintln!("skipped: backend mpi: {why}");
                None
            }
            None => Some(mpi),
        }),
        (_, Ok(mpi)) => Ok(Some(mpi)),
        (Some(_), Err(why)) => Err(format!("backend mpi: {why}")),
        (None, Err(why)) => {
            eprintln!("skipped: backend mpi: {why}");
            Ok(None)
        }
    }
}

/// The backends among what `compare` compares; the others are files.
fn compared(arguments: &[String]) -> String {
    let known = ["shm", "mpi", "mpi-abi", "ucx", "nccl"];
    let named = arguments.iter().map(String::as_str).filter(|word| known.contains(word));
    named.collect::<Vec<_>>().join(",")
}

/// A backend that computes wrong results is not worth measuring.
fn check(program: &Path, backends: &str) -> Result<(), Box<dyn std::error::Error>> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for backend in backends.split(',').filter(|name| !name.is_empty()) {
        // With more ranks than processors some MPIs take milliseconds for a call.
        let (ranks, mode) = match backend {
            "mpi" | "mpi-abi" if cpus < 4 => ("2", "mpirun"),
            "mpi" | "mpi-abi" => ("2,4", "mpirun"),
            _ => ("2,4", "processes"),
        };
        let words = ["conformance", "--backend", backend, "--ranks", ranks, "--mode", mode];
        eprintln!("# checking {backend}: rankwise {}", words.join(" "));
        let found = Command::new(program)
            .args(words)
            .output()
            .map_err(|error| format!("{} does not start: {error}", program.display()))?;
        let text = String::from_utf8_lossy(&found.stdout);
        if !found.status.success() {
            eprint!("{text}{}", String::from_utf8_lossy(&found.stderr));
            return Err(
                format!("{backend} does not pass the conformance suite (above), so nothing was measured").into()
            );
        }
        let summary = text.lines().rfind(|line| line.contains(" passed"));
        eprintln!("# {}", summary.unwrap_or("nothing was checked"));
    }
    Ok(())
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
        assert_eq!(backends(&words("--op barrier")), None);
        assert_eq!(backends(&words("--backend mpi,shm --ranks 2")), Some("mpi,shm"));
        assert_eq!(backends(&words("--backend=ucx --backend")), Some("ucx"));
        assert_eq!(compared(&words("compare shm mpi --op barrier old.jsonl")), "shm,mpi");
        assert!(names("shm,mpi", "mpi") && !names("shm,mpi-abi", "mpi"));
    }
}
