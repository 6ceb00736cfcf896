//! Tables in the form of the OSU micro-benchmarks, for programs that read those.

use super::measured::Measured;
use std::io::{self, Write};

/// Prints one block for each operation and form.
#[derive(Debug, Default)]
pub(crate) struct Osu {
    heading: String,
}

impl Osu {
    pub(crate) fn row(&mut self, out: &mut impl Write, measured: &Measured) -> io::Result<()> {
        let row = &measured.row;
        let mut heading = row.op.clone();
        for (word, said) in [(&row.dtype, row.dtype != "none"), (&row.redop, row.redop != "none")] {
            if said {
                heading = format!("{heading} {word}");
            }
        }
        heading = format!("{heading}, {}, {} ranks", row.backend, row.ranks);
        for (word, said) in [("in place", row.in_place), ("alloc buffers", row.alloc), ("warm sources", !row.fresh)] {
            if said {
                heading = format!("{heading}, {word}");
            }
        }
        if heading != self.heading {
            writeln!(out, "\n# {heading}")?;
            let [size, rest @ ..] =
                ["# Size", "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "P50(us)", "P99(us)"];
            writeln!(out, "{size:<12}{}", rest.map(|name| format!("{name:>18}")).concat())?;
            self.heading = heading;
        }
        let figures = [row.mean_us, row.min_us, measured.max_us, row.p50_us, row.p99_us];
        writeln!(out, "{:<12}{}", row.bytes, figures.map(|figure| format!("{figure:>18.2}")).concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_an_operation() {
        let row = |bytes, in_place| Measured {
            row: super::super::report::tests::row(bytes, in_place),
            max_us: 2000.0,
            round: None,
            sample_step: 1,
            samples_us: vec![1.0],
        };
        let mut out = Vec::new();
        let mut osu = Osu::default();
        for measured in [row(8, false), row(16, false), row(8, true)] {
            osu.row(&mut out, &measured).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!((lines.len(), lines[0]), (7, "# all_reduce f32 sum, shm, 2 ranks"), "{text}");
        assert_eq!(
            lines[3].split_whitespace().collect::<Vec<_>>(),
            ["16", "2.50", "1.00", "2000.00", "2.25", "1234.50"]
        );
        assert!(lines[4].ends_with(", in place"));
    }
}
