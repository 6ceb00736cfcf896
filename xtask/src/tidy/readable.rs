//! File length, names that say nothing, and notes to oneself that were left behind.

use super::{Findings, Tree};
use crate::scan;

/// Lines from which on a file is worth splitting, and from which on it must be.
const LONG: usize = 500;
const TOO_LONG: usize = 600;

/// Files that may be longer, with the reason.
const MAY_BE_LONG: &[(&str, &str)] = &[];

/// Extensions of what people read as code. Scripts without extension are found by their first line.
const CODE: &[&str] = &[".rs", ".py", ".c", ".h", ".sh"];

/// File, directory and module names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "manager", "managers", "misc", "stuff", "types"];

/// Endings of type names that say nothing about what the type is.
const EMPTY_ENDINGS: &[&str] = &["Manager", "Helper", "Helpers", "Util", "Utils", "Misc"];

/// Macros for code that is not there yet or that should have gone.
const UNFINISHED_MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

/// Words of comments that say the same.
const UNFINISHED_WORDS: &[&str] = &["FIXME", "TODO", "XXX", "HACK"];

pub(super) fn check(tree: &Tree, findings: &mut Findings) {
    for file in &tree.files {
        if CODE.iter().any(|extension| file.path.ends_with(extension)) || file.is_shell() {
            length(&file.path, file.text.lines().count(), findings);
        }
        let inside_code = ["crates/", "examples/", "xtask/", "ci/"].iter().any(|folder| file.path.starts_with(folder));
        if inside_code {
            let directories = file.path.split('/').rev().skip(1);
            for name in directories.chain([file.stem()]).filter(|name| EMPTY_NAMES.contains(name)) {
                findings.errors.push(format!("{}: the name `{name}` does not say what is inside", file.path));
            }
        }
    }
    for (file, halves) in tree.rust() {
        for (line, code) in scan::numbered(&halves.code) {
            unfinished_code(&file.path, line, code, findings);
            names(&file.path, line, code, findings);
        }
        for (line, comment) in scan::numbered(&halves.comments) {
            for word in UNFINISHED_WORDS.iter().filter(|word| scan::has_word(comment, word)) {
                findings.errors.push(format!("{}:{line}: {word} left behind: do it or file it", file.path));
            }
        }
    }
}

fn length(path: &str, lines: usize, findings: &mut Findings) {
    let reason = MAY_BE_LONG.iter().find(|(listed, _)| *listed == path);
    match reason {
        Some((_, reason)) => findings.notes.push(format!("{path} has {lines} lines: {reason}")),
        None if lines > TOO_LONG => {
            findings.errors.push(format!("{path} has {lines} lines, at most {TOO_LONG}: split it"))
        }
        None if lines > LONG => findings.warnings.push(format!("{path} has {lines} lines, aim under {LONG}")),
        None => {}
    }
}

fn unfinished_code(path: &str, line: usize, code: &str, findings: &mut Findings) {
    for name in UNFINISHED_MACROS {
        if scan::word_starts(code, name).any(|at| code[at + name.len()..].starts_with('!')) {
            findings.errors.push(format!("{path}:{line}: {name}! left behind"));
        }
    }
    let dense: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    if dense.contains("#[ignore]") || dense.contains("#[ignore=") || dense.contains(",ignore)]") {
        findings.errors.push(format!("{path}:{line}: an ignored test: run it, or let it print why it skips itself"));
    }
}

fn names(path: &str, line: usize, code: &str, findings: &mut Findings) {
    let words: Vec<&str> =
        code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        let (keyword, name) = (pair[0], pair[1]);
        let empty = match keyword {
            "mod" => EMPTY_NAMES.contains(&name),
            "struct" | "enum" | "trait" | "type" | "union" => EMPTY_ENDINGS.iter().any(|ending| name.ends_with(ending)),
            _ => false,
        };
        if empty {
            findings.errors.push(format!("{path}:{line}: `{keyword} {name}`: the name does not say what it is"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> Vec<String> {
        super::super::findings(check, &[(path, text)], Vec::new()).errors
    }

    #[test]
    fn unfinished_code_is_found_outside_strings_only() {
        assert_eq!(errors("crates/a/src/lib.rs", "fn f() { todo!() }\n#[ignore]\n// FIXME: later\n").len(), 3);
        assert_eq!(errors("crates/a/src/lib.rs", "let x = \"todo!() FIXME #[ignore]\"; // not todo!\n").len(), 0);
        assert_eq!(errors("crates/a/tests/t.rs", "#[ignore = \"slow\"]\nfn t() {}\n").len(), 1);
    }

    #[test]
    fn empty_names_are_found() {
        assert_eq!(errors("crates/a/src/utils.rs", "").len(), 1);
        assert_eq!(errors("crates/a/tests/common/mod.rs", "").len(), 1);
        assert_eq!(errors("crates/a/src/lib.rs", "pub mod misc {}\nstruct RankManager;\n").len(), 2);
        assert_eq!(errors("crates/a/src/lib.rs", "fn common_prefix() {}\nstruct Managed;\n").len(), 0);
    }

    #[test]
    fn length_warns_before_it_fails() {
        let lines = |count| "x\n".repeat(count);
        assert_eq!(errors("crates/a/src/lib.rs", &lines(TOO_LONG)).len(), 0);
        assert_eq!(errors("crates/a/src/lib.rs", &lines(TOO_LONG + 1)).len(), 1);
        let files = [("crates/a/src/lib.rs", lines(LONG + 1))];
        let findings = super::super::findings(check, &[(files[0].0, &files[0].1)], Vec::new());
        assert_eq!(findings.warnings.len(), 1);
        assert_eq!(errors("docs/long.md", &lines(2000)).len(), 0);
    }
}
