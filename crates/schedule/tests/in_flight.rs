//! Several calls, communicators and threads at once.

#[path = "ranks/mod.rs"]
mod ranks;

use ranks::Job;
use rankwise_core::backend::{RawBuf, RawCall};
use rankwise_core::{DType, Group, OpKind, ReduceOp};
use rankwise_schedule::loopback::{self, Loopback, Settings};
use rankwise_schedule::{Algorithm, Choice, Executor, HostMemory, Stamp, Start, Status, Ticket};
use std::time::Duration;

type Rank = Executor<Loopback, HostMemory>;

fn world(n: usize, settings: Settings) -> Vec<Rank> {
    loopback::world(n, settings).into_iter().map(Executor::new).collect()
}

/// Starts an in-place all-reduce or broadcast, or a send or receive, on a vector.
///
/// # Safety
///
/// The values stay where they are until the call is idle.
unsafe fn start(
    rank: &mut Rank,
    call: &mut RawCall<'_>,
    group: &Group,
    me: usize,
    marks: (u16, u64),
    values: &mut [i32],
    algorithm: Algorithm,
) -> Ticket {
    let buffer = RawBuf::host(values.as_mut_ptr().cast(), size_of_val(values));
    let reads =
        matches!(call.kind, OpKind::AllReduce | OpKind::Send) || call.kind == OpKind::Broadcast && call.root == me;
    call.src = if reads { buffer } else { RawBuf::NONE };
    call.dst = if call.kind == OpKind::Send { RawBuf::NONE } else { buffer };
    let stamp = Stamp::new(marks.0, marks.1, call, 0);
    let start = Start { group, me, stamp, choice: Choice { algorithm, chunk: Some(16) }, deadline: Duration::MAX };
    // SAFETY: the caller's promise.
    unsafe { rank.start(call, &start, |memory: &mut HostMemory, plan| memory.arm(call, group.len(), plan.scratch())) }
        .expect("started")
}

fn sum(count: usize) -> RawCall<'static> {
    let mut call = RawCall::new(OpKind::AllReduce, DType::I32, count);
    call.op = Some(ReduceOp::Sum);
    call
}

/// Each rank starts all calls of its communicators in an order of its own, and then waits.
#[test]
fn calls_of_several_groups_in_different_orders() {
    let groups = [vec![0, 1, 2, 3, 4], vec![4, 0, 2], vec![3, 1], vec![2, 3, 0, 1]]
        .map(|ranks| Group::new(ranks).expect("distinct"));
    for seed in 0..if cfg!(miri) { 2 } else { 20_u64 } {
        let mut ranks = world(5, Settings { delay: 7, seed, eager: 8 });
        let mut calls = Vec::new();
        for (rank, executor) in ranks.iter_mut().enumerate() {
            let mine = groups.iter().enumerate().filter_map(|(id, group)| Some((id, group, group.position(rank)?)));
            let mut mine: Vec<_> =
                (0..6_u64).flat_map(|sequence| mine.clone().map(move |member| (sequence, member))).collect();
            // Within a communicator the order stays.
            let turn = (seed as usize + rank) % 3;
            mine.sort_by_key(|(sequence, (id, ..))| match turn {
                0 => (*id as u64, *sequence),
                1 => (*sequence, *id as u64),
                _ => (9 - *id as u64, *sequence),
            });
            for (sequence, (id, group, me)) in mine {
                let mut values: Vec<i32> =
                    (0..9).map(|index| (index + 10 * me + 100 * sequence as usize) as i32).collect();
                let algorithm = Algorithm::ALL[(sequence as usize + id) % 6];
                let marks = (id as u16, sequence);
                // SAFETY: the vector's memory stays where it is; it is kept in `calls`.
                let ticket = unsafe { start(executor, &mut sum(9), group, me, marks, &mut values, algorithm) };
                calls.push((rank, ticket, group.len(), sequence, values));
            }
        }
        for _ in 0..10_000 {
            ranks.iter_mut().for_each(|rank| _ = rank.progress());
        }
        for (rank, ticket, n, sequence, values) in calls {
            assert!(matches!(ranks[rank].status(ticket), Status::Done), "{:?}", ranks[rank].status(ticket));
            ranks[rank].finish(ticket);
            let base = 10 * (n * (n - 1) / 2) + 100 * sequence as usize * n;
            let expected: Vec<i32> = (0..9).map(|index| (index * n + base) as i32).collect();
            assert_eq!(values, expected);
        }
    }
}

/// A root that nobody holds back gets further ahead than a packed tag can count.
#[test]
fn a_root_runs_ahead_until_tags_come_again() {
    let group = Group::world(2);
    let mut ranks = world(2, Settings::default());
    let mut broadcast = RawCall::new(OpKind::Broadcast, DType::I32, 1);
    let calls = if cfg!(miri) { 70 } else { 70_000 };
    for sequence in 0..calls {
        let mut values = [sequence as i32];
        // SAFETY: idle below.
        let ticket =
            unsafe { start(&mut ranks[0], &mut broadcast, &group, 0, (1, sequence), &mut values, Algorithm::Direct) };
        assert!(ranks[0].is_idle(ticket));
        ranks[0].finish(ticket);
    }
    for sequence in 0..calls {
        let mut values = [-1];
        // SAFETY: idle below.
        let ticket =
            unsafe { start(&mut ranks[1], &mut broadcast, &group, 1, (1, sequence), &mut values, Algorithm::Direct) };
        ranks[1].progress();
        assert!(matches!(ranks[1].status(ticket), Status::Done));
        ranks[1].finish(ticket);
        assert_eq!(values, [sequence as i32]);
    }
}

/// Messages of a pair don't meet those of a collective with the same number.
#[test]
fn sends_and_receives_beside_a_collective() {
    let group = Group::world(2);
    let mut ranks = world(2, Settings { eager: 0, ..Settings::default() });
    let mut values = [[1, 2, 3], [10, 20, 30]];
    let mut letters = [vec![7], vec![0]];
    let mut tickets = Vec::new();
    for (me, rank) in ranks.iter_mut().enumerate() {
        let mut message = RawCall::new(if me == 0 { OpKind::Send } else { OpKind::Recv }, DType::I32, 1);
        message.root = 1 - me;
        // Each begins with the other one.
        let mut letter = |rank: &mut Rank| {
            // SAFETY: idle below.
            unsafe { start(rank, &mut message, &group, me, (1, 1), &mut letters[me], Algorithm::Direct) }
        };
        let early = (me == 0).then(|| letter(rank));
        // SAFETY: idle below.
        let all = unsafe { start(rank, &mut sum(3), &group, me, (1, 1), &mut values[me], Algorithm::Direct) };
        tickets.push([early.unwrap_or_else(|| letter(rank)), all]);
    }
    for _ in 0..10 {
        ranks.iter_mut().for_each(|rank| _ = rank.progress());
    }
    for (rank, tickets) in ranks.iter().zip(tickets) {
        assert!(tickets.into_iter().all(|ticket| matches!(rank.status(ticket), Status::Done)));
    }
    assert_eq!((values, letters), ([[11, 22, 33]; 2], [vec![7], vec![7]]));
}

#[test]
fn ranks_are_threads() {
    let n = 4;
    let group = Group::world(n);
    let group = &group;
    std::thread::scope(|scope| {
        for (me, mut rank) in world(n, Settings::default()).into_iter().enumerate() {
            scope.spawn(move || {
                for sequence in 0..if cfg!(miri) { 3 } else { 300 } {
                    let algorithm = Algorithm::ALL[sequence % 8];
                    let mut values = vec![(me + sequence) as i32; 1 + 50 * (sequence % 3)];
                    let mut call = sum(values.len());
                    // SAFETY: idle when the wait is over, which nothing ends early.
                    let ticket =
                        unsafe { start(&mut rank, &mut call, group, me, (3, sequence as u64), &mut values, algorithm) };
                    let status = rank.wait(ticket, |_, _| {
                        std::thread::yield_now();
                        Ok(())
                    });
                    assert!(matches!(status, Status::Done), "{status:?}");
                    rank.finish(ticket);
                    assert!(values.iter().all(|value| *value == (6 + 4 * sequence) as i32), "{values:?}");
                }
            });
        }
    });
}

/// One world, many calls of all kinds: places and memory are used again.
#[test]
fn a_world_is_used_again() {
    let mut ranks = world(5, Settings { delay: 2, ..Settings::default() });
    let mut sequence = 65_530;
    for algorithm in Algorithm::ALL {
        for kind in OpKind::DATA.into_iter().filter(|kind| algorithm.offers(*kind)) {
            if matches!(kind, OpKind::Send | OpKind::Recv) {
                continue;
            }
            let job = Job::new(kind, DType::U8, 5, Choice { algorithm, chunk: Some(3) }).with_size(11);
            sequence += 1;
            let results = ranks::run_in(&mut ranks, sequence, &job, |rank| vec![1 << rank; job.source_len(rank)]);
            assert!(results.iter().flatten().all(|byte| if kind.reduces() {
                *byte == 31
            } else {
                byte.is_power_of_two()
            }));
        }
    }
}

#[test]
fn thousands_of_ranks_in_one_thread() {
    let n = 4096;
    for (kind, algorithm) in [
        (OpKind::AllReduce, Algorithm::RecursiveDoubling),
        (OpKind::AllReduce, Algorithm::KNomial(4)),
        (OpKind::Broadcast, Algorithm::KNomial(2)),
        (OpKind::Barrier, Algorithm::Bruck),
    ] {
        let job = Job::new(kind, DType::U16, n, Choice::whole(algorithm)).with_size(3);
        let one = |rank| 1_u16.to_ne_bytes().repeat(job.source_len(rank));
        let results = ranks::run::<HostMemory>(&job, Settings::default(), one);
        let expected: u16 = if kind == OpKind::AllReduce { 4096 } else { 1 };
        assert!(
            results.iter().all(|result| *result == expected.to_ne_bytes().repeat(job.count)),
            "{kind} by {algorithm}"
        );
    }
}
