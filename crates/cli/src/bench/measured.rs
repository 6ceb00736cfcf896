//! A row together with its iterations, as the ranks report it and as a result file holds it.

use super::measure::Figures;
use super::report::Row;
use serde::{Deserialize, Serialize};

/// Most samples that are kept of one cell.
pub(crate) const MOST_SAMPLES: usize = 4096;

/// A row, and the times behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    #[serde(flatten)]
    pub(crate) row: Row,
    pub(crate) max_us: f64,
    /// Of `bench compare`: rounds of the same number were measured one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) round: Option<usize>,
    /// The samples are those of every so many iterations.
    pub(crate) sample_step: usize,
    /// In the order of the iterations, of the slowest rank of each.
    pub(crate) samples_us: Vec<f64>,
}

impl Measured {
    pub(crate) fn new(row: Row, figures: &Figures) -> Measured {
        let step = figures.times_us.len().div_ceil(MOST_SAMPLES).max(1);
        Measured {
            row,
            max_us: rounded(figures.times_us.iter().copied().fold(0.0, f64::max)),
            round: None,
            sample_step: step,
            samples_us: figures.times_us.iter().step_by(step).copied().map(rounded).collect(),
        }
    }
}

/// To a tenth of a nanosecond, or of a MB/s: beyond that the digits mean nothing.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_iterations_are_thinned_evenly() {
        let of = |n: u32| Figures::of((0..n).map(f64::from).collect());
        let kept = |n: u32| Measured::new(super::super::report::tests::row(8, false), &of(n));
        let all = kept(4096);
        assert_eq!((all.samples_us.len(), all.sample_step, all.max_us), (4096, 1, 4095.0));
        let some = kept(10_000);
        assert_eq!((some.samples_us.len(), some.sample_step, some.max_us), (3334, 3, 9999.0));
        assert_eq!(&some.samples_us[..3], [0.0, 3.0, 6.0]);
    }

    #[test]
    fn it_reads_what_it_writes() {
        let measured = Measured {
            row: super::super::report::tests::row(8, true),
            max_us: 7.5,
            round: Some(3),
            sample_step: 1,
            samples_us: vec![2.5, 7.5],
        };
        let text = serde_json::to_string(&measured).unwrap();
        assert!(text.starts_with(r#"{"backend":"shm","op":"all_reduce""#), "{text}");
        assert_eq!(serde_json::from_str::<Measured>(&text).unwrap(), measured);
    }
}
