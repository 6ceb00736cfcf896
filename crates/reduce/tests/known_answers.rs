//! Results worked out by hand, on every instruction set.

use half::{bf16, f16};
use rankwise_core::{DType, Elem, ReduceOp};
use rankwise_reduce::{Isa, Reducer};

/// Folds one value per source, repeated to reach the vector paths, and returns it after checking that all copies agree.
fn fold<T: Elem>(op: ReduceOp, values: &[T], isa: Isa) -> T {
    const COUNT: usize = 345;
    let reducer = Reducer::with_isa(T::DTYPE, op, values.len(), isa).expect("meaningful and available");
    let sources: Vec<Vec<T>> = values.iter().map(|&value| vec![value; COUNT]).collect();
    let pointers: Vec<*const u8> = sources.iter().map(|source| source.as_ptr().cast()).collect();
    let mut result = vec![values[0]; COUNT];
    // SAFETY: every vector holds COUNT elements and the destination is its own.
    unsafe { reducer.fold(result.as_mut_ptr().cast(), &pointers, COUNT) };
    let bytes = |value: &T| -> Vec<u8> {
        let size = size_of::<T>();
        // SAFETY: `Elem` is `Pod`: all its bytes are initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size) }.to_vec()
    };
    assert!(result.iter().all(|value| bytes(value) == bytes(&result[0])), "{isa}: position matters");
    result[0]
}

#[track_caller]
fn f32_bits(op: ReduceOp, values: &[f32], wanted: u32) {
    for isa in Isa::available() {
        let result = fold(op, values, isa).to_bits();
        assert_eq!(result, wanted, "{op} {values:?} on {isa}: {result:#x}, not {wanted:#x}");
    }
}

#[test]
fn integers_wrap() {
    for isa in Isa::available() {
        assert_eq!(fold(ReduceOp::Sum, &[100i8, 100, 100], isa), 44);
        assert_eq!(fold(ReduceOp::Sum, &[200u8, 100], isa), 44);
        assert_eq!(fold(ReduceOp::Sum, &[i32::MAX, 1], isa), i32::MIN);
        assert_eq!(fold(ReduceOp::Sum, &[(1i64 << 53) + 1, 1], isa), (1 << 53) + 2);
        assert_eq!(fold(ReduceOp::Prod, &[u64::MAX, 3], isa), u64::MAX.wrapping_mul(3));
        assert_eq!(fold(ReduceOp::Prod, &[300i16, 300], isa), 24_464);
    }
}

#[test]
fn integer_order_follows_the_sign() {
    for isa in Isa::available() {
        assert_eq!(fold(ReduceOp::Max, &[255u8, 1], isa), 255);
        assert_eq!(fold(ReduceOp::Max, &[-1i8, 1], isa), 1);
        assert_eq!(fold(ReduceOp::Min, &[i64::MIN, i64::MAX, 0], isa), i64::MIN);
        assert_eq!(fold(ReduceOp::Min, &[u64::MAX, 1 << 63], isa), 1 << 63);
        assert_eq!(fold(ReduceOp::BAnd, &[0b1100u32, 0b1010], isa), 0b1000);
        assert_eq!(fold(ReduceOp::BOr, &[0b1100u32, 0b1010], isa), 0b1110);
        assert_eq!(fold(ReduceOp::BXor, &[0b1100u32, 0b1010], isa), 0b0110);
    }
}

#[test]
fn extrema_prefer_numbers_and_order_zeros() {
    let (max, min) = (ReduceOp::Max, ReduceOp::Min);
    for position in 0..5 {
        let mut values = [1.0, -3.0, 2.0, 0.5, -1.0];
        values[position] = f32::NAN;
        let best = values.iter().copied().filter(|x| !x.is_nan()).reduce(|a, b| if a > b { a } else { b });
        f32_bits(max, &values, best.expect("four numbers").to_bits());
        let least = values.iter().copied().filter(|x| !x.is_nan()).reduce(|a, b| if a < b { a } else { b });
        f32_bits(min, &values, least.expect("four numbers").to_bits());
    }
    f32_bits(max, &[-0.0, 0.0], 0.0f32.to_bits());
    f32_bits(max, &[0.0, -0.0], 0.0f32.to_bits());
    f32_bits(min, &[0.0, -0.0], (-0.0f32).to_bits());
    f32_bits(min, &[-0.0, 0.0], (-0.0f32).to_bits());
    f32_bits(max, &[f32::NAN, f32::NEG_INFINITY], f32::NEG_INFINITY.to_bits());
    f32_bits(min, &[f32::INFINITY, f32::NAN], f32::INFINITY.to_bits());
    f32_bits(max, &[f32::from_bits(0xFFFF_FFFF), f32::from_bits(0x7F80_0001)], 0x7FC0_0000);
    f32_bits(min, &[f32::from_bits(0xFF80_0001), f32::from_bits(0xFFC1_2345)], 0x7FC0_0000);
}

#[test]
fn nans_come_out_canonical() {
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg, ReduceOp::PreMulSum(2.0)] {
        f32_bits(op, &[1.0, f32::from_bits(0xFFC1_2345), 2.0], 0x7FC0_0000);
        f32_bits(op, &[f32::from_bits(0xFF80_0001)], 0x7FC0_0000);
    }
    f32_bits(ReduceOp::Sum, &[f32::INFINITY, f32::NEG_INFINITY], 0x7FC0_0000);
    f32_bits(ReduceOp::Prod, &[0.0, f32::INFINITY], 0x7FC0_0000);
    for isa in Isa::available() {
        assert_eq!(fold(ReduceOp::Sum, &[f16::from_bits(0xFC01)], isa).to_bits(), 0x7E00);
        assert_eq!(fold(ReduceOp::Sum, &[bf16::from_bits(0xFF81)], isa).to_bits(), 0x7FC0);
        let payload = f64::from_bits(0xFFF0_0000_0000_0001);
        assert_eq!(fold(ReduceOp::Sum, &[1.0, payload], isa).to_bits(), 0x7FF8_0000_0000_0000);
    }
}

#[test]
fn subnormals_are_exact() {
    f32_bits(ReduceOp::Sum, &[f32::from_bits(3), f32::from_bits(5)], 8);
    f32_bits(ReduceOp::Sum, &[-0.0, -0.0], (-0.0f32).to_bits());
    for isa in Isa::available() {
        assert_eq!(fold(ReduceOp::Sum, &[f16::from_bits(1), f16::from_bits(2)], isa).to_bits(), 3);
        assert_eq!(fold(ReduceOp::Sum, &[bf16::from_bits(1), bf16::from_bits(2)], isa).to_bits(), 3);
    }
}

#[test]
fn narrow_types_round_once() {
    for isa in Isa::available() {
        let sum = fold(ReduceOp::Sum, &[2048.0, 1.0, 1.0].map(f16::from_f32), isa);
        assert_eq!(sum.to_f32(), 2050.0, "{isa}: rounding at each step would give 2048");
        let sum = fold(ReduceOp::Sum, &[256.0, 1.0, 1.0].map(bf16::from_f32), isa);
        assert_eq!(sum.to_f32(), 258.0, "{isa}: rounding at each step would give 256");
        assert_eq!(fold(ReduceOp::Sum, &[f16::from_f32(60_000.0); 2], isa), f16::INFINITY);
        assert_eq!(fold(ReduceOp::Avg, &[f16::from_f32(60_000.0); 2], isa).to_f32(), 60_000.0);
    }
}

#[test]
fn fp8_overflow_follows_the_format() {
    for isa in Isa::available() {
        for (dtype, bits, wanted) in
            [(DType::F8E4M3, 0x7Eu8, 0x7Fu8), (DType::F8E4M3, 0xFE, 0x7F), (DType::F8E5M2, 0x7B, 0x7C)]
        {
            let reducer = Reducer::with_isa(dtype, ReduceOp::Sum, 2, isa).expect("available");
            let mut values = [bits; 200];
            let base = values.as_mut_ptr();
            // SAFETY: both sources and the destination are the base of one array of 200 elements.
            unsafe { reducer.fold(base, &[base.cast_const(); 2], 200) };
            assert_eq!(values, [wanted; 200], "{dtype} on {isa}");
        }
    }
}

#[test]
fn the_fold_goes_left_to_right_without_contraction() {
    f32_bits(ReduceOp::Sum, &[1e8, 1.0, -1e8, 1.0], 1.0f32.to_bits());
    f32_bits(ReduceOp::Sum, &[1.0, 1e8, -1e8, 1.0], 1.0f32.to_bits());
    f32_bits(ReduceOp::Sum, &[1e8, -1e8, 1.0, 1.0], 2.0f32.to_bits());
    // With a fused multiply-add the low bits of the product would survive the subtraction.
    let x = 1.0 + f32::EPSILON;
    let rounded_product = x * 1.1f32;
    let factor = f64::from(1.1f32);
    f32_bits(ReduceOp::PreMulSum(factor), &[-x, x], (-rounded_product + rounded_product).to_bits());
    f32_bits(ReduceOp::PreMulSum(1.0 / 3.0), &[3.0], (3.0 * (1.0f32 / 3.0)).to_bits());
}

#[test]
fn averages() {
    f32_bits(ReduceOp::Avg, &[0.0, 1.0, 2.0, 3.0], 1.5f32.to_bits());
    f32_bits(ReduceOp::Avg, &[f32::from_bits(1)], 1);
    f32_bits(ReduceOp::Avg, &[f32::MAX, f32::INFINITY], f32::INFINITY.to_bits());
    f32_bits(ReduceOp::Avg, &[f32::MAX, f32::MAX], f32::MAX.to_bits());
    for isa in Isa::available() {
        let mean = fold(ReduceOp::Avg, &[0.1f32; 3], isa);
        assert!((mean.to_bits() as i64 - 0.1f32.to_bits() as i64).abs() <= 2, "{isa}: {mean}");
    }
}

/// The proof beside `Avg` in numbers: no partial sum of the largest numbers overflows, whatever the group size.
#[test]
fn scaled_sums_stay_in_range() {
    for k in 0..=22 {
        let (part, wide_part) = (f32::MAX / 2f32.powi(k), f64::MAX / 2f64.powi(k));
        let sum = (1..1u32 << k).fold(part, |acc, _| acc + part);
        let wide_sum = (1..1u32 << k).fold(wide_part, |acc, _| acc + wide_part);
        assert!(sum <= f32::MAX && wide_sum <= f64::MAX, "2^{k} members");
    }
}

/// Rounding alone must not carry a mean to infinity, nor must the plain formula be spared that.
#[test]
fn the_mean_of_finite_numbers_is_finite() {
    let mut plain_overflows = 0;
    for members in (1..=130usize).chain([255, 256, 257, 511, 512, 1023, 1024]) {
        let power = members.next_power_of_two() as f64;
        let part = f32::MAX * (1.0 / power) as f32;
        let sum = (1..members).fold(part, |acc, _| acc + part);
        plain_overflows += usize::from((sum * (power / members as f64) as f32).is_infinite());
        for isa in Isa::available() {
            let values = vec![f32::MAX; members];
            assert!(fold(ReduceOp::Avg, &values, isa).is_finite(), "{members} members on {isa}");
            let values = vec![-f64::MAX; members];
            assert!(fold(ReduceOp::Avg, &values, isa).is_finite(), "{members} members on {isa}");
            assert!(fold(ReduceOp::Avg, &vec![bf16::MAX; members], isa).is_finite(), "{members} members on {isa}");
            assert!(fold(ReduceOp::Avg, &vec![f16::MAX; members], isa).is_finite(), "{members} members on {isa}");
        }
    }
    assert!(plain_overflows > 0, "the case this guards against no longer occurs");
}
