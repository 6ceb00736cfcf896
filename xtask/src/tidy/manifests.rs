//! Every crate inherits the workspace's lints and facts, and the licences are there.

use super::{File, Findings, Tree};

/// Lines each manifest must have, and why.
const INHERITED: &[(&str, &str)] = &[
    ("[lints]\nworkspace = true", "or the workspace's lints do not apply to it"),
    ("edition.workspace = true", "one edition for all"),
    ("rust-version.workspace = true", "one oldest compiler for all"),
    ("license.workspace = true", "one licence for all"),
    ("version.workspace = true", "crates are released together"),
];

/// Packages for people to copy, which therefore inherit nothing.
const COPIED: &[&str] = &["own-backend"];

/// Lints the workspace must deny, whatever else it does.
const DENIED: &[&str] = &["undocumented_unsafe_blocks = \"deny\"", "unsafe_op_in_unsafe_fn = \"deny\""];

/// Files the root must have, with a text that shows they are what they say.
const ROOT_FILES: &[(&str, &str)] = &[
    ("LICENSE-MIT", "Permission is hereby granted"),
    ("LICENSE-APACHE", "Apache License"),
    ("README.md", "cargo xtask test"),
    ("ARCHITECTURE.md", "#"),
    ("CONTRIBUTING.md", "cargo xtask test"),
    ("SECURITY.md", "#"),
    ("CHANGELOG.md", "Unreleased"),
    (".ci/run", "cargo xtask test"),
];

pub(super) fn check(tree: &Tree, findings: &mut Findings) {
    for package in tree.packages.iter().filter(|package| !COPIED.contains(&package.directory.as_str())) {
        let manifest = tree.files.iter().find(|file| is_manifest_of(file, &package.directory));
        let Some(manifest) = manifest else {
            findings.errors.push(format!("crate {} has no manifest that git tracks", package.directory));
            continue;
        };
        for (line, why) in INHERITED.iter().filter(|(line, _)| !manifest.text.contains(line)) {
            findings.errors.push(format!("{} lacks `{}`: {why}", manifest.path, line.replace('\n', " ")));
        }
    }
    if let Some(root) = tree.file("Cargo.toml") {
        for lint in DENIED.iter().filter(|lint| !root.text.contains(**lint)) {
            findings.errors.push(format!("Cargo.toml: [workspace.lints] lacks `{lint}`"));
        }
    }
    for (path, content) in ROOT_FILES {
        match tree.file(path) {
            None => findings.errors.push(format!("{path} is missing")),
            Some(file) if !file.text.contains(content) => {
                findings.errors.push(format!("{path} does not contain `{content}`"));
            }
            Some(_) => {}
        }
    }
}

fn is_manifest_of(file: &File, directory: &str) -> bool {
    file.path == format!("crates/{directory}/Cargo.toml") || file.path == format!("{directory}/Cargo.toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    const MANIFEST: &str = "version.workspace = true\nedition.workspace = true\nrust-version.workspace = true\n\
                            license.workspace = true\n\n[lints]\nworkspace = true\n";
    const ROOT: &str = "undocumented_unsafe_blocks = \"deny\"\nunsafe_op_in_unsafe_fn = \"deny\"\n";

    fn errors(manifest: &str, root: &str, changelog: &str) -> Vec<String> {
        let package = Package {
            name: "rankwise-a".into(),
            directory: "a".into(),
            features: Vec::new(),
            roots: Vec::new(),
            dependencies: Vec::new(),
            closure: Default::default(),
        };
        let mut files: Vec<(&str, &str)> = ROOT_FILES.to_vec();
        files.retain(|(path, _)| *path != "CHANGELOG.md");
        files.extend([("crates/a/Cargo.toml", manifest), ("Cargo.toml", root), ("CHANGELOG.md", changelog)]);
        super::super::findings(check, &files, vec![package]).errors
    }

    #[test]
    fn a_crate_inherits_or_is_named() {
        assert_eq!(errors(MANIFEST, ROOT, "## Unreleased"), [] as [&str; 0]);
        let own_lints = MANIFEST.replace("[lints]\nworkspace = true", "[lints.rust]");
        assert!(errors(&own_lints, ROOT, "## Unreleased")[0].contains("lints"));
        assert!(
            errors(&MANIFEST.replace("license.workspace = true", ""), ROOT, "## Unreleased")[0].contains("license")
        );
    }

    #[test]
    fn the_workspace_keeps_its_lints_and_files() {
        assert_eq!(errors(MANIFEST, "", "## Unreleased").len(), DENIED.len());
        assert_eq!(errors(MANIFEST, ROOT, "## 1.0"), ["CHANGELOG.md does not contain `Unreleased`"]);
    }
}
