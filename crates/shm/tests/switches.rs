//! The sizes at which the shared-memory backend changes how it works, where no capability says them.
#![cfg(not(loom))]

use rankwise_core::{Backend, Communicator, Config, ReduceOp};
use rankwise_world::World;

fn ranks(n: usize, f: impl Fn(Communicator) + Send + Sync) {
    World::threads(n, |world| {
        let config = Config::new();
        let raw = rankwise_shm::driver().join(&world, &config).unwrap();
        f(Backend::new(raw, config.resolve().unwrap()).world().unwrap());
    })
    .unwrap();
}

/// A value that says where it comes from.
fn value(rank: usize, i: usize) -> u16 {
    (rank * 20_011 + i) as u16
}

/// Staged when every member's total fits, streamed when one does not: around the limit, and with members on both sides of it.
#[test]
fn uneven_all_to_all_around_the_stage() {
    const STAGED: usize = 32 * 1024 / size_of::<u16>();
    ranks(3, |mut comm| {
        let (me, n) = (comm.rank(), comm.size());
        // Elements from one rank to another.
        let short = |from: usize, to: usize| (from + 2 * to) % 4;
        let counts_of = |large: usize, total: usize, from: usize| -> Vec<usize> {
            let mut counts: Vec<usize> = (0..n).map(|to| short(from, to)).collect();
            if from == large {
                let others: usize = counts[..n - 1].iter().sum();
                counts[n - 1] = total - others;
            }
            counts
        };
        for (large, total) in [(0, 9), (0, STAGED - 1), (1, STAGED), (2, STAGED + 1), (0, 3 * STAGED), (1, STAGED + 1)]
        {
            for _ in 0..5 {
                let send = counts_of(large, total, me);
                let recv: Vec<usize> = (0..n).map(|from| counts_of(large, total, from)[me]).collect();
                let src: Vec<u16> = (0..send.iter().sum()).map(|i| value(me, i)).collect();
                let mut dst = vec![0xA5A5_u16; recv.iter().sum()];
                comm.all_to_all_v(&src, &send, &mut dst, &recv).unwrap();
                let expected: Vec<u16> = (0..n)
                    .flat_map(|from| {
                        let counts = counts_of(large, total, from);
                        let first: usize = counts[..me].iter().sum();
                        (first..first + counts[me]).map(move |i| value(from, i))
                    })
                    .collect();
                assert!(dst == expected, "rank {me}, total {total} on rank {large}");
            }
        }
    });
}

/// Two members stream an all_reduce and a reduce of several steps, also in place and with a last step that is not full.
#[test]
fn reductions_of_two_in_several_steps() {
    const STEP: usize = 64 * 1024 / size_of::<u16>();
    ranks(2, |mut comm| {
        let me = comm.rank();
        for len in [STEP / 2 + 1, STEP - 1, STEP, STEP + 1, 5 * STEP + 7, 9 * STEP] {
            let src: Vec<u16> = (0..len).map(|i| value(me, i)).collect();
            let sum: Vec<u16> = (0..len).map(|i| value(0, i).wrapping_add(value(1, i))).collect();
            let mut dst = vec![0_u16; len];
            comm.all_reduce(&src, &mut dst, ReduceOp::Sum).unwrap();
            assert!(dst == sum, "{len}");
            dst.copy_from_slice(&src);
            comm.all_reduce_in_place(&mut dst, ReduceOp::Sum).unwrap();
            assert!(dst == sum, "{len} in place");
            for root in [0, 1, 1, 0] {
                let mut dst = vec![0_u16; len];
                comm.reduce(&src, (me == root).then_some(&mut dst), ReduceOp::Sum, root).unwrap();
                assert!(me != root || dst == sum, "{len} to {root}");
            }
        }
    });
}
