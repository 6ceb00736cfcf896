//! Tells the command which commit it is built from, for the header of benchmark results.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Another repository around an unpacked release is not ours.
    let ours = git(&root, &["rev-parse", "--show-toplevel"])
        .is_some_and(|top| PathBuf::from(top).canonicalize().ok() == root.canonicalize().ok());
    if !ours {
        return;
    }
    for file in ["HEAD", "logs/HEAD"] {
        // Relative to the root, if it is relative. A path that is missing would build this anew each time.
        let path = git(&root, &["rev-parse", "--git-path", file]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    if let Some(hash) = git(&root, &["rev-parse", "HEAD"]) {
        println!("cargo::rustc-env=RANKWISE_GIT_HASH={hash}");
    }
}

/// What git says; nothing where there is no git or no repository.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string()).filter(|text| !text.is_empty())
}
