//! What an operation must give, computed on this rank from all ranks' inputs and never by a backend (H7).

use crate::number::{Number, decode, elem_size, encode, wrap};
use crate::operation::Operation;
use rankwise_core::{DType, OpKind, ReduceOp};

/// The left fold of `parts`, in order, element by element, rounded once.
pub(crate) fn fold(dtype: DType, op: ReduceOp, parts: &[&[u8]]) -> Vec<u8> {
    let size = elem_size(dtype);
    let count = parts.first().map_or(0, |part| part.len() / size);
    let mut out = Vec::with_capacity(count * size);
    for index in 0..count {
        let values = parts.iter().map(|part| decode(dtype, &part[index * size..][..size]));
        out.extend(&encode(dtype, fold_element(dtype, op, parts.len(), values))[..size]);
    }
    out
}

fn fold_element(dtype: DType, op: ReduceOp, members: usize, values: impl Iterator<Item = Number>) -> Number {
    let (before, after) = match op {
        ReduceOp::Avg => average_factors(members),
        _ => (1.0, 1.0),
    };
    let prepared = values.map(|value| match (op, value) {
        (ReduceOp::Avg, Number::Single(v)) => Number::Single(v * before as f32),
        (ReduceOp::Avg, Number::Double(v)) => Number::Double(v * before),
        (ReduceOp::PreMulSum(factor), Number::Single(v)) => Number::Single(factor as f32 * v),
        (ReduceOp::PreMulSum(factor), Number::Double(v)) => Number::Double(factor * v),
        (_, value) => value,
    });
    let total = prepared.reduce(|a, b| combine(dtype, op, a, b)).unwrap_or(Number::Int(0));
    match (op, total) {
        // The mean of finite numbers is finite, whatever the last rounding says.
        (ReduceOp::Avg, Number::Single(v)) if v.is_finite() => {
            Number::Single((v * after as f32).clamp(f32::MIN, f32::MAX))
        }
        (ReduceOp::Avg, Number::Double(v)) if v.is_finite() => Number::Double((v * after).clamp(f64::MIN, f64::MAX)),
        (_, total) => total,
    }
}

/// `2^-k` and `2^k / n` with `k = ceil(log2 n)`: the mean without overflow.
fn average_factors(members: usize) -> (f64, f64) {
    let power = members.next_power_of_two() as f64;
    (1.0 / power, power / members as f64)
}

fn combine(dtype: DType, op: ReduceOp, a: Number, b: Number) -> Number {
    use ReduceOp::{BAnd, BOr, BXor, Max, Min, Prod};
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Number::Int(wrap(
            dtype,
            match op {
                Prod => a.wrapping_mul(b),
                Min => a.min(b),
                Max => a.max(b),
                BAnd => a & b,
                BOr => a | b,
                BXor => a ^ b,
                _ => a + b,
            },
        )),
        (Number::Single(a), Number::Single(b)) => Number::Single(match op {
            Prod => a * b,
            Min | Max => extreme(a.into(), b.into(), op == Max) as f32,
            _ => a + b,
        }),
        (Number::Double(a), Number::Double(b)) => Number::Double(match op {
            Prod => a * b,
            Min | Max => extreme(a, b, op == Max),
            _ => a + b,
        }),
        (a, _) => a,
    }
}

/// IEEE 754-2019 `minimumNumber` and `maximumNumber`: a NaN loses against a number, `-0 < +0`.
fn extreme(a: f64, b: f64, largest: bool) -> f64 {
    if a.is_nan() {
        return b;
    }
    if b.is_nan() {
        return a;
    }
    let a_is_above = if a == b { a.is_sign_positive() } else { a > b };
    if a_is_above == largest { a } else { b }
}

/// What the member at `me` must find in its destination; `None` when it has none.
///
/// `inputs` are the sources of all members in group order, of the lengths [`Operation::src_count`] says.
pub(crate) fn expected(operation: &Operation, inputs: &[Vec<u8>], me: usize) -> Option<Vec<u8>> {
    let members = inputs.len();
    let size = elem_size(operation.dtype);
    let root = operation.root;
    let reduced = |range: std::ops::Range<usize>| {
        let parts: Vec<&[u8]> = inputs.iter().map(|input| &input[range.start * size..range.end * size]).collect();
        match (operation.op.unwrap_or_default(), &parts[..]) {
            // A group of one copies: NaNs keep their payloads.
            (op, [only]) if !matches!(op, ReduceOp::PreMulSum(_)) => only.to_vec(),
            (op, parts) => fold(operation.dtype, op, parts),
        }
    };
    let part = |input: &[u8], start: usize, count: usize| input[start * size..(start + count) * size].to_vec();
    let before = |position: usize| operation.counts[..position].iter().map(|c| c * operation.width).sum::<usize>();
    let own = |position: usize| operation.counts[position] * operation.width;
    let count = operation.count;
    Some(match operation.kind {
        OpKind::AllReduce => reduced(0..count),
        OpKind::Reduce if me == root => reduced(0..count),
        OpKind::ReduceScatter => reduced(me * count..(me + 1) * count),
        OpKind::ReduceScatterV => reduced(before(me)..before(me) + own(me)),
        OpKind::AllGather | OpKind::AllGatherV => inputs.concat(),
        OpKind::Gather | OpKind::GatherV if me == root => inputs.concat(),
        OpKind::Broadcast => inputs[root].clone(),
        OpKind::Scatter => part(&inputs[root], me * count, count),
        OpKind::ScatterV => part(&inputs[root], before(me), own(me)),
        OpKind::AllToAll => inputs.iter().flat_map(|input| part(input, me * count, count)).collect(),
        OpKind::AllToAllV => {
            let row = |from: usize| &operation.counts[from * members..(from + 1) * members];
            inputs
                .iter()
                .enumerate()
                .flat_map(|(from, input)| part(input, row(from)[..me].iter().sum(), row(from)[me]))
                .collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    #[test]
    fn folds_by_hand() {
        let fold_f32 = |op, parts: &[&[f32]]| {
            let parts: Vec<_> = parts.iter().map(|p| f32s(p)).collect();
            let parts: Vec<&[u8]> = parts.iter().map(|p| &p[..]).collect();
            let bytes = fold(DType::F32, op, &parts);
            bytes.chunks(4).map(|c| f32::from_ne_bytes(c.try_into().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(fold_f32(ReduceOp::Sum, &[&[1e8], &[1.0], &[-1e8], &[1.0]]), [1.0]);
        assert_eq!(fold_f32(ReduceOp::Max, &[&[f32::NAN, -0.0], &[2.0, 0.0]]), [2.0, 0.0]);
        assert!(fold_f32(ReduceOp::Max, &[&[-0.0], &[0.0]])[0].is_sign_positive());
        assert!(fold_f32(ReduceOp::Min, &[&[0.0], &[-0.0]])[0].is_sign_negative());
        assert_eq!(fold_f32(ReduceOp::Avg, &[&[f32::MAX], &[f32::MAX]]), [f32::MAX]);
        assert_eq!(fold_f32(ReduceOp::PreMulSum(0.5), &[&[3.0], &[5.0]]), [4.0]);
        assert_eq!(fold(DType::U8, ReduceOp::Sum, &[&[200], &[100]]), [44]);
        assert_eq!(fold(DType::I8, ReduceOp::Max, &[&[0x80], &[1]]), [1]);
        assert_eq!(fold(DType::U8, ReduceOp::Max, &[&[0x80], &[1]]), [0x80]);
    }

    #[test]
    fn a_group_of_one_keeps_the_payload_of_a_nan() {
        let mut operation = Operation::new(OpKind::AllReduce, DType::F16);
        (operation.op, operation.count) = (Some(ReduceOp::Max), 1);
        let payload = vec![0x01, 0xFE];
        assert_eq!(expected(&operation, std::slice::from_ref(&payload), 0).unwrap(), payload);
        assert_eq!(expected(&operation, &[payload.clone(), payload], 0).unwrap(), [0x00, 0x7E]);
    }

    #[test]
    fn pieces_go_where_the_operation_says() {
        let inputs = vec![vec![1, 2, 3], vec![4, 5, 6]];
        let mut operation = Operation::new(OpKind::AllToAllV, DType::U8);
        operation.counts = vec![1, 2, 3, 0];
        assert_eq!(expected(&operation, &inputs, 0).unwrap(), [1, 4, 5, 6]);
        assert_eq!(expected(&operation, &inputs, 1).unwrap(), [2, 3]);
        let mut operation = Operation::new(OpKind::ReduceScatterV, DType::U8);
        operation.op = Some(ReduceOp::Sum);
        operation.counts = vec![1, 2];
        assert_eq!(expected(&operation, &inputs, 1).unwrap(), [7, 9]);
        let mut operation = Operation::new(OpKind::Scatter, DType::U8);
        (operation.count, operation.root) = (1, 1);
        assert_eq!(expected(&operation, &inputs, 0).unwrap(), [4]);
    }
}
