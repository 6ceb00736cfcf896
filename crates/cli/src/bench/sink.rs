//! Where the rows of a sweep go: to the report, and to a result file and the baseline's check if there are any.

use super::job::Trouble;
use super::measured::Measured;
use super::report::{RankFacts, Report};
use super::results::{Cells, Writer};
use std::io;

/// The job that speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) backend: &'a str,
    pub(crate) ranks: u32,
    /// `cores` or `none`.
    pub(crate) pin: &'a str,
}

impl Job<'_> {
    /// For a comment.
    pub(crate) fn describe(&self, clock: &str) -> String {
        let placed = if self.pin == "cores" { "pinned to CPUs in turn" } else { "not pinned" };
        format!("backend {}, {} ranks, {placed}, clock: {clock}", self.backend, self.ranks)
    }
}

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
        let mut comment = |text: &str| self.report.comment(text).map_err(Trouble::Output);
        comment("")?;
        comment(&job.describe(clock))?;
        for facts in ranks.iter().take(64) {
            let (rank, pid, host, cpus) = (facts.rank, facts.pid, &facts.host, &facts.cpus);
            comment(&format!("rank {rank:>3}  pid {pid:>7}  host {host}  cpu {cpus}"))?;
        }
        if ranks.len() > 64 {
            comment(&format!("... and {} more", ranks.len() - 64))?;
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
