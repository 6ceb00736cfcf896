//! The table at the end of a report: what passed, by area and by world.

use crate::report::{CaseReport, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Counts of one area.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    passed: usize,
    failed: usize,
    known: usize,
    skipped: usize,
}

/// What has been counted: by backend; by area, in the order in which areas came; by placement.
#[derive(Debug, Default)]
pub(crate) struct Areas {
    backends: BTreeMap<String, Table>,
}

#[derive(Debug, Default)]
struct Table {
    areas: Vec<String>,
    /// First letter of the mode and number of ranks.
    places: BTreeSet<(String, usize)>,
    counts: BTreeMap<(String, (String, usize)), Count>,
}

/// What the case is about: the part of its title before the colon, or else the first word of its id.
pub(crate) fn area(report: &CaseReport) -> &str {
    let titled = report.title.split_once(": ").map(|(area, _)| area);
    titled.unwrap_or_else(|| report.case.split(' ').next().unwrap_or(""))
}

impl Areas {
    pub(crate) fn add(&mut self, report: &CaseReport) {
        let table = self.backends.entry(report.backend.clone()).or_default();
        let area = area(report).to_string();
        if !table.areas.contains(&area) {
            table.areas.push(area.clone());
        }
        let place = (report.mode.map_or("-", |mode| &mode.name()[..1]).to_string(), report.ranks);
        table.places.insert(place.clone());
        let count = table.counts.entry((area, place)).or_default();
        match report.result {
            Verdict::Pass => count.passed += 1,
            Verdict::Fail => count.failed += 1,
            Verdict::Known => count.known += 1,
            Verdict::Unsupported | Verdict::Inapplicable => count.skipped += 1,
        }
    }

    /// The tables as text; nothing when nothing was counted.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (backend, table) in &self.backends {
            table.write(backend, &mut text);
        }
        if !text.is_empty() {
            text += "  t threads, p processes, o outer, with the number of ranks; . all passed, ~ known deviations, \
                     - nothing to run, a number: so many failed";
        }
        text
    }
}

impl Table {
    fn write(&self, backend: &str, text: &mut String) {
        let names = self.areas.iter().map(|area| area.chars().count());
        let wide = names.chain([backend.chars().count()]).max().unwrap_or(0);
        let heads: Vec<String> = self.places.iter().map(|(mode, ranks)| format!("{mode}{ranks}")).collect();
        let columns: String = heads.iter().map(|head| format!(" {head:>3}")).collect();
        let _ = writeln!(text, "{backend:wide$}  passed failed skipped {columns}");
        for area in &self.areas {
            let count = |place| self.counts.get(&(area.clone(), place)).copied().unwrap_or_default();
            let all: Vec<Count> = self.places.iter().map(|place| count(place.clone())).collect();
            let sum = |of: fn(&Count) -> usize| all.iter().map(of).sum::<usize>();
            let (passed, failed, skipped) = (sum(|c| c.passed), sum(|c| c.failed), sum(|c| c.skipped));
            let _ = write!(text, "{area:wide$}  {passed:6} {failed:6} {skipped:7} ");
            for (count, head) in all.iter().zip(&heads) {
                let cell = match count {
                    Count { failed: 1.., .. } => count.failed.to_string(),
                    Count { known: 1.., .. } => "~".into(),
                    Count { passed: 1.., .. } => ".".into(),
                    _ => "-".into(),
                };
                let _ = write!(text, " {cell:>0$}", head.len().max(3));
            }
            while text.ends_with(' ') {
                text.pop();
            }
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;

    #[test]
    fn a_row_an_area_a_column_a_world() {
        let mut areas = Areas::default();
        let mut add = |title: &str, mode, ranks, result| {
            let (case, title, backend) = ("drill kill".into(), title.into(), "shm".into());
            let (detail, wrong_result, millis) = (String::new(), false, 1);
            let mode = Some(mode);
            areas.add(&CaseReport { case, title, backend, mode, ranks, result, detail, wrong_result, millis });
        };
        add("all-reduce: sums", Mode::Threads, 2, Verdict::Pass);
        add("all-reduce: means", Mode::Threads, 2, Verdict::Fail);
        add("all-reduce: sums", Mode::Processes, 13, Verdict::Pass);
        add("p2p: a ring", Mode::Threads, 2, Verdict::Unsupported);
        add("no area", Mode::Threads, 2, Verdict::Known);
        let text = areas.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "shm         passed failed skipped  p13  t2");
        assert_eq!(lines[1], "all-reduce       2      1       0    .   1");
        assert_eq!(lines[2], "p2p              0      0       1    -   -");
        assert_eq!(lines[3], "drill            0      0       0    -   ~");
        assert_eq!(Areas::default().text(), "");
    }
}
