//! The operations that can be measured, their sizes and what bandwidth means for each.

use rankwise::OpKind;

/// An operation of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Barrier,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    /// Every rank sends to the next one of the ring and receives from the one before.
    SendRecv,
    AllGatherV,
    ReduceScatterV,
    AllToAllV,
    TokenAllGather,
    TokenReduceScatter,
}

impl Op {
    pub(crate) const ALL: [Op; 15] = [
        Op::Barrier,
        Op::AllReduce,
        Op::AllGather,
        Op::ReduceScatter,
        Op::AllToAll,
        Op::Broadcast,
        Op::Reduce,
        Op::Gather,
        Op::Scatter,
        Op::SendRecv,
        Op::AllGatherV,
        Op::ReduceScatterV,
        Op::AllToAllV,
        Op::TokenAllGather,
        Op::TokenReduceScatter,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Op::Barrier => "barrier",
            Op::AllReduce => "all_reduce",
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::AllToAll => "all_to_all",
            Op::Broadcast => "broadcast",
            Op::Reduce => "reduce",
            Op::Gather => "gather",
            Op::Scatter => "scatter",
            Op::SendRecv => "send_recv",
            Op::AllGatherV => "all_gather_v",
            Op::ReduceScatterV => "reduce_scatter_v",
            Op::AllToAllV => "all_to_all_v",
            Op::TokenAllGather => "token_all_gather",
            Op::TokenReduceScatter => "token_reduce_scatter",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The kinds that a communicator must offer.
    pub(crate) const fn kinds(self) -> &'static [OpKind] {
        match self {
            Op::Barrier => &[OpKind::Barrier],
            Op::AllReduce => &[OpKind::AllReduce],
            Op::AllGather => &[OpKind::AllGather],
            Op::ReduceScatter => &[OpKind::ReduceScatter],
            Op::AllToAll => &[OpKind::AllToAll],
            Op::Broadcast => &[OpKind::Broadcast],
            Op::Reduce => &[OpKind::Reduce],
            Op::Gather => &[OpKind::Gather],
            Op::Scatter => &[OpKind::Scatter],
            Op::SendRecv => &[OpKind::Send, OpKind::Recv],
            Op::AllGatherV | Op::TokenAllGather => &[OpKind::AllGatherV],
            Op::ReduceScatterV | Op::TokenReduceScatter => &[OpKind::ReduceScatterV],
            Op::AllToAllV => &[OpKind::AllToAllV],
        }
    }

    /// Whether it combines elements.
    pub(crate) fn reduces(self) -> bool {
        self.kinds()[0].reduces()
    }

    /// Whether one rank is special; the benchmark uses rank 0.
    pub(crate) fn has_root(self) -> bool {
        self.kinds()[0].has_root()
    }

    /// Whether there is a form with separate source and destination.
    pub(crate) const fn out_of_place(self) -> bool {
        !matches!(self, Op::Broadcast)
    }

    /// Whether there is a form that works inside one buffer.
    pub(crate) const fn in_place(self) -> bool {
        matches!(self, Op::AllReduce | Op::AllGather | Op::ReduceScatter | Op::Broadcast)
    }

    /// Bytes that bandwidth is counted in, as nccl-tests does.
    ///
    /// `bytes` is the size of the cell: the vector for all_reduce, reduce, broadcast and send_recv; what each rank contributes
    /// for all_gather and gather; a rank's result for reduce_scatter and scatter; what goes from one rank to one other for
    /// all_to_all. The forms with counts use the mean over ranks. Those that gather or scatter count `ranks` parts.
    pub(crate) fn counted_bytes(self, ranks: usize, bytes: u64) -> u64 {
        match self {
            Op::Barrier => 0,
            Op::AllReduce | Op::Reduce | Op::Broadcast | Op::SendRecv => bytes,
            Op::AllGather
            | Op::Gather
            | Op::ReduceScatter
            | Op::Scatter
            | Op::AllToAll
            | Op::AllGatherV
            | Op::ReduceScatterV
            | Op::AllToAllV
            | Op::TokenAllGather
            | Op::TokenReduceScatter => bytes * ranks as u64,
        }
    }

    /// Bus bandwidth over algorithm bandwidth: the share of [`Op::counted_bytes`] that must cross a rank's link.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Op::Barrier => 0.0,
            Op::AllReduce => 2.0 * (n - 1.0) / n,
            Op::Reduce | Op::Broadcast | Op::SendRecv => 1.0,
            _ => (n - 1.0) / n,
        }
    }
}

/// Algorithm and bus bandwidth in GB/s (1e9 bytes a second).
pub(crate) fn bandwidth(op: Op, ranks: usize, bytes: u64, microseconds: f64) -> (f64, f64) {
    if microseconds <= 0.0 {
        return (0.0, 0.0);
    }
    let algorithm = op.counted_bytes(ranks, bytes) as f64 / microseconds / 1e3;
    (algorithm, algorithm * op.bus_factor(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for op in Op::ALL {
            assert_eq!(Op::from_name(op.name()), Some(op));
            assert!(op.in_place() || op.out_of_place());
        }
        assert_eq!(Op::from_name("allreduce"), None);
    }

    #[test]
    fn bandwidth_follows_the_formulas() {
        // 1000 bytes in 1 us are 1 GB/s.
        assert_eq!(bandwidth(Op::AllReduce, 4, 1000, 1.0), (1.0, 1.5));
        assert_eq!(bandwidth(Op::AllReduce, 2, 1000, 1.0), (1.0, 1.0));
        for op in [Op::AllGather, Op::ReduceScatter, Op::AllToAll, Op::Gather, Op::Scatter, Op::TokenAllGather] {
            assert_eq!(bandwidth(op, 4, 1000, 2.0), (2.0, 1.5), "{op:?}");
        }
        assert_eq!(bandwidth(Op::Broadcast, 4, 1000, 1.0), (1.0, 1.0));
        assert_eq!(bandwidth(Op::Barrier, 4, 0, 1.0), (0.0, 0.0));
        assert_eq!(bandwidth(Op::AllGather, 1, 1000, 1.0), (1.0, 0.0));
        assert_eq!(bandwidth(Op::AllReduce, 2, 1000, 0.0), (0.0, 0.0));
    }
}
