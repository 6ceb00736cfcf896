//! What was measured, as a table, as JSON, as CSV or in the form of OSU's programs.

use super::args::Format;
use super::cell::Cell;
use super::measured::Measured;
use super::op::Op;
use super::osu::Osu;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// One cell with its figures. The field names are those of the JSON and CSV output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) backend: String,
    pub(crate) op: String,
    pub(crate) dtype: String,
    pub(crate) redop: String,
    pub(crate) ranks: usize,
    pub(crate) bytes: u64,
    pub(crate) count: usize,
    /// -1 where no rank is special.
    pub(crate) root: i64,
    pub(crate) in_place: bool,
    pub(crate) alloc: bool,
    pub(crate) fresh: bool,
    pub(crate) pin: String,
    pub(crate) iters: usize,
    pub(crate) min_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) algbw_gbs: f64,
    pub(crate) busbw_gbs: f64,
    pub(crate) wrong: u64,
}

/// One rank, for the header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankFacts {
    pub(crate) rank: usize,
    pub(crate) pid: u32,
    pub(crate) host: String,
    /// The CPUs it may use.
    pub(crate) cpus: String,
}

/// A line a rank, for comments; of hundreds of ranks only the first ones.
pub(crate) fn each_rank(ranks: &[RankFacts]) -> Vec<String> {
    const SHOWN: usize = 64;
    let line = |RankFacts { rank, pid, host, cpus }: &RankFacts| {
        format!("rank {rank:>3}  pid {pid:>7}  host {host}  cpu {cpus}")
    };
    let mut lines: Vec<String> = ranks.iter().take(SHOWN).map(line).collect();
    if ranks.len() > SHOWN {
        lines.push(format!("... and {} more", ranks.len() - SHOWN));
    }
    lines
}

/// What the first rank tells the launcher, one JSON text a line behind [`MARK`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    Ranks {
        ranks: Vec<RankFacts>,
        clock: String,
    },
    Row(Box<Measured>),
    Skipped {
        what: String,
        reason: String,
    },
    /// A skipped cell: a call takes about so many milliseconds, which is too long.
    Slow {
        what: String,
        call_ms: f64,
    },
    /// Nothing more comes.
    Done {},
}

/// Begins the lines of ranks that are for the launcher; anything else is passed on to the user.
pub(crate) const MARK: &str = "@rankwise-bench ";

impl Cell {
    /// The cell in words, without its size.
    pub(crate) fn describe(&self) -> String {
        let mut text = self.op.name().to_string();
        for word in [self.dtype.map(|dtype| dtype.name()), self.redop.map(|redop| redop.name())].into_iter().flatten() {
            text = format!("{text} {word}");
        }
        for (word, said) in [("in place", self.in_place && self.op != Op::Broadcast), ("alloc", self.alloc)] {
            if said {
                text = format!("{text} {word}");
            }
        }
        text
    }
}

/// Prints rows as they come.
pub(crate) struct Report<W> {
    out: W,
    format: Format,
    both_forms: bool,
    heading: String,
    osu: Osu,
    /// The out-of-place row of a line whose in-place half has not come yet.
    half: Option<Row>,
    skipped: Vec<String>,
    rows: usize,
    wrong: u64,
    bus_sum: f64,
    bus_rows: usize,
}

impl<W: Write> Report<W> {
    /// With `both_forms`, a line of the table has room for a second set of figures.
    pub(crate) fn new(out: W, format: Format, both_forms: bool) -> Report<W> {
        Report {
            out,
            format,
            both_forms,
            heading: String::new(),
            osu: Osu::default(),
            half: None,
            skipped: Vec::new(),
            rows: 0,
            wrong: 0,
            bus_sum: 0.0,
            bus_rows: 0,
        }
    }

    fn has_comments(&self) -> bool {
        matches!(self.format, Format::Text | Format::Osu)
    }

    /// A line that is no data. Left out of JSON and CSV.
    pub(crate) fn comment(&mut self, text: &str) -> io::Result<()> {
        if self.has_comments() { writeln!(self.out, "{}", format!("# {text}").trim_end()) } else { Ok(()) }
    }

    pub(crate) fn begin(&mut self) -> io::Result<()> {
        if self.format == Format::Csv {
            writeln!(self.out, "{}", COLUMNS.join(","))?;
        }
        Ok(())
    }

    /// A line that is no data and must not be lost: on standard error where standard output is for rows alone.
    pub(crate) fn remark(&mut self, text: &str) -> io::Result<()> {
        if self.has_comments() {
            return self.comment(text);
        }
        eprintln!("# {text}");
        Ok(())
    }

    /// A cell that cannot be measured. JSON and CSV keep standard output for rows, so it goes to standard error there.
    pub(crate) fn skipped(&mut self, what: &str, reason: &str) -> io::Result<()> {
        self.flush_half()?;
        let text = format!("skipped: {what}: {reason}");
        if self.skipped.contains(&text) {
            return Ok(());
        }
        if self.has_comments() {
            writeln!(self.out, "# {text}")?
        } else {
            eprintln!("# {text}")
        }
        self.skipped.push(text);
        Ok(())
    }

    /// A cell, as soon as it was measured.
    pub(crate) fn measured(&mut self, measured: &Measured) -> io::Result<()> {
        self.row(measured.row.clone())?;
        if self.format == Format::Osu {
            self.osu.row(&mut self.out, measured)?;
            self.out.flush()?;
        }
        Ok(())
    }

    fn row(&mut self, row: Row) -> io::Result<()> {
        self.rows += 1;
        self.wrong += row.wrong;
        if row.bytes > 0 {
            self.bus_sum += row.busbw_gbs;
            self.bus_rows += 1;
        }
        match self.format {
            Format::Json => {
                let text = serde_json::to_string(&row).map_err(io::Error::other)?;
                writeln!(self.out, "{text}")?;
            }
            Format::Csv => writeln!(self.out, "{}", csv(&row)?)?,
            Format::Text => self.table_row(row)?,
            Format::Osu => {}
        }
        self.out.flush()
    }

    fn table_row(&mut self, row: Row) -> io::Result<()> {
        let heading = format!(
            "{}, {} ranks{}, {} sources, {} buffers",
            row.backend,
            row.ranks,
            if row.pin == "none" { " not pinned" } else { "" },
            if row.fresh { "fresh" } else { "warm" },
            if row.alloc { "alloc" } else { "ordinary" }
        );
        let section = format!("{heading} {}", row.op);
        if section != self.heading {
            self.flush_half()?;
            self.heading = section;
            self.table_head(&row.op, &heading)?;
        }
        if let Some(half) = self.half.take() {
            if row.in_place && same_line(&half, &row) {
                return writeln!(self.out, "{}{}{}", prefix(&half), figures(&half), figures(&row));
            }
            self.write_line(&half)?;
        }
        if self.both_forms && !row.in_place {
            self.half = Some(row);
            return Ok(());
        }
        self.write_line(&row)
    }

    fn table_head(&mut self, op: &str, heading: &str) -> io::Result<()> {
        let columns = |first: &str, rest: [&str; 5]| {
            let [time, p99, alg, bus, wrong] = rest;
            format!("{first}{time:>10} {p99:>10} {alg:>8} {bus:>8} {wrong:>7}")
        };
        let names = ["time", "p99", "algbw", "busbw", "#wrong"];
        let units = ["(us)", "(us)", "(GB/s)", "(GB/s)", ""];
        let mut first = format!("# {:>10} {:>10} {:>8} {:>9} {:>5} ", "size", "count", "type", "redop", "root");
        let mut second = format!("# {:>10} {:>10} {:>8} {:>9} {:>5} ", "(B)", "(elements)", "", "", "");
        writeln!(self.out, "#\n# {op}: {heading}")?;
        if self.both_forms {
            writeln!(self.out, "# {:>46} {:^47}  {:^47}", "", "out of place", "in place")?;
        }
        for _ in 0..1 + usize::from(self.both_forms) {
            first = columns(&first, names) + "  ";
            second = columns(&second, units) + "  ";
        }
        writeln!(self.out, "{}\n{}", first.trim_end(), second.trim_end())
    }

    fn write_line(&mut self, row: &Row) -> io::Result<()> {
        let first = if self.both_forms && row.in_place { none() } else { figures(row) };
        let second = match (self.both_forms, row.in_place) {
            (true, true) => figures(row),
            (true, false) => none(),
            _ => String::new(),
        };
        writeln!(self.out, "{}{first}{second}", prefix(row))
    }

    fn flush_half(&mut self) -> io::Result<()> {
        match self.half.take() {
            Some(half) => self.write_line(&half),
            None => Ok(()),
        }
    }

    /// Prints what is still held back, and the summary. Whether something was measured and all results were right.
    pub(crate) fn finish(&mut self) -> io::Result<bool> {
        self.flush_half()?;
        let (rows, wrong) = (self.rows, self.wrong);
        let verdict = match (rows, wrong) {
            (0, _) => "NOTHING MEASURED",
            (_, 0) => "OK",
            _ => "FAILED",
        };
        self.comment("")?;
        self.comment(&format!("{rows} cells measured; wrong elements: {wrong} {verdict}"))?;
        if self.bus_rows > 0 {
            self.comment(&format!("average bus bandwidth: {:.3} GB/s", self.bus_sum / self.bus_rows as f64))?;
        }
        self.out.flush()?;
        Ok(rows > 0 && wrong == 0)
    }
}

fn same_line(half: &Row, row: &Row) -> bool {
    half.bytes == row.bytes && half.dtype == row.dtype && half.redop == row.redop
}

fn prefix(row: &Row) -> String {
    format!("  {:>10} {:>10} {:>8} {:>9} {:>5} ", row.bytes, row.count, row.dtype, row.redop, row.root)
}

fn figures(row: &Row) -> String {
    format!(
        "{:>10} {:>10} {:>8.2} {:>8.2} {:>7}  ",
        microseconds(row.p50_us),
        microseconds(row.p99_us),
        row.algbw_gbs,
        row.busbw_gbs,
        row.wrong
    )
}

fn none() -> String {
    format!("{:>10} {:>10} {:>8} {:>8} {:>7}  ", "-", "-", "-", "-", "-")
}

/// Four digits or so.
pub(crate) fn microseconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.3}"),
        value if value < 100.0 => format!("{value:.2}"),
        value if value < 1000.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

const COLUMNS: [&str; 20] = [
    "backend",
    "op",
    "dtype",
    "redop",
    "ranks",
    "bytes",
    "count",
    "root",
    "in_place",
    "alloc",
    "fresh",
    "pin",
    "iters",
    "min_us",
    "mean_us",
    "p50_us",
    "p99_us",
    "algbw_gbs",
    "busbw_gbs",
    "wrong",
];

fn csv(row: &Row) -> io::Result<String> {
    let object = serde_json::to_value(row).map_err(io::Error::other)?;
    let field = |name: &&str| match &object[*name] {
        serde_json::Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    Ok(COLUMNS.iter().map(field).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(bytes: u64, in_place: bool) -> Row {
        Row {
            backend: "shm".into(),
            op: "all_reduce".into(),
            dtype: "f32".into(),
            redop: "sum".into(),
            ranks: 2,
            bytes,
            count: bytes as usize / 4,
            root: -1,
            in_place,
            alloc: false,
            fresh: true,
            pin: "cores".into(),
            iters: 100,
            min_us: 1.0,
            mean_us: 2.5,
            p50_us: 2.25,
            p99_us: 1234.5,
            algbw_gbs: 3.5,
            busbw_gbs: 3.5,
            wrong: 0,
        }
    }

    fn print(format: Format, both: bool, rows: &[Row]) -> String {
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, format, both);
        report.begin().unwrap();
        for row in rows {
            report.row(row.clone()).unwrap();
        }
        assert_eq!(report.finish().unwrap(), rows.iter().all(|row| row.wrong == 0));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_data_lines_begin_without_a_mark() {
        let text = print(Format::Text, false, &[row(8, false), row(16, false)]);
        let data: Vec<Vec<&str>> =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(data[1], ["16", "4", "f32", "sum", "-1", "2.250", "1234", "3.50", "3.50", "0"]);
        assert_eq!(data.len(), 2);
        let names = text.lines().find(|line| line.contains("busbw")).unwrap();
        assert_eq!(names.split_whitespace().count(), data[0].len() + 1);
    }

    #[test]
    fn both_forms_share_a_line_and_no_row_is_lost() {
        let rows = [row(8, false), row(8, true), row(16, false), row(32, true), row(64, false)];
        let text = print(Format::Text, true, &rows);
        let data: Vec<usize> =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().count()).collect();
        assert_eq!(data, [15; 4], "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(" - ")).count(), 3);
    }

    #[test]
    fn json_and_csv_hold_every_field() {
        let json = print(Format::Json, false, &[row(8, true)]);
        assert_eq!(serde_json::from_str::<Row>(json.trim_end()).unwrap(), row(8, true));
        let csv = print(Format::Csv, false, &[row(8, true)]);
        let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].len(), serde_json::to_value(row(8, true)).unwrap().as_object().unwrap().len());
        assert_eq!((lines[1][1], lines[1][8], lines[1][15]), ("all_reduce", "true", "2.25"));
    }

    #[test]
    fn wrong_elements_fail() {
        let mut bad = row(8, false);
        bad.wrong = 3;
        assert!(print(Format::Text, false, &[bad]).contains("wrong elements: 3 FAILED"));
    }
}
