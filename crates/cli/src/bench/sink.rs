//! Where the rows of a sweep go: to the report, and to a result file, the baseline's check and pictures if there are any.

use super::job::Trouble;
use super::launched::Job;
use super::measured::Measured;
use super::report::{self, RankFacts, Report};
use super::results::{Cells, Key, Writer};
use std::io;

/// Who is told what the first rank of a job says.
pub(crate) trait Sink {
    fn ranks(&mut self, job: Job<'_>, ranks: &[RankFacts], clock: &str) -> Result<(), Trouble>;
    fn row(&mut self, measured: Measured) -> Result<(), Trouble>;
    fn skipped(&mut self, what: &str, reason: &str) -> Result<(), Trouble>;
    /// A call takes about so many milliseconds, more than `--slowest-ms` allows.
    fn slow(&mut self, job: Job<'_>, what: &str, call_ms: f64) -> Result<(), Trouble> {
        self.skipped(&format!("{what}, {} ranks", job.ranks), &slow_reason(call_ms))
    }
    /// The job ended badly.
    fn failed(&mut self, text: &str) -> Result<(), Trouble>;
}

pub(crate) fn slow_reason(call_ms: f64) -> String {
    format!("a call takes about {call_ms:.0} ms")
}

/// The sink of an ordinary sweep.
pub(crate) struct SweepSink {
    pub(crate) report: Report<io::Stdout>,
    pub(crate) output: Option<Writer>,
    /// What was measured, when it is to be compared with a baseline or drawn.
    pub(crate) kept: Option<Cells>,
    /// What the reader of a picture must know.
    pub(crate) remarks: Vec<String>,
}

impl SweepSink {
    fn remember(&mut self, text: String) {
        if !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
    }
}

impl Sink for SweepSink {
    fn ranks(&mut self, job: Job<'_>, ranks: &[RankFacts], clock: &str) -> Result<(), Trouble> {
        self.report.comment("")?;
        for line in [job.describe(clock)].into_iter().chain(report::each_rank(ranks)) {
            self.report.comment(&line)?;
        }
        Ok(())
    }

    fn row(&mut self, measured: Measured) -> Result<(), Trouble> {
        self.report.measured(&measured).map_err(Trouble::Output)?;
        if let Some(output) = &mut self.output {
            output.write(&measured).map_err(Trouble::File)?;
        }
        if measured.row.wrong > 0 {
            self.remember(format!("{} wrong elements: {}", measured.row.wrong, Key::of(&measured.row)));
        }
        // Sizes may be given twice; the first time counts.
        let _ = self.kept.as_mut().map(|kept| kept.add(measured, 0));
        Ok(())
    }

    fn skipped(&mut self, what: &str, reason: &str) -> Result<(), Trouble> {
        self.remember(format!("skipped: {what}: {reason}"));
        self.report.skipped(what, reason).map_err(Trouble::Output)
    }

    fn failed(&mut self, text: &str) -> Result<(), Trouble> {
        self.remember(format!("failed: {text}"));
        self.report.comment(&format!("failed: {text}")).map_err(Trouble::Output)
    }
}
