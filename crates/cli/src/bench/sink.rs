//! Where the rows of a sweep go: to the report, and to a result file and the baseline's check if there are any.

use super::job::Trouble;
use super::launched::Job;
use super::measured::Measured;
use super::report::{self, RankFacts, Report};
use super::results::{Cells, Writer};
use std::io;

/// Who is told what the first rank of a job says.
pub(crate) trait Sink {
    fn ranks(&mut self, job: Job<'_>, ranks: &[RankFacts], clock: &str) -> Result<(), Trouble>;
    fn row(&mut self, measured: Measured) -> Result<(), Trouble>;
    fn skipped(&mut self, what: &str, reason: &str) -> Result<(), Trouble>;
    /// The job ended badly.
    fn failed(&mut self, text: &str) -> Result<(), Trouble>;
}

/// The sink of an ordinary sweep.
pub(crate) struct SweepSink {
    pub(crate) report: Report<io::Stdout>,
    pub(crate) output: Option<Writer>,
    /// What was measured, when it is to be compared with a baseline.
    pub(crate) kept: Option<Cells>,
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
        // Sizes may be given twice; the first time counts.
        let _ = self.kept.as_mut().map(|kept| kept.add(measured, 0));
        Ok(())
    }

    fn skipped(&mut self, what: &str, reason: &str) -> Result<(), Trouble> {
        self.report.skipped(what, reason).map_err(Trouble::Output)
    }

    fn failed(&mut self, text: &str) -> Result<(), Trouble> {
        self.report.comment(&format!("failed: {text}")).map_err(Trouble::Output)
    }
}
