//! `rankwise conformance --mode mpirun`: the suite in jobs that the launcher of the backend's MPI starts.

use super::UNUSABLE;
use crate::mpirun::Mpirun;
use rankwise_world::launch::{Event, Interrupts, Launch, Output, Stream};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// How long one job may take.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Options that each job gets a value of its own for.
const REPLACED: [&str; 4] = ["--mode", "--ranks", "--seed", "--backend"];

/// Runs the suite on each backend with each number of ranks; 0 when all of it passed.
pub(super) fn run(backends: &[String], ranks: &[usize], seed: u64) -> ExitCode {
    let given: Vec<String> = std::env::args().skip(2).collect();
    let rest = without(&REPLACED, &given);
    let mut code = 0;
    for backend in backends {
        for &n in if ranks.is_empty() { &[1, 2][..] } else { ranks } {
            let fixed =
                ["conformance".into(), format!("--backend={backend}"), "--mode=outer".into(), format!("--seed={seed}")];
            let arguments: Vec<String> = fixed.into_iter().chain(rest.iter().cloned()).collect();
            match one_job(backend, n, &arguments) {
                Ok(0) => {}
                Ok(failed) if code == 0 => code = failed,
                Ok(_) => {}
                Err(message) => {
                    eprintln!("rankwise conformance: {message}");
                    return ExitCode::from(UNUSABLE);
                }
            }
        }
    }
    ExitCode::from(code)
}

/// The exit code: 0 when the suite says so, whatever the end of MPI says after communicators broke.
fn one_job(backend: &str, ranks: usize, arguments: &[String]) -> Result<u8, String> {
    let Some(mpirun) = Mpirun::of(backend)? else {
        return Err(format!("--mode mpirun is for backends over an MPI, and {backend} is none; leave it out"));
    };
    let program = std::env::current_exe().map_err(|error| format!("this program's path cannot be found: {error}"))?;
    let number = u32::try_from(ranks).map_err(|_| format!("{ranks} ranks are too many"))?;
    println!("-- {backend}, {ranks} ranks, started by {}", mpirun.name());
    let interrupts = Interrupts::catch().map_err(|error| error.message().to_string())?;
    let launch: Launch = mpirun.launch(number, &program, false, arguments);
    let job = launch.output(Output::Lines).timeout(PATIENCE).spawn_under(&interrupts);
    let (mut passed, mut judged) = (false, false);
    let job = job.map_err(|error| error.message().to_string())?;
    let handle = job.handle();
    let outcome = job.run(&mut |event| {
        let Event::Line { stream, text, .. } = event else { return };
        let text = String::from_utf8_lossy(&text);
        let written = match stream {
            Stream::Stderr => writeln!(io::stderr(), "{text}"),
            _ => writeln!(io::stdout(), "{text}"),
        };
        if written.is_err() {
            handle.kill_all();
        }
        if let Some(verdict) = verdict(&text) {
            (passed, judged) = (verdict, true);
        }
    });
    if let Some(signal) = outcome.interrupted {
        return Ok(128_u8.wrapping_add(signal as u8));
    }
    Ok(match (judged, passed) {
        (true, true) => 0,
        (true, false) => 1,
        // Also when it ended well: nothing was tested.
        (false, _) => {
            eprintln!("rankwise conformance: {} ended ({}) without a result", mpirun.name(), outcome.code());
            1
        }
    })
}

/// Whether everything passed, from a line that says how many cases did.
fn verdict(line: &str) -> Option<bool> {
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    match words[..] {
        [passed, "passed", failed, "failed", ..] => {
            let (passed, failed) = (passed.parse::<u64>().ok()?, failed.parse::<u64>().ok()?);
            Some(passed > 0 && failed == 0)
        }
        _ => None,
    }
}

/// The arguments without these options and their values.
fn without(options: &[&str], given: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = given.iter();
    while let Some(word) = words.next() {
        if options.contains(&word.as_str()) {
            words.next();
        } else if !options.iter().any(|option| word.strip_prefix(option).is_some_and(|rest| rest.starts_with('='))) {
            kept.push(word.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_get_the_other_options() {
        let given = ["--backend", "mpi", "--ranks=2,3", "--mode", "mpirun", "--case", "barrier", "--seed=7", "--full"];
        assert_eq!(without(&REPLACED, &given.map(String::from)), ["--case", "barrier", "--full"]);
    }

    #[test]
    fn the_summary_judges() {
        assert_eq!(verdict("31 passed, 0 failed, 2 skipped"), Some(true));
        assert_eq!(verdict("31 passed, 1 failed"), Some(false));
        assert_eq!(verdict("0 passed, 0 failed"), Some(false));
        assert_eq!(verdict("PASS barrier"), None);
    }
}
