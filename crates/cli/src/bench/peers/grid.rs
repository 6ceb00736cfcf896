//! The ratios of all contenders to the first, one line a cell.

use crate::bench::comparison::Compared;
use crate::bench::interval::{Ratio, Verdict};
use crate::bench::op::Op;
use crate::bench::report::{Row, microseconds};
use std::io::{self, Write};

/// Prints cells as they come.
pub(crate) struct Grid<W> {
    out: W,
    /// The first is what the others are compared with.
    names: Vec<String>,
    /// Contenders from this one on are peers.
    first_peer: usize,
    heading: String,
    /// One for each contender but the first, and one for the best peer.
    tallies: Vec<Tally>,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    logarithms: Vec<f64>,
    faster: usize,
    same: usize,
    slower: usize,
    unknown: usize,
}

impl Tally {
    fn add(&mut self, ratio: &Ratio) {
        self.logarithms.push(ratio.value.ln());
        match ratio.verdict() {
            // The verdicts are about the other contender.
            Verdict::Slower => self.faster += 1,
            Verdict::Same => self.same += 1,
            Verdict::Faster => self.slower += 1,
            Verdict::Unknown => self.unknown += 1,
        }
    }

    fn line(&self, name: &str, base: &str) -> String {
        let cells = self.logarithms.len();
        if cells == 0 {
            return format!("{name}: nothing to compare");
        }
        let mean = (self.logarithms.iter().sum::<f64>() / cells as f64).exp();
        let (faster, same, slower) = (self.faster, self.same, self.slower);
        let mut line = format!(
            "{name}: geometric mean {mean:.2}; of {cells} cells {base} is faster in {faster}, the same in {same}, slower in {slower}"
        );
        if self.unknown > 0 {
            line += &format!(", {} with too few rounds to tell", self.unknown);
        }
        line
    }
}

impl<W: Write> Grid<W> {
    pub(crate) fn new(out: W, names: Vec<String>, first_peer: usize) -> Grid<W> {
        let tallies = vec![Tally::default(); names.len()];
        Grid { out, names, first_peer, heading: String::new(), tallies }
    }

    /// A line that is no data.
    pub(crate) fn comment(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", format!("# {text}").trim_end())
    }

    /// What the figures mean. `how` says where ratios and intervals come from.
    pub(crate) fn legend(&mut self, how: &str) -> io::Result<()> {
        self.comment(how)?;
        let base = self.names[0].clone();
        self.comment(&format!("ratio: the other's time by {base}'s, so above 1 {base} is faster"))?;
        self.comment("~ the 95 % interval of the ratio holds 1   ? too few rounds for an interval   - not measured")
    }

    pub(crate) fn cell(&mut self, compared: &Compared) -> io::Result<()> {
        self.head(compared)?;
        let cell = &compared.cell;
        let time = compared.times_us[0].map_or("-".into(), microseconds);
        let redop = if cell.redop == "none" { "-" } else { &cell.redop };
        let dtype = if cell.dtype == "none" { "-" } else { &cell.dtype };
        let width = self.base_width();
        let mut text = format!("  {:>20} {dtype:>5} {redop:>6} {:>10} {time:>width$}", cell.op, cell.bytes);
        for (i, ratio) in compared.ratios.iter().enumerate() {
            let width = self.width(i + 1);
            text += &format!(" {:>width$}", ratio.as_ref().map_or("- ".into(), shown));
            ratio.iter().for_each(|ratio| self.tallies[i].add(ratio));
        }
        match self.best(compared) {
            Some((name, ratio)) => {
                text += &format!("   {:>8} {name}", shown(&ratio));
                self.tallies.last_mut().into_iter().for_each(|tally| tally.add(&ratio));
            }
            None => text += &format!("   {:>8} -", "- "),
        }
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    fn best(&self, compared: &Compared) -> Option<(String, Ratio)> {
        let peers = compared.ratios.iter().zip(&self.names[1..]).skip(self.first_peer.saturating_sub(1));
        let measured = peers.filter_map(|(ratio, name)| Some((name.clone(), (*ratio)?)));
        measured.min_by(|one, other| one.1.value.total_cmp(&other.1.value))
    }

    fn base_width(&self) -> usize {
        (self.names[0].len() + 5).max(10)
    }

    fn width(&self, contender: usize) -> usize {
        self.names[contender].len().max(8)
    }

    /// Cells of the same variant stand together, each variant under a heading of its own.
    pub(crate) fn block(cell: &Row) -> (bool, bool, bool) {
        (cell.alloc, !cell.fresh, cell.in_place && cell.op != Op::Broadcast.name())
    }

    fn head(&mut self, compared: &Compared) -> io::Result<()> {
        let cell = &compared.cell;
        let mut heading = format!("{} ranks", cell.ranks);
        heading += if cell.pin == "none" { ", not pinned" } else { ", pinned to CPUs in turn" };
        heading += if cell.fresh { ", fresh sources" } else { ", warm sources" };
        let (alloc, _, in_place) = Grid::<W>::block(cell);
        heading += if in_place { ", in place" } else { "" };
        heading += if alloc { ", alloc buffers" } else { "" };
        if heading == self.heading {
            return Ok(());
        }
        let width = self.base_width();
        let first = format!("{} (us)", self.names[0]);
        let mut names =
            format!("# {:>20} {:>5} {:>6} {:>10} {first:>width$}", "operation", "type", "redop", "size (B)");
        for (i, name) in self.names.iter().enumerate().skip(1) {
            names += &format!(" {name:>width$}", width = self.width(i));
        }
        writeln!(self.out, "#\n# {heading}\n{names}   best peer")?;
        self.heading = heading;
        Ok(())
    }

    /// Prints the summary.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let others = self.names[1..].iter().map(String::as_str).chain(["best peer of each cell"]);
        let lines: Vec<_> = others.zip(&self.tallies).map(|(name, tally)| tally.line(name, &self.names[0])).collect();
        self.comment("")?;
        lines.iter().try_for_each(|line| self.comment(line))?;
        self.out.flush()
    }
}

/// Three digits or so, and a mark where the ratio says less than it seems to.
fn shown(ratio: &Ratio) -> String {
    let mark = match ratio.verdict() {
        Verdict::Same => "~",
        Verdict::Unknown => "?",
        _ => " ",
    };
    match ratio.value {
        value if value < 10.0 => format!("{value:.2}{mark}"),
        value if value < 100.0 => format!("{value:.1}{mark}"),
        value => format!("{value:.0}{mark}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::row;

    fn print(cells: &[Compared]) -> String {
        let mut out = Vec::new();
        let names = ["shm", "shm#2", "one", "a-long-name"].map(String::from).to_vec();
        let mut grid = Grid::new(&mut out, names, 2);
        grid.legend("how").unwrap();
        for cell in cells {
            grid.cell(cell).unwrap();
        }
        grid.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    fn compared(bytes: u64, ratios: [Option<f64>; 3]) -> Compared {
        let around = |value: f64| Ratio { value, interval: Some((value * 0.9, value * 1.1)) };
        Compared {
            cell: row(bytes, false),
            times_us: vec![Some(2.0); 4],
            intervals_us: vec![None; 4],
            ratios: ratios.iter().map(|value| value.map(around)).collect(),
        }
    }

    #[test]
    fn a_line_has_every_ratio_and_the_best_peer() {
        let mut few = compared(32, [Some(0.3), Some(4.0), None]);
        few.ratios[1] = Some(Ratio { value: 4.0, interval: None });
        let text = print(&[
            compared(8, [Some(0.5), Some(2.0), Some(123.4)]),
            compared(16, [None, Some(1.05), Some(0.5)]),
            few,
            compared(64, [None, None, None]),
        ]);
        let data: Vec<Vec<&str>> =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(data[0], ["all_reduce", "f32", "sum", "8", "2.000", "0.50", "2.00", "123", "2.00", "one"], "{text}");
        assert_eq!(data[1][5..], ["-", "1.05~", "0.50", "0.50", "a-long-name"]);
        assert_eq!(data[2][5..], ["0.30", "4.00?", "-", "4.00?", "one"]);
        assert_eq!(data[3][5..], ["-", "-", "-", "-", "-"]);
        assert!(
            text.contains(
                "# one: geometric mean 2.03; of 3 cells shm is faster in 1, the same in 1, slower in 0, 1 with"
            ),
            "{text}"
        );
        assert!(text.contains("# best peer of each cell: geometric mean 1.59; of 3 cells"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("2 ranks")).count(), 1);
    }
}
