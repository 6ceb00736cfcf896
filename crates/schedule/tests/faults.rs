//! Ranks that die, stay away, call something else, or give up: nothing hangs, and memory comes back or is named.

use rankwise_core::backend::{RawBuf, RawCall};
use rankwise_core::{DType, Error, ErrorKind, Group, OpKind, ReduceOp};
use rankwise_schedule::loopback::{self, Loopback, Settings};
use rankwise_schedule::{Algorithm, Choice, Executor, HostMemory, Stamp, Start, Status, Ticket};
use std::time::Duration;

type Rank = Executor<Loopback, HostMemory>;

const N: usize = 4;
const LEN: usize = 100;

struct World {
    ranks: Vec<Rank>,
    values: Vec<Vec<f32>>,
}

impl World {
    fn new(settings: Settings) -> World {
        let ranks = loopback::world(N, settings).into_iter().map(Executor::new).collect();
        World { ranks, values: vec![vec![1.0; LEN]; N] }
    }

    /// An in-place sum of the first `count` values.
    fn start(&mut self, me: usize, kind: OpKind, count: usize, algorithm: Algorithm, deadline: Duration) -> Ticket {
        let group = Group::world(N);
        let mut call = RawCall::new(kind, DType::F32, count);
        call.op = kind.reduces().then_some(ReduceOp::Sum);
        let buffer = RawBuf::host(self.values[me].as_ptr().cast(), 4 * count);
        (call.src, call.dst) = (if kind == OpKind::AllReduce || me == 0 { buffer } else { RawBuf::NONE }, buffer);
        let stamp = Stamp::new(1, 1, &call, 0);
        let start = Start { group: &group, me, stamp, choice: Choice::whole(algorithm), deadline };
        // SAFETY: the values live as long as the world, and nobody looks at them meanwhile.
        unsafe { self.ranks[me].start(&call, &start, |memory, plan| memory.arm(&call, N, plan.scratch())) }
            .expect("started")
    }

    fn turn(&mut self, times: usize) {
        for _ in 0..times {
            self.ranks.iter_mut().for_each(|rank| _ = rank.progress());
        }
    }

    fn failure(&self, me: usize, ticket: Ticket) -> Error {
        match self.ranks[me].status(ticket) {
            Status::Failed(error) => {
                assert_eq!(self.ranks[me].held(ticket).count(), 0);
                assert_eq!(self.ranks[me].transport().outstanding(), 0);
                error
            }
            status => panic!("rank {me}: {status:?}"),
        }
    }
}

fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| algorithm.offers(OpKind::AllReduce))
}

#[test]
fn a_lost_rank_is_named_by_those_who_need_it() {
    for algorithm in algorithms() {
        for delay in [0, 5] {
            let mut world = World::new(Settings { delay, ..Settings::default() });
            let tickets: Vec<Ticket> =
                (0..3).map(|me| world.start(me, OpKind::AllReduce, LEN, algorithm, Duration::MAX)).collect();
            world.turn(3);
            world.ranks[0].transport().network().lose(3);
            world.turn(300);
            let named = tickets.iter().enumerate().filter(|(me, ticket)| {
                let status = world.ranks[*me].status(**ticket);
                matches!(&status, Status::Failed(error) if *error.kind() == ErrorKind::PeerLost && error.peers() == [3])
            });
            assert!(named.count() > 0, "{algorithm}");
            assert!(
                tickets.iter().enumerate().all(|(me, ticket)| !matches!(world.ranks[me].status(*ticket), Status::Done))
            );
            // The others are told by whoever watches.
            for (me, ticket) in tickets.iter().enumerate() {
                world.ranks[me].stop(*ticket, Error::new(ErrorKind::PeerLost, "rank 3 is lost").with_peers([3]));
                assert_eq!(world.failure(me, *ticket).kind(), &ErrorKind::PeerLost);
            }
        }
    }
}

/// Whichever message a call happens to wait for.
#[test]
fn a_failed_message_is_found_behind_one_that_never_comes() {
    for lost in 1..N {
        let mut world = World::new(Settings::default());
        let ticket = world.start(0, OpKind::AllReduce, LEN, Algorithm::Direct, Duration::MAX);
        world.ranks[0].transport().network().lose(lost);
        world.turn(100);
        assert_eq!(world.failure(0, ticket).peers(), [lost]);
    }
}

#[test]
fn a_ticket_of_the_past_does_nothing() {
    let mut world = World::new(Settings::default());
    let old = world.start(0, OpKind::Broadcast, 4, Algorithm::Direct, Duration::MAX);
    assert!(matches!(world.ranks[0].status(old), Status::Done));
    world.ranks[0].finish(old);
    let new = world.start(0, OpKind::AllReduce, LEN, Algorithm::Direct, Duration::MAX);
    world.ranks[0].stop(old, Error::new(ErrorKind::Aborted, "too late"));
    world.ranks[0].finish(old);
    assert!(matches!(world.ranks[0].status(new), Status::Running));
    assert!(matches!(world.ranks[0].status(old), Status::Failed(error) if *error.kind() == ErrorKind::Closed));
    assert!(
        world.ranks[0].is_idle(old) && world.ranks[0].held(old).count() == 0 && world.ranks[0].held(new).count() > 0
    );
}

#[test]
fn a_rank_that_stays_away_is_a_timeout_that_names_it() {
    for algorithm in algorithms() {
        let mut world = World::new(Settings::default());
        world.ranks[0].transport().network().silence(3);
        let tickets: Vec<Ticket> =
            (0..N).map(|me| world.start(me, OpKind::AllReduce, LEN, algorithm, Duration::from_micros(2000))).collect();
        world.turn(100);
        world.ranks.iter_mut().for_each(Rank::expire);
        assert!(tickets.iter().zip(&world.ranks).any(|(ticket, rank)| matches!(rank.status(*ticket), Status::Running)));
        world.turn(1000);
        world.ranks.iter_mut().for_each(Rank::expire);
        world.turn(2);
        let errors: Vec<Error> = (0..3).map(|me| world.failure(me, tickets[me])).collect();
        assert!(errors.iter().all(|error| *error.kind() == ErrorKind::Timeout));
        assert!(errors.iter().any(|error| error.peers().contains(&3)), "{algorithm}: {errors:?}");
        assert!(algorithm != Algorithm::Direct || errors.iter().all(|error| error.peers() == [3]), "{errors:?}");
        let text = errors[0].to_string();
        assert!(text.contains("all_reduce (call 1) on group (0,1,2,3) at rank 0 failed with Timeout"), "{text}");
    }
}

#[test]
fn a_wait_ends_at_the_deadline() {
    let mut world = World::new(Settings::default());
    let ticket = world.start(0, OpKind::AllReduce, LEN, Algorithm::Ring, Duration::from_micros(500));
    let status = world.ranks[0].wait(ticket, |_, _| Ok(()));
    assert!(matches!(status, Status::Failed(error) if *error.kind() == ErrorKind::Timeout));
}

#[test]
fn other_counts_and_other_kinds_are_mismatches() {
    for algorithm in [Algorithm::Direct, Algorithm::TwoShot, Algorithm::Ring, Algorithm::KNomial(2)] {
        for (kind, count) in [(OpKind::AllReduce, LEN - 8), (OpKind::Broadcast, LEN)] {
            let mut world = World::new(Settings::default());
            let tickets: Vec<Ticket> = (0..N)
                .map(|me| match me {
                    2 => world.start(me, kind, count, algorithm, Duration::MAX),
                    _ => world.start(me, OpKind::AllReduce, LEN, algorithm, Duration::MAX),
                })
                .collect();
            world.turn(300);
            let found: Vec<Error> = (0..N)
                .filter_map(|me| match world.ranks[me].status(tickets[me]) {
                    Status::Failed(error) => Some(error),
                    Status::Running => None,
                    // A broadcast from the odd one's point of view may be over.
                    status => (me != 2).then(|| panic!("{algorithm}: rank {me}: {status:?}")),
                })
                .collect();
            assert!(found.iter().any(|error| *error.kind() == ErrorKind::Mismatch), "{algorithm}, {kind}: {found:?}");
            for (me, ticket) in tickets.iter().enumerate() {
                world.ranks[me].stop(*ticket, Error::new(ErrorKind::Mismatch, "told"));
                assert!(world.ranks[me].is_idle(*ticket));
            }
        }
    }
}

#[test]
fn both_sides_of_a_mismatch_are_described() {
    let mut world = World::new(Settings::default());
    let ours = world.start(0, OpKind::AllReduce, LEN, Algorithm::Direct, Duration::MAX);
    for me in 1..N {
        world.start(me, OpKind::AllReduce, LEN - 8, Algorithm::Direct, Duration::MAX);
    }
    world.turn(100);
    let error = world.failure(0, ours);
    assert!(
        error.message().contains("called all_reduce sum of 92 f32, this rank all_reduce sum of 100 f32"),
        "{error}"
    );
}

#[test]
fn what_an_engine_keeps_is_named_and_the_executor_goes_on() {
    let mut world = World::new(Settings::default());
    world.ranks[0].transport().network().let_cancels_work(false);
    let ticket = world.start(0, OpKind::AllReduce, LEN, Algorithm::Ring, Duration::MAX);
    let abort = || Err(Error::new(ErrorKind::Aborted, "somebody called abort"));
    let mut watched = 0;
    let status = world.ranks[0].wait(ticket, |_, fruitless| {
        watched += 1;
        // Stop, some patience, give up.
        if fruitless == 10 || watched > 50 { abort() } else { Ok(()) }
    });
    assert!(matches!(status, Status::Draining(error) if *error.kind() == ErrorKind::Aborted));
    let values = world.values[0].as_ptr_range();
    let held: Vec<_> = world.ranks[0].held(ticket).collect();
    assert_eq!(held.len(), 2, "a send and a receive of a ring");
    assert!(held.iter().any(|lent| values.contains(&lent.ptr.cast_const().cast())));
    // The values stay with the world, as the engine still has them.
    world.ranks[0].finish(ticket);
    assert_eq!(world.ranks[0].active(), 0);
    assert!(matches!(world.ranks[0].status(ticket), Status::Failed(error) if *error.kind() == ErrorKind::Closed));
    let next = world.start(0, OpKind::Broadcast, 4, Algorithm::Direct, Duration::MAX);
    assert!(matches!(world.ranks[0].status(next), Status::Done));
}

#[test]
fn a_stopped_call_lets_go_at_once_and_keeps_its_first_error() {
    for algorithm in algorithms() {
        let mut world = World::new(Settings { delay: 4, ..Settings::default() });
        let tickets: Vec<Ticket> =
            (0..N).map(|me| world.start(me, OpKind::AllReduce, LEN, algorithm, Duration::MAX)).collect();
        world.turn(1);
        for (me, ticket) in tickets.into_iter().enumerate() {
            world.ranks[me].stop(ticket, Error::new(ErrorKind::Aborted, "first"));
            world.ranks[me].stop(ticket, Error::new(ErrorKind::Timeout, "second"));
            assert_eq!(world.failure(me, ticket).message(), "first");
        }
    }
}

#[test]
fn a_refused_start_leaves_nothing_behind() {
    let mut world = World::new(Settings::default());
    let mut call = RawCall::new(OpKind::AllGather, DType::F32, 4);
    call.src = RawBuf::host(world.values[0].as_ptr().cast(), 16);
    let group = Group::world(N);
    let stamp = Stamp { communicator: 1, sequence: 1, words: [0; 3] };
    for algorithm in [Algorithm::KNomial(2), Algorithm::Direct] {
        let start = Start { group: &group, me: 0, stamp, choice: Choice::whole(algorithm), deadline: Duration::MAX };
        let refuse =
            |_: &mut HostMemory, _: &_| Err(Error::new(ErrorKind::NoMemory { need: 1, limit: 0 }, "none left"));
        // SAFETY: nothing is armed.
        let error = unsafe { world.ranks[0].start(&call, &start, refuse) }.expect_err("refused");
        let unsupported = matches!(error.kind(), ErrorKind::Unsupported { .. });
        assert_eq!(unsupported, algorithm != Algorithm::Direct, "{error}");
        assert_eq!((world.ranks[0].active(), world.ranks[0].transport().outstanding()), (0, 0));
    } // Its place is used again.
    let next = world.start(0, OpKind::Broadcast, 4, Algorithm::Direct, Duration::MAX);
    assert!(format!("{next:?}").contains("index: 0"), "{next:?}");
}
