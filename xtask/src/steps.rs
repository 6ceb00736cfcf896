//! The steps of `cargo xtask test`, and running one: its output is shown and read, and it ends in time.
//!
//! A step is the script `ci/NAME`. It says what it leaves out with lines `skipped: WHAT: WHY`, and ends with the exit
//! code 77 when that is all of it.

use crate::machine;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A script of `ci/` and the longest it may take.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Generous: it stops a hang, it does not measure.
    pub(crate) minutes: u64,
    pub(crate) checks: &'static str,
}

pub(crate) const STEPS: &[Step] = &[
    Step { name: "install", minutes: 15, checks: "the system packages and tools the other steps use" },
    Step { name: "fmt", minutes: 2, checks: "formatting" },
    Step { name: "tidy", minutes: 5, checks: "layering, file length, unsafe, names, paths, documentation commands" },
    Step { name: "clippy", minutes: 15, checks: "clippy's lints, as errors" },
    Step { name: "docs", minutes: 15, checks: "documentation builds without a warning" },
    Step { name: "targets", minutes: 15, checks: "it compiles for the other platforms installed here" },
    Step { name: "tests", minutes: 20, checks: "unit, integration and documentation tests" },
    Step { name: "examples", minutes: 10, checks: "the examples, alone and as four ranks" },
    Step { name: "conformance", minutes: 20, checks: "the contract on every backend, mutants and drills" },
    Step { name: "own-backend", minutes: 10, checks: "the example of somebody's own backend keeps the contract" },
    Step { name: "loom", minutes: 15, checks: "models of the shared-memory protocol" },
    Step { name: "mpi", minutes: 25, checks: "the MPI backend with Open MPI and MPICH" },
    Step { name: "peers", minutes: 10, checks: "the programs that measure other libraries" },
    Step { name: "readme", minutes: 20, checks: "the commands of the documentation" },
];

/// Exit code of a script that could not check anything.
const SKIPPED: i32 = 77;

/// Environment variables that would make the ranks of the tests join a job that surrounds this one.
const JOB_VARIABLES: &[&str] =
    &["RANKWISE_", "OMPI_COMM_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_", "MASTER_"];
const JOB_VARIABLES_EXACT: &[&str] = &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// What running a step came to.
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    /// Why it failed; empty otherwise.
    pub(crate) why: String,
    pub(crate) seconds: u64,
    /// What the script said it left out, without the word `skipped`.
    pub(crate) left_out: Vec<String>,
}

/// Runs a step to its end, at most its minutes.
pub(crate) fn run(step: &Step) -> Report {
    let script = format!("ci/{}", step.name);
    if !machine::root().join(&script).is_file() {
        return Report {
            verdict: Verdict::Failed,
            why: format!("{script} is missing"),
            seconds: 0,
            left_out: Vec::new(),
        };
    }
    let mut command = Command::new("bash");
    command.arg(&script).current_dir(machine::root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if JOB_VARIABLES_EXACT.contains(&&*text) || JOB_VARIABLES.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    run_command(command, Duration::from_secs(60 * step.minutes), std::io::stdout())
}

/// Runs a command whose output is copied to `out`.
fn run_command(mut command: Command, limit: Duration, out: impl Write + Send + 'static) -> Report {
    let start = Instant::now();
    let report = |verdict, why: String, left_out| Report { verdict, why, seconds: start.elapsed().as_secs(), left_out };
    let started = std::io::pipe().and_then(|(reader, writer)| {
        let child = command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn()?;
        Ok((reader, child))
    });
    // The command holds the writing ends: only once it is gone does the reader see the end.
    drop(command);
    let (reader, mut child) = match started {
        Ok(started) => started,
        Err(error) => return report(Verdict::Failed, format!("it does not start: {error}"), Vec::new()),
    };
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || show(reader, out, &send));
    let status = wait(&mut child, start + limit);
    let mut left_out = Vec::new();
    let output_ended = loop {
        match receive.recv_timeout(Duration::from_secs(10)) {
            Ok(line) => left_out.push(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => break true,
            Err(mpsc::RecvTimeoutError::Timeout) => break false,
        }
    };
    match status.map(|status| (status, status.code())) {
        None => {
            report(Verdict::Failed, format!("stopped: still running after {} minutes", limit.as_secs() / 60), left_out)
        }
        Some(_) if !output_ended => {
            report(Verdict::Failed, "it left a process behind that still holds its output".to_string(), left_out)
        }
        Some((_, Some(0))) => report(Verdict::Passed, String::new(), left_out),
        Some((_, Some(SKIPPED))) => report(Verdict::Skipped, String::new(), left_out),
        Some((status, _)) => report(Verdict::Failed, status.to_string(), left_out),
    }
}

/// Copies the lines of `reader` to `out` and sends those that say what was left out.
fn show(reader: impl Read, mut out: impl Write, left_out: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        // A closed standard output must not stop the step.
        let _ = out.write_all(&line).and_then(|()| out.flush());
        if let Some(what) = String::from_utf8_lossy(&line).trim().strip_prefix("skipped: ") {
            let _ = left_out.send(what.to_string());
        }
        line.clear();
    }
}

/// Waits for a child until `deadline`, then kills it with all its descendants. None: it had to be killed.
pub(crate) fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) | Err(_) => break,
        }
    }
    let descendants = descendants(child.id());
    let _ = child.kill();
    if !descendants.is_empty() {
        // The shell's own kill: a small system need not have the program.
        let kill = ["-c", "kill -9 \"$@\"", "kill"];
        let _ = Command::new("bash").args(kill).args(descendants.iter().map(u32::to_string)).status();
    }
    let _ = child.wait();
    None
}

/// Processes below `parent`, from `/proc`; none where there is no such directory.
fn descendants(parent: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name in parentheses may contain anything; the parent is the second word after it.
        let above = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(above) = above {
            children.entry(above).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![parent];
    while let Some(next) = open.pop() {
        let below = children.remove(&next).unwrap_or_default();
        open.extend(&below);
        found.extend(below);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(script: &str, limit: Duration) -> Report {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        run_command(command, limit, std::io::sink())
    }

    #[test]
    fn exit_codes_become_verdicts() {
        let limit = Duration::from_secs(60);
        assert_eq!(bash("exit 0", limit).verdict, Verdict::Passed);
        assert_eq!(bash("exit 3", limit).verdict, Verdict::Failed);
        let skipped = bash("echo 'skipped: all: no compiler' >&2; exit 77", limit);
        assert_eq!((skipped.verdict, skipped.left_out), (Verdict::Skipped, vec!["all: no compiler".to_string()]));
    }

    #[test]
    fn a_hanging_step_ends_with_its_descendants() {
        let mark = format!("61{}", std::process::id());
        let report = bash(&format!("(sleep {mark}; true) & sleep {mark}; true"), Duration::from_secs(1));
        assert_eq!(report.verdict, Verdict::Failed);
        assert!(report.why.starts_with("stopped"), "{}", report.why);
        let command_line = format!("sleep\0{mark}\0");
        let left =
            std::fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| {
                std::fs::read_to_string(entry.path().join("cmdline")).is_ok_and(|line| line == command_line)
            });
        assert!(!left, "a descendant was left running");
    }

    #[test]
    fn a_process_left_behind_fails_the_step() {
        let report = bash("sleep 30 & exit 0", Duration::from_secs(60));
        assert_eq!(report.verdict, Verdict::Failed, "{}", report.why);
    }
}
