//! A call as an exchange: which bytes of the source go to which member, and where the bytes of each member go.
//!
//! Every collective of the toys is one all-to-all of byte ranges, possibly empty, so that each member hears every
//! other one: mismatch and rejection reach all. Sending and receiving are the same between two members.

use super::is_pair;
use rankwise_core::backend::{RawBuf, RawCall};
use rankwise_core::{DType, Error, ErrorKind, OpKind, ReduceOp};
use std::ops::Range;
use std::sync::Arc;

/// What must be equal on all members.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Descriptor {
    kind: OpKind,
    dtype: DType,
    elem_size: usize,
    op: Option<ReduceOp>,
    count: usize,
    counts: Vec<usize>,
    root: usize,
    tag: u32,
    /// Which of how many collectives that were launched as one.
    place: (usize, usize),
}

/// One call at one member, with the addresses it was lent.
pub(crate) struct Exchange {
    pub(crate) descriptor: Arc<Descriptor>,
    me: usize,
    /// The positions it hears from, in the order of folding.
    pub(crate) peers: Vec<usize>,
    /// How many members meet, this one included.
    pub(crate) participants: usize,
    src: RawBuf,
    /// Bytes of the source for each position.
    out: Vec<Range<usize>>,
    dst: RawBuf,
    into: Vec<Range<usize>>,
    fold: Option<DType>,
}

// SAFETY: the addresses are only used in `outgoing` and `deliver`, whose callers promise that the lender's promise
// (nobody else writes the source or touches the destination) still holds; it does not depend on the thread.
unsafe impl Send for Exchange {}

impl Exchange {
    /// `place` says which of how many collectives of one launch it is; nothing for sends and receives.
    pub(crate) fn new(call: &RawCall<'_>, me: usize, n: usize, place: (usize, usize)) -> Exchange {
        let block = call.count * call.elem_size;
        let part = |p: usize| p * block..(p + 1) * block;
        let uneven = |counts: &[usize], p: usize| {
            let start = counts[..p].iter().sum::<usize>() * call.elem_size;
            start..start + counts[p] * call.elem_size
        };
        let only = |yes: bool| if yes { 0..block } else { 0..0 };
        let (send, recv) = (call.counts.send, call.counts.recv);
        let ranges = |p: usize| match call.kind {
            OpKind::AllReduce => (0..block, 0..block),
            OpKind::AllGather => (0..block, part(p)),
            OpKind::ReduceScatter => (part(p), 0..block),
            OpKind::AllToAll => (part(p), part(p)),
            OpKind::Broadcast => (only(me == call.root), only(p == call.root)),
            OpKind::AllGatherV => (0..recv[me] * call.elem_size, uneven(recv, p)),
            OpKind::ReduceScatterV => (uneven(send, p), 0..send[me] * call.elem_size),
            OpKind::AllToAllV => (uneven(send, p), uneven(recv, p)),
            OpKind::Send => (only(p == call.root), 0..0),
            OpKind::Recv => (0..0, only(p == call.root)),
            _ => (0..0, 0..0),
        };
        let pair = is_pair(call.kind);
        let (out, into) = (0..n).map(ranges).unzip();
        let descriptor = Descriptor {
            kind: if pair { OpKind::Send } else { call.kind },
            dtype: call.dtype,
            elem_size: call.elem_size,
            op: call.op,
            count: call.count,
            counts: match call.kind {
                OpKind::AllGatherV => recv.to_vec(),
                OpKind::ReduceScatterV => send.to_vec(),
                _ => Vec::new(),
            },
            root: if pair { 0 } else { call.root },
            tag: call.tag,
            place: if pair { (0, 0) } else { place },
        };
        Exchange {
            descriptor: Arc::new(descriptor),
            me,
            peers: if pair { vec![call.root] } else { (0..n).collect() },
            participants: if pair { 2 } else { n },
            src: call.src,
            out,
            dst: call.dst,
            into,
            fold: call.op.map(|_| call.dtype),
        }
    }

    /// A copy of what goes to the member at `to`.
    ///
    /// # Safety
    ///
    /// The call's source is still lent.
    pub(crate) unsafe fn outgoing(&self, to: usize) -> Vec<u8> {
        let range = self.out[to].clone();
        // SAFETY: `RawCall` promises the sizes the ranges are computed from; the caller promises the lending.
        unsafe { std::slice::from_raw_parts(self.src.ptr.add(range.start), range.len()) }.to_vec()
    }

    /// Folds or places what came from `peers`, in their order.
    ///
    /// # Safety
    ///
    /// The call's destination is still lent, and [`Exchange::disagreement`] found nothing for these pieces.
    pub(crate) unsafe fn deliver(&self, pieces: &[Vec<u8>]) {
        let write = |range: &Range<usize>, bytes: &[u8]| {
            assert_eq!(range.len(), bytes.len(), "a piece of the wrong length");
            // SAFETY: as in `outgoing`, for the destination; the piece is memory of this toy and overlaps nothing.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.dst.ptr.add(range.start), bytes.len()) };
        };
        match (self.fold, pieces) {
            (Some(dtype), [first, rest @ ..]) => {
                let mut sum = first.clone();
                rest.iter().for_each(|piece| add(dtype, &mut sum, piece));
                write(&self.into[self.peers[0]], &sum);
            }
            _ => self.peers.iter().zip(pieces).for_each(|(p, piece)| write(&self.into[*p], piece)),
        }
    }

    /// The positions whose descriptor differs from the majority's (on a tie, from the lowest position's), or whose
    /// piece has not the length this member expects; with the error that names them.
    pub(crate) fn disagreement(
        &self,
        heard: &[(Arc<Descriptor>, usize)],
        rank_of: impl Fn(usize) -> usize,
    ) -> Option<Error> {
        let fits =
            |(p, (d, length)): (&usize, &(Arc<Descriptor>, usize))| (*p, Arc::clone(d), *length == self.into[*p].len());
        let mut all: Vec<_> = self.peers.iter().zip(heard).map(fits).collect();
        if !self.peers.contains(&self.me) {
            all.push((self.me, Arc::clone(&self.descriptor), true));
        }
        all.sort_by_key(|(p, ..)| *p);
        let votes = |d: &Descriptor| all.iter().filter(|(_, other, _)| **other == *d).count();
        // `max_by_key` takes the last of equals, hence the reversal: on a tie the lowest position is right.
        let right = Arc::clone(&all.iter().rev().max_by_key(|(_, d, _)| votes(d))?.1);
        // With a wrong call of one's own every length may look wrong: then only the descriptors count.
        let by_length = self.descriptor == right;
        let odd: Vec<_> = all.iter().filter(|(_, d, fits)| *d != right || (by_length && !fits)).collect();
        let (_, theirs, _) = odd.first()?;
        let text = format!("most called {right:?}, but others {theirs:?}; make the calls equal");
        Some(Error::new(ErrorKind::Mismatch, text).with_peers(odd.iter().map(|(p, ..)| rank_of(*p))))
    }
}

fn add(dtype: DType, sum: &mut [u8], piece: &[u8]) {
    for (a, b) in sum.chunks_exact_mut(4).zip(piece.chunks_exact(4)) {
        let (x, y): ([u8; 4], [u8; 4]) = (a.try_into().expect("4 bytes"), b.try_into().expect("4 bytes"));
        a.copy_from_slice(&match dtype {
            DType::F32 => (f32::from_ne_bytes(x) + f32::from_ne_bytes(y)).to_ne_bytes(),
            DType::I32 => i32::from_ne_bytes(x).wrapping_add(i32::from_ne_bytes(y)).to_ne_bytes(),
            other => unreachable!("the table declines sums of {other}"),
        });
    }
}
