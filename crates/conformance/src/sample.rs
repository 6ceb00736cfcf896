//! Seeded pairwise samples of a product of choices (H4): every pair of values of two choices occurs in some row.

use crate::random::Random;
use std::collections::BTreeSet;

/// Rows of choices, `lengths[i]` values for choice `i`, such that every pair of values of any two choices occurs.
///
/// An empty choice gives no rows.
pub(crate) fn pairwise(lengths: &[usize], random: &mut Random) -> Vec<Vec<usize>> {
    if lengths.contains(&0) {
        return Vec::new();
    }
    if lengths.len() == 1 {
        return (0..lengths[0]).map(|value| vec![value]).collect();
    }
    let mut uncovered = BTreeSet::new();
    for (a, &length_a) in lengths.iter().enumerate() {
        for (b, &length_b) in lengths.iter().enumerate().skip(a + 1) {
            uncovered.extend((0..length_a).flat_map(|x| (0..length_b).map(move |y| (a, x, b, y))));
        }
    }
    let mut order: Vec<_> = uncovered.iter().copied().collect();
    random.shuffle(&mut order);
    let mut rows = Vec::new();
    for (a, x, b, y) in order {
        if !uncovered.contains(&(a, x, b, y)) {
            continue;
        }
        let mut row = vec![None; lengths.len()];
        (row[a], row[b]) = (Some(x), Some(y));
        let mut rest: Vec<usize> = (0..lengths.len()).filter(|i| *i != a && *i != b).collect();
        random.shuffle(&mut rest);
        for i in rest {
            let start = random.below(lengths[i]);
            let gain = |value: usize| {
                let pair = |(j, other): (usize, &Option<usize>)| {
                    other.is_some_and(|other| uncovered.contains(&ordered(i, value, j, other)))
                };
                row.iter().enumerate().filter(|entry| pair(*entry)).count()
            };
            let values = (0..lengths[i]).map(|step| (start + step) % lengths[i]);
            row[i] = values.max_by_key(|value| gain(*value));
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        for i in 0..row.len() {
            for j in i + 1..row.len() {
                uncovered.remove(&(i, row[i], j, row[j]));
            }
        }
        rows.push(row);
    }
    rows
}

fn ordered(i: usize, x: usize, j: usize, y: usize) -> (usize, usize, usize, usize) {
    if i < j { (i, x, j, y) } else { (j, y, i, x) }
}

/// Every row of the product.
pub(crate) fn product(lengths: &[usize]) -> Vec<Vec<usize>> {
    lengths.iter().fold(vec![Vec::new()], |rows, &length| {
        rows.iter()
            .flat_map(|row| {
                (0..length).map(move |value| {
                    let mut row = row.clone();
                    row.push(value);
                    row
                })
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_occurs_and_the_sample_is_much_smaller_than_the_product() {
        let lengths = [14, 30, 2, 8, 2];
        let rows = pairwise(&lengths, &mut Random::new(5));
        for a in 0..lengths.len() {
            for b in a + 1..lengths.len() {
                for x in 0..lengths[a] {
                    for y in 0..lengths[b] {
                        assert!(rows.iter().any(|row| row[a] == x && row[b] == y), "{a}={x} {b}={y}");
                    }
                }
            }
        }
        assert!(rows.len() < 14 * 30 * 2, "{}", rows.len());
        assert_eq!(rows, pairwise(&lengths, &mut Random::new(5)), "the seed decides");
    }

    #[test]
    fn product_has_all_rows() {
        assert_eq!(product(&[2, 3]).len(), 6);
        assert!(product(&[2, 0]).is_empty() && pairwise(&[2, 0], &mut Random::new(1)).is_empty());
    }
}
