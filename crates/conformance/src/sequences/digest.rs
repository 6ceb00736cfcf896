//! What a call gave, in a few bytes, to be compared with what other backends gave.

use crate::case::Failure;
use crate::number::{elem_size, is_nan};
use crate::operation::{Operation, judge};
use crate::oracle::expected;
use rankwise_core::ReduceOp;
use serde::{Deserialize, Serialize};

/// How the calls of a compared run are made: the results must not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Form {
    /// As the script says.
    Plain,
    /// Both buffers from collective allocation.
    Allocated,
    /// Started and waited for.
    Started,
    /// All-reduces as two calls on the halves of the elements: other methods for other sizes.
    Pieces,
}

impl Form {
    pub(crate) const ALL: [Form; 4] = [Form::Plain, Form::Allocated, Form::Started, Form::Pieces];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Plain => "plain",
            Form::Allocated => "allocated",
            Form::Started => "started",
            Form::Pieces => "in pieces",
        }
    }
}

/// The result of one call at one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digest {
    /// Which call: the number of its values.
    pub(crate) values: u64,
    /// Of the result, in a canonical form where the contract leaves bits open.
    pub(crate) got: u64,
    /// Of the reference's result.
    pub(crate) want: u64,
    /// How the result is not within what the contract promises of the reference's.
    pub(crate) wrong: Option<String>,
}

pub(crate) fn digest(values: u64, o: &Operation, inputs: &[Vec<u8>], me: usize, result: &[u8], fixed: bool) -> Digest {
    let want = expected(o, inputs, me);
    let wrong = judge(o, inputs, me, result, fixed).err().map(|Failure { text, .. }| text);
    let of = |bytes: &[u8]| hash(&canonical(o, bytes, fixed));
    let got = of(result);
    Digest { values, got, want: want.map_or(got, |want| of(&want)), wrong }
}

/// The bytes that every backend must agree on: all of them, but without fixed determinism any NaN is as good as another
/// and the mean and the scaled sum may differ in the last places.
fn canonical(o: &Operation, bytes: &[u8], fixed: bool) -> Vec<u8> {
    if fixed || !o.kind.reduces() || !o.dtype.is_float() {
        return bytes.to_vec();
    }
    if matches!(o.op, Some(ReduceOp::Avg | ReduceOp::PreMulSum(_))) {
        return Vec::new();
    }
    let element = |element: &[u8]| if is_nan(o.dtype, element) { vec![0xFF; element.len()] } else { element.to_vec() };
    bytes.chunks_exact(elem_size(o.dtype)).flat_map(element).collect()
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankwise_core::{DType, OpKind};

    #[test]
    fn only_what_the_contract_leaves_open_is_alike() {
        let o = Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, 2);
        let bytes = |values: [u32; 2]| values.map(u32::to_ne_bytes).concat();
        let inputs = [bytes([0x7FC0_0000, 1]), bytes([0, 1])];
        let of = |values, fixed| digest(3, &o, &inputs, 0, &bytes(values), fixed);
        let right = of([0x7FC0_0000, 2], true);
        assert_eq!((right.got, right.wrong.clone()), (right.want, None));
        assert_ne!(of([0x7FC0_0001, 2], true).got, right.want);
        let loose = of([0x7FC0_0001, 2], false);
        assert_eq!((loose.got, loose.wrong.clone()), (loose.want, None));
        let wrong = of([0x7FC0_0001, 3], false);
        assert_ne!(wrong.got, wrong.want);
        assert!(wrong.wrong.unwrap().contains("the first at 1"));
    }
}
