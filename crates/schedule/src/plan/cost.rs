//! What plans cost, in closed form. The tests compare these formulas with the plans, for every number of members up to 64 and some beyond.
//!
//! With n members, p the largest power of two up to n, r = n - p, and N the data of a member (all-reduce, reduce, broadcast) or B a block:
//!
//! | kind | plan | rounds | messages | data sent | source |
//! |---|---|---|---|---|---|
//! | all_reduce | direct | 1 | n - 1 | (n - 1) N | Chan et al. 2007 |
//! | | two_shot | 2 | 2 (n - 1) | 2 (n - 1)/n N | Chan et al. 2007, one round each |
//! | | ring | 2 (n - 1) | 2 (n - 1) | 2 (n - 1)/n N | Patarasuk, Yuan 2009 |
//! | | recursive_doubling | log2 p, + 2 if r | log2 p, + 1 if r | log2 p N, + N if r | Thakur et al. 2005 |
//! | | recursive_halving | 2 log2 p, + 2 if r | 2 log2 p, + 1 if r | 2 (n - 1)/n N; see below if r | Rabenseifner 2004 |
//! | | k-nomial | 2 ceil(log_k n) | children of the root | that many N | Chan et al. 2007 |
//! | | bruck | ceil(log2 n) | ceil(log2 n) | (n - 1) N | Bruck et al. 1997, as an all-gather |
//! | all_gather | direct, ring | 1, n - 1 | n - 1 | (n - 1) B | Thakur et al. 2005 |
//! | | recursive_doubling | log2 p, + 2 if r | log2 p, + 1 if r | (n - 1) B; see below if r | Thakur et al. 2005 |
//! | | bruck | ceil(log2 n) | ceil(log2 n) | (n - 1) B | Bruck et al. 1997 |
//! | reduce_scatter | direct, ring, pairwise | 1, n - 1, n - 1 | n - 1 | (n - 1) B | Thakur et al. 2005 |
//! | | recursive_halving | log2 p, + 2 if r | log2 p, + 1 if r | (n - 1) B, n B if r | Thakur et al. 2005 |
//! | all_to_all | direct, pairwise | 1, n - 1 | n - 1 | (n - 1) B | Thakur et al. 2005 |
//! | | bruck | ceil(log2 n) | ceil(log2 n) | sum over the bits of the distances below n with it, n/2 log2 n B for n = p | Bruck et al. 1997 |
//! | broadcast | direct, k-nomial | 1, ceil(log_k n) | children of the root | that many N | Chan et al. 2007 |
//! | | two_shot | 2 | 2 (n - 1) | 2 (n - 1)/n N | van de Geijn's scatter and all-gather |
//! | | ring | n - 1 | 1 | N | Chan et al. 2007 |
//! | reduce | direct, ring, k-nomial | 1, n - 1, ceil(log_k n) | 1 | N | Chan et al. 2007 |
//! | | two_shot | 2 | n | N | Rabenseifner 2004, one round each |
//! | gather, scatter | direct | 1 | 1, n - 1 | B, (n - 1) B | |
//! | | k-nomial | ceil(log_k n) | 1, children of the root | the largest subtree, (n - 1) B | Chan et al. 2007 |
//!
//! The root's children in a k-nomial tree: the sum over the levels l of min(k - 1, floor((n - 1)/k^l)); (k - 1) log_k n for a power of k.
//! Doubling with r > 0: the first core member sends the sum over s < log2 p of 2^s + min(2^s, r) blocks, then all n to the member it stands for. Halving
//! before it sends n - 2.

use super::{Algorithm, Form};
use rankwise_core::OpKind;

/// What a plan in one chunk costs its busiest member, who may be another one for each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Rounds in which there are messages: message times one after the other.
    pub rounds: usize,
    /// Messages sent.
    pub messages: usize,
    /// Elements sent.
    pub elements: usize,
}

impl Cost {
    /// Of a call of `count` elements, as [`OpKind`] counts them, in a group of `n`.
    ///
    /// `None` for kinds that the algorithm does not offer, and for those with a count per rank. Where the plan divides `count` into `n` parts and `n` is not a
    /// divisor, `elements` is the cost of the next multiple.
    pub fn of(algorithm: Algorithm, kind: OpKind, n: usize, count: usize) -> Option<Cost> {
        use OpKind::*;
        if !algorithm.offers(kind) || matches!(kind, AllGatherV | ReduceScatterV | AllToAllV | GatherV | ScatterV) {
            return None;
        }
        let cost = |rounds, messages, elements| Some(Cost { rounds, messages, elements });
        if n <= 1 {
            return cost(0, 0, 0);
        }
        let (others, part) = (n - 1, count.div_ceil(n));
        let doublings = n.ilog2() as usize;
        let paired = n - (1 << doublings);
        let merges = usize::from(paired > 0);
        let circle = n.next_power_of_two().ilog2() as usize;
        // Blocks sent in the doubling and to the member stood for.
        let doubled = (0..doublings).map(|s| (1 << s) + paired.min(1 << s)).sum::<usize>() + merges * n;
        match (algorithm, Form::of(kind)?) {
            (Algorithm::Direct, Form::Reduce | Form::Gather) => cost(1, 1, count),
            (Algorithm::Direct, Form::Message) if kind == Recv => cost(1, 0, 0),
            (Algorithm::Direct, Form::Message) => cost(1, 1, count),
            (Algorithm::Direct, _) => cost(1, others, others * count),
            (Algorithm::TwoShot, Form::Reduce) => cost(2, n, n * part),
            (Algorithm::TwoShot, _) => cost(2, 2 * others, 2 * others * part),
            (Algorithm::Ring, Form::AllReduce) => cost(2 * others, 2 * others, 2 * others * part),
            (Algorithm::Ring, Form::Broadcast | Form::Reduce) => cost(others, 1, count),
            (Algorithm::Ring | Algorithm::Pairwise, _) => cost(others, others, others * count),
            (Algorithm::RecursiveDoubling, Form::AllReduce) => {
                cost(doublings + 2 * merges, doublings + merges, (doublings + merges) * count)
            }
            (Algorithm::RecursiveDoubling, _) => cost(doublings + 2 * merges, doublings + merges, doubled * count),
            (Algorithm::RecursiveHalving, Form::AllReduce) => {
                let halved = others - merges;
                cost(2 * (doublings + merges), 2 * doublings + merges, (halved + doubled) * part)
            }
            (Algorithm::RecursiveHalving, _) => {
                cost(doublings + 2 * merges, doublings + merges, (others + merges) * count)
            }
            (Algorithm::Bruck, Form::AllToAll) => {
                let moved = |bit: usize| n / (2 * bit) * bit + (n % (2 * bit)).saturating_sub(bit);
                cost(circle, circle, (0..circle).map(|s| moved(1 << s)).sum::<usize>() * count)
            }
            (Algorithm::Bruck, _) => cost(circle, circle, others * count),
            (Algorithm::KNomial(radix), form) => {
                let radix = usize::from(radix);
                let levels = || std::iter::successors(Some(1), |span| Some(span * radix)).take_while(|span| *span < n);
                let depth = levels().count();
                let children = levels().map(|span| (radix - 1).min(others / span)).sum::<usize>();
                match form {
                    Form::AllReduce => cost(2 * depth, children, children * count),
                    Form::Broadcast => cost(depth, children, children * count),
                    Form::Reduce => cost(depth, 1, count),
                    Form::Gather => cost(depth, 1, levels().map(|span| span.min(n - span)).max()? * count),
                    _ => cost(depth, children, others * count),
                }
            }
        }
    }
}
