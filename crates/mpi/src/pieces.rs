//! How counts are cut that MPI's `int` can't hold. Pure; every member derives the same from the same counts.

/// Consecutive parts of `count` elements, first element and length, none longer than `most`.
pub(crate) fn pieces(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count.div_ceil(most)).map(move |i| (i * most, most.min(count - i * most)))
}

/// One native call on a part of a vector that belongs to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Position of the member.
    pub(crate) owner: usize,
    /// First element of the part, from the start of the whole vector.
    pub(crate) at: usize,
    /// The same, from the start of what belongs to the member.
    pub(crate) within: usize,
    pub(crate) len: usize,
}

/// The vectors of all members, one after the other, in parts of at most `most` elements.
pub(crate) fn parts(counts: &[usize], most: usize) -> impl Iterator<Item = Part> {
    let starts = counts.iter().scan(0, |sum, count| {
        let start = *sum;
        *sum += count;
        Some(start)
    });
    counts.iter().zip(starts).enumerate().flat_map(move |(owner, (count, start))| {
        pieces(*count, most).map(move |(within, len)| Part { owner, at: start + within, within, len })
    })
}

/// The largest number of elements that all counts are multiples of; 1 when all are zero.
pub(crate) fn common_unit(counts: impl Iterator<Item = usize>) -> usize {
    fn gcd(a: usize, b: usize) -> usize {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    counts.fold(0, gcd).max(1)
}

/// Blocks of `most` bytes, and bytes left over.
pub(crate) fn blocks(bytes: usize, most: usize) -> (usize, usize) {
    (bytes / most, bytes % most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_whole_number_of_pieces_has_no_empty_one() {
        assert_eq!(pieces(14, 7).collect::<Vec<_>>(), [(0, 7), (7, 7)]);
        assert_eq!(pieces(15, 7).collect::<Vec<_>>(), [(0, 7), (7, 7), (14, 1)]);
        assert_eq!(pieces(0, 7).count(), 0);
    }

    #[test]
    fn the_unit_of_counts() {
        assert_eq!(common_unit([12, 0, 18].into_iter()), 6);
        assert_eq!(common_unit([5].into_iter()), 5);
        assert_eq!(common_unit([0, 0].into_iter()), 1);
        assert_eq!(common_unit([7, 15].into_iter()), 1);
    }

    #[test]
    fn counts_beyond_31_bits() {
        let most = i32::MAX as usize;
        let counts = [3 << 31, 0, (1 << 31) + 5];
        let all: Vec<Part> = parts(&counts, most).collect();
        assert!(all.iter().all(|part| 0 < part.len && part.len <= most));
        assert_eq!(all.iter().map(|part| part.len).sum::<usize>(), counts.iter().sum());
        assert_eq!(all.iter().filter(|part| part.owner == 2).map(|part| part.at).min(), Some(3 << 31));
        assert!(all.iter().all(|part| part.owner != 1));
    }

    proptest! {
        #[test]
        fn parts_cover_everything_once(counts in prop::collection::vec(0_usize..200, 0..9), most in 1_usize..50) {
            let mut owners = Vec::new();
            let mut next = 0;
            for part in parts(&counts, most) {
                prop_assert!((1..=most).contains(&part.len));
                prop_assert_eq!(part.at, next);
                prop_assert_eq!(part.at - part.within, counts[..part.owner].iter().sum::<usize>());
                next += part.len;
                owners.extend(std::iter::repeat_n(part.owner, part.len));
            }
            let expected: Vec<usize> =
                counts.iter().enumerate().flat_map(|(owner, count)| std::iter::repeat_n(owner, *count)).collect();
            prop_assert_eq!(owners, expected);
        }

        #[test]
        fn every_count_is_a_multiple_of_the_unit(counts in prop::collection::vec(0_usize..10_000, 1..6), scale in 1_usize..100) {
            let unit = common_unit(counts.iter().map(|count| count * scale));
            prop_assert!(counts.iter().all(|count| (count * scale).is_multiple_of(unit)));
            prop_assert!(counts.iter().all(|count| *count == 0) || unit.is_multiple_of(scale));
        }

        #[test]
        fn blocks_add_up(bytes in 0_usize..1 << 40, most in 1_usize..1 << 31) {
            let (whole, rest) = blocks(bytes, most);
            prop_assert!(rest < most);
            prop_assert_eq!(whole * most + rest, bytes);
        }
    }
}
