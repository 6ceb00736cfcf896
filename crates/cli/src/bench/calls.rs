//! The typed calls of a cell.

use super::cell::{Cell, Shares};
use super::elem::BenchElem;
use super::measure::Work;
use super::op::Op;
use super::pattern::Pattern;
use rankwise::{Call, Communicator, ReduceOp, Result};
use std::hint::black_box;

/// One cell on this rank with its buffers.
pub(crate) struct Calls<'a, T> {
    comm: &'a mut Communicator,
    cell: &'a Cell,
    shares: &'a Shares,
    pattern: Pattern,
    /// Empty in place.
    source: &'a mut [T],
    dest: &'a mut [T],
    redop: ReduceOp,
    rank: usize,
    ranks: usize,
    nonblocking: bool,
}

impl<'a, T: BenchElem> Calls<'a, T> {
    /// The buffers have the lengths of `shares`.
    pub(crate) fn new(
        comm: &'a mut Communicator,
        cell: &'a Cell,
        shares: &'a Shares,
        source: &'a mut [T],
        dest: &'a mut [T],
    ) -> Calls<'a, T> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let pattern = Pattern::new::<T>(ranks, cell.redop);
        let redop = cell.redop.unwrap_or_default();
        let nonblocking = comm.capabilities().nonblocking();
        Calls { comm, cell, shares, pattern, source, dest, redop, rank, ranks, nonblocking }
    }

    fn source(&mut self) -> &mut [T] {
        if self.cell.in_place { &mut self.dest[self.shares.source_in_dest.clone()] } else { self.source }
    }

    /// To the next rank of the ring and from the one before.
    fn send_recv(&mut self) -> Result<()> {
        let (next, previous) = ((self.rank + 1) % self.ranks, (self.rank + self.ranks - 1) % self.ranks);
        let (source, dest) = (&*self.source, &mut *self.dest);
        if self.nonblocking {
            return self.comm.scope(|scope| {
                scope.start(Call::send(source, next))?;
                scope.run(Call::recv(dest, previous))
            });
        }
        if self.rank.is_multiple_of(2) {
            self.comm.send(source, next)?;
            self.comm.recv(dest, previous)
        } else {
            self.comm.recv(dest, previous)?;
            self.comm.send(source, next)
        }
    }
}

impl<T: BenchElem> Work for Calls<'_, T> {
    fn fill(&mut self) {
        bytemuck::cast_slice_mut::<T, u8>(self.dest).fill(0xff);
        let (pattern, shares) = (self.pattern, self.shares);
        let mut rest = self.source();
        for piece in &shares.source {
            let (part, tail) = rest.split_at_mut(piece.len);
            pattern.fill(piece.of.unwrap_or(0), piece.block, part);
            rest = tail;
        }
    }

    fn spoil(&mut self) {
        let source =
            if self.cell.in_place { self.shares.source_in_dest.clone() } else { self.dest.len()..self.dest.len() };
        let (before, rest) = self.dest.split_at_mut(source.start);
        for part in [before, &mut rest[source.len()..]] {
            bytemuck::cast_slice_mut::<T, u8>(part).fill(0xff);
        }
    }

    fn refresh(&mut self) {
        let bytes = bytemuck::cast_slice_mut::<T, u8>(self.source());
        // One word of each cache line.
        for line in bytes.chunks_mut(64) {
            line[0] = black_box(line[0]);
        }
    }

    fn call(&mut self) -> Result<()> {
        let (comm, shares, redop) = (&mut *self.comm, self.shares, self.redop);
        let (source, dest) = (&*self.source, &mut *self.dest);
        let root = self.rank == 0;
        match self.cell.op {
            Op::Barrier => comm.barrier(),
            Op::AllReduce if self.cell.in_place => comm.all_reduce_in_place(dest, redop),
            Op::AllReduce => comm.all_reduce(source, dest, redop),
            Op::AllGather if self.cell.in_place => comm.all_gather_in_place(dest),
            Op::AllGather => comm.all_gather(source, dest),
            Op::ReduceScatter if self.cell.in_place => comm.reduce_scatter_in_place(dest, redop),
            Op::ReduceScatter => comm.reduce_scatter(source, dest, redop),
            Op::AllToAll => comm.all_to_all(source, dest),
            Op::Broadcast => comm.broadcast(dest, 0),
            Op::Reduce => comm.reduce(source, root.then_some(dest), redop, 0),
            Op::Gather => comm.gather(source, root.then_some(dest), 0),
            Op::Scatter => comm.scatter(root.then_some(source), dest, 0),
            Op::SendRecv => self.send_recv(),
            Op::AllGatherV => comm.all_gather_v(source, dest, &shares.recv_counts),
            Op::ReduceScatterV => comm.reduce_scatter_v(source, dest, &shares.send_counts, redop),
            Op::AllToAllV => comm.all_to_all_v(source, &shares.send_counts, dest, &shares.recv_counts),
            Op::TokenAllGather => comm.token_all_gather(source, dest, shares.width, &shares.recv_counts),
            Op::TokenReduceScatter => comm.token_reduce_scatter(source, dest, shares.width, &shares.send_counts, redop),
        }
    }

    fn wrong(&self) -> u64 {
        let mut rest = &self.dest[self.shares.result_in_dest.clone()];
        let mut wrong = 0;
        for piece in &self.shares.result {
            let (part, tail) = rest.split_at(piece.len);
            wrong += self.pattern.wrong(piece.of, piece.block, part);
            rest = tail;
        }
        wrong
    }

    fn spoils_source(&self) -> bool {
        self.cell.in_place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankwise::{Backend, Config, DType, World};
    use rankwise_conformance::mutants::mutate;

    const RANKS: usize = 3;

    fn cells(op: Op) -> Vec<Cell> {
        let forms = [(false, op.out_of_place()), (true, op.in_place())].into_iter().filter(|(_, offered)| *offered);
        let redop = op.reduces().then_some(ReduceOp::Sum);
        let cell =
            |in_place| Cell { op, dtype: Some(DType::F32), redop, bytes: 4 * 100, in_place, alloc: false, fresh: true };
        forms.map(|(in_place, _)| cell(in_place)).collect()
    }

    /// Wrong elements on all ranks, of the shared-memory backend or a mutant of it.
    fn wrong_of(cell: &Cell, mutant: Option<&str>) -> u64 {
        let shm = rankwise::driver("shm").unwrap();
        let run = |world: World| -> Result<u64> {
            let config = Config::new();
            let raw = match mutant {
                Some(name) => mutate(shm, name).unwrap().join(&world, &config)?,
                None => shm.join(&world, &config)?,
            };
            let mut comm = Backend::new(raw, config.resolve()?).world()?;
            let shares = cell.shares(comm.rank(), RANKS, 100);
            let (mut source, mut dest) = (vec![0.0_f32; shares.source_len], vec![0.0_f32; shares.dest_len]);
            let mut calls = Calls::new(&mut comm, cell, &shares, &mut source, &mut dest);
            calls.fill();
            let results = shares.result.iter().map(|piece| piece.len as u64).sum::<u64>();
            let own = matches!(cell.op, Op::AllGather) && cell.in_place;
            assert_eq!(calls.wrong(), results - if own { 100 } else { 0 }, "before the call nothing is there");
            calls.refresh();
            let source = calls.source().to_vec();
            calls.spoil();
            assert_eq!(calls.source(), source, "spoiling leaves the source");
            calls.call()?;
            if !calls.spoils_source() {
                calls.spoil();
                assert_eq!(calls.wrong(), results, "spoiling takes the result");
                calls.call()?;
            }
            Ok(calls.wrong())
        };
        World::threads(RANKS, run).unwrap().into_iter().map(Result::unwrap).sum()
    }

    #[test]
    fn every_operation_comes_out_right() {
        for cell in Op::ALL.into_iter().filter(|op| *op != Op::Barrier).flat_map(cells) {
            // The root of a broadcast has its result before.
            if cell.op != Op::Broadcast {
                assert_eq!(wrong_of(&cell, None), 0, "{cell:?}");
            }
        }
    }

    #[test]
    fn broken_backends_have_wrong_elements() {
        let wrong = |op, mutant| cells(op).iter().map(|cell| wrong_of(cell, Some(mutant))).collect::<Vec<_>>();
        assert_eq!(wrong(Op::AllReduce, "dropped-tail"), [3, 3]);
        assert!(wrong(Op::AllGather, "swapped-parts").iter().all(|wrong| *wrong > 0));
        assert!(wrong(Op::AllGatherV, "shifted-rows").iter().all(|wrong| *wrong > 0));
    }
}
