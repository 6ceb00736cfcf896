//! `--baseline FILE`: which cells are slower than they were, beyond noise and tolerance.

use super::args::{BenchArgs, Sweep};
use super::interval::{Ratio, Verdict};
use super::origin::Origin;
use super::results::{Cells, Key, Results};

/// Earlier results and how much slower a cell may be.
pub(crate) struct Baseline {
    results: Results,
    tolerance: f64,
}

/// What came of the comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Judgement {
    /// For the user, one line each.
    pub(crate) lines: Vec<String>,
    pub(crate) slower: usize,
    /// Measured now and not in the baseline.
    pub(crate) missing: usize,
}

impl Baseline {
    pub(crate) fn read(path: &str, tolerance: f64) -> Result<Baseline, String> {
        Ok(Baseline { results: Results::read(path)?, tolerance })
    }

    /// Finds out before anything is measured when there is nothing to compare.
    pub(crate) fn check_overlap(&self, args: &BenchArgs, sweep: &Sweep) -> Result<(), String> {
        let overlaps = self.results.cells.cells.iter().any(|cell| {
            let row = &cell.row;
            args.backend.contains(&row.backend)
                && args.ranks.iter().any(|ranks| *ranks as usize == row.ranks)
                && sweep.cells.iter().any(|cell| cell.op.name() == row.op && cell.bytes == row.bytes)
        });
        if overlaps {
            return Ok(());
        }
        Err(format!(
            "{}: has none of the cells of this sweep; measure the baseline with the same --backend, --op, --size and --ranks",
            self.results.path
        ))
    }

    pub(crate) fn judge(&self, now: &Cells) -> Judgement {
        let mut found = Judgement::default();
        let path = &self.results.path;
        let (then, here) = (&self.results.origin, Origin::here());
        found.lines.push(format!(
            "baseline: {path} of {}, {}",
            then.date,
            then.git.as_deref().unwrap_or("commit unknown")
        ));
        if (&then.host, then.machine()) != (&here.host, here.machine()) {
            found.lines.push(format!("baseline: measured on another machine: {}: {}", then.host, then.machine()));
        }
        let (mut compared, mut unknown) = (0, 0);
        for cell in &now.cells {
            let key = Key::of(&cell.row);
            let Some(base) = self.results.cells.get(&key) else {
                found.missing += 1;
                found.lines.push(format!("baseline: {path} has no cell {key}; measure the baseline again with it"));
                continue;
            };
            let Some(ratio) = Ratio::independent(&base.times, &cell.times) else { continue };
            compared += 1;
            match ratio.verdict() {
                Verdict::Slower if ratio.value > self.tolerance => {
                    found.slower += 1;
                    found.lines.push(format!(
                        "slower: {key}: {:.3} us, was {:.3} us, ratio {:.3} (95 % interval {})",
                        cell.row.p50_us,
                        base.row.p50_us,
                        ratio.value,
                        ratio.interval_text()
                    ));
                }
                Verdict::Unknown => unknown += 1,
                _ => {}
            }
        }
        found.lines.push(format!(
            "baseline: {compared} cells compared, {} slower by more than a factor of {} and beyond noise",
            found.slower, self.tolerance
        ));
        if unknown > 0 {
            found.lines.push(format!(
                "baseline: {unknown} of them have too few iterations to judge; both runs need 7: raise --budget-ms or --iters"
            ));
        }
        let gone = self.results.cells.cells.iter().filter(|cell| now.get(&Key::of(&cell.row)).is_none()).count();
        if gone > 0 {
            found.lines.push(format!("baseline: {gone} cells of {path} were not measured now"));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::measured;
    use super::*;

    fn cells(rows: &[(u64, f64, usize)]) -> Cells {
        let mut cells = Cells::default();
        for (bytes, time, samples) in rows {
            let samples = (0..*samples).map(|i| time * (1.0 + i as f64 / 1000.0)).collect();
            cells.add(measured(*bytes, samples), 1).unwrap();
        }
        cells
    }

    fn judge(then: &[(u64, f64, usize)], now: &[(u64, f64, usize)]) -> Judgement {
        let results = Results { path: "old".into(), origin: Origin::here(), cells: cells(then) };
        Baseline { results, tolerance: 1.1 }.judge(&cells(now))
    }

    #[test]
    fn slower_is_beyond_noise_and_tolerance() {
        let then = [(8, 10.0, 20), (16, 10.0, 20), (32, 10.0, 20), (64, 10.0, 5)];
        let found = judge(&then, &[(8, 12.0, 20), (16, 10.9, 20), (32, 5.0, 20), (64, 30.0, 5)]);
        assert_eq!((found.slower, found.missing), (1, 0), "{found:?}");
        let slower = &found.lines[1];
        assert!(slower.starts_with("slower: shm all_reduce f32 sum 8 bytes, 2 ranks"), "{slower}");
        assert!(slower.contains("ratio 1.200"), "{slower}");
        assert!(found.lines[3].contains("1 of them have too few iterations"), "{found:?}");
        assert_eq!(judge(&then, &then).slower, 0);
    }

    #[test]
    fn noise_hides_a_difference() {
        let wide = |bytes| measured(bytes, (0..20).map(|i| if i % 2 == 0 { 10.0 } else { 30.0 }).collect());
        let mut noisy = Cells::default();
        noisy.add(wide(8), 1).unwrap();
        let results = Results { path: "old".into(), origin: Origin::here(), cells: noisy };
        let found = Baseline { results, tolerance: 1.1 }.judge(&cells(&[(8, 25.0, 20)]));
        assert_eq!(found.slower, 0, "{found:?}");
    }

    #[test]
    fn cells_of_one_side_are_named() {
        let found = judge(&[(8, 1.0, 20), (16, 1.0, 20)], &[(8, 1.0, 20), (32, 1.0, 20)]);
        assert_eq!((found.slower, found.missing), (0, 1));
        assert!(
            found.lines.iter().any(|line| line.contains("has no cell shm all_reduce f32 sum 32 bytes")),
            "{found:?}"
        );
        assert!(found.lines.last().unwrap().contains("1 cells of old were not measured now"), "{found:?}");
    }
}
