//! Every plan, every number of members from 1 to 64: each rank ends with exactly the right contributions, each exactly once, folded the same
//! way everywhere. Elements are symbols, and a reduction makes the symbol of what it combined.

#[path = "ranks/mod.rs"]
mod ranks;

use proptest::prelude::*;
use ranks::{Armed, Job};
use rankwise_core::backend::RawCall;
use rankwise_core::{DType, OpKind};
use rankwise_schedule::loopback::Settings;
use rankwise_schedule::plan::{Fold, Region};
use rankwise_schedule::{Algorithm, Choice, HostMemory, Lent, Memory, Plan};
use std::cell::RefCell;
use std::collections::HashMap;

/// What an element is: a rank's own element, or a fold of symbols.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Symbol {
    Element(usize, usize),
    Fold(Fold, Vec<u32>),
}

/// Equal symbols have equal numbers.
#[derive(Default)]
struct Symbols {
    known: Vec<Symbol>,
    numbers: HashMap<Symbol, u32>,
}

thread_local! {
    static SYMBOLS: RefCell<Symbols> = RefCell::default();
}

impl Symbols {
    fn number(&mut self, symbol: Symbol) -> u32 {
        let next = self.known.len() as u32;
        *self.numbers.entry(symbol).or_insert_with_key(|symbol| {
            self.known.push(symbol.clone());
            next
        })
    }

    /// The elements in a symbol, from left to right.
    fn elements(&self, number: u32, out: &mut Vec<(usize, usize)>) {
        match self.known.get(number as usize) {
            None => panic!("an element that nobody wrote"),
            Some(Symbol::Element(rank, index)) => out.push((*rank, *index)),
            Some(Symbol::Fold(_, parts)) => parts.iter().for_each(|part| self.elements(*part, out)),
        }
    }
}

/// Host memory whose elements are numbers of symbols.
#[derive(Default)]
struct Symbolic(HostMemory);

impl Symbolic {
    fn get(&mut self, region: Region, index: usize) -> u32 {
        let lent = self.0.lend(region);
        // SAFETY: within the region, which lies in the call's buffers.
        unsafe { lent.ptr.cast::<u32>().add(index).read_unaligned() }
    }
}

// SAFETY: lends what the host memory lends.
unsafe impl Memory for Symbolic {
    fn lend(&mut self, region: Region) -> Lent {
        self.0.lend(region)
    }

    fn copy(&mut self, from: Region, to: Region) {
        self.0.copy(from, to);
    }

    fn reduce(&mut self, fold: Fold, from: &[Region], to: Region) {
        for index in 0..to.len {
            let parts = from.iter().map(|source| self.get(*source, index)).collect();
            let number = SYMBOLS.with_borrow_mut(|symbols| symbols.number(Symbol::Fold(fold, parts)));
            let lent = self.0.lend(to);
            // SAFETY: as in `get`.
            unsafe { lent.ptr.cast::<u32>().add(index).write_unaligned(number) };
        }
    }
}

impl Armed for Symbolic {
    unsafe fn arm(&mut self, call: &RawCall<'_>, plan: &Plan) -> rankwise_core::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.arm(call, plan.members(), plan.scratch()) }
    }
}

fn element(rank: usize, index: usize) -> u32 {
    SYMBOLS.with_borrow_mut(|symbols| symbols.number(Symbol::Element(rank, index)))
}

fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().chain([Algorithm::KNomial(3), Algorithm::KNomial(8)])
}

/// Runs a job with symbols and checks every element of every result.
fn check(job: &Job, settings: Settings) {
    SYMBOLS.with_borrow_mut(|symbols| *symbols = Symbols::default());
    let input = |rank| (0..job.source_len(rank)).flat_map(|index| element(rank, index).to_ne_bytes()).collect();
    let results = ranks::run::<Symbolic>(job, settings, input);
    let mut reduced: HashMap<usize, u32> = HashMap::new();
    for (rank, result) in results.iter().enumerate() {
        let numbers: Vec<u32> = result.as_chunks().0.iter().map(|bytes: &[u8; 4]| u32::from_ne_bytes(*bytes)).collect();
        assert_eq!(numbers.len(), job.destination_len(rank));
        if !job.kind.reduces() {
            assert_eq!(numbers, expected(job, rank), "{job:?}: rank {rank}");
            continue;
        }
        let scattered = matches!(job.kind, OpKind::ReduceScatter | OpKind::ReduceScatterV);
        let first = if scattered { job.offset(rank) } else { 0 };
        for (index, number) in numbers.into_iter().enumerate() {
            let index = first + index;
            let same = *reduced.entry(index).or_insert(number);
            assert_eq!(number, same, "{job:?}: rank {rank} folded element {index} in another order");
        }
    }
    for (index, number) in reduced {
        check_fold(job, index, number);
    }
}

/// The result of a kind that only moves.
fn expected(job: &Job, rank: usize) -> Vec<u32> {
    let run = |rank: usize, start: usize, len: usize| (start..start + len).map(move |index| element(rank, index));
    match job.kind {
        OpKind::Broadcast => run(job.root, 0, job.count).collect(),
        OpKind::AllGather | OpKind::AllGatherV => (0..job.n).flat_map(|q| run(q, 0, job.block(q))).collect(),
        OpKind::Gather | OpKind::GatherV if rank == job.root => {
            (0..job.n).flat_map(|q| run(q, 0, job.block(q))).collect()
        }
        OpKind::Scatter | OpKind::ScatterV => run(job.root, job.offset(rank), job.block(rank)).collect(),
        OpKind::AllToAll => (0..job.n).flat_map(|q| run(q, rank * job.count, job.count)).collect(),
        OpKind::AllToAllV => {
            let start = |q: usize| job.pairs[q][..rank].iter().sum();
            (0..job.n).flat_map(|q| run(q, start(q), job.pairs[q][rank])).collect()
        }
        _ => Vec::new(),
    }
}

/// All contributions to the element, each once; at once and in group order where that is promised.
fn check_fold(job: &Job, index: usize, number: u32) {
    let mut elements = Vec::new();
    SYMBOLS.with_borrow(|symbols| symbols.elements(number, &mut elements));
    let ordered: Vec<(usize, usize)> = (0..job.n).map(|rank| (rank, index)).collect();
    let whole = job.choice.algorithm.folds_whole(job.kind) || job.n == 1;
    if whole {
        let parts = ordered.iter().map(|(rank, index)| element(*rank, *index)).collect();
        let fold = SYMBOLS.with_borrow_mut(|symbols| symbols.number(Symbol::Fold(Fold::Whole, parts)));
        assert_eq!(number, fold, "{job:?}: element {index} is not one fold in group order: {elements:?}");
    }
    elements.sort_unstable();
    assert_eq!(elements, ordered, "{job:?}: element {index}");
}

fn check_all(n: usize, algorithm: Algorithm) {
    for kind in OpKind::DATA.into_iter().filter(|kind| algorithm.offers(*kind)) {
        if matches!(kind, OpKind::Send | OpKind::Recv) {
            continue;
        }
        // Of a length that the plan divides itself, more elements than members, too.
        let divided = matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast);
        let most = if divided { n } else { 1 };
        let sizes = [(1, None), (most + 3, None), (2 * most + 1, Some(4 * (most / 2 + 1))), (5, Some(4))];
        // Large groups take turns with them.
        for (_, (count, chunk)) in sizes.into_iter().enumerate().filter(|(nth, _)| n <= 20 || nth % 2 == n % 2) {
            if chunk.is_some() && !algorithm.chunks(kind) {
                continue;
            }
            for in_place in [false, true] {
                let mut job = Job::new(kind, DType::U32, n, Choice { algorithm, chunk }).with_size(count);
                job.in_place = in_place;
                let roots = if kind.has_root() {
                    [0, n / 2, n - 1][if n <= 20 { 0..3 } else { n % 3..n % 3 + 1 }].to_vec()
                } else {
                    vec![0]
                };
                for root in roots {
                    job.root = root;
                    let seed = (n * 31 + root) as u64;
                    check(&job, Settings { eager: 16, delay: (root % 4) as u32, seed });
                }
            }
        }
    }
}

macro_rules! every_number_of_members {
    ($($name:ident: $($algorithm:expr),+;)*) => {$(
        #[test]
        fn $name() {
            for n in 1..=64 {
                $(check_all(n, $algorithm);)+
            }
        }
    )*};
}
every_number_of_members! {
    direct: Algorithm::Direct;
    two_shot: Algorithm::TwoShot;
    ring: Algorithm::Ring;
    recursive_doubling: Algorithm::RecursiveDoubling;
    recursive_halving: Algorithm::RecursiveHalving;
    binomial: Algorithm::KNomial(2);
    three_nomial: Algorithm::KNomial(3);
    four_nomial: Algorithm::KNomial(4);
    eight_nomial: Algorithm::KNomial(8);
    bruck: Algorithm::Bruck;
    pairwise: Algorithm::Pairwise;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any counts, roots, chunks, delays.
    #[test]
    fn any_sizes(
        n in 1_usize..20,
        which in 0_usize..11,
        kind in 0..OpKind::DATA.len(),
        count in 0_usize..40,
        counts in prop::collection::vec(0_usize..9, 400),
        root in 0_usize..20,
        chunk in prop::option::of(1_usize..100),
        in_place: bool,
        eager in 0_usize..40,
        delay in 0_u32..20,
        seed: u64,
    ) {
        let algorithm = algorithms().nth(which).expect("in range");
        let kind = OpKind::DATA[kind];
        prop_assume!(algorithm.offers(kind) && !matches!(kind, OpKind::Send | OpKind::Recv));
        let mut job = Job::new(kind, DType::U32, n, Choice { algorithm, chunk });
        match kind {
            OpKind::AllToAllV => job.pairs = counts.chunks(n).take(n).map(<[usize]>::to_vec).collect(),
            OpKind::Barrier => {}
            kind if ranks::is_uneven(kind) => job.counts = counts[..n].to_vec(),
            _ => job.count = count,
        }
        job.root = if kind.has_root() { root % n } else { 0 };
        job.in_place = in_place;
        check(&job, Settings { eager, delay, seed });
    }
}
