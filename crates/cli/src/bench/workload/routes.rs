//! Uneven counts: popularity by a power law over items in a shuffled order, and whole rows that keep the totals.
//!
//! All ranks compute the same counts from the same workload: only whole numbers and correctly rounded operations decide, but
//! for the power itself, whose last bit may differ between machines and is rounded away here.

/// The share of each rank: the weights of its items, item k in order of popularity weighing 1 / k^zipf.
///
/// `items` is a multiple of `ranks`; each rank holds a run of them in the shuffled order of `seed`.
pub(crate) fn popularity(ranks: usize, items: usize, zipf: f64, seed: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (1..=items).collect();
    let mut random = Random(seed);
    for last in (1..items).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    let weight = |place: &usize| ((*place as f64).powf(-zipf) * f64::from(1 << 20)).round() as u64;
    order.chunks((items / ranks).max(1)).map(|own| own.iter().map(weight).sum()).collect()
}

/// Rows by weight with exactly this total, by largest remainders.
pub(crate) fn split(total: usize, weights: &[u64]) -> Vec<usize> {
    let all = weights.iter().map(|weight| u128::from(*weight)).sum::<u128>();
    if all == 0 {
        return split(total, &vec![1; weights.len()]);
    }
    let exact = |weight: &u64| total as u128 * u128::from(*weight);
    let mut counts: Vec<usize> = weights.iter().map(|weight| (exact(weight) / all) as usize).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|rank| (std::cmp::Reverse(exact(&weights[*rank]) % all), *rank));
    let missing = total - counts.iter().sum::<usize>();
    for rank in &order[..missing] {
        counts[*rank] += 1;
    }
    counts
}

/// Rows from each rank to each other: every rank sends `total` rows by popularity, which its own tokens raise or lower by up
/// to a quarter.
pub(crate) fn pairs(total: usize, popularity: &[u64], seed: u64) -> Vec<Vec<usize>> {
    let mut random = Random(seed ^ 0x5eed);
    let vary = |weight: &u64, random: &mut Random| weight * (75 + random.below(51)) / 100;
    let row = |_| {
        let weights: Vec<u64> = popularity.iter().map(|weight| vary(weight, &mut random)).collect();
        split(total, &weights)
    };
    (0..popularity.len()).map(row).collect()
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_keep_the_total_and_follow_the_weights() {
        assert_eq!(split(10, &[1, 1, 2]), [3, 2, 5]);
        assert_eq!(split(7, &[0, 5, 0]), [0, 7, 0]);
        assert_eq!(split(3, &[0, 0]), [2, 1]);
        assert_eq!(split(0, &[3, 4]), [0, 0]);
        assert_eq!(split(1 << 40, &[1, 3]), [1 << 38, 3 << 38]);
    }

    #[test]
    fn popularity_is_seeded_and_skewed() {
        let even = popularity(4, 256, 0.0, 1);
        assert!(even.iter().all(|share| *share == 64 << 20), "{even:?}");
        let ranks = popularity(4, 4, 1.0, 9);
        let mut sorted = ranks.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(sorted, [1 << 20, 1 << 19, 349525, 1 << 18]);
        assert_eq!(popularity(4, 256, 0.5, 256), popularity(4, 256, 0.5, 256));
        assert_ne!(popularity(4, 256, 0.5, 256), popularity(4, 256, 0.5, 257));
        let experts = popularity(4, 256, 0.5, 256);
        assert!(experts.iter().max() > experts.iter().min());
    }

    #[test]
    fn every_rank_sends_its_total() {
        let rows = pairs(1000, &popularity(4, 256, 0.5, 256), 256);
        assert_eq!(rows.len(), 4);
        for row in &rows {
            assert_eq!(row.iter().sum::<usize>(), 1000);
            assert!(row.iter().all(|count| (120..=400).contains(count)), "{rows:?}");
        }
        assert_ne!(rows[0], rows[1]);
    }
}
