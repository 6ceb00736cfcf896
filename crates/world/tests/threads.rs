//! The world of threads: store, exchange, liveness, panics.

use rankwise_core::{ErrorKind, Group};
use rankwise_world::{Attachment, MAX_PAYLOAD, MAX_VALUE, PeerStatus, Placement, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn everybody_gets_everything_in_group_order() {
    for n in [1, 2, 5, 40] {
        let results = World::threads(n, |world| {
            let reversed = Group::new((0..n).rev()).unwrap();
            for round in 0..10 {
                let payload = format!("{} in {round}", world.rank());
                let shared = Attachment::Local(Arc::new(world.rank() * 7));
                let met = world.store().exchange("k", "test", &reversed, payload.as_bytes(), shared, LONG).unwrap();
                for (rank, (bytes, attachment)) in reversed.ranks().zip(met) {
                    assert_eq!(bytes, format!("{rank} in {round}").into_bytes());
                    let Attachment::Local(object) = attachment else { panic!("no object from {rank}") };
                    assert_eq!(*object.downcast::<usize>().unwrap(), rank * 7);
                }
            }
            (world.rank(), world.size(), world.local_rank(), world.placement(), world.job())
        })
        .unwrap();
        for (rank, result) in results.iter().enumerate() {
            assert_eq!(*result, (rank, n, rank, Placement::Threads, results[0].4));
        }
    }
}

#[test]
fn zero_ranks_is_an_argument_error() {
    assert_eq!(World::threads(0, |_| ()).unwrap_err().kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn values_and_counters() {
    let world = World::solo();
    let store = world.store();
    assert_eq!(store.get("a").unwrap(), None);
    store.set("a", b"").unwrap();
    assert_eq!(store.get("a").unwrap().unwrap(), b"");
    assert_eq!(store.wait("a", SHORT).unwrap(), b"");
    assert!(store.delete("a").unwrap());
    assert!(!store.delete("a").unwrap());
    assert_eq!(store.add("n", 5).unwrap(), 5);
    assert_eq!(store.add("n", -7).unwrap(), -2);
    assert_eq!(store.add("n", i64::MIN).unwrap(), i64::MAX - 1);
    assert_eq!(store.get("n").unwrap().unwrap(), (i64::MAX - 1).to_le_bytes());
    store.set("a", b"text").unwrap();
    for error in [
        store.add("a", 1).unwrap_err(),
        store.set("", b"").unwrap_err(),
        store.set(&"k".repeat(600), b"").unwrap_err(),
        store.set("big", &vec![0; MAX_VALUE + 1]).unwrap_err(),
    ] {
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument, "{error}");
    }
    assert_eq!(store.wait("never", SHORT).unwrap_err().kind(), &ErrorKind::Timeout);
}

#[test]
fn the_store_has_an_end() {
    let world = World::solo();
    let full = (0..).find_map(|i| world.store().set(&i.to_string(), &[0; MAX_VALUE]).err()).unwrap();
    assert!(matches!(full.kind(), ErrorKind::Limit { .. }), "{full}");
    world.store().delete("0").unwrap();
    world.store().set("again", &[0; 1000]).unwrap();
}

#[test]
fn waiting_ends_when_the_value_comes() {
    let values = World::threads(3, |world| {
        if world.rank() == 2 {
            thread::sleep(SHORT);
            world.store().set("late", b"here").unwrap();
        }
        world.store().wait("late", LONG).unwrap()
    })
    .unwrap();
    assert_eq!(values, [b"here", b"here", b"here"]);
}

#[test]
fn concurrent_counting_loses_nothing() {
    let sums = World::threads(4, |world| {
        for _ in 0..500 {
            world.store().add("n", 1).unwrap();
        }
        world.store().exchange("end", "end", &Group::world(4), &[], Attachment::None, LONG).unwrap();
        world.store().add("n", 0).unwrap()
    })
    .unwrap();
    assert_eq!(sums, [2000; 4]);
}

#[test]
fn an_exchange_does_not_block_another_of_the_same_rank() {
    World::threads(2, |world| {
        thread::scope(|scope| {
            // Opposite orders: one lock around an exchange would deadlock here.
            let order: Vec<usize> = if world.rank() == 0 { (0..8).collect() } else { (0..8).rev().collect() };
            for i in order {
                let world = world.clone();
                scope.spawn(move || {
                    let key = format!("k{i}");
                    let all = Group::world(2);
                    world.store().exchange(&key, "overlap", &all, &[i as u8], Attachment::None, LONG).unwrap();
                });
                thread::sleep(Duration::from_millis(5));
            }
        });
    })
    .unwrap();
}

#[test]
fn different_tuples_time_out_and_show_each_other() {
    let errors = World::threads(2, |world| {
        let group = if world.rank() == 0 { Group::new([0, 1]) } else { Group::new([1, 0]) }.unwrap();
        let key = format!("group/{group}");
        let error = world.store().exchange(&key, "registration", &group, &[], Attachment::None, SHORT * 3).unwrap_err();
        // Stay, or the other one may see us leave before its own deadline.
        world.store().exchange("end", "end", &Group::world(2), &[], Attachment::None, LONG).unwrap();
        error
    })
    .unwrap();
    for (rank, error) in errors.iter().enumerate() {
        assert_eq!(error.kind(), &ErrorKind::Timeout);
        assert_eq!(error.peers(), [1 - rank]);
        let theirs = if rank == 0 { "`registration` over (1,0)" } else { "`registration` over (0,1)" };
        assert!(error.message().contains(theirs), "{error}");
        assert!(error.elapsed().unwrap() >= SHORT * 3);
    }
}

#[test]
fn arguments_are_checked() {
    World::threads(2, |world| {
        let store = world.store();
        let all = Group::world(2);
        let other = Group::new([1 - world.rank()]).unwrap();
        let kind = |result: rankwise_core::Result<Vec<(Vec<u8>, Attachment)>>| result.unwrap_err().kind().clone();
        assert_eq!(kind(store.exchange("a", "a", &other, &[], Attachment::None, SHORT)), ErrorKind::NotMember);
        let large = Group::world(3);
        assert_eq!(kind(store.exchange("a", "a", &large, &[], Attachment::None, SHORT)), ErrorKind::InvalidArgument);
        let big = vec![0; MAX_PAYLOAD + 1];
        assert_eq!(kind(store.exchange("a", "a", &all, &big, Attachment::None, SHORT)), ErrorKind::InvalidArgument);
        let met = store.exchange("a", "a", &all, &big[1..], Attachment::None, LONG).unwrap();
        assert_eq!(met[1].0.len(), MAX_PAYLOAD);
    })
    .unwrap();
}

#[test]
fn one_key_for_two_tuples_is_refused() {
    let errors = World::threads(2, |world| {
        let group = if world.rank() == 0 { Group::new([0, 1]) } else { Group::new([1, 0]) }.unwrap();
        world.store().exchange("same", "test", &group, &[], Attachment::None, SHORT).unwrap_err()
    })
    .unwrap();
    let refused = errors.iter().find(|error| error.kind() == &ErrorKind::InvalidArgument).expect("nobody was refused");
    assert!(refused.message().contains("(0,1)") && refused.message().contains("(1,0)"), "{refused}");
}

#[test]
fn a_panic_is_seen_at_once_and_resumed_at_the_end() {
    let finished = AtomicUsize::new(0);
    let started = Instant::now();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        World::threads(3, |world| {
            if world.rank() == 1 {
                thread::sleep(SHORT);
                panic!("on purpose");
            }
            let all = Group::world(3);
            let error = world.store().exchange("k", "test", &all, &[], Attachment::None, LONG).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::PeerLost);
            assert_eq!(error.peers(), [1]);
            assert_eq!(world.liveness().status(1), PeerStatus::Gone);
            assert_eq!(world.liveness().status(world.rank()), PeerStatus::Alive);
            assert_eq!(world.liveness().status(3), PeerStatus::Gone);
            finished.fetch_add(1, Ordering::Relaxed);
        })
    }))
    .unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(finished.into_inner(), 2);
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_rank_that_returns_has_left() {
    World::threads(2, |world| {
        if world.rank() == 0 {
            return;
        }
        let all = Group::world(2);
        let error = world.store().exchange("k", "test", &all, &[], Attachment::None, LONG).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::PeerLeft);
        assert_eq!(error.peers(), [0]);
        let error = world.store().wait("never", LONG).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::PeerLost);
    })
    .unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn descriptors_are_duplicated_for_every_receiver() {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    World::threads(3, |world| {
        let mut file = tempfile();
        write!(file, "file of {}", world.rank()).unwrap();
        let all = Group::world(3);
        let met = world.store().exchange("fd", "fd", &all, &[], Attachment::Fd(file.into()), LONG).unwrap();
        for (rank, (_, attachment)) in met.into_iter().enumerate() {
            let Attachment::Fd(fd) = attachment else { panic!("no descriptor from {rank}") };
            // The offset is shared by all duplicates; a lock is not needed since each rank looks at its own file.
            if rank == world.rank() {
                let mut file = File::from(fd);
                let mut text = String::new();
                file.rewind().unwrap();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(text, format!("file of {rank}"));
            }
        }
    })
    .unwrap();

    fn tempfile() -> File {
        let fd = rustix::fs::memfd_create("rankwise-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(fd)
    }
}
