//! Where `unsafe` may stand, how much of it there is, and that each use says what it relies on.
//!
//! The lint `undocumented_unsafe_blocks` is exact and needs clippy; the check here is coarse and always runs.

use super::{Findings, Tree};
use crate::scan::{self, Halves};

/// Crates (by directory) and single files that may contain `unsafe`, with the reason.
const MAY_BE_UNSAFE: &[(&str, &str)] = &[
    ("crates/core/", "lent buffers, erased types, and the unsafe interface that backends implement"),
    ("crates/reduce/", "SIMD kernels over raw bytes"),
    ("crates/schedule/src/transport.rs", "memory lent to a transport"),
    ("crates/schedule/src/memory.rs", "the caller's buffers and scratch, as regions"),
    ("crates/schedule/src/operation.rs", "lends memory to a transport"),
    ("crates/schedule/src/executor.rs", "takes buffers as raw parts"),
    ("crates/schedule/src/loopback.rs", "a transport"),
    ("crates/schedule/src/sim/", "a transport, its memory, and calls with real data"),
    ("crates/schedule/tests/", "buffers given as raw parts"),
    ("crates/world/", "record locks, forks, inherited descriptors and signals"),
    ("crates/shm/", "memory shared between processes"),
    ("crates/mpi/", "a foreign library"),
    ("crates/ucx/", "a foreign library"),
    ("crates/ucx-sys/", "bindings"),
    ("crates/nccl/", "a foreign library"),
    ("crates/nccl-sys/", "bindings"),
    ("crates/emu-cuda/", "a C interface"),
    ("crates/emu-nccl/", "a C interface"),
    ("crates/cli/src/bench/", "the page of clocks that the ranks of a benchmark share"),
    ("examples/own-backend/", "a whole backend, for docs/adding-a-backend.md"),
    ("crates/conformance/", "broken backends behind the unsafe interface, and buffers given as raw parts"),
];

/// Programs that show what the compiler refuses.
const MUST_NOT_COMPILE: &[&str] = &["/tests/compile_fail/"];

/// Lines above an `unsafe` among which its reason must stand.
const REACH: usize = 12;

/// What follows the word `unsafe`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Block,
    Implementation,
    /// `unsafe fn`, `unsafe trait`, `unsafe extern`, `#[unsafe(...)]`: an obligation stated, not discharged.
    Declaration,
}

pub(super) fn check(tree: &Tree, findings: &mut Findings) {
    let mut counts: Vec<(String, usize, usize)> = Vec::new();
    for (file, halves) in tree.rust() {
        let uses = uses(&halves.code);
        if uses.is_empty() || MUST_NOT_COMPILE.iter().any(|place| file.path.contains(place)) {
            continue;
        }
        if !MAY_BE_UNSAFE.iter().any(|(place, _)| file.path.starts_with(place)) {
            findings
                .errors
                .push(format!("{}: unsafe outside the places xtask/src/tidy/unsafe_code.rs lists", file.path));
        }
        for line in uses.iter().filter(|(_, what)| *what != Use::Declaration).map(|(line, _)| *line) {
            if !has_reason(halves, line) {
                findings.errors.push(format!("{}:{line}: unsafe without a SAFETY comment above it", file.path));
            }
        }
        let group: String = file.path.split('/').take(3).collect::<Vec<_>>().join("/");
        let count = |wanted| uses.iter().filter(|(_, what)| *what == wanted).count();
        let row = (group, count(Use::Block), count(Use::Implementation));
        match counts.iter_mut().find(|(group, ..)| *group == row.0) {
            Some((_, blocks, implementations)) => {
                (*blocks, *implementations) = (*blocks + row.1, *implementations + row.2)
            }
            None => counts.push(row),
        }
    }
    for (group, blocks, implementations) in &counts {
        findings.notes.push(format!("{group}: {blocks} unsafe blocks, {implementations} unsafe impls"));
    }
    let total: usize = counts.iter().map(|(_, blocks, _)| blocks).sum();
    findings.notes.push(format!("{total} unsafe blocks in all"));
    forbidding(tree, findings);
    for (file, halves) in tree.rust() {
        let dense: String = halves.code.chars().filter(|c| !c.is_whitespace()).collect();
        if ["allow(clippy::undocumented_unsafe_blocks", "expect(clippy::undocumented_unsafe_blocks"]
            .iter()
            .any(|switch| dense.contains(switch))
        {
            findings.errors.push(format!("{}: switches off the lint that wants SAFETY comments", file.path));
        }
    }
}

/// A library or binary without any unsafe says so in its root, so that it stays that way.
fn forbidding(tree: &Tree, findings: &mut Findings) {
    for root in tree.packages.iter().flat_map(|package| &package.roots) {
        let directory = &root[..root.rfind('/').map_or(0, |at| at + 1)];
        let uses_unsafe =
            tree.rust().any(|(file, halves)| file.path.starts_with(directory) && !uses(&halves.code).is_empty());
        let forbids = tree.file(root).and_then(|file| file.rust.as_ref()).is_some_and(|halves| {
            halves.code.contains("#![forbid(unsafe_code)]") || halves.code.contains("#![deny(unsafe_code)]")
        });
        if !uses_unsafe && !forbids {
            findings.errors.push(format!("{root}: uses no unsafe: say #![forbid(unsafe_code)]"));
        }
    }
}

fn uses(code: &str) -> Vec<(usize, Use)> {
    let mut uses = Vec::new();
    for at in scan::word_starts(code, "unsafe") {
        let line = code[..at].matches('\n').count() + 1;
        let next = code[at + "unsafe".len()..].trim_start();
        let what = if next.starts_with('{') {
            Use::Block
        } else if next.starts_with("impl") {
            Use::Implementation
        } else {
            Use::Declaration
        };
        uses.push((line, what));
    }
    uses
}

fn has_reason(halves: &Halves, line: usize) -> bool {
    let first = line.saturating_sub(REACH + 1);
    halves.comments.lines().skip(first).take(line - first).any(|comment| comment.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    fn check_files(files: &[(&str, &str)]) -> Findings {
        super::super::findings(check, files, Vec::new())
    }

    #[test]
    fn unsafe_needs_a_place_and_a_reason() {
        let good = "// SAFETY: the pointer is valid\nlet x = unsafe { *p };\n";
        assert_eq!(check_files(&[("crates/shm/src/a.rs", good)]).errors.len(), 0);
        assert_eq!(check_files(&[("crates/rankwise/src/a.rs", good)]).errors.len(), 1);
        assert_eq!(check_files(&[("crates/shm/src/a.rs", "unsafe impl Send for X {}\n")]).errors.len(), 1);
        assert_eq!(
            check_files(&[("crates/shm/src/a.rs", "/// # Safety\n/// Valid.\nunsafe fn f() {}\n")]).errors.len(),
            0
        );
        let far = format!("// SAFETY: far\n{}unsafe {{ f() }}\n", "\n".repeat(REACH + 2));
        assert_eq!(check_files(&[("crates/shm/src/a.rs", &far)]).errors.len(), 1);
    }

    #[test]
    fn blocks_are_counted() {
        let notes =
            check_files(&[("crates/shm/src/a.rs", "// SAFETY: a\nunsafe { f() };\n// unsafe { }\n\"unsafe {\";\n")])
                .notes;
        assert_eq!(notes.last().map(String::as_str), Some("1 unsafe blocks in all"));
    }

    #[test]
    fn a_crate_without_unsafe_forbids_it() {
        let package = Package {
            name: "rankwise-a".into(),
            directory: "a".into(),
            features: Vec::new(),
            roots: vec!["crates/a/src/lib.rs".into()],
            dependencies: Vec::new(),
            closure: Default::default(),
        };
        let errors =
            |text| super::super::findings(check, &[("crates/a/src/lib.rs", text)], vec![package.clone()]).errors;
        assert_eq!(errors("//! A.\n").len(), 1);
        assert_eq!(errors("//! A.\n#![forbid(unsafe_code)]\n").len(), 0);
    }
}
