//! One measurement: which operation on how much of what, and which elements each rank gives and gets.

use super::elem::size_of_elem;
use super::op::Op;
use rankwise::{DType, ReduceOp};
use std::ops::Range;

/// One point of the sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) op: Op,
    /// None for the barrier.
    pub(crate) dtype: Option<DType>,
    /// None where data only moves.
    pub(crate) redop: Option<ReduceOp>,
    /// See [`Op::counted_bytes`].
    pub(crate) bytes: u64,
    pub(crate) in_place: bool,
    /// Buffers from the communicator's `alloc`.
    pub(crate) alloc: bool,
    /// Every rank rewrites its source before each call.
    pub(crate) fresh: bool,
}

/// A run of elements: whose they are (none: the reduction of all), which block of theirs, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) of: Option<usize>,
    pub(crate) block: usize,
    pub(crate) len: usize,
}

/// What one rank gives and gets in one cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    pub(crate) source: Vec<Piece>,
    pub(crate) result: Vec<Piece>,
    /// Elements of the two buffers. In place there is only the second.
    pub(crate) source_len: usize,
    pub(crate) dest_len: usize,
    /// Where in the destination the source lies in place, and the result.
    pub(crate) source_in_dest: Range<usize>,
    pub(crate) result_in_dest: Range<usize>,
    /// For the forms with counts: in elements, or rows of `width`.
    pub(crate) send_counts: Vec<usize>,
    pub(crate) recv_counts: Vec<usize>,
    pub(crate) width: usize,
}

impl Cell {
    /// Elements of the size of the cell; why not when the type does not divide it.
    pub(crate) fn count(&self) -> Result<usize, String> {
        let Some(dtype) = self.dtype else { return Ok(0) };
        let elem = size_of_elem(dtype);
        if !self.bytes.is_multiple_of(elem) {
            return Err(format!("{} bytes are no whole number of {dtype}", self.bytes));
        }
        usize::try_from(self.bytes / elem).map_err(|_| format!("{} bytes are too many for this machine", self.bytes))
    }

    /// Bytes of the buffers of one rank, the largest over ranks.
    pub(crate) fn memory(&self, ranks: usize) -> u64 {
        let parts = ranks as u64;
        let (source, dest) = match self.op {
            Op::Barrier => (0, 0),
            Op::AllReduce | Op::Reduce | Op::SendRecv => (1, 1),
            Op::Broadcast => (0, 1),
            // The counts of a rank are at most twice the mean.
            Op::AllGather | Op::Gather => (1, parts),
            Op::AllGatherV | Op::TokenAllGather => (2, parts),
            Op::ReduceScatter | Op::Scatter => (parts, 1),
            Op::ReduceScatterV | Op::TokenReduceScatter => (parts, 2),
            Op::AllToAll | Op::AllToAllV => (parts, parts),
        };
        self.bytes.saturating_mul(source + dest)
    }

    /// What rank `me` of `n` gives and gets when the cell has `count` elements.
    pub(crate) fn shares(&self, me: usize, n: usize, count: usize) -> Shares {
        let width = match self.op {
            Op::TokenAllGather | Op::TokenReduceScatter => row_width(count),
            _ => 1,
        };
        let rows = uneven(count / width, n);
        let mine = rows[me] * width;
        let whole = |of, len| vec![Piece { of, block: 0, len }];
        let from_all = |block: usize, len: &dyn Fn(usize) -> usize| -> Vec<Piece> {
            (0..n).map(|rank| Piece { of: Some(rank), block, len: len(rank) }).collect()
        };
        let to_all = |len: &dyn Fn(usize) -> usize| -> Vec<Piece> {
            (0..n).map(|block| Piece { of: Some(me), block, len: len(block) }).collect()
        };
        let at_root = |pieces: Vec<Piece>| if me == 0 { pieces } else { Vec::new() };
        let own = || whole(Some(me), count);
        let reduced = |block, len| vec![Piece { of: None, block, len }];
        let (source, result) = match self.op {
            Op::Barrier => Default::default(),
            Op::AllReduce => (own(), reduced(0, count)),
            Op::AllGather => (own(), from_all(0, &|_| count)),
            Op::ReduceScatter => (to_all(&|_| count), reduced(me, count)),
            Op::AllToAll => (to_all(&|_| count), from_all(me, &|_| count)),
            Op::Broadcast => (at_root(own()), whole(Some(0), count)),
            Op::Reduce => (own(), at_root(reduced(0, count))),
            Op::Gather => (own(), at_root(from_all(0, &|_| count))),
            Op::Scatter => (at_root(to_all(&|_| count)), vec![Piece { of: Some(0), block: me, len: count }]),
            Op::SendRecv => (own(), whole(Some((me + n - 1) % n), count)),
            Op::AllGatherV | Op::TokenAllGather => (whole(Some(me), mine), from_all(0, &|rank| rows[rank] * width)),
            Op::ReduceScatterV | Op::TokenReduceScatter => (to_all(&|rank| rows[rank] * width), reduced(me, mine)),
            // Counts by the sum of sender and receiver: rows and columns have the same total.
            Op::AllToAllV => {
                let between = |peer: usize| rows[(me + peer) % n];
                (to_all(&between), from_all(me, &between))
            }
        };
        let total = |pieces: &[Piece]| pieces.iter().map(|piece| piece.len).sum::<usize>();
        let (source_len, result_len) = (total(&source), total(&result));
        let dest_len = if self.in_place { result_len.max(source_len) } else { result_len };
        let own_slot = me * count..(me + 1) * count;
        let (source_in_dest, result_in_dest) = match self.op {
            Op::AllGather => (own_slot, 0..result_len),
            Op::ReduceScatter if self.in_place => (0..source_len, own_slot),
            _ => (0..source_len, 0..result_len),
        };
        let (send_counts, recv_counts) = match self.op {
            Op::AllGatherV | Op::TokenAllGather => (Vec::new(), rows),
            Op::ReduceScatterV | Op::TokenReduceScatter => (rows, Vec::new()),
            Op::AllToAllV => {
                let counts: Vec<_> = (0..n).map(|peer| rows[(me + peer) % n]).collect();
                (counts.clone(), counts)
            }
            _ => Default::default(),
        };
        Shares { source, result, source_len, dest_len, source_in_dest, result_in_dest, send_counts, recv_counts, width }
    }
}

/// A power of two of elements that leaves at least eight rows a rank where it can.
fn row_width(count: usize) -> usize {
    let mut width = 1;
    while width < 4096 && count.is_multiple_of(width * 2) && count / (width * 2) >= 8 {
        width *= 2;
    }
    width
}

/// Counts that grow with the rank, from half the mean to one and a half, with the total of even ones.
fn uneven(mean: usize, n: usize) -> Vec<usize> {
    let mut counts = vec![mean; n];
    for rank in 0..n / 2 {
        let less = (mean as u128 * (n - 1 - 2 * rank) as u128 / (2 * (n - 1)) as u128) as usize;
        counts[rank] -= less;
        counts[n - 1 - rank] += less;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(op: Op, in_place: bool) -> Cell {
        Cell { op, dtype: Some(DType::F32), redop: None, bytes: 0, in_place, alloc: false, fresh: true }
    }

    #[test]
    fn uneven_counts_have_the_even_total() {
        assert_eq!(uneven(2, 2), [1, 3]);
        for (mean, n) in [(0, 3), (1, 2), (1024, 4), (7, 5), (100, 1), (usize::MAX / 64, 3)] {
            let counts = uneven(mean, n);
            assert_eq!(counts.iter().sum::<usize>(), mean * n);
            assert!(counts.iter().all(|count| *count <= mean * 2 && *count >= mean / 2), "{counts:?}");
        }
    }

    #[test]
    fn what_ranks_send_is_what_they_receive() {
        for op in Op::ALL {
            for n in [1, 2, 3, 5] {
                let cell = cell(op, !op.out_of_place());
                let shares: Vec<_> = (0..n).map(|me| cell.shares(me, n, 96)).collect();
                for (me, share) in shares.iter().enumerate() {
                    for piece in &share.result {
                        let Some(from) = piece.of else { continue };
                        let sent = shares[from].source.iter().find(|sent| sent.block == piece.block).unwrap();
                        assert_eq!(sent.len, piece.len, "{op:?} from {from} to {me} of {n}");
                    }
                    let source_len = if cell.in_place { 0 } else { share.source_len };
                    let bytes = 4 * (source_len + share.dest_len) as u64;
                    assert!(bytes <= Cell { bytes: 4 * 96, ..cell }.memory(n), "{op:?}");
                }
            }
        }
    }

    #[test]
    fn in_place_slots() {
        let gather = cell(Op::AllGather, true).shares(1, 3, 10);
        assert_eq!((gather.dest_len, gather.source_in_dest, gather.result_in_dest), (30, 10..20, 0..30));
        let scatter = cell(Op::ReduceScatter, true).shares(1, 3, 10);
        assert_eq!((scatter.dest_len, scatter.source_in_dest, scatter.result_in_dest), (30, 0..30, 10..20));
        let even = cell(Op::ReduceScatter, false).shares(1, 3, 10);
        assert_eq!((even.source_len, even.dest_len, even.result_in_dest), (30, 10, 0..10));
    }

    #[test]
    fn sizes_that_do_not_divide_are_refused() {
        assert!(Cell { bytes: 6, ..cell(Op::AllReduce, false) }.count().is_err());
        assert_eq!(Cell { bytes: 8, ..cell(Op::AllReduce, false) }.count(), Ok(2));
    }
}
