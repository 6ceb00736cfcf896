//! Faults of the reduction itself: order, rounding, special values, integer width.

use super::Mutant;
use super::wrapped::{Fault, Finished, Seat};
use crate::case::Need;
use half::bf16;
use rankwise_core::{DType, OpKind, ReduceOp, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const fn sum(dtype: DType) -> Need {
    Need::Reduce(ReduceOp::Sum, dtype)
}

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("rotated-sum", "every rank adds in an order that begins at itself", &["DT", "RS-72"], || {
        refold(DType::F32, ReduceOp::Sum, |position, values: &[f32]| {
            let (from_here, before) = (&values[position..], &values[..position]);
            from_here.iter().chain(before).copied().reduce(|a, b| a + b).unwrap_or(0.0)
        })
    })
    .ranks(3)
    .needs(&[sum(DType::F32)]),
    Mutant::new("order-by-call", "every other call adds in the reverse order", &["DT"], || {
        Arc::new(EveryOtherReversed(AtomicU64::new(0)))
    })
    .ranks(3)
    .needs(&[sum(DType::F32)]),
    Mutant::new("unequal-bits", "the last rank rounds a sum the other way", &["DT-44"], || {
        in_result(DType::F32, ReduceOp::Sum, |last, bytes: [u8; 4]| {
            let value = f32::from_ne_bytes(bytes);
            if last && value.fract() != 0.0 { value.next_up().to_ne_bytes() } else { bytes }
        })
    })
    .needs(&[sum(DType::F32)]),
    Mutant::new("lost-nan", "a NaN in a sum becomes zero", &["SV", "DT-53"], || {
        in_result(
            DType::F32,
            ReduceOp::Sum,
            |_, bytes: [u8; 4]| {
                if f32::from_ne_bytes(bytes).is_nan() { [0; 4] } else { bytes }
            },
        )
    })
    .needs(&[sum(DType::F32)]),
    Mutant::new("nan-by-position", "whether a NaN wins a maximum depends on who holds it", &["SV"], || {
        refold(DType::F32, ReduceOp::Max, |_, values: &[f32]| {
            values.iter().copied().reduce(|a, b| if a > b { a } else { b }).unwrap_or(0.0)
        })
    })
    .needs(&[Need::Reduce(ReduceOp::Max, DType::F32)]),
    Mutant::new("unordered-zeros", "the maximum of zeros is the last one", &["SV"], || {
        refold(DType::F32, ReduceOp::Max, |_, values: &[f32]| {
            let larger = |a: f32, b: f32| if b.is_nan() || a > b { a } else { b };
            values.iter().copied().reduce(larger).unwrap_or(0.0)
        })
    })
    .needs(&[Need::Reduce(ReduceOp::Max, DType::F32)]),
    Mutant::new("flushed-subnormals", "sums below the smallest normal number are zero", &["SV"], || {
        in_result(
            DType::F32,
            ReduceOp::Sum,
            |_, bytes: [u8; 4]| {
                if f32::from_ne_bytes(bytes).is_subnormal() { [0; 4] } else { bytes }
            },
        )
    })
    .needs(&[sum(DType::F32)]),
    Mutant::new("rounded-every-step", "bf16 sums are rounded after every addition", &["DT"], || {
        refold(DType::BF16, ReduceOp::Sum, |_, values: &[bf16]| {
            values.iter().copied().reduce(|a, b| bf16::from_f32(a.to_f32() + b.to_f32())).unwrap_or(bf16::ZERO)
        })
    })
    .ranks(3)
    .needs(&[Need::Fixed, sum(DType::BF16)]),
    Mutant::new("saturated-e4m3", "e4m3 sums beyond the format are its largest number", &["SV"], || {
        in_result(DType::F8E4M3, ReduceOp::Sum, |_, [byte]: [u8; 1]| {
            [if byte & 0x7F == 0x7F { byte ^ 1 } else { byte }]
        })
    })
    .needs(&[sum(DType::F8E4M3)]),
    Mutant::new("saturated-i8", "i8 sums saturate", &["SV"], || {
        refold(DType::I8, ReduceOp::Sum, |_, values: &[i8]| values.iter().fold(0, |sum: i8, v| sum.saturating_add(*v)))
    })
    .needs(&[sum(DType::I8)]),
    Mutant::new("wrap-lost-in-f64", "i64 sums take a detour through f64", &["SV"], || {
        refold(DType::I64, ReduceOp::Sum, |_, values: &[i64]| values.iter().map(|v| *v as f64).sum::<f64>() as i64)
    })
    .needs(&[sum(DType::I64)]),
    Mutant::new("signed-u32", "u32 numbers are compared as if they had a sign", &["SV"], || {
        refold(DType::U32, ReduceOp::Max, |_, values: &[u32]| {
            values.iter().copied().max_by_key(|v| v.cast_signed()).unwrap_or(0)
        })
    })
    .needs(&[Need::Reduce(ReduceOp::Max, DType::U32)]),
    Mutant::new("overflowing-mean", "the mean adds first, and overflows", &["SV"], || {
        refold(DType::F32, ReduceOp::Avg, |_, values: &[f32]| values.iter().sum::<f32>() / values.len() as f32)
    })
    .needs(&[Need::Reduce(ReduceOp::Avg, DType::F32)]),
    Mutant::new("divided-first", "the mean divides every contribution, and rounds it", &["DT-50", "AR-17"], || {
        refold(DType::F32, ReduceOp::Avg, |_, values: &[f32]| values.iter().map(|v| v / values.len() as f32).sum())
    })
    .ranks(3)
    .needs(&[Need::Fixed, Need::Reduce(ReduceOp::Avg, DType::F32)]),
    Mutant::new("forgotten-factor", "the product ignores the first contribution", &["AR-2", "TB"], || {
        refold(DType::F32, ReduceOp::Prod, |_, values: &[f32]| values[1..].iter().product())
    })
    .needs(&[Need::Reduce(ReduceOp::Prod, DType::F32)]),
];

type Fold<T> = fn(usize, &[T]) -> T;

/// All-reduce of one type and operator is computed again, from all sources, by the function of (this position, values).
fn refold<T: bytemuck::Pod + Send + Sync>(dtype: DType, op: ReduceOp, fold: Fold<T>) -> Arc<dyn Fault> {
    Arc::new(Refold { dtype, op, fold })
}

struct Refold<T> {
    dtype: DType,
    op: ReduceOp,
    fold: Fold<T>,
}

impl<T: bytemuck::Pod + Send + Sync> Fault for Refold<T> {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        if !reduces(finished, self.dtype, self.op) {
            return Ok(());
        }
        let sources = seat.sources(finished.call, finished.src)?;
        fold_into(&sources, dst, |values| (self.fold)(seat.position, values));
        Ok(())
    }
}

fn reduces(finished: &Finished<'_>, dtype: DType, op: ReduceOp) -> bool {
    finished.is(OpKind::AllReduce) && finished.call.dtype == dtype && finished.call.op == Some(op)
}

fn fold_into<T: bytemuck::Pod>(sources: &[Vec<u8>], dst: &mut [u8], fold: impl Fn(&[T]) -> T) {
    let size = size_of::<T>();
    let mut values = Vec::with_capacity(sources.len());
    for (i, out) in dst.chunks_exact_mut(size).enumerate() {
        values.clear();
        values.extend(sources.iter().map(|source| bytemuck::pod_read_unaligned::<T>(&source[i * size..][..size])));
        out.copy_from_slice(bytemuck::bytes_of(&fold(&values)));
    }
}

/// The elements of the result are changed by the function of (whether this is the last rank, element).
fn in_result<const N: usize>(dtype: DType, op: ReduceOp, change: fn(bool, [u8; N]) -> [u8; N]) -> Arc<dyn Fault> {
    Arc::new(InResult { dtype, op, change })
}

struct InResult<const N: usize> {
    dtype: DType,
    op: ReduceOp,
    change: fn(bool, [u8; N]) -> [u8; N],
}

impl<const N: usize> Fault for InResult<N> {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        if reduces(finished, self.dtype, self.op) {
            let is_last = seat.position + 1 == seat.members();
            dst.as_chunks_mut().0.iter_mut().for_each(|element| *element = (self.change)(is_last, *element));
        }
        Ok(())
    }
}

struct EveryOtherReversed(AtomicU64);

impl Fault for EveryOtherReversed {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        if !reduces(finished, DType::F32, ReduceOp::Sum) || self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Ok(());
        }
        let sources = seat.sources(finished.call, finished.src)?;
        fold_into(&sources, dst, |values: &[f32]| values.iter().rev().copied().reduce(|a, b| a + b).unwrap_or(0.0));
        Ok(())
    }
}
