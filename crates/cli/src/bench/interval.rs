//! Medians, ratios and how sure they are, from order statistics alone: no assumption about the shape of the noise, no random
//! numbers, the same answer each time.

/// Most consecutive blocks that the samples of one run are cut into.
const MOST_BLOCKS: usize = 40;

/// Below this a time is rounding, in microseconds.
const RESOLUTION_US: f64 = 1e-4;

/// Times of one cell in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// Values that can be taken as independent.
    pub(crate) medians_us: Vec<f64>,
    /// Steps of the clock: times may be off by half as much.
    pub(crate) resolution_us: f64,
}

/// How many times as long the other one takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    /// 95 %; none when there are too few values.
    pub(crate) interval: Option<(f64, f64)>,
}

/// What the interval of a ratio says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Faster,
    Same,
    Slower,
    /// Too few values for an interval.
    Unknown,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Same => "same",
            Verdict::Slower => "slower",
            Verdict::Unknown => "unknown",
        }
    }
}

impl Ratio {
    /// From times that were taken in turn: the median of the ratios of the rounds, each pair being (base, other). The interval
    /// has the smallest ratios that the clock's steps allow on one side, and the largest on the other.
    pub(crate) fn paired(rounds: &[(f64, f64)], resolution_us: f64) -> Option<Ratio> {
        let shifted = |by: f64| sorted(rounds.iter().map(|(base, other)| quotient(other + by, base - by)).collect());
        let (low, high) = (shifted(-resolution_us / 2.0), shifted(resolution_us / 2.0));
        let bounds = median_interval(&low, 0.95).zip(median_interval(&high, 0.95));
        Some(Ratio { value: median(&shifted(0.0))?, interval: bounds.map(|((low, _), (_, high))| (low, high)) })
    }

    /// From runs that have nothing to do with each other: the ratio of the medians. Each median has a 97.5 % interval, so both
    /// hold together with at least 95 %. They are wider by half a step of the clock on each side.
    pub(crate) fn independent(base: &Times, other: &Times) -> Option<Ratio> {
        let interval = base.bounds(0.975).zip(other.bounds(0.975));
        Some(Ratio {
            value: quotient(other.median()?, base.median()?),
            interval: interval.map(|(base, other)| (quotient(other.0, base.1), quotient(other.1, base.0))),
        })
    }

    pub(crate) fn verdict(&self) -> Verdict {
        match self.interval {
            None => Verdict::Unknown,
            Some((low, _)) if low > 1.0 => Verdict::Slower,
            Some((_, high)) if high < 1.0 => Verdict::Faster,
            Some(_) => Verdict::Same,
        }
    }

    /// For example `0.912..1.034`.
    pub(crate) fn interval_text(&self) -> String {
        self.interval.map_or("too few".into(), |(low, high)| format!("{low:.3}..{high:.3}"))
    }
}

impl Times {
    pub(crate) fn median(&self) -> Option<f64> {
        median(&sorted(self.medians_us.clone()))
    }

    /// Where the true median lies with 95 %; none when there are too few values.
    pub(crate) fn interval(&self) -> Option<(f64, f64)> {
        self.bounds(0.95)
    }

    fn bounds(&self, confidence: f64) -> Option<(f64, f64)> {
        let (low, high) = median_interval(&sorted(self.medians_us.clone()), confidence)?;
        Some((low - self.resolution_us / 2.0, high + self.resolution_us / 2.0))
    }
}

/// The smallest step between different samples; 0 when all are alike.
pub(crate) fn resolution(samples_us: &[f64]) -> f64 {
    let sorted = sorted(samples_us.to_vec());
    let steps = sorted.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| *step > RESOLUTION_US / 2.0);
    steps.reduce(f64::min).unwrap_or(0.0)
}

/// Medians of consecutive blocks. Neighbouring iterations are alike, so single ones would make the interval too narrow.
pub(crate) fn block_medians(samples: &[f64]) -> Vec<f64> {
    let blocks = samples.len().min(MOST_BLOCKS);
    let block = |i: usize| &samples[i * samples.len() / blocks..(i + 1) * samples.len() / blocks];
    (0..blocks).filter_map(|i| median(&sorted(block(i).to_vec()))).collect()
}

/// The middle value, or the mean of the two in the middle; none of nothing.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    (n > 0).then(|| (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0)
}

pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The k-th smallest and k-th largest of n values, with the largest k for which 2 P(Binomial(n, 1/2) < k) <= 1 - confidence.
///
/// Each value lies below the median with probability 1/2, whatever the distribution, so this is how often the two miss it.
fn median_interval(sorted: &[f64], confidence: f64) -> Option<(f64, f64)> {
    let n = sorted.len();
    // In logarithms, since 2^-n underflows.
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let (mut below, mut k) = (0.0, 0);
    while k < n / 2 {
        below += term.exp();
        if 2.0 * below > 1.0 - confidence {
            break;
        }
        term += ((n - k) as f64 / (k + 1) as f64).ln();
        k += 1;
    }
    (k > 0).then(|| (sorted[k - 1], sorted[n - k]))
}

fn quotient(other: f64, base: f64) -> f64 {
    other.max(RESOLUTION_US) / base.max(RESOLUTION_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(n: usize) -> Vec<f64> {
        (1..=n).map(|i| i as f64).collect()
    }

    #[test]
    fn the_interval_has_the_ranks_of_the_tables() {
        // From the tables of the sign test at 5 %, two-sided.
        for (n, k) in [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (20, 6), (25, 8), (40, 14), (100, 40)] {
            let expected = (k as f64, (n + 1 - k) as f64);
            assert_eq!(median_interval(&to(n), 0.95), Some(expected), "{n}");
        }
        for n in 0..6 {
            assert_eq!(median_interval(&to(n), 0.95), None, "{n}");
        }
        assert_eq!((median_interval(&to(6), 0.975), median_interval(&to(7), 0.975)), (None, Some((1.0, 7.0))));
        // Where 2^-n is 0: the normal approximation gives 2500 -+ 1.96 * sqrt(5000) / 2.
        let (low, high) = median_interval(&to(5000), 0.95).unwrap();
        assert!((low - 2431.0).abs() < 2.0 && (high - 2570.0).abs() < 2.0, "{low} {high}");
    }

    #[test]
    fn the_interval_covers_the_median_as_often_as_it_says() {
        // A fixed generator; a skewed distribution with median 1.
        let mut state = 1_u64;
        let mut value = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let uniform = ((state >> 33) as f64 + 0.5) / (1_u64 << 31) as f64;
            1.0 / (2.0 * uniform)
        };
        let trials = 4000;
        let covered = (0..trials).filter(|_| {
            let values = sorted((0..9).map(|_| value()).collect());
            let (low, high) = median_interval(&values, 0.95).unwrap();
            low <= 1.0 && 1.0 <= high
        });
        // 1 - 2 * 10 / 2^9 = 0.9609.
        let share = covered.count() as f64 / f64::from(trials);
        assert!((share - 0.9609).abs() < 0.015, "{share}");
    }

    #[test]
    fn paired_ratios_cancel_what_both_share() {
        let rounds: Vec<_> =
            (1..=9).map(|i| (f64::from(i * i), f64::from(i * i) * (2.0 + f64::from(i) / 100.0))).collect();
        let ratio = Ratio::paired(&rounds, 0.0).unwrap();
        assert!((ratio.value - 2.05).abs() < 1e-9, "{ratio:?}");
        let (low, high) = ratio.interval.unwrap();
        assert!((low - 2.02).abs() < 1e-9 && (high - 2.08).abs() < 1e-9, "{ratio:?}");
        assert_eq!(ratio.verdict(), Verdict::Slower);
        assert_eq!(Ratio::paired(&rounds[..5], 0.0).unwrap().verdict(), Verdict::Unknown);
        assert_eq!(Ratio::paired(&[], 0.0), None);
    }

    #[test]
    fn independent_runs_use_both_intervals() {
        let times = |factor: f64, n: usize| Times {
            medians_us: to(n).into_iter().map(|value| value * factor).collect(),
            resolution_us: 0.0,
        };
        let (base, other) = (times(1.0, 7), times(10.0, 7));
        let ratio = Ratio::independent(&base, &other).unwrap();
        assert_eq!((ratio.value, ratio.interval), (10.0, Some((10.0 / 7.0, 70.0))));
        assert_eq!(ratio.verdict(), Verdict::Slower);
        assert_eq!(Ratio::independent(&other, &base).unwrap().verdict(), Verdict::Faster);
        assert_eq!(Ratio::independent(&base, &base).unwrap().verdict(), Verdict::Same);
        assert_eq!(Ratio::independent(&base, &times(1.0, 1)).unwrap().verdict(), Verdict::Unknown);
        assert_eq!(Ratio::independent(&times(0.0, 1), &times(0.0, 1)).unwrap().value, 1.0);
    }

    #[test]
    fn a_step_of_the_clock_is_no_difference() {
        // Two runs that the clock's steps of 10 ns round to two neighbours.
        let times = |time: f64| Times { medians_us: vec![time; 40], resolution_us: 0.01 };
        assert_eq!(Ratio::independent(&times(0.88), &times(0.89)).unwrap().verdict(), Verdict::Same);
        assert_eq!(Ratio::independent(&times(0.88), &times(0.91)).unwrap().verdict(), Verdict::Slower);
        assert_eq!(Ratio::paired(&[(0.89, 0.88); 9], 0.0101).unwrap().verdict(), Verdict::Same);
        assert_eq!(Ratio::paired(&[(0.91, 0.88); 9], 0.0101).unwrap().verdict(), Verdict::Faster);
        assert!((resolution(&[0.91, 0.89, 0.90, 0.90, 7.0]) - 0.01).abs() < 1e-9);
        assert_eq!((resolution(&[1.0, 1.0]), resolution(&[])), (0.0, 0.0));
    }

    #[test]
    fn blocks_are_consecutive_and_complete() {
        assert_eq!(block_medians(&to(40)), to(40));
        let medians = block_medians(&to(400));
        assert_eq!((medians.len(), medians[0], medians[39]), (40, 5.5, 395.5));
        assert_eq!(block_medians(&to(41)).len(), 40);
        assert!(block_medians(&[]).is_empty());
    }
}
