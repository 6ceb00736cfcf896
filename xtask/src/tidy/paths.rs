//! Nothing that is committed may name a place of the machine it was written on.

use super::{Findings, Tree};
use crate::scan;

/// Directories that exist on one person's machine only, or whose content does.
const PRIVATE: &[&str] =
    &["/home/", "/Users/", concat!("/ro", "ot/"), concat!("/wo", "rk/"), "/workspace/", "/mnt/", "/tmp/"];

/// Places that may name such a path, with the reason.
const MAY_NAME: &[(&str, &str)] = &[("xtask/src/tidy/paths.rs", "this list and its tests")];

/// Extensions of files that are data, where a path is no instruction to anybody.
const DATA: &[&str] = &[".json", ".csv", ".svg", ".lock"];

pub(super) fn check(tree: &Tree, findings: &mut Findings) {
    for file in &tree.files {
        let listed = MAY_NAME.iter().any(|(path, _)| file.path == *path);
        if listed || DATA.iter().any(|extension| file.path.ends_with(extension)) {
            continue;
        }
        for (line, text) in scan::numbered(&file.text) {
            if let Some(path) = PRIVATE.iter().find_map(|directory| private_path(text, directory)) {
                findings.errors.push(format!("{}:{line}: names `{path}`, a place of one machine", file.path));
            }
        }
    }
}

/// The path below `directory` that `text` names, if any. The directory alone (`/tmp/` followed by nothing) is none,
/// and neither is one that is only a part of another path, such as `target/tmp/x` or a web address.
fn private_path<'a>(text: &'a str, directory: &str) -> Option<&'a str> {
    text.match_indices(directory).find_map(|(at, _)| {
        let part_of_path = |c: char| c.is_alphanumeric() || "_-./}~*$".contains(c);
        let rest = &text[at..];
        let length = rest.find(|c: char| c.is_whitespace() || "\"'`()<>,;".contains(c)).unwrap_or(rest.len());
        (!text[..at].ends_with(part_of_path) && length > directory.len()).then_some(&rest[..length])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_one_machine_are_found() {
        assert_eq!(private_path("run \"/home/me/x\" now", "/home/"), Some("/home/me/x"));
        assert_eq!(private_path("(see /tmp/log.txt)", "/tmp/"), Some("/tmp/log.txt"));
        for harmless in ["ls /tmp/", "/tmp", "target/tmp/x", "https://example.org/work/x", "${out}/tmp/x", "a `/tmp/`."]
        {
            assert_eq!(PRIVATE.iter().find_map(|directory| private_path(harmless, directory)), None, "{harmless}");
        }
    }

    #[test]
    fn data_and_listed_files_are_left_alone() {
        let errors = |path| super::super::findings(check, &[(path, "x = /home/a\n")], Vec::new()).errors.len();
        assert_eq!(errors("docs/a.md"), 1);
        assert_eq!(errors("docs/benchmarks/a.json"), 0);
        assert_eq!(errors("xtask/src/tidy/paths.rs"), 0);
    }
}
