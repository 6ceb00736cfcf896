//! `cargo xtask tidy`: what no compiler checks. Each check is a file of `tidy/`, a function from the tree to findings.

mod documents;
mod layering;
mod manifests;
mod paths;
mod readable;
mod unsafe_code;

use crate::metadata::Package;
use crate::{Outcome, machine, metadata, scan};
use std::error::Error;
use std::process::{Command, ExitCode};

/// What the checks look at.
struct Tree {
    files: Vec<File>,
    packages: Vec<Package>,
}

/// A file that git tracks or would add.
struct File {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
    /// Code and comments apart, for Rust source.
    rust: Option<scan::Halves>,
}

impl File {
    fn new(path: &str, text: String) -> File {
        let rust = path.ends_with(".rs").then(|| scan::halves(&text));
        File { path: path.to_string(), text, rust }
    }

    /// Name without directory and without extension.
    fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.split('.').next().unwrap_or(name)
    }

    /// True for a shell script, which may have no extension.
    fn is_shell(&self) -> bool {
        self.path.ends_with(".sh")
            || self.text.lines().next().is_some_and(|line| line.starts_with("#!") && line.ends_with("sh"))
    }
}

impl Tree {
    fn rust(&self) -> impl Iterator<Item = (&File, &scan::Halves)> {
        self.files.iter().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }

    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// What the checks say.
#[derive(Default)]
struct Findings {
    /// Make the run fail.
    errors: Vec<String>,
    /// Worth doing something about.
    warnings: Vec<String>,
    /// Facts that a reader of the log wants.
    notes: Vec<String>,
}

/// Looks at the tree and adds what it finds.
type Check = fn(&Tree, &mut Findings);

const CHECKS: &[(&str, Check)] = &[
    ("layering", layering::check),
    ("manifests", manifests::check),
    ("readable", readable::check),
    ("unsafe", unsafe_code::check),
    ("paths", paths::check),
    ("documents", documents::check),
];

/// Runs every check over the files of the checkout.
pub(crate) fn tidy(arguments: &[String]) -> Outcome {
    if let Some(unknown) = arguments.first() {
        return Err(format!("tidy takes no arguments, got `{unknown}`").into());
    }
    let tree = Tree { files: files()?, packages: metadata::workspace()? };
    let mut failed = 0;
    for (name, check) in CHECKS {
        let mut findings = Findings::default();
        check(&tree, &mut findings);
        findings.notes.iter().for_each(|note| println!("{name}: {note}"));
        findings.warnings.iter().for_each(|warning| println!("{name}: warning: {warning}"));
        findings.errors.iter().for_each(|error| println!("{name}: error: {error}"));
        failed += findings.errors.len();
    }
    println!("tidy: {} files, {} packages, {failed} errors", tree.files.len(), tree.packages.len());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Text files that git tracks or would add; what is deleted in the working tree is left out.
fn files() -> Result<Vec<File>, Box<dyn Error>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(machine::root())
        .output()
        .map_err(|error| format!("git lists the files to check, and it does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("git lists the files to check: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let listed = String::from_utf8(output.stdout)?;
    let read = |path| Some(File::new(path, std::fs::read_to_string(machine::root().join(path)).ok()?));
    Ok(listed.split_terminator('\0').filter_map(read).collect())
}

/// A tree and findings for tests of one check.
#[cfg(test)]
fn findings(check: Check, files: &[(&str, &str)], packages: Vec<Package>) -> Findings {
    let files = files.iter().map(|(path, text)| File::new(path, text.to_string())).collect();
    let mut findings = Findings::default();
    check(&Tree { files, packages }, &mut findings);
    findings
}
