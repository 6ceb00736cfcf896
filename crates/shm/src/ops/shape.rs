//! Sizes of a call in bytes, from its kind and counts.

use crate::layout::STAGE;
use rankwise_core::backend::RawCall;
use rankwise_core::op::OpKind;

/// Sizes of a call in bytes that decide how it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Longest contribution of a member: the same number on all members.
    pub(crate) exposed: usize,
    /// What this rank contributes.
    pub(crate) mine: usize,
}

impl Shape {
    /// The shape of a collective call that can be staged whole; `None` for all others.
    #[inline]
    pub(crate) fn of_small(call: &RawCall<'_>, members: usize, me: usize) -> Option<Shape> {
        if matches!(call.kind, OpKind::Send | OpKind::Recv | OpKind::AllToAllV) {
            return None;
        }
        let shape = Shape::new(call, members, me);
        (shape.exposed <= STAGE).then_some(shape)
    }

    #[inline]
    pub(crate) fn new(call: &RawCall<'_>, members: usize, me: usize) -> Shape {
        let size = call.elem_size;
        let even = call.count * size;
        let all = |bytes| Shape { exposed: bytes, mine: bytes };
        let root = |bytes| Shape { exposed: bytes, mine: if call.root == me { bytes } else { 0 } };
        match call.kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::AllGather | OpKind::Gather => all(even),
            OpKind::ReduceScatter | OpKind::AllToAll => all(even * members),
            OpKind::Broadcast => root(even),
            OpKind::Scatter => root(even * members),
            OpKind::AllGatherV | OpKind::GatherV => {
                let longest = call.counts.recv.iter().copied().max().unwrap_or(0);
                Shape { exposed: longest * size, mine: call.counts.recv.get(me).copied().unwrap_or(0) * size }
            }
            OpKind::ReduceScatterV => all(total(call.counts.send) * size),
            OpKind::ScatterV => root(total(call.counts.send) * size),
            _ => Shape { exposed: 0, mine: 0 },
        }
    }
}

fn total(counts: &[usize]) -> usize {
    counts.iter().sum()
}

/// Bytes and offset of member `q`'s part in a buffer of all parts.
#[inline]
pub(crate) fn part(call: &RawCall<'_>, q: usize) -> (usize, usize) {
    let counts = match call.kind {
        OpKind::AllGatherV | OpKind::GatherV => call.counts.recv,
        OpKind::ReduceScatterV | OpKind::ScatterV => call.counts.send,
        _ => return (q * call.count * call.elem_size, call.count * call.elem_size),
    };
    (total(&counts[..q]) * call.elem_size, counts[q] * call.elem_size)
}
