//! The commands of the documentation are checked or say why not, and the scripts of `ci/` are the steps of the test.

use super::{Findings, Tree};
use crate::{readme, steps};

/// Fences that hide a command from the check.
const OTHER_SHELLS: &[&str] = &["bash", "shell", "console", "zsh", "shell-session"];

pub(super) fn check(tree: &Tree, findings: &mut Findings) {
    let mut run = 0;
    for file in tree.files.iter().filter(|file| readme::is_checked(&file.path)) {
        for block in readme::blocks(&file.text) {
            if OTHER_SHELLS.contains(&block.language.as_str()) {
                findings.errors.push(format!(
                    "{}:{}: commands stand in ```sh fences, which are run; output stands in ```text",
                    file.path, block.line
                ));
            }
            if block.language != "sh" {
                continue;
            }
            if !block.closed {
                findings.errors.push(format!("{}:{}: the fence is not closed", file.path, block.line));
            }
            for command in &block.commands {
                match &command.marker {
                    Some(why) => {
                        findings.notes.push(format!(
                            "{}:{}: not run ({why}): {}",
                            file.path,
                            command.line,
                            command.text.trim()
                        ));
                    }
                    None => run += 1,
                }
            }
        }
    }
    findings.notes.push(format!("{run} lines of commands are run by ci/readme"));
    scripts(tree, findings);
}

fn scripts(tree: &Tree, findings: &mut Findings) {
    for step in steps::STEPS {
        let path = format!("ci/{}", step.name);
        match tree.file(&path) {
            None => findings.errors.push(format!("{path} is missing: it is a step of `cargo xtask test`")),
            Some(file) if !file.text.contains("set -euo pipefail") => {
                findings.errors.push(format!("{path}: lacks `set -euo pipefail`, so that it could fail unseen"));
            }
            Some(_) => {}
        }
    }
    let named = |path: &str| steps::STEPS.iter().any(|step| format!("ci/{}", step.name) == path);
    for file in tree.files.iter().filter(|file| file.path.starts_with("ci/") && file.is_shell() && !named(&file.path)) {
        findings.errors.push(format!("{}: no step of `cargo xtask test` runs it", file.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Findings {
        let scripts: Vec<(String, &str)> =
            steps::STEPS.iter().map(|step| (format!("ci/{}", step.name), "#!/bin/bash\nset -euo pipefail\n")).collect();
        let mut all: Vec<(&str, &str)> = scripts.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        all.retain(|(path, _)| !files.iter().any(|(own, _)| own == path));
        all.extend(files);
        super::super::findings(check, &all, Vec::new())
    }

    #[test]
    fn commands_run_or_say_why_not() {
        let found = findings(&[("docs/a.md", "```sh\ncargo build\nssh b  # needs two hosts\n```\n")]);
        assert_eq!(found.errors, [] as [&str; 0]);
        assert_eq!(
            found.notes,
            [
                "docs/a.md:3: not run (needs two hosts): ssh b  # needs two hosts",
                "1 lines of commands are run by ci/readme"
            ]
        );
    }

    #[test]
    fn hidden_commands_and_open_fences_fail() {
        assert_eq!(findings(&[("README.md", "```console\n$ cargo build\n```\n")]).errors.len(), 1);
        assert_eq!(findings(&[("README.md", "```sh\ncargo build\n")]).errors.len(), 1);
    }

    #[test]
    fn scripts_and_steps_belong_together() {
        assert_eq!(findings(&[("ci/extra", "#!/bin/bash\nset -euo pipefail\n")]).errors.len(), 1);
        assert_eq!(findings(&[("ci/fmt", "#!/bin/bash\ncargo fmt | cat\n")]).errors.len(), 1);
        assert_eq!(super::super::findings(check, &[], Vec::new()).errors.len(), steps::STEPS.len());
    }
}
