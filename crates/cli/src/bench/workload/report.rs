//! What was replayed, as a table or as JSON.

use super::file::Unit;
use super::plan::Plan;
use crate::bench::args::Format;
use crate::bench::job::Trouble;
use crate::bench::measured::rounded;
use crate::bench::origin::Origin;
use crate::bench::pictures::{Figures, WorkloadTimes};
use crate::bench::report::{RankFacts, microseconds};
use crate::bench::results::Writer;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// One workload on one backend. The field names are those of the JSON output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    /// The chosen numbers, for example `batch=16`.
    pub(crate) variant: String,
    pub(crate) backend: String,
    pub(crate) ranks: usize,
    pub(crate) pin: String,
    pub(crate) unit: Unit,
    pub(crate) us_per_unit: Spread,
    pub(crate) calls_per_unit: u64,
    pub(crate) passes: usize,
    /// Of the calls of a unit, how many a pass timed; their mean stands for the others.
    pub(crate) timed_share: f64,
    pub(crate) by_op: Vec<OpShare>,
    pub(crate) by_size: Vec<SizeShare>,
    pub(crate) wrong: u64,
}

/// Microseconds over the passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// One operation of a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpShare {
    pub(crate) op: String,
    pub(crate) calls: u64,
    /// Median over passes of the time in all its calls, in microseconds.
    pub(crate) p50_us: f64,
    /// Of the time of a unit, on the mean.
    pub(crate) time_share: f64,
}

/// Calls up to one size and above the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SizeShare {
    /// None for what is larger than all limits.
    pub(crate) up_to_bytes: Option<u64>,
    pub(crate) calls: u64,
    pub(crate) calls_share: f64,
}

/// What the first rank tells the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    Ranks { ranks: Vec<RankFacts>, clock: String },
    Row(Box<Row>),
    Skipped { what: String, reason: String },
}

/// Upper ends of the classes of sizes, in bytes.
const CLASSES: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

impl Spread {
    pub(crate) fn of(mut times: Vec<f64>) -> Spread {
        times.sort_unstable_by(f64::total_cmp);
        let at = |place: usize| rounded(times.get(place).copied().unwrap_or(0.0));
        let n = times.len();
        let mean = times.iter().sum::<f64>() / n.max(1) as f64;
        Spread {
            min: at(0),
            mean: rounded(mean),
            p50: at(n / 2),
            p99: at((n.saturating_sub(1) as f64 * 0.99) as usize),
        }
    }
}

/// The times of each step over the passes, by operation in the order of their first step.
pub(crate) fn op_shares(plan: &Plan, of_steps: &[Vec<f64>]) -> Vec<OpShare> {
    let mut found: Vec<(&str, u64, Vec<f64>)> = Vec::new();
    for (step, times) in plan.steps.iter().zip(of_steps) {
        let name = step.cell.op.name();
        match found.iter_mut().find(|(op, ..)| *op == name) {
            Some((_, calls, sums)) => {
                *calls += step.repeat;
                sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
            }
            None => found.push((name, step.repeat, times.clone())),
        }
    }
    let all: f64 = of_steps.iter().flatten().sum();
    let share = |(op, calls, sums): (&str, u64, Vec<f64>)| {
        let time_share = rounded(if all > 0.0 { sums.iter().sum::<f64>() / all } else { 0.0 });
        OpShare { op: op.to_string(), calls, p50_us: Spread::of(sums).p50, time_share }
    };
    found.into_iter().map(share).collect()
}

/// The calls by size, which is that of `--size`. Classes without calls are left out.
pub(crate) fn size_shares(plan: &Plan) -> Vec<SizeShare> {
    let mut calls = [0; CLASSES.len() + 1];
    for step in &plan.steps {
        calls[CLASSES.iter().position(|most| step.cell.bytes <= *most).unwrap_or(CLASSES.len())] += step.repeat;
    }
    let all = plan.calls().max(1) as f64;
    let share = |(class, calls): (usize, u64)| SizeShare {
        up_to_bytes: CLASSES.get(class).copied(),
        calls,
        calls_share: rounded(calls as f64 / all),
    };
    calls.into_iter().enumerate().filter(|(_, calls)| *calls > 0).map(share).collect()
}

/// Prints rows as they come.
pub(crate) struct Report<W> {
    out: W,
    format: Format,
    /// Where rows go besides.
    file: Option<Writer>,
    rows: Vec<Row>,
    wrong: u64,
    /// What failed or was skipped.
    remarks: Vec<String>,
}

impl<W: Write> Report<W> {
    pub(crate) fn new(out: W, format: Format, file: Option<Writer>) -> Report<W> {
        Report { out, format, file, rows: Vec::new(), wrong: 0, remarks: Vec::new() }
    }

    /// A line that is no data. Left out of JSON.
    pub(crate) fn comment(&mut self, text: &str) -> io::Result<()> {
        if self.format == Format::Text { writeln!(self.out, "{}", format!("# {text}").trim_end()) } else { Ok(()) }
    }

    /// The heading of the rows that follow.
    pub(crate) fn head(&mut self) -> io::Result<()> {
        self.comment("")?;
        let (name, variant, backend, ranks, unit) = ("workload", "variant", "backend", "ranks", "unit");
        let (median, p99, calls, wrong) = ("time(us)", "p99(us)", "calls", "#wrong");
        self.comment(&format!(
            "{name:<28} {variant:<16} {backend:<8} {ranks:>5} {unit:<6} {median:>10} {p99:>10} {calls:>6} {wrong:>7}"
        ))
    }

    /// A workload that cannot be replayed. JSON keeps standard output for rows, so it goes to standard error there.
    pub(crate) fn skipped(&mut self, what: &str, reason: &str) -> io::Result<()> {
        self.remarks.push(format!("skipped: {what}: {reason}"));
        match self.format {
            Format::Text => self.comment(&format!("skipped: {what}: {reason}")),
            _ => {
                eprintln!("# skipped: {what}: {reason}");
                Ok(())
            }
        }
    }

    /// Something that ended early.
    pub(crate) fn failed(&mut self, text: &str) -> io::Result<()> {
        self.remarks.push(text.into());
        self.comment(text)
    }

    pub(crate) fn row(&mut self, row: &Row) -> Result<(), Trouble> {
        self.rows.push(row.clone());
        self.wrong += row.wrong;
        if self.format == Format::Text {
            self.table_row(row)?;
        } else {
            writeln!(self.out, "{}", serde_json::to_string(row).map_err(io::Error::other)?)?;
        }
        self.out.flush()?;
        self.file.as_mut().map_or(Ok(()), |file| file.write(row).map_err(Trouble::File))
    }

    fn table_row(&mut self, row: &Row) -> io::Result<()> {
        let Row { workload, variant, backend, ranks, calls_per_unit, wrong, .. } = row;
        let variant = if variant.is_empty() { "-" } else { variant };
        let (unit, time) = (row.unit.name(), row.us_per_unit);
        let (median, p99) = (microseconds(time.p50), microseconds(time.p99));
        writeln!(
            self.out,
            "  {workload:<28} {variant:<16} {backend:<8} {ranks:>5} {unit:<6} {median:>10} {p99:>10} {calls_per_unit:>6} {wrong:>7}"
        )?;
        for OpShare { op, calls, p50_us, time_share } in &row.by_op {
            let (time, share) = (microseconds(*p50_us), percent(*time_share));
            self.comment(&format!("    {op:<22} {time:>10} us  {share:>5} of the time, {calls} calls"))?;
        }
        let sizes = row.by_size.iter().map(|class| format!("{} {}", class.limit(), percent(class.calls_share)));
        self.comment(&format!("    calls by size: {}", sizes.collect::<Vec<_>>().join(", ")))?;
        if row.timed_share < 1.0 {
            let share = percent(row.timed_share);
            self.comment(&format!(
                "    the budget was short: {share} of the calls timed, their mean stands for the rest"
            ))?;
        }
        Ok(())
    }

    /// Prints the summary. Whether all results were right.
    pub(crate) fn finish(&mut self) -> io::Result<bool> {
        let (rows, wrong) = (self.rows.len(), self.wrong);
        let verdict = if wrong == 0 { "OK" } else { "FAILED" };
        self.comment("")?;
        self.comment(&format!("{rows} workloads replayed; wrong elements: {wrong} {verdict}"))?;
        self.out.flush()?;
        Ok(wrong == 0)
    }

    /// What was printed, to be drawn. Rows with wrong results are only remarked on.
    pub(crate) fn figures(&self, origin: Origin) -> Figures {
        let (right, wrong): (Vec<&Row>, Vec<&Row>) = self.rows.iter().partition(|row| row.wrong == 0);
        let by_pin = right.iter().any(|row| row.pin != right[0].pin);
        let times = |row: &Row| WorkloadTimes {
            backend: if by_pin { format!("{}, pin {}", row.backend, row.pin) } else { row.backend.clone() },
            workload: row.workload.clone(),
            variant: row.variant.clone(),
            unit: row.unit.name().into(),
            ranks: row.ranks,
            total_us: row.us_per_unit.p50,
            p99_us: row.us_per_unit.p99,
            by_op: row.by_op.iter().map(|share| (share.op.clone(), share.p50_us)).collect(),
            by_size: row.by_size.iter().map(|share| (share.limit(), share.calls_share)).collect(),
        };
        let mut remarks = self.remarks.clone();
        remarks.extend(wrong.iter().map(|row| {
            format!(
                "left out: {} on {} with {} ranks: {} wrong elements",
                row.workload, row.backend, row.ranks, row.wrong
            )
        }));
        let thinned = right.iter().filter(|row| row.timed_share < 1.0);
        remarks.extend(thinned.map(|row| {
            let (variant, share) = (format!("{} {}", row.workload, row.variant), percent(row.timed_share));
            format!(
                "{}: on {}, {} ranks: {share} of the calls timed, their mean stands for the rest",
                variant.trim(),
                row.backend,
                row.ranks
            )
        }));
        Figures::of_workloads(right.into_iter().map(times).collect(), origin, remarks)
    }
}

impl SizeShare {
    /// For example `up to 4 KiB`.
    fn limit(&self) -> String {
        self.up_to_bytes.map_or_else(|| "larger".into(), |bytes| format!("up to {}", binary(bytes)))
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn binary(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(wrong: u64) -> Row {
        Row {
            workload: "mine".into(),
            variant: String::new(),
            backend: "shm".into(),
            ranks: 2,
            pin: "cores".into(),
            unit: Unit::Token,
            us_per_unit: Spread { min: 1.0, mean: 2.5, p50: 2.25, p99: 1234.5 },
            calls_per_unit: 65,
            passes: 5,
            timed_share: 0.25,
            by_op: vec![OpShare { op: "all_reduce".into(), calls: 65, p50_us: 2.25, time_share: 1.0 }],
            by_size: vec![
                SizeShare { up_to_bytes: Some(65536), calls: 64, calls_share: 0.9846 },
                SizeShare { up_to_bytes: None, calls: 1, calls_share: 0.0154 },
            ],
            wrong,
        }
    }

    fn print(format: Format, row: &Row) -> String {
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, format, None);
        report.head().unwrap();
        assert!(report.row(row).is_ok());
        assert_eq!(report.finish().unwrap(), row.wrong == 0);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_has_one_data_line_a_workload() {
        let text = print(Format::Text, &row(3));
        let data: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(data.len(), 1);
        let fields: Vec<_> = data[0].split_whitespace().collect();
        assert_eq!(fields, ["mine", "-", "shm", "2", "token", "2.250", "1234", "65", "3"]);
        for part in ["all_reduce", "up to 64 KiB 98.5 %, larger 1.5 %", "25.0 % of the calls timed", "3 FAILED"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn right_rows_are_drawn_and_wrong_ones_named() {
        let mut report = Report::new(Vec::new(), Format::Text, None);
        for wrong in [0, 3] {
            report.row(&row(wrong)).unwrap_or_else(|_| panic!("a row is printed"));
        }
        report.skipped("mine", "no such operation").unwrap();
        let figures = report.figures(Origin::here());
        let remarks = [
            "skipped: mine: no such operation",
            "left out: mine on shm with 2 ranks: 3 wrong elements",
            "mine: on shm, 2 ranks: 25.0 % of the calls timed, their mean stands for the rest",
        ];
        assert_eq!(figures.remarks, remarks);
        let [times] = &figures.workloads[..] else { panic!("{:?}", figures.workloads) };
        assert_eq!((times.total_us, times.p99_us, times.unit.as_str()), (2.25, 1234.5, "token"));
        assert_eq!(times.by_size, [("up to 64 KiB".to_string(), 0.9846), ("larger".to_string(), 0.0154)]);
    }

    #[test]
    fn json_is_one_object_a_workload() {
        let text = print(Format::Json, &row(0));
        assert_eq!(serde_json::from_str::<Row>(text.trim_end()).unwrap(), row(0));
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn a_spread_is_of_sorted_times() {
        let times = (0..200).rev().map(f64::from).collect();
        assert_eq!(Spread::of(times), Spread { min: 0.0, mean: 99.5, p50: 100.0, p99: 197.0 });
        assert_eq!(Spread::of(Vec::new()).p99, 0.0);
    }
}
