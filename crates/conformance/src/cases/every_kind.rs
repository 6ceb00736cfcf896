//! A small call of every kind that moves or combines data, for cases that are about all of them.

use crate::ctx::Ctx;
use crate::operation::Operation;
use rankwise_core::{DType, OpKind};

/// One call of each kind that the backend offers, of about `count` elements a member, for a group of `members`. Barriers
/// and messages between two ranks are not among them.
pub(super) fn every_kind(ctx: &Ctx<'_>, members: usize, count: usize) -> Vec<Operation> {
    let usable = |kind: &OpKind| {
        ctx.capabilities().has_kind(*kind) && !matches!(kind, OpKind::Barrier | OpKind::Send | OpKind::Recv)
    };
    let call = |kind: OpKind| {
        let mut operation = Operation { count, ..Operation::new(kind, DType::F32) };
        match kind {
            OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV => {
                operation.counts = (0..members).map(|position| count + position).collect();
            }
            OpKind::AllToAllV => {
                operation.counts = (0..members * members).map(|pair| count / 2 + pair % 3).collect();
            }
            _ => {}
        }
        operation
    };
    OpKind::DATA.into_iter().filter(usable).map(call).collect()
}
