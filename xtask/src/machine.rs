//! What this machine can build and run: the checkout's root, cargo, and the backends worth compiling in.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Root of the checkout this xtask was built from.
pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The cargo that started this task, at the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Where cargo puts what it builds for this workspace.
pub(crate) fn target_directory() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |named| root().join(named))
}

/// True when a program of that name is on PATH.
pub(crate) fn has_program(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|directory| directory.join(name).is_file()))
}

/// A backend feature of the `rankwise` binary beyond the default ones, and what building it takes.
struct OptionalBackend {
    feature: &'static str,
    /// Programs its build needs on PATH. Libraries that are loaded at run time need none.
    build_needs: &'static [&'static str],
}

const OPTIONAL_BACKENDS: &[OptionalBackend] = &[
    OptionalBackend { feature: "mpi-abi", build_needs: &[] },
    OptionalBackend { feature: "ucx", build_needs: &[] },
    OptionalBackend { feature: "nccl", build_needs: &[] },
];

/// Features of the `rankwise` binary to build with on this machine, out of those it `has`. What is left out is
/// printed with the reason.
pub(crate) fn features(has: &[String]) -> Vec<&'static str> {
    let mut features = Vec::new();
    for backend in OPTIONAL_BACKENDS.iter().filter(|backend| has.iter().any(|name| name == backend.feature)) {
        match backend.build_needs.iter().find(|program| !has_program(program)) {
            None => features.push(backend.feature),
            Some(program) => println!("skipped: backend {}: its build needs {program}, not found", backend.feature),
        }
    }
    features
}
