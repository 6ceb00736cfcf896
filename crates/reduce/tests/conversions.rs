//! The scalar conversions, exhaustively where the input has few bits, against tables and against `half` and `float8`.

mod reference;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use rankwise_core::DType;
use rankwise_reduce::convert;
use reference::{Bits, Narrow};

struct Conversion {
    dtype: DType,
    widen: fn(u32) -> f32,
    narrow: fn(f32) -> u32,
}

const CONVERSIONS: [Conversion; 4] = [
    Conversion {
        dtype: DType::F16,
        widen: |bits| convert::f16_to_f32(bits as u16),
        narrow: |x| convert::f32_to_f16(x).into(),
    },
    Conversion {
        dtype: DType::BF16,
        widen: |bits| convert::bf16_to_f32(bits as u16),
        narrow: |x| convert::f32_to_bf16(x).into(),
    },
    Conversion {
        dtype: DType::F8E4M3,
        widen: |bits| convert::e4m3_to_f32(bits as u8),
        narrow: |x| convert::f32_to_e4m3(x).into(),
    },
    Conversion {
        dtype: DType::F8E5M2,
        widen: |bits| convert::e5m2_to_f32(bits as u8),
        narrow: |x| convert::f32_to_e5m2(x).into(),
    },
];

#[test]
fn every_code_widens_to_its_textbook_value_and_back() {
    for Conversion { dtype, widen, narrow } in CONVERSIONS {
        let table = Narrow::of(dtype);
        for code in table.codes() {
            let (wide, wanted) = (widen(code), table.decode(code));
            if wanted.is_nan() {
                assert_eq!(wide.to_bits(), 0x7FC0_0000, "{dtype} {code:#x}");
                assert_eq!(narrow(wide), table.encode(f32::NAN), "{dtype} {code:#x}");
            } else {
                assert_eq!(wide.to_bits(), wanted.to_bits(), "{dtype} {code:#x}");
                assert_eq!(narrow(wide), code, "{dtype} {code:#x}");
            }
        }
    }
}

#[test]
fn widening_agrees_with_the_carrier_crates() {
    let agree = |ours: f32, theirs: f32| ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
    for bits in 0..=u16::MAX {
        assert!(agree(convert::f16_to_f32(bits), f16::from_bits(bits).to_f32()), "f16 {bits:#x}");
        assert!(agree(convert::bf16_to_f32(bits), bf16::from_bits(bits).to_f32()), "bf16 {bits:#x}");
    }
    for bits in 0..=u8::MAX {
        assert!(agree(convert::e4m3_to_f32(bits), F8E4M3::from_bits(bits).to_f32()), "e4m3 {bits:#x}");
        assert!(agree(convert::e5m2_to_f32(bits), F8E5M2::from_bits(bits).to_f32()), "e5m2 {bits:#x}");
    }
}

#[test]
fn the_middle_between_neighbours_rounds_to_even_and_its_surroundings_to_the_nearer() {
    for Conversion { dtype, narrow, .. } in CONVERSIONS {
        let table = Narrow::of(dtype);
        for (low, high) in table.neighbours() {
            // In f64 first: above the largest bfloat16 the upper neighbour is infinite in f32.
            let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
            for x in [low, low.next_up(), middle.next_down(), middle, middle.next_up(), high.next_down(), high] {
                assert_eq!(narrow(x), table.encode(x), "{dtype} {x:e}");
                assert_eq!(narrow(-x), table.encode(-x), "{dtype} {:e}", -x);
            }
        }
    }
}

#[test]
fn random_and_extreme_inputs_narrow_as_the_table_says() {
    let mut bits = Bits(1);
    let extremes = [
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        448.0,
        463.9,
        464.0,
        464.1,
        480.0,
        57344.0,
        61439.0,
        61440.0,
        65504.0,
        65519.0,
        65520.0,
        f32::from_bits(0x7F7F_7FFF),
        f32::from_bits(0x7F7F_8000),
        f32::from_bits(0x7F80_0001),
    ];
    for Conversion { dtype, narrow, .. } in CONVERSIONS {
        let table = Narrow::of(dtype);
        let random = (0..300_000).map(|_| f32::from_bits(bits.next() as u32));
        for x in extremes.into_iter().flat_map(|x| [x, -x]).chain(random) {
            assert_eq!(narrow(x), table.encode(x), "{dtype} {x:e}");
        }
    }
}

#[test]
fn overflow_follows_the_format() {
    assert_eq!(convert::f32_to_e4m3(448.0), 0x7E);
    assert_eq!(convert::f32_to_e4m3(464.0), 0x7E);
    assert_eq!(convert::f32_to_e4m3(464.1), 0x7F);
    assert_eq!(convert::f32_to_e4m3(-1e9), 0x7F);
    assert_eq!(convert::f32_to_e4m3(f32::NEG_INFINITY), 0x7F);
    assert_eq!(convert::f32_to_e5m2(61439.0), 0x7B);
    assert_eq!(convert::f32_to_e5m2(61440.0), 0x7C);
    assert_eq!(convert::f32_to_e5m2(-1e9), 0xFC);
    assert_eq!(convert::f32_to_f16(65520.0), 0x7C00);
    assert_eq!(convert::f32_to_bf16(f32::MAX), 0x7F80);
}

#[test]
fn narrowing_agrees_with_half_on_random_bits() {
    let mut bits = Bits(2);
    for _ in 0..2_000_000 {
        let x = f32::from_bits(bits.next() as u32);
        if x.is_nan() {
            continue;
        }
        assert_eq!(convert::f32_to_f16(x), f16::from_f32(x).to_bits(), "{x:e}");
        assert_eq!(convert::f32_to_bf16(x), bf16::from_f32(x).to_bits(), "{x:e}");
    }
}
