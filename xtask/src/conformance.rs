//! `cargo xtask conformance`, and building and running the `rankwise` binary.

use crate::{Outcome, machine, metadata};
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

/// Builds the `rankwise` binary with what this machine can serve and passes `arguments` on to `rankwise conformance`.
/// Without arguments: shared memory, small worlds, both modes.
///
/// The default build is the one of the tests, with overflow checks and debug assertions: an optimised one is built for
/// longer than it saves (two cores: worlds of 2 and 4 ranks take 41 s instead of 35 s, its build takes 77 s). `--release`
/// as the first argument asks for it nevertheless.
pub(crate) fn conformance(arguments: &[String]) -> Outcome {
    let (build, arguments): (&[&str], _) = match arguments.split_first() {
        Some((first, rest)) if first == "--release" => (&["--release"], rest),
        _ => (&[], arguments),
    };
    let default = ["--backend", "shm", "--ranks", "1,2,3,4"].map(String::from);
    run_rankwise("conformance", build, if arguments.is_empty() { &default } else { arguments })
}

/// Builds as [`build_rankwise`] does, then runs `rankwise SUBCOMMAND ARGUMENTS` to its end and ends as it ended.
pub(crate) fn run_rankwise(subcommand: &str, build: &[&str], arguments: &[String]) -> Outcome {
    let program = build_rankwise(build)?;
    let status = Command::new(&program)
        .arg(subcommand)
        .args(arguments)
        .status()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    Ok(exit_code(status))
}

/// Builds the `rankwise` binary with cargo's `arguments` (such as `--release`) and the backends that this machine
/// can serve; the answer is its path.
///
/// # Errors
/// When it does not build; cargo has then printed why.
pub(crate) fn build_rankwise(arguments: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    let packages = metadata::workspace()?;
    let command_line = packages.iter().find(|package| package.name == "rankwise-cli");
    let command_line = command_line.ok_or("this workspace has no package rankwise-cli, which holds the binary")?;
    let features = machine::features(&command_line.features).join(",");
    let status = machine::cargo()
        .args(["build", "--quiet", "--package", "rankwise-cli", "--features", &features])
        .args(arguments)
        .status()?;
    if !status.success() {
        return Err("the rankwise binary does not build, see above".into());
    }
    let profile = if arguments.contains(&"--release") { "release" } else { "debug" };
    Ok(machine::target_directory().join(profile).join(format!("rankwise{}", std::env::consts::EXE_SUFFIX)))
}

/// The exit code to end with after a program ended with `status`: its own, or 128 + signal as shells do.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(128u8.saturating_add(signal.unsigned_abs() as u8));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
