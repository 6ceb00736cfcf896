//! `cargo xtask conformance`, and building and running the `rankwise` binary.

use crate::mpi::{self, Mpi};
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
    let arguments = if arguments.is_empty() { &default } else { arguments };
    let mut arguments = arguments.to_vec();
    let wanted = backends(&arguments).unwrap_or_default().to_string();
    let mpi =
        if names(&wanted, "mpi") { Some(mpi::find().map_err(|why| format!("backend mpi: {why}"))?) } else { None };
    let over_mpi = |name: &str| name == "mpi" || name == "mpi-abi";
    if !wanted.is_empty() && wanted.split(',').all(over_mpi) && value(&arguments, "--mode").is_none() {
        arguments.push("--mode=mpirun".into());
    }
    let program = build_rankwise(build, mpi.as_ref())?;
    let status = Command::new(&program)
        .arg("conformance")
        .args(&arguments)
        .status()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    Ok(exit_code(status))
}

/// The value of an option, the last one.
pub(crate) fn value<'a>(arguments: &'a [String], option: &str) -> Option<&'a str> {
    let mut found = None;
    for (i, argument) in arguments.iter().enumerate() {
        match argument.strip_prefix(option) {
            Some("") => found = arguments.get(i + 1).map(String::as_str).or(found),
            Some(rest) => found = rest.strip_prefix('=').or(found),
            None => {}
        }
    }
    found
}

/// The value of `--backend`.
pub(crate) fn backends(arguments: &[String]) -> Option<&str> {
    value(arguments, "--backend")
}

/// Whether a list of backends has this one.
pub(crate) fn names(list: &str, backend: &str) -> bool {
    list.split(',').any(|name| name == backend)
}

/// Builds the `rankwise` binary with cargo's `arguments` (such as `--release`), the backends that this machine
/// can serve, and this MPI if there is one; the answer is its path.
///
/// # Errors
/// When it does not build; cargo has then printed why.
pub(crate) fn build_rankwise(arguments: &[&str], mpi: Option<&Mpi>) -> Result<PathBuf, Box<dyn Error>> {
    let packages = metadata::workspace()?;
    let command_line = packages.iter().find(|package| package.name == "rankwise-cli");
    let command_line = command_line.ok_or("this workspace has no package rankwise-cli, which holds the binary")?;
    let mut features = machine::features(&command_line.features);
    let mut cargo = machine::cargo();
    let mut target = machine::target_directory();
    if let Some(mpi) = mpi {
        features.push("mpi");
        target = mpi.target.clone();
        cargo.env("MPICC", &mpi.wrapper).env("CARGO_TARGET_DIR", &target);
    }
    let features = features.join(",");
    let build = ["build", "--quiet", "--package", "rankwise-cli", "--features", &features];
    if !cargo.args(build).args(arguments).status()?.success() {
        return Err("the rankwise binary does not build, see above".into());
    }
    let profile = if arguments.contains(&"--release") { "release" } else { "debug" };
    Ok(target.join(profile).join(format!("rankwise{}", std::env::consts::EXE_SUFFIX)))
}

/// The exit code to end with after a program ended with `status`: its own, or 128 + signal as shells do.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(128u8.saturating_add(signal.unsigned_abs() as u8));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
