//! Logarithmic axes: where values are, and which of them get a label.

/// From values to pixels.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// Logarithms to base 2 of the values at both ends.
    low: f64,
    high: f64,
    /// Pixels of both ends.
    from: f64,
    to: f64,
    /// Where 0 is, which has no logarithm: apart from the rest, if anywhere.
    zero: Option<f64>,
    pub(super) ticks: Vec<Tick>,
}

/// A labelled place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

/// Room for a label of an axis of sizes.
const LABEL_WIDTH: f64 = 46.0;

impl Axis {
    /// Of whole numbers, sizes above all, which may be 0: a label for each when there is room, else for powers of two.
    pub(super) fn of_sizes(values: &[u64], from: f64, to: f64, label: fn(u64) -> String) -> Axis {
        let mut values = values.to_vec();
        values.sort_unstable();
        values.dedup();
        let logarithms: Vec<f64> =
            values.iter().filter(|value| **value > 0).map(|value| (*value as f64).log2()).collect();
        let has_zero = values.first() == Some(&0);
        let (least, most) = (logarithms.first().copied().unwrap_or(0.0), logarithms.last().copied().unwrap_or(0.0));
        let pad = if most > least { (most - least) * 0.04 } else { 1.0 };
        let start = if has_zero && !logarithms.is_empty() { from + LABEL_WIDTH + 8.0 } else { from };
        let zero = has_zero.then_some(if logarithms.is_empty() { (from + to) / 2.0 } else { from + 8.0 });
        let mut axis = Axis { low: least - pad, high: most + pad, from: start, to, zero, ticks: Vec::new() };
        let tick = |value: u64| Tick { at: axis.at(value as f64), label: label(value) };
        let all: Vec<Tick> = values.iter().map(|value| tick(*value)).collect();
        let ticks = if all.windows(2).all(|pair| pair[1].at - pair[0].at >= LABEL_WIDTH) {
            all
        } else {
            let (first, last) = (least.ceil() as u32, most.floor() as u32);
            let room = ((to - start) / LABEL_WIDTH) as usize;
            let powers = |step: u32| (first..=last).filter(move |power| power.is_multiple_of(step));
            let step = (1..=64).find(|step| powers(*step).count() <= room.max(1)).unwrap_or(64);
            powers(step).map(|power| tick(1_u64 << power.min(63))).chain(zero.map(|_| tick(0))).collect()
        };
        axis.ticks = ticks;
        axis
    }

    /// Of positive numbers with units.
    pub(super) fn of_values(values: &[f64], from: f64, to: f64, label: fn(f64) -> String) -> Axis {
        let logarithms = values.iter().filter(|value| **value > 0.0).map(|value| value.log2());
        let (least, most) =
            logarithms.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        let (least, most) = if least <= most { (least, most) } else { (0.0, 0.0) };
        // Not less than a factor of two, or noise looks like mountains.
        let pad = ((most - least) * 0.06).max((1.0 - (most - least)) / 2.0);
        let mut axis = Axis { low: least - pad, high: most + pad, from, to, zero: None, ticks: Vec::new() };
        let (low, high) = (axis.low.exp2(), axis.high.exp2());
        axis.ticks =
            round_values(low, high).into_iter().map(|value| Tick { at: axis.at(value), label: label(value) }).collect();
        axis
    }

    /// The pixel of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        match self.zero {
            Some(zero) if value <= 0.0 => zero,
            _ => self.from + (value.log2() - self.low) / (self.high - self.low) * (self.to - self.from),
        }
    }
}

/// Round values between both: powers of ten, or 1, 2 and 5 of each, or evenly spaced ones when the ends are close.
fn round_values(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let of_decades = |of: &[f64], step: usize| -> Vec<f64> {
        let decades = (first..=last).filter(|power| power.rem_euclid(step as i32) == 0);
        let values = decades.flat_map(|power| of.iter().map(move |factor| factor * 10_f64.powi(power)));
        values.filter(|value| (low..=high).contains(value)).collect()
    };
    let decades = (1..=10).map(|step| of_decades(&[1.0], step)).find(|ticks| ticks.len() <= 6).unwrap_or_default();
    if decades.len() >= 3 {
        return decades;
    }
    for factors in [&[1.0, 3.0][..], &[1.0, 2.0, 5.0]] {
        let ticks = of_decades(factors, 1);
        if (3..=7).contains(&ticks.len()) {
            return ticks;
        }
    }
    let rough = (high - low) / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough).unwrap_or(10.0) * power;
    ((low / step).ceil() as u64..=(high / step).floor() as u64).map(|i| i as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::super::units;
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn sizes_have_labels_that_do_not_touch() {
        let of = |values: &[u64]| Axis::of_sizes(values, 60.0, 350.0, units::bytes);
        let few = of(&[8, 4096, 1 << 20]);
        assert_eq!(labels(&few), ["8 B", "4 KiB", "1 MiB"]);
        let all: Vec<u64> = (3..=26).map(|power| 1 << power).collect();
        let many = of(&all);
        assert_eq!(labels(&many), ["16 B", "256 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB"]);
        assert!(many.ticks.windows(2).all(|pair| pair[1].at - pair[0].at >= LABEL_WIDTH), "{many:?}");
        // Evenly spaced: a factor is a distance.
        let step = many.at(16.0) - many.at(8.0);
        assert!(
            (many.at(2048.0) - many.at(1024.0) - step).abs() < 1e-9 && many.at(8.0) >= 60.0 && many.at(67e6) <= 350.0
        );
        assert_eq!(labels(&of(&[8])), ["8 B"]);
        assert!((of(&[8]).at(8.0) - 205.0).abs() < 1e-9);
        let zero = of(&[0, 16, 4096]);
        assert_eq!(labels(&zero), ["0 B", "16 B", "4 KiB"]);
        assert!(zero.at(0.0) < zero.at(16.0) - 20.0 && zero.at(0.0) >= 60.0);
        assert_eq!(labels(&of(&[0])), ["0 B"]);
        assert_eq!(labels(&of(&[u64::MAX])).len(), 1);
    }

    #[test]
    fn values_have_round_labels() {
        let of = |values: &[f64]| Axis::of_values(values, 200.0, 20.0, units::time);
        assert_eq!(labels(&of(&[0.6, 9000.0])), ["1 us", "10 us", "100 us", "1 ms", "10 ms"]);
        assert_eq!(labels(&of(&[2.0, 90.0])), ["3 us", "10 us", "30 us", "100 us"]);
        assert_eq!(labels(&of(&[1.0, 1.01])).len(), 4);
        for values in [vec![], vec![0.0], vec![1e-4, 1e12], vec![5.0], vec![97.0, 102.0]] {
            let axis = of(&values);
            assert!((2..=7).contains(&axis.ticks.len()), "{values:?} {axis:?}");
        }
        let axis = of(&[1.0, 100.0]);
        assert!(axis.at(100.0) < axis.at(10.0) && axis.at(10.0) < axis.at(1.0));
        assert!((axis.at(1.0) + axis.at(100.0) - 2.0 * axis.at(10.0)).abs() < 1e-9);
    }
}
