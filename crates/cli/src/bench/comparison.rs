//! Contenders side by side, as a table or as JSON lines.

use super::interval::{Ratio, Verdict};
use super::report::{Row, microseconds};
use serde_json::json;
use std::io::{self, Write};

/// One cell of all contenders.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    /// Which cell; the figures in it mean nothing.
    pub(crate) cell: Row,
    /// Median of each, in microseconds, where it was measured.
    pub(crate) times_us: Vec<Option<f64>>,
    /// 95 % interval of each median, where there are enough values.
    pub(crate) intervals_us: Vec<Option<(f64, f64)>>,
    /// Of the second contender on, to the first.
    pub(crate) ratios: Vec<Option<Ratio>>,
}

/// Prints cells as they come.
pub(crate) struct Comparison<W> {
    out: W,
    json: bool,
    names: Vec<String>,
    heading: String,
    tallies: Vec<Tally>,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    logarithms: Vec<f64>,
    verdicts: [usize; 4],
}

const VERDICTS: [Verdict; 4] = [Verdict::Faster, Verdict::Same, Verdict::Slower, Verdict::Unknown];

impl<W: Write> Comparison<W> {
    pub(crate) fn new(out: W, json: bool, names: Vec<String>) -> Comparison<W> {
        let tallies = vec![Tally::default(); names.len().saturating_sub(1)];
        Comparison { out, json, names, heading: String::new(), tallies }
    }

    /// A line that is no data. Left out of JSON.
    pub(crate) fn comment(&mut self, text: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { writeln!(self.out, "{}", format!("# {text}").trim_end()) }
    }

    /// Which letter is which contender. `how` says where ratios and intervals come from.
    pub(crate) fn legend(&mut self, how: &str) -> io::Result<()> {
        for i in 0..self.names.len() {
            let line = format!("{}: {}", letter(i), self.names[i]);
            self.comment(&line)?;
        }
        self.comment(how)
    }

    pub(crate) fn cell(&mut self, compared: &Compared) -> io::Result<()> {
        for (tally, ratio) in self.tallies.iter_mut().zip(&compared.ratios) {
            let Some(ratio) = ratio else { continue };
            tally.logarithms.push(ratio.value.ln());
            tally.verdicts[VERDICTS.iter().position(|verdict| *verdict == ratio.verdict()).unwrap_or(3)] += 1;
        }
        if self.json { self.objects(compared) } else { self.line(compared) }?;
        self.out.flush()
    }

    fn objects(&mut self, compared: &Compared) -> io::Result<()> {
        let cell = &compared.cell;
        for (i, ratio) in compared.ratios.iter().enumerate() {
            let (Some(ratio), Some(base_us), Some(other_us)) = (ratio, compared.times_us[0], compared.times_us[i + 1])
            else {
                continue;
            };
            let object = json!({
                "op": cell.op, "dtype": cell.dtype, "redop": cell.redop, "ranks": cell.ranks, "bytes": cell.bytes,
                "count": cell.count, "in_place": cell.in_place, "alloc": cell.alloc, "fresh": cell.fresh,
                "base": self.names[0], "other": self.names[i + 1], "base_us": base_us, "other_us": other_us,
                "ratio": ratio.value, "low": ratio.interval.map(|(low, _)| low),
                "high": ratio.interval.map(|(_, high)| high), "verdict": ratio.verdict().name(),
            });
            writeln!(self.out, "{object}")?;
        }
        Ok(())
    }

    fn line(&mut self, compared: &Compared) -> io::Result<()> {
        let cell = &compared.cell;
        let mut heading = format!("{}: {} ranks", cell.op, cell.ranks);
        heading += if cell.fresh { ", fresh sources" } else { ", warm sources" };
        heading += if cell.alloc { ", alloc buffers" } else { ", ordinary buffers" };
        heading += if cell.in_place { ", in place" } else { "" };
        if heading != self.heading {
            let mut names = format!("# {:>10} {:>10} {:>8} {:>9} {:>10}", "size", "count", "type", "redop", "A");
            let mut units = format!("# {:>10} {:>10} {:>8} {:>9} {:>10}", "(B)", "(elements)", "", "", "(us)");
            for i in 1..self.names.len() {
                let (name, ratio) = (letter(i), format!("{}/A", letter(i)));
                names += &format!("  {name:>10} {ratio:>8} {:>16} {:<7}", "95 % interval", "");
                units += &format!("  {:>10} {:>8} {:>16} {:<7}", "(us)", "", "", "");
            }
            writeln!(self.out, "#\n# {heading}\n{}\n{}", names.trim_end(), units.trim_end())?;
            self.heading = heading;
        }
        let time = |i: usize| compared.times_us[i].map_or("-".into(), microseconds);
        let mut text =
            format!("  {:>10} {:>10} {:>8} {:>9} {:>10}", cell.bytes, cell.count, cell.dtype, cell.redop, time(0));
        for (i, ratio) in compared.ratios.iter().enumerate() {
            let (value, interval, verdict) = match ratio {
                Some(ratio) => (format!("{:.3}", ratio.value), ratio.interval_text(), ratio.verdict().name()),
                None => ("-".into(), "-".into(), "-"),
            };
            text += &format!("  {:>10} {value:>8} {interval:>16} {verdict:<7}", time(i + 1));
        }
        writeln!(self.out, "{}", text.trim_end())
    }

    /// Prints the summary.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.comment("")?;
        for i in 0..self.tallies.len() {
            let Tally { logarithms, verdicts } = &self.tallies[i];
            let cells = logarithms.len();
            let [faster, same, slower, unknown] = verdicts;
            let mut line = format!("{}/A: {cells} cells: {faster} faster, {same} same, {slower} slower", letter(i + 1));
            if *unknown > 0 {
                line += &format!(", {unknown} with too few values to tell");
            }
            if cells > 0 {
                let mean = (logarithms.iter().sum::<f64>() / cells as f64).exp();
                line += &format!("; geometric mean of the ratios {mean:.3}");
            }
            self.comment(&line)?;
        }
        self.out.flush()
    }
}

fn letter(i: usize) -> char {
    char::from(b'A' + (i % 26) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(bytes: u64, ratio: f64) -> Compared {
        let around = |value: f64| Ratio { value, interval: Some((value * 0.9, value * 1.1)) };
        Compared {
            cell: super::super::report::tests::row(bytes, false),
            times_us: vec![Some(2.0), Some(2.0 * ratio), None],
            intervals_us: vec![None; 3],
            ratios: vec![Some(around(ratio)), None],
        }
    }

    fn print(json: bool, cells: &[Compared]) -> String {
        let mut out = Vec::new();
        let mut comparison = Comparison::new(&mut out, json, vec!["one".into(), "two".into(), "three".into()]);
        comparison.legend("how").unwrap();
        for cell in cells {
            comparison.cell(cell).unwrap();
        }
        comparison.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_has_ratio_interval_and_verdict() {
        let text = print(false, &[compared(8, 2.0), compared(16, 1.0), compared(32, 0.5)]);
        let data: Vec<Vec<&str>> =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
        let expected =
            ["8", "2", "f32", "sum", "2.000", "4.000", "2.000", "1.800..2.200", "slower", "-", "-", "-", "-"];
        assert_eq!(data[0], expected, "{text}");
        assert_eq!((data.len(), data[1][8], data[2][8]), (3, "same", "faster"));
        assert!(text.contains("# C: three\n"), "{text}");
        let summary = "# B/A: 3 cells: 1 faster, 1 same, 1 slower; geometric mean of the ratios 1.000";
        assert!(text.contains(summary), "{text}");
    }

    #[test]
    fn json_has_one_object_a_pair() {
        let text = print(true, &[compared(8, 2.0)]);
        let object: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        let named = ["base", "other", "verdict"].map(|name| object[name].as_str().unwrap());
        assert_eq!(named, ["one", "two", "slower"]);
        assert_eq!((object["ratio"].as_f64(), object["low"].as_f64()), (Some(2.0), Some(1.8)));
    }
}
