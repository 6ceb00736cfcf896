//! The results the kernels must give, computed one element at a time, sharing no code with them.
#![allow(dead_code, reason = "each test binary uses its part")]

use rankwise_core::{DType, ReduceOp};

/// A narrow float format as a sorted table of its finite magnitudes.
pub(crate) struct Narrow {
    mantissa: u32,
    bias: i32,
    /// Value and code, ascending; the last entry is what the first overflowing code would be worth.
    magnitudes: Vec<(f64, u32)>,
    sign: u32,
    nan: u32,
    has_infinity: bool,
}

impl Narrow {
    pub(crate) fn of(dtype: DType) -> Narrow {
        let (mantissa, exponent, nan, has_infinity) = match dtype {
            DType::F16 => (10, 5, 0x7E00, true),
            DType::BF16 => (7, 8, 0x7FC0, true),
            DType::F8E4M3 => (3, 4, 0x7F, false),
            DType::F8E5M2 => (2, 5, 0x7E, true),
            other => panic!("{other} is not narrow"),
        };
        let bias = (1 << (exponent - 1)) - 1;
        let sign = 1 << (mantissa + exponent);
        let overflow = if has_infinity { ((1 << exponent) - 1) << mantissa } else { nan };
        let mut format = Narrow { mantissa, bias, magnitudes: Vec::new(), sign, nan, has_infinity };
        format.magnitudes = (0..=overflow).map(|code| (format.formula(code), code)).collect();
        format
    }

    /// The textbook value of a magnitude's code.
    fn formula(&self, code: u32) -> f64 {
        let fraction = f64::from(code & ((1 << self.mantissa) - 1)) / f64::from(1 << self.mantissa);
        match (code >> self.mantissa) as i32 {
            0 => fraction * 2f64.powi(1 - self.bias),
            exponent => (1.0 + fraction) * 2f64.powi(exponent - self.bias),
        }
    }

    pub(crate) fn decode(&self, bits: u32) -> f32 {
        let code = bits & (self.sign - 1);
        let (_, overflow) = self.magnitudes[self.magnitudes.len() - 1];
        let magnitude = if code < overflow {
            self.formula(code) as f32
        } else if code == overflow && self.has_infinity {
            f32::INFINITY
        } else {
            return f32::NAN;
        };
        if bits & self.sign != 0 { -magnitude } else { magnitude }
    }

    pub(crate) fn encode(&self, x: f32) -> u32 {
        let magnitude = f64::from(x.abs());
        if magnitude.is_nan() {
            return self.nan;
        }
        let above = self.magnitudes.partition_point(|(value, _)| *value <= magnitude);
        let (low_value, low) = self.magnitudes[above - 1];
        let code = match self.magnitudes.get(above) {
            None => low,
            Some((high_value, high)) => {
                let middle = (low_value + high_value) / 2.0;
                if magnitude < middle || (magnitude == middle && low % 2 == 0) { low } else { *high }
            }
        };
        if code == self.nan || !x.is_sign_negative() { code } else { code | self.sign }
    }

    /// Every code including both signs and all NaNs.
    pub(crate) fn codes(&self) -> std::ops::Range<u32> {
        0..self.sign * 2
    }

    /// Neighbouring magnitudes, the last pair ending at the overflow.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = (f32, f32)> {
        self.magnitudes.windows(2).map(|pair| (pair[0].0 as f32, pair[1].0 as f32))
    }
}

/// Folds elements of any type as `docs` of the crate promise.
pub(crate) struct Reference {
    dtype: DType,
    op: ReduceOp,
    members: usize,
    narrow: Option<Narrow>,
}

impl Reference {
    pub(crate) fn new(dtype: DType, op: ReduceOp, members: usize) -> Reference {
        let is_narrow = dtype.is_float() && !matches!(dtype, DType::F32 | DType::F64);
        Reference { dtype, op, members, narrow: is_narrow.then(|| Narrow::of(dtype)) }
    }

    /// `inputs[r]` holds rank r's elements; returns the bytes of the result.
    pub(crate) fn fold(&self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let size = self.dtype.size().expect("numeric");
        (0..inputs[0].len() / size)
            .flat_map(|i| {
                let bits: Vec<u64> = inputs
                    .iter()
                    .map(|input| {
                        let mut word = [0; 8];
                        word[..size].copy_from_slice(&input[i * size..][..size]);
                        u64::from_le_bytes(word)
                    })
                    .collect();
                self.element(&bits).to_le_bytes().into_iter().take(size)
            })
            .collect()
    }

    fn element(&self, bits: &[u64]) -> u64 {
        match (self.dtype, &self.narrow) {
            (_, Some(narrow)) => {
                let values: Vec<f32> = bits.iter().map(|&bits| narrow.decode(bits as u32)).collect();
                u64::from(narrow.encode(fold_f32(self.op, self.members, &values)))
            }
            (DType::F32, _) => {
                let values: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits as u32)).collect();
                let result = fold_f32(self.op, self.members, &values);
                if result.is_nan() { 0x7FC0_0000 } else { u64::from(result.to_bits()) }
            }
            (DType::F64, _) => {
                let values: Vec<f64> = bits.iter().map(|&bits| f64::from_bits(bits)).collect();
                let result = fold_f64(self.op, self.members, &values);
                if result.is_nan() { 0x7FF8_0000_0000_0000 } else { result.to_bits() }
            }
            _ => fold_integer(self.dtype, self.op, bits),
        }
    }
}

fn fold_integer(dtype: DType, op: ReduceOp, bits: &[u64]) -> u64 {
    let unused = 128 - 8 * dtype.size().expect("numeric") as u32;
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let mut values = bits.iter().map(|&bits| {
        let shifted = i128::from(bits) << unused;
        if signed { shifted >> unused } else { (shifted as u128 >> unused) as i128 }
    });
    let first = values.next().expect("at least one source");
    values.fold(first, |a, b| match op {
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::BAnd => a & b,
        ReduceOp::BOr => a | b,
        ReduceOp::BXor => a ^ b,
        other => panic!("{other} has no meaning for integers"),
    }) as u64
}

macro_rules! float_fold {
    ($name:ident, $type:ident) => {
        fn $name(op: ReduceOp, members: usize, values: &[$type]) -> $type {
            let power = members.next_power_of_two() as f64;
            let capped = |result: $type, finite: bool| {
                if result.is_infinite() && finite { $type::MAX.copysign(result) } else { result }
            };
            let scaled: Vec<$type> = match op {
                ReduceOp::Avg => values.iter().map(|x| x * (1.0 / power) as $type).collect(),
                ReduceOp::PreMulSum(factor) => values.iter().map(|x| x * factor as $type).collect(),
                _ => values.to_vec(),
            };
            let mut acc = scaled[0];
            for &x in &scaled[1..] {
                acc = match op {
                    ReduceOp::Sum | ReduceOp::PreMulSum(_) => acc + x,
                    ReduceOp::Avg => capped(acc + x, acc.is_finite() && x.is_finite()),
                    ReduceOp::Prod => acc * x,
                    ReduceOp::Min | ReduceOp::Max if acc.is_nan() => x,
                    ReduceOp::Min | ReduceOp::Max if x.is_nan() => acc,
                    ReduceOp::Min if acc == x => {
                        if acc.is_sign_negative() {
                            acc
                        } else {
                            x
                        }
                    }
                    ReduceOp::Max if acc == x => {
                        if acc.is_sign_negative() {
                            x
                        } else {
                            acc
                        }
                    }
                    ReduceOp::Min => {
                        if acc < x {
                            acc
                        } else {
                            x
                        }
                    }
                    ReduceOp::Max => {
                        if acc > x {
                            acc
                        } else {
                            x
                        }
                    }
                    other => panic!("{other} has no meaning for floats"),
                };
            }
            match op {
                ReduceOp::Avg => capped(acc * (power / members as f64) as $type, acc.is_finite()),
                _ => acc,
            }
        }
    };
}
float_fold!(fold_f32, f32);
float_fold!(fold_f64, f64);

/// A reproducible stream of bits.
pub(crate) struct Bits(pub(crate) u64);

impl Bits {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Elements of a type: half of them any bits, a quarter values of similar size, a quarter special ones.
    pub(crate) fn elements(&mut self, dtype: DType, count: usize) -> Vec<u8> {
        let size = dtype.size().expect("numeric");
        let special = special_values(dtype);
        (0..count)
            .flat_map(|_| {
                let random = self.next();
                let bits = match self.next() % 4 {
                    0 => special[random as usize % special.len()],
                    1 => near_one(dtype, random),
                    _ => random,
                };
                bits.to_le_bytes().into_iter().take(size)
            })
            .collect()
    }
}

/// A value whose sums with its like round: random sign, random mantissa, exponent near that of 1.
fn near_one(dtype: DType, random: u64) -> u64 {
    let (mantissa, bias, sign) = match dtype {
        DType::F16 => (10, 15, 15),
        DType::BF16 => (7, 127, 15),
        DType::F32 => (23, 127, 31),
        DType::F64 => (52, 1023, 63),
        DType::F8E4M3 => (3, 7, 7),
        DType::F8E5M2 => (2, 15, 7),
        _ => return random % 16,
    };
    let fraction = random & ((1 << mantissa) - 1);
    let exponent = bias - 4 + (random >> 53) % 8;
    random >> 63 << sign | exponent << mantissa | fraction
}

/// Zeros, limits, subnormals, infinities and NaNs with payloads, as bits.
pub(crate) fn special_values(dtype: DType) -> Vec<u64> {
    let top = 1u64 << (8 * dtype.size().expect("numeric") - 1);
    let (infinity, nan) = match dtype {
        DType::F16 => (0x7C00, 0x7E00),
        DType::BF16 => (0x7F80, 0x7FC0),
        DType::F32 => (0x7F80_0000, 0x7FC0_0000),
        DType::F64 => (0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0000),
        DType::F8E4M3 => (0x7E, 0x7F),
        DType::F8E5M2 => (0x7C, 0x7E),
        _ => return vec![0, 1, top, top - 1, top | 1, u64::MAX, 100, 200, 15],
    };
    let positive = [0, 1, 2, 3, infinity >> 5, infinity >> 1, infinity - 1, infinity, infinity + 1, nan, top - 1];
    positive.into_iter().flat_map(|bits| [bits, bits | top]).collect()
}
