//! Reduction operators and the kinds of operation.

use crate::dtype::{DType, DTypeSet};
use std::fmt;

/// How the contributions of the ranks are combined, element by element, left to right in group order.
///
/// Integers wrap. Floats: see `docs/semantics.md` for NaN, signed zero and rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// `a + b`.
    #[default]
    Sum,
    /// `a * b`.
    Prod,
    /// The smaller one; a NaN loses against a number, `-0 < +0`.
    Min,
    /// The larger one; a NaN loses against a number, `-0 < +0`.
    Max,
    /// The mean; floats only. Does not overflow when the mean is representable.
    Avg,
    /// `sum(factor * x)`; floats only. The factor is rounded to `f32` (to `f64` for [`DType::F64`]) once.
    PreMulSum(f64),
    /// Bitwise and; integers only.
    BAnd,
    /// Bitwise or; integers only.
    BOr,
    /// Bitwise exclusive or; integers only.
    BXor,
}

impl ReduceOp {
    /// Number of operators; [`ReduceOp::index`] is below it.
    pub const COUNT: usize = 9;

    /// One operator of each kind; the factor of `PreMulSum` is 0.5.
    pub const ALL: [ReduceOp; ReduceOp::COUNT] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::PreMulSum(0.5),
        ReduceOp::BAnd,
        ReduceOp::BOr,
        ReduceOp::BXor,
    ];

    /// Position in [`ReduceOp::ALL`]; the factor of `PreMulSum` does not matter.
    pub const fn index(self) -> usize {
        match self {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Min => 2,
            ReduceOp::Max => 3,
            ReduceOp::Avg => 4,
            ReduceOp::PreMulSum(_) => 5,
            ReduceOp::BAnd => 6,
            ReduceOp::BOr => 7,
            ReduceOp::BXor => 8,
        }
    }

    /// The name used on command lines, in tables and in errors.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::PreMulSum(_) => "premulsum",
            ReduceOp::BAnd => "band",
            ReduceOp::BOr => "bor",
            ReduceOp::BXor => "bxor",
        }
    }

    /// The inverse of [`ReduceOp::name`]; `premulsum` gets the factor 0.5.
    pub fn from_name(name: &str) -> Option<ReduceOp> {
        ReduceOp::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The types for which the operator has a meaning at all. A backend may support fewer.
    pub const fn meaningful(self) -> DTypeSet {
        match self {
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max => DTypeSet::NUMERIC,
            ReduceOp::Avg | ReduceOp::PreMulSum(_) => DTypeSet::FLOATS,
            ReduceOp::BAnd | ReduceOp::BOr | ReduceOp::BXor => DTypeSet::INTEGERS,
        }
    }

    /// Whether the operator has a meaning for `dtype`.
    pub const fn is_meaningful_for(self, dtype: DType) -> bool {
        self.meaningful().contains(dtype)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceOp::PreMulSum(factor) => write!(f, "premulsum({factor})"),
            op => f.write_str(op.name()),
        }
    }
}

/// The kinds of operation a communicator can run.
///
/// Buffer sizes, with `n` the group size and `count` elements:
///
/// | kind | source | destination |
/// |---|---|---|
/// | all_reduce | count | count |
/// | all_gather | count | n * count |
/// | reduce_scatter | n * count | count |
/// | all_to_all | n * count | n * count |
/// | broadcast | count (root) | count |
/// | reduce | count | count (root) |
/// | gather | count | n * count (root) |
/// | scatter | n * count (root) | count |
/// | v-forms | as their even form, with a count per rank | |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum OpKind {
    /// Every rank gets the reduction of all contributions.
    AllReduce = 1,
    /// Every rank gets all contributions in group order.
    AllGather = 2,
    /// Rank r gets part r of the reduction.
    ReduceScatter = 3,
    /// Rank r gets part r of every rank's source, in group order.
    AllToAll = 4,
    /// Every rank gets the root's data.
    Broadcast = 5,
    /// The root gets the reduction.
    Reduce = 6,
    /// The root gets all contributions in group order.
    Gather = 7,
    /// Rank r gets part r of the root's data.
    Scatter = 8,
    /// No rank leaves before the last has entered.
    Barrier = 9,
    /// All-gather with a count per rank.
    AllGatherV = 10,
    /// Reduce-scatter with a count per rank.
    ReduceScatterV = 11,
    /// All-to-all with a count per pair.
    AllToAllV = 12,
    /// Gather with a count per rank.
    GatherV = 13,
    /// Scatter with a count per rank.
    ScatterV = 14,
    /// To one peer.
    Send = 15,
    /// From one peer.
    Recv = 16,
    /// Fused: `y = rms_norm(residual += all_reduce(x))`. Optional capability; no backend offers it yet.
    AllReduceAddRmsNorm = 17,
    /// Collective allocation of memory that the operations can use in place.
    Alloc = 18,
    /// Division of a communicator by colour and key.
    Split = 19,
    /// The collective goodbye.
    Finalize = 20,
    /// Registration of a group: the creation of its communicator.
    Register = 21,
    /// Formation of a smaller communicator from the survivors.
    Shrink = 22,
}

impl OpKind {
    /// The operations that move or combine user data, in a fixed order.
    pub const DATA: [OpKind; 16] = [
        OpKind::AllReduce,
        OpKind::AllGather,
        OpKind::ReduceScatter,
        OpKind::AllToAll,
        OpKind::Broadcast,
        OpKind::Reduce,
        OpKind::Gather,
        OpKind::Scatter,
        OpKind::Barrier,
        OpKind::AllGatherV,
        OpKind::ReduceScatterV,
        OpKind::AllToAllV,
        OpKind::GatherV,
        OpKind::ScatterV,
        OpKind::Send,
        OpKind::Recv,
    ];

    /// The name used on command lines, in tables and in errors: `all_reduce`, …
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::AllReduce => "all_reduce",
            OpKind::AllGather => "all_gather",
            OpKind::ReduceScatter => "reduce_scatter",
            OpKind::AllToAll => "all_to_all",
            OpKind::Broadcast => "broadcast",
            OpKind::Reduce => "reduce",
            OpKind::Gather => "gather",
            OpKind::Scatter => "scatter",
            OpKind::Barrier => "barrier",
            OpKind::AllGatherV => "all_gather_v",
            OpKind::ReduceScatterV => "reduce_scatter_v",
            OpKind::AllToAllV => "all_to_all_v",
            OpKind::GatherV => "gather_v",
            OpKind::ScatterV => "scatter_v",
            OpKind::Send => "send",
            OpKind::Recv => "recv",
            OpKind::AllReduceAddRmsNorm => "all_reduce_add_rms_norm",
            OpKind::Alloc => "alloc",
            OpKind::Split => "split",
            OpKind::Finalize => "finalize",
            OpKind::Register => "register",
            OpKind::Shrink => "shrink",
        }
    }

    /// The inverse of `self as u8`.
    pub fn from_tag(tag: u8) -> Option<OpKind> {
        use OpKind::*;
        OpKind::DATA
            .into_iter()
            .chain([AllReduceAddRmsNorm, Alloc, Split, Finalize, Register, Shrink])
            .find(|kind| *kind as u8 == tag)
    }

    /// The inverse of [`OpKind::name`] for the kinds of [`OpKind::DATA`].
    pub fn from_name(name: &str) -> Option<OpKind> {
        OpKind::DATA.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the kind combines elements and so needs a [`ReduceOp`] and a numeric [`DType`].
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            OpKind::AllReduce
                | OpKind::ReduceScatter
                | OpKind::Reduce
                | OpKind::ReduceScatterV
                | OpKind::AllReduceAddRmsNorm
        )
    }

    /// Whether one rank of the group is special.
    pub const fn has_root(self) -> bool {
        matches!(
            self,
            OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter | OpKind::GatherV | OpKind::ScatterV
        )
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_follow_the_list() {
        for (i, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(op.index(), i);
            assert_eq!(ReduceOp::from_name(op.name()), Some(op));
        }
    }

    #[test]
    fn meaning_by_type() {
        assert!(!ReduceOp::Avg.is_meaningful_for(DType::I32));
        assert!(!ReduceOp::BXor.is_meaningful_for(DType::F32));
        assert!(!ReduceOp::Sum.is_meaningful_for(DType::Opaque));
        assert!(ReduceOp::Max.is_meaningful_for(DType::F8E5M2));
    }

    #[test]
    fn kinds_round_trip() {
        for kind in OpKind::DATA {
            assert_eq!(OpKind::from_name(kind.name()), Some(kind));
            assert_eq!(OpKind::from_tag(kind as u8), Some(kind));
        }
    }
}
