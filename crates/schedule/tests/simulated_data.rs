//! Data through the simulated network: right results on thousands of ranks, at the times of calls without data.

use rankwise_core::backend::{RawBuf, RawCall};
use rankwise_core::{DType, ErrorKind, Group, OpKind, ReduceOp};
use rankwise_schedule::sim::{Model, Simulation, simulate};
use rankwise_schedule::{Algorithm, Choice, Stamp, Start, Status};
use std::time::Duration;

const KINDS: [OpKind; 8] = [
    OpKind::AllReduce,
    OpKind::AllGather,
    OpKind::ReduceScatter,
    OpKind::AllToAll,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
];

/// Element `index` of what a rank brings.
fn value(rank: usize, index: usize) -> u32 {
    (rank as u32).wrapping_mul(0x9e37_79b9) ^ (index as u32).wrapping_mul(0x85eb_ca6b)
}

/// Lengths of source and destination.
fn lengths(kind: OpKind, n: usize, count: usize, rank: usize, root: usize) -> (usize, usize) {
    let at_root = |len| if rank == root { len } else { 0 };
    match kind {
        OpKind::AllReduce => (count, count),
        OpKind::AllGather => (count, n * count),
        OpKind::ReduceScatter => (n * count, count),
        OpKind::AllToAll => (n * count, n * count),
        OpKind::Broadcast => (at_root(count), count),
        OpKind::Reduce => (count, at_root(count)),
        OpKind::Gather => (count, at_root(n * count)),
        _ => (at_root(n * count), count),
    }
}

/// Element `index` of what a rank gets.
fn expected(kind: OpKind, n: usize, count: usize, rank: usize, root: usize, index: usize) -> u32 {
    let sum = |index| (0..n).fold(0_u32, |sum, from| sum.wrapping_add(value(from, index)));
    match kind {
        OpKind::AllReduce | OpKind::Reduce => sum(index),
        OpKind::ReduceScatter => sum(rank * count + index),
        OpKind::AllGather | OpKind::Gather => value(index / count, index % count),
        OpKind::AllToAll => value(index / count, rank * count + index % count),
        OpKind::Broadcast => value(root, index),
        _ => value(root, rank * count + index),
    }
}

/// Runs the call on all ranks, looks at every element of `looked_at` ranks, and gives back the virtual time.
fn check(model: Model, kind: OpKind, choice: Choice, n: usize, count: usize, looked_at: usize) -> Duration {
    let root = if kind.has_root() { n / 2 } else { 0 };
    let lengths = |rank| lengths(kind, n, count, rank, root);
    let mut sources: Vec<Vec<u32>> =
        (0..n).map(|rank| (0..lengths(rank).0).map(|index| value(rank, index)).collect()).collect();
    let mut results: Vec<Vec<u32>> = (0..n).map(|rank| vec![0xeeee_eeee; lengths(rank).1]).collect();
    let mut simulation = Simulation::with_data(model, n).expect("a model");
    let group = Group::world(n);
    let mut tickets = Vec::new();
    let mut call = RawCall::new(kind, DType::U32, count);
    (call.op, call.root) = (kind.reduces().then_some(ReduceOp::Sum), root);
    for me in 0..n {
        call.src = RawBuf::host(sources[me].as_mut_ptr().cast(), 4 * sources[me].len());
        call.dst = RawBuf::host(results[me].as_mut_ptr().cast(), 4 * results[me].len());
        let stamp = Stamp::new(1, 1, &call, 0);
        let start = Start { group: &group, me, stamp, choice, deadline: Duration::MAX };
        // SAFETY: the buffers stay until all calls have ended, in `run`.
        tickets.push(unsafe { simulation.start(me, &call, &start) }.expect("a plan that offers it"));
    }
    simulation.run().expect("calls that end");
    for (rank, ticket) in tickets.iter().enumerate() {
        assert!(matches!(simulation.status(rank, *ticket), Status::Done), "{kind} by {choice:?}, {n} ranks");
        simulation.finish(rank, *ticket);
    }
    for rank in (0..n).step_by(n.div_ceil(looked_at)).chain([root, n - 1]) {
        for (index, found) in results[rank].iter().enumerate() {
            let expected = expected(kind, n, count, rank, root, index);
            assert_eq!(*found, expected, "{kind} by {choice:?}, {n} ranks, rank {rank}, element {index}");
        }
    }
    let time = (0..n).map(|rank| simulation.finished(rank)).max().unwrap_or_default();
    let without = simulate(&model, n, &call, choice).expect("calls that end");
    assert_eq!(without.time, time, "{kind} by {choice:?}, {n} ranks: data takes no time");
    time
}

#[test]
fn every_plan_gives_the_right_results() {
    let model = Model { ranks_per_host: 3, hosts_per_rack: 2, eager: 64, ..Model::default() };
    for kind in KINDS {
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.offers(kind)) {
            for n in [1, 2, 3, 5, 8, 13, 32] {
                for (count, chunk) in [(1, None), (7, None), (100, Some(64))] {
                    check(model, kind, Choice { algorithm, chunk }, n, count, n);
                }
            }
        }
    }
}

#[test]
fn four_thousand_ranks_give_the_right_results() {
    for (kind, algorithm) in [
        (OpKind::AllReduce, Algorithm::RecursiveDoubling),
        (OpKind::AllReduce, Algorithm::RecursiveHalving),
        (OpKind::AllReduce, Algorithm::KNomial(4)),
        (OpKind::Broadcast, Algorithm::KNomial(2)),
        (OpKind::Reduce, Algorithm::KNomial(2)),
        (OpKind::Gather, Algorithm::Direct),
        (OpKind::Scatter, Algorithm::KNomial(2)),
        (OpKind::AllGather, Algorithm::Bruck),
    ] {
        let time = check(Model::default(), kind, Choice::whole(algorithm), 4096, 2, 8);
        assert!(time > Duration::from_micros(10), "{kind} by {algorithm}: {time:?}");
    }
}

/// One all-reduce on each rank, of the counts given; a rank without one calls nothing.
fn statuses(counts: &[Option<usize>]) -> (rankwise_core::Result<()>, Vec<Status>) {
    let n = counts.len();
    let mut simulation = Simulation::without_data(Model::default(), n).expect("a model");
    let mut tickets = Vec::new();
    for (me, count) in counts.iter().enumerate() {
        let Some(count) = count else { continue };
        let mut call = RawCall::new(OpKind::AllReduce, DType::F32, *count);
        call.op = Some(ReduceOp::Sum);
        let (stamp, choice) = (Stamp::new(1, 1, &call, 0), Choice::whole(Algorithm::RecursiveDoubling));
        let start = Start { group: &Group::world(n), me, stamp, choice, deadline: Duration::MAX };
        // SAFETY: without data.
        tickets.push((me, unsafe { simulation.start(me, &call, &start) }.expect("a plan that offers it")));
    }
    let result = simulation.run();
    (result, tickets.into_iter().map(|(me, ticket)| simulation.status(me, ticket)).collect())
}

#[test]
fn calls_that_differ_or_are_missing_are_found() {
    let (_, statuses_found) = statuses(&[Some(3), Some(4), Some(3), Some(3)]);
    assert!(
        statuses_found
            .iter()
            .any(|status| matches!(status, Status::Failed(error) if error.kind() == &ErrorKind::Mismatch)),
        "{statuses_found:?}"
    );
    let (result, _) = statuses(&[Some(3), None, Some(3), Some(3)]);
    let error = result.expect_err("rank 1 sends nothing");
    assert_eq!(error.kind(), &ErrorKind::Timeout);
    assert!(error.message().contains("rank 0 first"), "{error}");
}
