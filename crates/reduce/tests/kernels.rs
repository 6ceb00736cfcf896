//! Every type, operator and instruction set against the reference, byte for byte.

mod reference;

use proptest::prelude::*;
use rankwise_core::{DType, ReduceOp};
use rankwise_reduce::{Isa, Reducer};
use reference::{Bits, Reference};

const CANARY: u8 = 0xA7;
const MARGIN: usize = 80;

/// Elements between canaries, at any alignment.
#[derive(Clone)]
struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    fn new(content: &[u8], offset: usize) -> Guarded {
        let start = MARGIN + offset;
        let mut bytes = vec![CANARY; start + content.len() + MARGIN];
        bytes[start..start + content.len()].copy_from_slice(content);
        Guarded { bytes, start, len: content.len() }
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn canaries_live(&self) -> bool {
        let end = self.start + self.len;
        self.bytes[..self.start].iter().chain(&self.bytes[end..]).all(|&byte| byte == CANARY)
    }
}

struct Case {
    dtype: DType,
    op: ReduceOp,
    sources: usize,
    count: usize,
    /// Added to the base of source r: `offset * (r + 1) % 64` bytes.
    offset: usize,
    /// The source that is also the destination.
    in_place: Option<usize>,
}

/// Runs one case on every instruction set of this processor.
fn check(case: &Case, bits: &mut Bits) {
    let Case { dtype, op, sources, count, offset, in_place } = *case;
    let inputs: Vec<Vec<u8>> = (0..sources).map(|_| bits.elements(dtype, count)).collect();
    let wanted = Reference::new(dtype, op, sources).fold(&inputs);
    for isa in Isa::available() {
        let reducer = Reducer::with_isa(dtype, op, sources, isa).expect("meaningful and available");
        let mut buffers: Vec<Guarded> = inputs
            .iter()
            .enumerate()
            .map(|(r, input)| Guarded::new(input, offset * (r + 1) % 64))
            .chain([Guarded::new(&vec![0x55; wanted.len()], offset * 7 % 64)])
            .collect();
        let target = in_place.unwrap_or(sources);
        let dst = {
            let Guarded { bytes, start, .. } = &mut buffers[target];
            // SAFETY: `start` is inside the vector.
            unsafe { bytes.as_mut_ptr().add(*start) }
        };
        let pointers: Vec<*const u8> =
            (0..sources).map(|r| if r == target { dst.cast_const() } else { buffers[r].content().as_ptr() }).collect();
        // SAFETY: each buffer holds `count` elements; the destination is one of them or a buffer of its own.
        unsafe { reducer.fold(dst, &pointers, count) };
        let context =
            || format!("{dtype} {op} {isa} sources {sources} count {count} offset {offset} into {in_place:?}");
        if buffers[target].content() != wanted {
            let size = reducer.elem_size();
            let i = (0..count).find(|i| buffers[target].content()[i * size..][..size] != wanted[i * size..][..size]);
            let i = i.expect("a differing element");
            let of =
                |bytes: &[u8]| bytes[i * size..][..size].iter().rev().map(|b| format!("{b:02x}")).collect::<String>();
            let given: Vec<String> = inputs.iter().map(|input| of(input)).collect();
            panic!("{}: element {i} of {given:?} is {}, not {}", context(), of(buffers[target].content()), of(&wanted));
        }
        for (r, input) in inputs.iter().enumerate().filter(|(r, _)| *r != target) {
            assert!(buffers[r].content() == input, "{}: source {r} was written", context());
        }
        assert!(buffers.iter().all(Guarded::canaries_live), "{}: wrote outside of the destination", context());
    }
}

fn meaningful() -> Vec<(DType, ReduceOp)> {
    let factors = [1.0 / 3.0, -2.0, 1e-40, 1e300, f64::INFINITY, f64::NAN].map(ReduceOp::PreMulSum);
    DType::NUMERIC
        .into_iter()
        .flat_map(|dtype| ReduceOp::ALL.into_iter().chain(factors).map(move |op| (dtype, op)))
        .filter(|(dtype, op)| op.is_meaningful_for(*dtype))
        .collect()
}

#[test]
fn prints_the_instruction_sets_that_are_not_checked_here() {
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        println!("skipped: {isa}: this processor does not have it");
        assert!(Reducer::with_isa(DType::F32, ReduceOp::Sum, 2, isa).is_none());
    }
}

#[test]
fn every_length_up_to_300_at_every_alignment() {
    let mut bits = Bits(10);
    for (dtype, op) in meaningful() {
        for count in 0..=300 {
            check(&Case { dtype, op, sources: 1 + count % 9, count, offset: count % 64, in_place: None }, &mut bits);
        }
    }
}

#[test]
fn into_each_source_for_one_to_nine_sources() {
    let mut bits = Bits(11);
    for (dtype, op) in meaningful() {
        for sources in 1..=9 {
            for target in 0..sources {
                let in_place = Some(target);
                check(&Case { dtype, op, sources, count: 277, offset: 3 * target + sources, in_place }, &mut bits);
            }
        }
    }
}

#[test]
fn large_groups() {
    let mut bits = Bits(12);
    for (dtype, op) in meaningful() {
        for sources in [16, 17, 33, 100] {
            check(&Case { dtype, op, sources, count: 70, offset: 0, in_place: None }, &mut bits);
        }
    }
}

#[test]
fn all_pairs_of_special_values() {
    for (dtype, op) in meaningful() {
        let special = reference::special_values(dtype);
        let size = dtype.size().expect("numeric");
        let column = |pick: fn((u64, u64)) -> u64| -> Vec<u8> {
            let pairs = special.iter().flat_map(|&a| special.iter().map(move |&b| (a, b)));
            pairs.flat_map(|pair| pick(pair).to_le_bytes().into_iter().take(size)).collect()
        };
        let inputs = [column(|pair| pair.0), column(|pair| pair.1)];
        let wanted = Reference::new(dtype, op, 2).fold(&inputs);
        for isa in Isa::available() {
            let reducer = Reducer::with_isa(dtype, op, 2, isa).expect("available");
            let mut result = vec![0; wanted.len()];
            // SAFETY: the three vectors are equally long and distinct.
            unsafe {
                reducer.fold(result.as_mut_ptr(), &[inputs[0].as_ptr(), inputs[1].as_ptr()], result.len() / size)
            };
            assert!(result == wanted, "{dtype} {op} {isa}");
        }
    }
}

/// One source given several times, and the destination equal to all of them.
#[test]
fn sources_may_coincide() {
    for isa in Isa::available() {
        let mut values: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let wanted: Vec<f32> = values.iter().map(|x| x * 3.0).collect();
        let reducer = Reducer::with_isa(DType::F32, ReduceOp::Sum, 3, isa).expect("available");
        let base = values.as_mut_ptr().cast::<u8>();
        // SAFETY: all pointers are the base of one vector of 100 elements.
        unsafe { reducer.fold(base, &[base.cast_const(); 3], 100) };
        assert_eq!(values, wanted);
    }
}

#[test]
fn no_source_writes_nothing() {
    let mut dst = [7u8; 16];
    let reducer = Reducer::new(DType::U8, ReduceOp::Sum, 2).expect("exists");
    // SAFETY: the destination holds 16 elements; there is no source.
    unsafe { reducer.fold(dst.as_mut_ptr(), &[], 16) };
    assert_eq!(dst, [7; 16]);
}

/// The twins on more elements than the reference has time for.
#[test]
fn twins_agree_on_random_bits() {
    let mut bits = Bits(13);
    let count = 40_000;
    for (dtype, op) in meaningful() {
        let size = dtype.size().expect("numeric");
        let inputs: Vec<Vec<u8>> =
            (0..3).map(|_| (0..count * size / 8).flat_map(|_| bits.next().to_le_bytes()).collect()).collect();
        let pointers: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
        let run = |isa| {
            let mut dst = vec![0u8; count * size];
            let reducer = Reducer::with_isa(dtype, op, 3, isa).expect("available");
            // SAFETY: every vector holds `count` elements and the destination is its own.
            unsafe { reducer.fold(dst.as_mut_ptr(), &pointers, count) };
            dst
        };
        let portable = run(Isa::Portable);
        for isa in Isa::available() {
            assert!(run(isa) == portable, "{dtype} {op} {isa} differs from its portable twin");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_case_matches_the_reference(
        choice in any::<prop::sample::Index>(),
        sources in 1usize..=9,
        count in 0usize..700,
        offset in 0usize..64,
        target in prop::option::of(any::<prop::sample::Index>()),
        seed in any::<u64>(),
    ) {
        let cases = meaningful();
        let (dtype, op) = cases[choice.index(cases.len())];
        let in_place = target.map(|target| target.index(sources));
        check(&Case { dtype, op, sources, count, offset, in_place }, &mut Bits(seed));
    }
}
