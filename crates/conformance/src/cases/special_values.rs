//! Reductions of values with rules of their own: extremes, NaN, infinities, zeros, subnormals, wrapping.

use super::FLOATS;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::Ctx;
use crate::number::{Number, decode, elem_size, is_nan};
use crate::operation::{Operation, verify_with};
use crate::values::{float, number, show};
use rankwise_core::{Communicator, DType, OpKind, ReduceOp};

const ALL_REDUCE: &[Need] = &[Need::Kind(OpKind::AllReduce)];

pub(super) const CASES: &[Case] = &[
    Case::must("SV-3", "special values: min and max of signed extremes", signed_extremes).needs(ALL_REDUCE),
    Case::must("SV-4", "special values: min and max of unsigned integers with the top bit set", unsigned_order)
        .needs(ALL_REDUCE),
    Case::must("SV-5", "special values: infinities win max and min", infinities).needs(ALL_REDUCE),
    Case::must("SV-6", "special values: max and min with one NaN at each position", one_nan_loses).needs(ALL_REDUCE),
    Case::must("SV-7", "special values: max and min with one number among NaNs", one_number_wins).needs(ALL_REDUCE),
    Case::must("SV-8", "special values: max and min of NaNs only", all_nan).needs(ALL_REDUCE),
    Case::must("SV-9", "special values: sum with one NaN at each position", nan_spreads).needs(ALL_REDUCE),
    Case::must("SV-10", "special values: sum of +Inf and -Inf", opposite_infinities).needs(ALL_REDUCE).ranks(2, 64),
    Case::must("SV-11", "special values: sums of subnormals are exact", subnormals).needs(ALL_REDUCE),
    Case::must("SV-12", "special values: min and max order -0 below +0 at each position", signed_zeros)
        .needs(ALL_REDUCE),
    Case::must("SV-13", "special values: i8 and u8 sums wrap", wrap_8).needs(ALL_REDUCE).ranks(2, 64),
    Case::must("SV-14", "special values: i32::MAX + 1 wraps", wrap_32).needs(ALL_REDUCE).ranks(2, 64),
    Case::must("SV-16", "special values: 64-bit sums above 2^53 keep every bit", no_float_detour).needs(ALL_REDUCE),
    Case::must("SV-18", "special values: mean of equal values", mean_of_equals).needs(ALL_REDUCE),
    Case::must("SV-19", "special values: the mean of the largest values does not overflow", mean_of_largest)
        .needs(ALL_REDUCE),
    Case::must("SV-20", "special values: f16 sum overflows to infinity", f16_overflow)
        .needs(&[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F16)])
        .ranks(2, 2),
    Case::must("SV-26", "special values: 8-bit float sums and overflow follow their format", small_float_sums)
        .offered(&[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F8E4M3)]),
];

/// Reduces the elements that `value` gives for each position; checks against the oracle and returns the result.
fn reduce(
    ctx: &mut Ctx<'_>,
    comm: &mut Communicator,
    dtype: DType,
    op: ReduceOp,
    count: usize,
    value: impl Fn(usize, usize) -> [u8; 8],
) -> CaseResult<Vec<u8>> {
    let operation = Operation { op: Some(op), count, ..Operation::new(OpKind::AllReduce, dtype) };
    if !ctx.capabilities().reduces(op).contains(dtype) {
        return Ok(Vec::new());
    }
    let size = elem_size(dtype);
    let bytes = |rank| (0..count).flat_map(|i| value(rank, i)[..size].to_vec()).collect();
    let inputs: Vec<Vec<u8>> = (0..comm.size()).map(bytes).collect();
    verify_with(ctx, comm, &operation, &inputs)
}

fn reduce_one(
    ctx: &mut Ctx<'_>,
    comm: &mut Communicator,
    dtype: DType,
    op: ReduceOp,
    value: impl Fn(usize) -> [u8; 8],
) -> CaseResult<Vec<u8>> {
    reduce(ctx, comm, dtype, op, 1, |rank, _| value(rank))
}

const EXTREMES: [ReduceOp; 2] = [ReduceOp::Min, ReduceOp::Max];

fn signed_extremes(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for (dtype, bits) in [(DType::I8, 8), (DType::I16, 16), (DType::I32, 32), (DType::I64, 64)] {
        let least = -(1_i128 << (bits - 1));
        let values = [least, -least - 1, -1, 0, 1, least + 1];
        for op in EXTREMES {
            reduce(ctx, &mut comm, dtype, op, 19, |rank, i| number(dtype, values[(rank * 5 + i) % 6]))?;
        }
    }
    Ok(())
}

fn unsigned_order(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for (dtype, bits) in [(DType::U8, 8), (DType::U16, 16), (DType::U32, 32), (DType::U64, 64)] {
        let top = 1_i128 << (bits - 1);
        let values = [top, top - 1, 2 * top - 1, 0, 1, top + 1];
        for op in EXTREMES {
            reduce(ctx, &mut comm, dtype, op, 19, |rank, i| number(dtype, values[(rank * 5 + i) % 6]))?;
        }
    }
    Ok(())
}

fn infinities(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS.into_iter().filter(|dtype| *dtype != DType::F8E4M3) {
        for op in EXTREMES {
            for position in 0..comm.size() {
                let infinity = if op == ReduceOp::Max { f64::INFINITY } else { f64::NEG_INFINITY };
                let value = |rank| float(dtype, if rank == position { infinity } else { rank as f64 });
                let got = reduce_one(ctx, &mut comm, dtype, op, value)?;
                let want = &float(dtype, infinity)[..got.len()];
                ensure!(got == want, "{op} of {dtype} with {infinity} gave {}", show(dtype, &got));
            }
        }
    }
    Ok(())
}

fn one_nan_loses(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS {
        for op in EXTREMES {
            for position in 0..comm.size() {
                let value = |rank: usize, i: usize| {
                    float(dtype, if rank == position { f64::NAN } else { (rank + i) as f64 % 5.0 - 2.0 })
                };
                let got = reduce(ctx, &mut comm, dtype, op, 17, value)?;
                let size = elem_size(dtype);
                let lost = comm.size() > 1 && got.chunks(size).any(|element| is_nan(dtype, element));
                ensure!(!lost, "{op} of {dtype}: the NaN of position {position} won");
            }
        }
    }
    Ok(())
}

fn one_number_wins(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS {
        for op in EXTREMES {
            for position in 0..comm.size() {
                let value = |rank| float(dtype, if rank == position { -1.5 } else { f64::NAN });
                let got = reduce_one(ctx, &mut comm, dtype, op, value)?;
                ensure!(got == float(dtype, -1.5)[..got.len()], "{op} of {dtype} gave {}", show(dtype, &got));
            }
        }
    }
    Ok(())
}

fn all_nan(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS {
        for op in EXTREMES {
            let got = reduce_one(ctx, &mut comm, dtype, op, |_| float(dtype, f64::NAN))?;
            ensure!(got.is_empty() || is_nan(dtype, &got), "{op} of {dtype} NaNs gave {}", show(dtype, &got));
        }
    }
    Ok(())
}

fn nan_spreads(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS {
        for position in 0..comm.size() {
            // Only one element in three is hit; the others must stay numbers.
            let value = |rank: usize, i: usize| {
                float(dtype, if rank == position && i.is_multiple_of(3) { f64::NAN } else { 0.5 })
            };
            reduce(ctx, &mut comm, dtype, ReduceOp::Sum, 33, value)?;
        }
    }
    Ok(())
}

fn opposite_infinities(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS.into_iter().filter(|dtype| *dtype != DType::F8E4M3) {
        let value = |rank: usize| float(dtype, [f64::INFINITY, f64::NEG_INFINITY, 1.0][rank.min(2)]);
        let got = reduce_one(ctx, &mut comm, dtype, ReduceOp::Sum, value)?;
        ensure!(got.is_empty() || is_nan(dtype, &got), "{dtype}: Inf - Inf gave {}", show(dtype, &got));
    }
    Ok(())
}

fn subnormals(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS {
        let smallest: [u8; 8] = {
            let mut bytes = [0; 8];
            bytes[0] = 1;
            bytes
        };
        let got = reduce(ctx, &mut comm, dtype, ReduceOp::Sum, 21, |_, _| smallest)?;
        let members = comm.size() as u8;
        // The smallest subnormals of every format are spaced evenly: n of them have the pattern n.
        // Beyond the mantissa the oracle alone judges.
        if members > if dtype == DType::F8E5M2 { 8 } else { 16 } {
            continue;
        }
        let exact = got.chunks(elem_size(dtype)).all(|e| e[0] == members && e[1..].iter().all(|b| *b == 0));
        ensure!(exact, "{dtype}: the sum of {members} smallest subnormals is {}", show(dtype, &got));
    }
    Ok(())
}

fn signed_zeros(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS {
        for op in EXTREMES {
            for position in 0..comm.size() {
                let (odd, rest) = if op == ReduceOp::Max { (0.0, -0.0) } else { (-0.0, 0.0) };
                let value = |rank| float(dtype, if rank == position { odd } else { rest });
                let got = reduce_one(ctx, &mut comm, dtype, op, value)?;
                ensure!(got == float(dtype, odd)[..got.len()], "{op} of {dtype} zeros gave {}", show(dtype, &got));
            }
        }
    }
    Ok(())
}

fn wrap_8(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let got = reduce_one(ctx, &mut comm, DType::I8, ReduceOp::Sum, |_| number(DType::I8, 100))?;
    let want = (100 * comm.size()) as u8;
    ensure!(got.is_empty() || got == [want], "i8: 100 from each of {} ranks gave {got:?}", comm.size());
    let value = |rank| number(DType::U8, [200, 100, 0][usize::min(rank, 2)]);
    let got = reduce_one(ctx, &mut comm, DType::U8, ReduceOp::Sum, value)?;
    ensure!(got.is_empty() || got == [44], "u8: 200 + 100 gave {got:?}");
    Ok(())
}

fn wrap_32(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let value = |rank| number(DType::I32, [i32::MAX.into(), 1, 0][usize::min(rank, 2)]);
    let got = reduce_one(ctx, &mut comm, DType::I32, ReduceOp::Sum, value)?;
    ensure!(got.is_empty() || got == i32::MIN.to_ne_bytes(), "i32::MAX + 1 gave {got:?}");
    let value = |rank| number(DType::I64, [i64::MIN.into(), -1, 0][usize::min(rank, 2)]);
    let got = reduce_one(ctx, &mut comm, DType::I64, ReduceOp::Sum, value)?;
    ensure!(got.is_empty() || got == i64::MAX.to_ne_bytes(), "i64::MIN - 1 gave {got:?}");
    Ok(())
}

fn no_float_detour(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in [DType::I64, DType::U64] {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            let value = |rank: usize, i: usize| number(dtype, (1_i128 << 61) + 2 * (rank as i128) + i as i128 + 1);
            reduce(ctx, &mut comm, dtype, op, 23, value)?;
        }
    }
    Ok(())
}

fn mean_of_equals(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in FLOATS {
        for x in [1.0, 0.75, -3.0, 1.5] {
            reduce(ctx, &mut comm, dtype, ReduceOp::Avg, 5, |_, _| float(dtype, x))?;
        }
    }
    let got = reduce_one(ctx, &mut comm, DType::F32, ReduceOp::Avg, |rank| float(DType::F32, 3.0 * rank as f64))?;
    if comm.size().is_power_of_two() && !got.is_empty() {
        let want = 1.5 * (comm.size() - 1) as f32;
        ensure!(got == want.to_ne_bytes(), "the mean of 3 * rank is {} instead of {want}", show(DType::F32, &got));
    }
    Ok(())
}

fn mean_of_largest(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let largest = [(DType::F32, f64::from(f32::MAX)), (DType::F64, f64::MAX), (DType::F16, 65_504.0)];
    for (dtype, x) in largest {
        for sign in [1.0, -1.0] {
            let got = reduce_one(ctx, &mut comm, dtype, ReduceOp::Avg, |_| float(dtype, sign * x))?;
            let finite = match if got.is_empty() { Number::Int(0) } else { decode(dtype, &got) } {
                Number::Single(mean) => mean.is_finite(),
                Number::Double(mean) => mean.is_finite(),
                Number::Int(_) => true,
            };
            ensure!(finite, "{dtype}: the mean of the largest number is {}", show(dtype, &got));
            if comm.size().is_power_of_two() && !got.is_empty() {
                ensure!(got == float(dtype, sign * x)[..got.len()], "{dtype}: mean of MAX is {}", show(dtype, &got));
            }
        }
    }
    Ok(())
}

fn f16_overflow(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let got = reduce_one(ctx, &mut comm, DType::F16, ReduceOp::Sum, |_| float(DType::F16, 60_000.0))?;
    ensure!(got == 0x7C00_u16.to_ne_bytes(), "60000 + 60000 in f16 gave {}", show(DType::F16, &got));
    Ok(())
}

fn small_float_sums(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        if comm.size() <= 4 {
            let value = |rank: usize, i: usize| number(dtype, ((rank + i) % 3) as i128);
            reduce(ctx, &mut comm, dtype, ReduceOp::Sum, 64, value)?;
        }
        let largest = if dtype == DType::F8E4M3 { 448.0 } else { 57_344.0 };
        let got = reduce_one(ctx, &mut comm, dtype, ReduceOp::Sum, |_| float(dtype, largest))?;
        if comm.size() > 1 && !got.is_empty() {
            let want = if dtype == DType::F8E4M3 { 0x7F } else { 0x7C };
            ensure!(got == [want], "{dtype}: the sum of the largest values gave {}", show(dtype, &got));
        }
    }
    Ok(())
}
