//! Results and how they are printed.

use crate::areas::Areas;
use crate::ctx::SKIPPED;
use crate::junit::Junit;
use crate::plan::Mode;
use crate::runner::Options;
use rankwise_core::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Instant;

/// The result of one case in one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it must be, on all ranks.
    Pass,
    /// Not as it must be, on some rank.
    Fail,
    /// Not as it must be, and listed as a known deviation.
    Known,
    /// Not offered, and properly refused on all ranks.
    Unsupported,
    /// The case does not apply to this world.
    Inapplicable,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// Id of the case, mutant or drill.
    pub case: String,
    /// What it checks.
    pub title: String,
    /// The backend's name.
    pub backend: String,
    /// How the ranks were placed; none for what runs in several ways.
    pub mode: Option<Mode>,
    /// Number of ranks.
    pub ranks: usize,
    /// The result.
    pub result: Verdict,
    /// Why, when it did not pass.
    pub detail: String,
    /// Whether a call did something wrong on some rank, rather than end with an error, a panic or a hang.
    pub wrong_result: bool,
    /// The slowest rank's time.
    pub millis: u64,
}

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line: a `header`, one for every case, world and mode, and a `summary`.
    Json,
}

/// What a run found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Passed cases, counted per backend, mode and world.
    pub passed: usize,
    /// Failed ones.
    pub failed: usize,
    /// Failed ones that are listed as known deviations.
    pub known: usize,
    /// Unsupported and inapplicable ones.
    pub skipped: usize,
}

/// Prints results as they come and counts them.
pub struct Reporter<'a> {
    out: &'a mut (dyn Write + Send),
    format: Format,
    summary: Summary,
    /// By case and reason: the places.
    places: BTreeMap<(String, String), Vec<String>>,
    areas: Areas,
    junit: Option<Junit>,
    start: Instant,
    /// Why the report can't be written, once it can't.
    unwritable: Option<io::Error>,
}

impl<'a> Reporter<'a> {
    /// A reporter that writes to `out`.
    pub fn new(out: &'a mut (dyn Write + Send), format: Format) -> Reporter<'a> {
        let (summary, places, areas) = (Summary::default(), BTreeMap::new(), Areas::default());
        Reporter { out, format, summary, places, areas, junit: None, start: Instant::now(), unwritable: None }
    }

    /// What this run is: the first object in JSON, and the properties of the JUnit file, which is made now. An error when it
    /// can't be made.
    pub fn begin(&mut self, options: &Options) -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let modes: Vec<&str> = options.modes.iter().map(|mode| mode.name()).collect();
        if self.format == Format::Json {
            let header = serde_json::json!({ "header": {
                "program": "rankwise conformance", "version": version, "seed": options.seed, "full": options.full,
                "backends": options.backends, "modes": modes, "ranks": options.ranks,
            }});
            self.line(&header.to_string());
        }
        let Some(path) = &options.junit else { return Ok(()) };
        let properties = [("version", version.to_string()), ("seed", options.seed.to_string())];
        let properties = properties.map(|(name, value)| (name.to_string(), value)).to_vec();
        let cannot = |error| {
            let text =
                format!("cannot write the JUnit file {}; name a regular file in a folder that exists", path.display());
            Error::config(text).with_source(error)
        };
        self.junit = Some(Junit::create(path, properties).map_err(cannot)?);
        Ok(())
    }

    /// A line for people only.
    pub fn say(&mut self, text: &str) {
        if self.format == Format::Text {
            self.line(text);
        }
    }

    /// A part of a case that was not run, and why; on standard error in JSON, which has no line for it.
    pub(crate) fn say_skipped(&mut self, what: &str) {
        match self.format {
            Format::Text => self.line(&format!("{SKIPPED}{what}")),
            Format::Json => eprintln!("{SKIPPED}{what}"),
        }
    }

    /// One result: counted; printed when it failed, or in JSON.
    pub fn add(&mut self, report: &CaseReport) {
        self.areas.add(report);
        if let Some(Err(error)) = self.junit.as_mut().map(|junit| junit.add(report)) {
            self.unwritable.get_or_insert(error);
        }
        match report.result {
            Verdict::Pass => self.summary.passed += 1,
            Verdict::Fail => self.summary.failed += 1,
            Verdict::Known => self.summary.known += 1,
            Verdict::Unsupported | Verdict::Inapplicable => {
                self.summary.skipped += 1;
                let place = format!("{}{}", report.ranks, report.mode.map_or("", |m| &m.name()[..1]));
                let reason = (report.case.clone(), format!("{} on {}", report.detail, report.backend));
                self.places.entry(reason).or_default().push(place);
            }
        }
        match self.format {
            Format::Json => {
                let text = serde_json::to_string(report).unwrap_or_default();
                self.line(&text);
            }
            Format::Text if matches!(report.result, Verdict::Fail | Verdict::Known) => {
                let mode = report.mode.map_or("", Mode::name);
                let word = if report.result == Verdict::Fail { "FAIL" } else { "KNOWN" };
                self.line(&format!(
                    "{word} {} {} {mode} {} ranks: {}: {}",
                    report.case, report.backend, report.ranks, report.title, report.detail
                ));
            }
            Format::Text => {}
        }
    }

    /// What has been counted so far.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Prints why cases were skipped, and the last line.
    pub fn finish(mut self) -> Result<Summary> {
        let mut cases: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for ((case, why), places) in std::mem::take(&mut self.places) {
            cases.entry((why, places.join(" "))).or_default().push(case);
        }
        for ((why, places), cases) in cases {
            self.say(&format!("skipped: {why} (ranks {places}): {}", cases.join(" ")));
        }
        let table = self.areas.text();
        table.lines().for_each(|line| self.say(line));
        if let Some(Err(error)) = self.junit.as_mut().map(Junit::finish) {
            self.unwritable.get_or_insert(error);
        }
        if self.format == Format::Json {
            let seconds = self.start.elapsed().as_secs_f64();
            let summary = serde_json::json!({ "summary": self.summary, "seconds": seconds });
            self.line(&summary.to_string());
            self.check()?;
            return Ok(self.summary);
        }
        let Summary { passed, failed, known, skipped } = self.summary;
        let known = if known > 0 { format!(", known deviations: {known}") } else { String::new() };
        self.line(&format!("{passed} passed, {failed} failed, {skipped} skipped{known}"));
        self.check()?;
        Ok(self.summary)
    }

    /// Fails once a line could not be written: nothing that runs after that would be seen.
    pub fn check(&mut self) -> Result<()> {
        if let Some(Err(error)) = self.junit.as_mut().map(Junit::catch_up) {
            self.unwritable.get_or_insert(error);
        }
        self.unwritable.take().map_or(Ok(()), |error| {
            Err(Error::config("the report can't be written; see where the output goes").with_source(error))
        })
    }

    fn line(&mut self, text: &str) {
        if self.unwritable.is_none() {
            self.unwritable = writeln!(self.out, "{text}").and_then(|()| self.out.flush()).err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(result: Verdict) -> CaseReport {
        CaseReport {
            case: "AR-1".into(),
            title: "sums".into(),
            backend: "shm".into(),
            mode: Some(Mode::Threads),
            ranks: 2,
            result,
            detail: "because".into(),
            wrong_result: false,
            millis: 1,
        }
    }

    #[test]
    fn the_last_line_counts_and_skips_say_why() {
        let mut out = Vec::new();
        let mut reporter = Reporter::new(&mut out, Format::Text);
        for result in [Verdict::Pass, Verdict::Fail, Verdict::Unsupported, Verdict::Inapplicable] {
            reporter.add(&report(result));
        }
        let summary = reporter.finish().unwrap();
        assert_eq!((summary.passed, summary.failed, summary.skipped), (1, 1, 2));
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("1 passed, 1 failed, 2 skipped\n"), "{text}");
        assert!(text.contains("skipped: because on shm (ranks 2t 2t): AR-1"), "{text}");
        assert!(text.contains("FAIL AR-1 shm threads 2 ranks: sums: because"), "{text}");
    }

    #[test]
    fn a_report_that_cannot_be_written_says_why() {
        let mut room = [0_u8; 4];
        let mut out = &mut room[..];
        let mut reporter = Reporter::new(&mut out, Format::Text);
        reporter.check().unwrap();
        reporter.add(&report(Verdict::Fail));
        let error = reporter.check().unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn json_has_an_object_for_every_result() {
        let mut out = Vec::new();
        let mut reporter = Reporter::new(&mut out, Format::Json);
        reporter.begin(&Options { seed: 5, ..Options::default() }).unwrap();
        reporter.add(&report(Verdict::Pass));
        reporter.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let objects: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects.len(), 3, "{text}");
        assert_eq!(objects[0]["header"]["seed"], 5);
        assert_eq!(objects[1]["result"], "PASS");
        assert_eq!(objects[1]["mode"], "threads");
        assert_eq!(objects[2]["summary"]["passed"], 1);
    }
}
