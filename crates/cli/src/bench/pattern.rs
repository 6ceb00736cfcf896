//! The values that ranks contribute and what must come out, exactly representable in every type.
//!
//! The base value of rank r, block b, position i is `(31r + 13b + 7i) mod p` for a prime p, so that every rank, block and
//! position differs from its neighbours. Sums stay exact because p, and beyond some size the number of ranks that contribute
//! to one position, is chosen from the type's range of exact whole numbers.

use super::elem::BenchElem;
use rankwise::ReduceOp;

/// Without 7, 13 and 31, whose multiples would make rank, block or position not matter.
const PRIMES: [u64; 14] = [61, 59, 53, 47, 43, 41, 37, 29, 23, 19, 17, 11, 5, 3];

/// Contributions and results of one operator over so many ranks of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    ranks: u64,
    op: Option<ReduceOp>,
    prime: u64,
    /// Of so many neighbouring ranks one contributes to a sum at each position; the others contribute zero.
    stride: u64,
}

impl Pattern {
    /// `op` is none where data only moves.
    pub(crate) fn new<T: BenchElem>(ranks: usize, op: Option<ReduceOp>) -> Pattern {
        let ranks = ranks as u64;
        let (prime, stride) = match op {
            Some(ReduceOp::Sum) => for_sums(T::LIMIT, ranks),
            // The values are doubled, so that half of them is exact.
            Some(ReduceOp::PreMulSum(_)) => for_sums(T::LIMIT / 2, ranks),
            Some(ReduceOp::Avg) => (largest_prime(T::LIMIT - 2, 0), 1),
            // Built without the base value.
            Some(ReduceOp::Prod) => (1, 1),
            _ => (largest_prime(T::LIMIT, 0), 1),
        };
        Pattern { ranks, op, prime, stride }
    }

    /// After so many positions the values repeat.
    fn period(&self) -> usize {
        let own = match self.op {
            Some(ReduceOp::Prod) => 6 * self.ranks,
            Some(ReduceOp::Avg) => 2,
            _ => 1,
        };
        (self.prime * self.stride * own) as usize
    }

    /// What `rank` contributes.
    pub(crate) fn value(&self, rank: u64, block: u64, i: u64) -> u64 {
        let base = (31 * rank + 13 * block + 7 * i) % self.prime;
        match self.op {
            Some(ReduceOp::Sum) if !(rank + i).is_multiple_of(self.stride) => 0,
            Some(ReduceOp::PreMulSum(_)) if !(rank + i).is_multiple_of(self.stride) => 0,
            Some(ReduceOp::PreMulSum(_)) => 2 * base,
            // One rank contributes 1 to 3, one 1 or 2, the others 1.
            Some(ReduceOp::Prod) => {
                let one = if (rank + i).is_multiple_of(self.ranks) { 1 + (i + block) % 3 } else { 1 };
                let other = if (rank + 2 * i + block).is_multiple_of(self.ranks) { 1 + (i + block) % 2 } else { 1 };
                one * other
            }
            // Pairs of ranks are one above and one below the mean.
            Some(ReduceOp::Avg) => {
                let mean = 1 + (13 * block + 7 * i) % self.prime;
                let paired = (rank | 1) < self.ranks;
                match (paired, (rank + rank / 2 + i).is_multiple_of(2)) {
                    (false, _) => mean,
                    (true, true) => mean + 1,
                    (true, false) => mean - 1,
                }
            }
            _ => base,
        }
    }

    /// What the reduction over all ranks gives.
    pub(crate) fn reduced(&self, block: u64, i: u64) -> u64 {
        let values = (0..self.ranks).map(|rank| self.value(rank, block, i));
        let result = match self.op {
            Some(ReduceOp::Prod) => Some(values.product()),
            Some(ReduceOp::Min) => values.min(),
            Some(ReduceOp::Max) => values.max(),
            Some(ReduceOp::Avg) => Some(values.sum::<u64>() / self.ranks),
            // The factor of PreMulSum is 0.5.
            Some(ReduceOp::PreMulSum(_)) => Some(values.sum::<u64>() / 2),
            Some(ReduceOp::BAnd) => values.reduce(|a, b| a & b),
            Some(ReduceOp::BOr) => values.reduce(|a, b| a | b),
            Some(ReduceOp::BXor) => values.reduce(|a, b| a ^ b),
            _ => Some(values.sum()),
        };
        result.unwrap_or(0)
    }

    /// Writes what `rank` contributes.
    pub(crate) fn fill<T: BenchElem>(&self, rank: usize, block: usize, out: &mut [T]) {
        let period: Vec<T> =
            (0..self.period()).map(|i| T::exactly(self.value(rank as u64, block as u64, i as u64))).collect();
        for chunk in out.chunks_mut(period.len()) {
            chunk.copy_from_slice(&period[..chunk.len()]);
        }
    }

    /// Elements that differ from what must be there: the contribution of a rank, or the reduction for none.
    pub(crate) fn wrong<T: BenchElem>(&self, of: Option<usize>, block: usize, found: &[T]) -> u64 {
        let wanted = |i: usize| match of {
            Some(rank) => self.value(rank as u64, block as u64, i as u64),
            None => self.reduced(block as u64, i as u64),
        };
        let period: Vec<T> = (0..self.period()).map(|i| T::exactly(wanted(i))).collect();
        let mean = of.is_none() && matches!(self.op, Some(ReduceOp::Avg));
        let right = |found: T, wanted: T| if mean { found.is_mean(wanted) } else { found == wanted };
        let wrong_of = |chunk: &[T]| {
            if chunk == &period[..chunk.len()] {
                return 0;
            }
            chunk.iter().zip(&period).filter(|(found, wanted)| !right(**found, **wanted)).count() as u64
        };
        found.chunks(period.len()).map(wrong_of).sum()
    }
}

/// The largest prime whose values stay at or below `most` and that does not divide `ranks`; 2 when there is none.
fn largest_prime(most: u64, ranks: u64) -> u64 {
    let fits = |prime: &u64| *prime <= most + 1 && (ranks == 0 || !ranks.is_multiple_of(*prime));
    PRIMES.into_iter().find(fits).unwrap_or(2)
}

/// Prime and stride for sums up to `limit`.
///
/// At least five values a rank where that is possible. A multiple of the prime of contributions would hold every value
/// equally often and make all sums alike, so that a shifted result would pass: then fewer ranks contribute.
fn for_sums(limit: u64, ranks: u64) -> (u64, u64) {
    let mut stride = ranks.div_ceil((limit / 4).max(1));
    loop {
        let contributions = ranks.div_ceil(stride);
        let prime = largest_prime(limit / contributions, contributions);
        if !contributions.is_multiple_of(prime) {
            return (prime, stride);
        }
        stride += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::elem::with_elem;
    use super::*;
    use rankwise::DType;

    fn stays_exact<T: BenchElem>(ranks: usize) {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.is_meaningful_for(T::DTYPE)) {
            let pattern = Pattern::new::<T>(ranks, Some(op));
            let mut results = std::collections::HashSet::new();
            for i in 0..100 {
                let most = (0..ranks as u64).map(|rank| pattern.value(rank, 1, i)).max().unwrap();
                let result = pattern.reduced(1, i);
                results.insert(result);
                assert!(most <= T::LIMIT && result <= T::LIMIT, "{op} of {} over {ranks}: {result}", T::DTYPE);
                let far = i + pattern.period() as u64 * 3;
                assert_eq!(pattern.value(ranks as u64 - 1, 1, i), pattern.value(ranks as u64 - 1, 1, far));
                assert_eq!(result, pattern.reduced(1, far));
            }
            let constant = matches!(op, ReduceOp::BAnd | ReduceOp::BOr | ReduceOp::Min | ReduceOp::Max);
            assert!(constant || results.len() > 1 || ranks == 1, "{op} of {} over {ranks}", T::DTYPE);
        }
    }

    #[test]
    fn results_are_exact_in_every_type_and_world() {
        for dtype in DType::NUMERIC {
            for ranks in [1, 2, 3, 4, 7, 8, 13, 17, 100, 256, 1000] {
                with_elem!(dtype, stays_exact(ranks), unreachable!());
            }
        }
    }

    #[test]
    fn one_wrong_element_is_counted() {
        let pattern = Pattern::new::<f32>(3, Some(ReduceOp::Sum));
        let mut sums: Vec<f32> = (0..1000).map(|i| pattern.reduced(2, i) as f32).collect();
        assert_eq!(pattern.wrong(None, 2, &sums), 0);
        assert_eq!(pattern.wrong(None, 1, &sums), 1000);
        sums[999] += 1.0;
        sums[61] = f32::NAN;
        assert_eq!(pattern.wrong(None, 2, &sums), 2);

        let moves = Pattern::new::<u8>(4, None);
        let mut part = [0_u8; 200];
        moves.fill(2, 1, &mut part);
        assert_eq!(moves.wrong(Some(2), 1, &part), 0);
        assert_eq!(moves.wrong(Some(1), 1, &part), 200, "another rank's data");
        assert_eq!(moves.wrong(Some(2), 1, &part[1..]), 199, "shifted data");
    }
}
