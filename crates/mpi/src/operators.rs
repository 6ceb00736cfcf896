//! Reductions of our own as operators of MPI: where it has no type, and where its own depend on who holds the NaN.

use crate::api::{Api, Builtin, Op, UserFunction};
use rankwise_core::{DType, ReduceOp};
use rankwise_reduce::Reducer;
use std::ffi::{c_int, c_void};

/// MPI's own operator, where it keeps the contract: sums and products of the types it computes in, and bits.
///
/// Not sums of short integers: Open MPI 4.1 adds them with saturating vector instructions, so that they don't wrap. Not the smaller or
/// larger of unsigned integers: MPICH 4.0 compares them as signed ones; nor that of floats, which depends on who holds the NaN.
#[inline]
pub(crate) fn builtin(dtype: DType, op: ReduceOp) -> Option<Builtin> {
    let is_long = matches!(dtype, DType::I32 | DType::U32 | DType::I64 | DType::U64 | DType::F32 | DType::F64);
    match op {
        ReduceOp::Sum if is_long => Some(Builtin::Sum),
        ReduceOp::Prod if is_long => Some(Builtin::Prod),
        ReduceOp::BAnd => Some(Builtin::BAnd),
        ReduceOp::BOr => Some(Builtin::BOr),
        ReduceOp::BXor => Some(Builtin::BXor),
        _ => None,
    }
}

/// The four operators that two elements can be combined with, without knowing the group.
const PAIRWISE: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

/// Where the operator for a type stands in the list of [`create`].
#[inline]
pub(crate) fn index(dtype: DType, op: ReduceOp) -> usize {
    dtype as usize * ReduceOp::COUNT + op.index()
}

/// `into[i] = from[i] op into[i]`, as MPI calls it.
unsafe extern "C" fn combine<const DTYPE: u8, const OP: usize>(
    from: *mut c_void,
    into: *mut c_void,
    count: *mut c_int,
    _datatype: *mut c_void,
) {
    // Resolved anew each time: a few nanoseconds, and nothing is shared between threads.
    let reducer = DType::from_tag(DTYPE).and_then(|dtype| Reducer::new(dtype, PAIRWISE[OP], 2));
    let Some(reducer) = reducer else { return };
    let into = into.cast::<u8>();
    // SAFETY: MPI passes `count` elements on both sides that are equal or disjoint.
    unsafe { reducer.fold(into, &[from.cast::<u8>().cast_const(), into.cast_const()], (*count).max(0) as usize) };
}

macro_rules! table {
    ($($dtype:ident: $($op:literal)+;)+) => {
        &[$($((DType::$dtype, $op, combine::<{ DType::$dtype as u8 }, $op> as UserFunction)),+),+]
    };
}

const FUNCTIONS: &[(DType, usize, UserFunction)] = table! {
    I8: 0 1 2 3;
    U8: 0 1 2 3;
    I16: 0 1 2 3;
    U16: 0 1 2 3;
    F16: 0 1 2 3;
    BF16: 0 1 2 3;
    F8E4M3: 0 1 2 3;
    F8E5M2: 0 1 2 3;
    I32: 2 3;
    U32: 2 3;
    I64: 2 3;
    U64: 2 3;
    F32: 2 3;
    F64: 2 3;
};

/// All operators of our own, at their [`index`]; MPI's error code when it refuses one.
pub(crate) fn create<A: Api>(api: &A) -> Result<Vec<Option<Op<A>>>, c_int> {
    let mut operators = Vec::new();
    for (dtype, op, function) in FUNCTIONS {
        let index = index(*dtype, PAIRWISE[*op]);
        if operators.len() <= index {
            operators.resize(index + 1, None);
        }
        // Overwritten before it is used.
        let mut handle = api.builtin_op(Builtin::Sum);
        // SAFETY: the function keeps to its arguments; all four operators commute.
        let code = unsafe { api.op_create(*function, 1, &mut handle) };
        if code != 0 {
            return Err(code);
        }
        operators[index] = Some(handle);
    }
    Ok(operators)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_exactly_one_operator() {
        let own: Vec<usize> = FUNCTIONS.iter().map(|(dtype, op, _)| index(*dtype, PAIRWISE[*op])).collect();
        for dtype in DType::NUMERIC {
            for op in PAIRWISE.into_iter().chain([ReduceOp::BAnd, ReduceOp::BOr, ReduceOp::BXor]) {
                let ours = own.iter().filter(|i| **i == index(dtype, op)).count();
                if op.is_meaningful_for(dtype) {
                    assert_eq!(ours + usize::from(builtin(dtype, op).is_some()), 1, "{op} of {dtype}");
                }
            }
        }
    }

    #[test]
    fn combines_in_place() {
        let mut from = [half::f16::from_f32(1.5), half::f16::NAN];
        let mut into = [half::f16::from_f32(2.0), half::f16::from_f32(3.0)];
        let mut count = 2;
        let call = |op: usize, from: &mut [half::f16; 2], into: &mut [half::f16; 2], count: &mut c_int| {
            let function = FUNCTIONS.iter().find(|(dtype, o, _)| (*dtype, *o) == (DType::F16, op)).unwrap().2;
            // SAFETY: two elements on both sides.
            unsafe { function(from.as_mut_ptr().cast(), into.as_mut_ptr().cast(), count, std::ptr::null_mut()) };
        };
        call(0, &mut from, &mut into, &mut count);
        assert_eq!((into[0].to_f32(), into[1].is_nan()), (3.5, true));
        let mut into = [half::f16::from_f32(2.0), half::f16::from_f32(3.0)];
        call(3, &mut from, &mut into, &mut count);
        assert_eq!(into.map(half::f16::to_f32), [2.0, 3.0]);
    }
}
