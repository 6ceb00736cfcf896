//! `cargo xtask test`: every step, a table, and one line that says how it went.

use crate::steps::{self, Report, STEPS, Step, Verdict};
use crate::{Outcome, machine};
use std::process::ExitCode;
use std::time::Instant;

/// Runs the steps, all of them also after one failed.
pub(crate) fn test(arguments: &[String]) -> Outcome {
    if arguments == ["--list"] {
        STEPS.iter().for_each(|step| println!("{:<12} {}", step.name, step.checks));
        return Ok(ExitCode::SUCCESS);
    }
    let selection = Selection::parse(arguments)?;
    let start = Instant::now();
    println!("rankwise: all checks, in {}", machine::root().display());
    let mut rows = Vec::new();
    for step in STEPS {
        let report = match selection.leaves_out(step.name) {
            Some(why) => Report { verdict: Verdict::Skipped, why: String::new(), seconds: 0, left_out: vec![why] },
            None => {
                println!("\n==== {}: {}", step.name, step.checks);
                steps::run(step)
            }
        };
        rows.push((step, report));
    }
    print!("\n{}", table(&rows, start.elapsed().as_secs()));
    let failed = rows.iter().any(|(_, report)| report.verdict == Verdict::Failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Which steps the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Selection {
    only: Option<Vec<String>>,
    skip: Vec<String>,
}

impl Selection {
    fn parse(arguments: &[String]) -> Result<Selection, String> {
        let mut selection = Selection::default();
        let mut arguments = arguments.iter();
        while let Some(option) = arguments.next() {
            let names =
                arguments.next().ok_or_else(|| format!("`{option}` is no option, or lacks its list of steps"))?;
            let names: Vec<String> = names.split(',').map(String::from).collect();
            if let Some(unknown) = names.iter().find(|name| !STEPS.iter().any(|step| step.name == **name)) {
                return Err(format!("there is no step `{unknown}`; `cargo xtask test --list` shows them"));
            }
            match option.as_str() {
                "--only" => selection.only.get_or_insert_default().extend(names),
                "--skip" => selection.skip.extend(names),
                _ => return Err(format!("`{option}` is no option: --list, --only STEP,.. or --skip STEP,..")),
            }
        }
        Ok(selection)
    }

    /// Why a step is not asked for, if it is not.
    fn leaves_out(&self, name: &str) -> Option<String> {
        let listed = |names: &[String]| names.iter().any(|listed| listed == name);
        if listed(&self.skip) {
            return Some("left out by --skip".to_string());
        }
        self.only.as_deref().is_some_and(|only| !listed(only)).then(|| "left out by --only".to_string())
    }
}

fn table(rows: &[(&Step, Report)], seconds: u64) -> String {
    let mut text = String::new();
    let count = |verdict| rows.iter().filter(|(_, report)| report.verdict == verdict).count();
    for (step, report) in rows {
        let verdict = match report.verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        };
        text += &format!("{:<12} {verdict:<8} {:>5} s  {}\n", step.name, report.seconds, report.why);
    }
    text += &format!("{:<12} {:<8} {seconds:>5} s\n", "all", "");
    if rows.iter().any(|(_, report)| !report.left_out.is_empty()) {
        text += "\nnot run, and why:\n";
    }
    for (step, report) in rows {
        report.left_out.iter().for_each(|what| text += &format!("  {}: {what}\n", step.name));
    }
    text + &format!(
        "\n{} passed, {} failed, {} skipped\n",
        count(Verdict::Passed),
        count(Verdict::Failed),
        count(Verdict::Skipped)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Selection, String> {
        Selection::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn selections_are_checked() {
        assert_eq!(parse(""), Ok(Selection::default()));
        let only = parse("--only fmt,tidy --skip tidy").expect("both are steps");
        assert_eq!(only.leaves_out("fmt"), None);
        assert_eq!(only.leaves_out("tidy").as_deref(), Some("left out by --skip"));
        assert_eq!(only.leaves_out("loom").as_deref(), Some("left out by --only"));
        for bad in ["--only", "--only nonsense", "--fast fmt", "fmt"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_line_counts_the_steps() {
        let report = |verdict, left_out: &[&str]| Report {
            verdict,
            why: String::new(),
            seconds: 7,
            left_out: left_out.iter().map(|what| what.to_string()).collect(),
        };
        let rows = [
            (&STEPS[0], report(Verdict::Passed, &["avx512: this processor does not have it"])),
            (&STEPS[1], report(Verdict::Failed, &[])),
            (&STEPS[2], report(Verdict::Skipped, &["all of it: no clippy"])),
        ];
        let text = table(&rows, 21);
        assert_eq!(text.lines().last(), Some("1 passed, 1 failed, 1 skipped"));
        assert!(text.contains("avx512: this processor"), "{text}");
    }
}
