//! The shared-memory backend between threads: refusals, started calls and failures that need exact timing.
#![cfg(not(loom))]

use rankwise_core::backend::{CommSpec, RawBuf, RawCall, Refusal};
use rankwise_core::{
    Backend, Call, Communicator, Config, DType, Error, ErrorKind, Group, OpKind, Part, ReduceOp, Work,
};
use rankwise_world::World;
use std::time::{Duration, Instant};

fn ranks(n: usize, timeout: Duration, f: impl Fn(Backend, Communicator) + Send + Sync) {
    World::threads(n, |world| {
        let config = Config::new().timeout(timeout);
        let raw = rankwise_shm::driver().join(&world, &config).unwrap();
        let backend = Backend::new(raw, config.resolve().unwrap());
        let comm = backend.world().unwrap();
        f(backend, comm);
    })
    .unwrap();
}

type Numbers = Work<Vec<u64>, Vec<u64>>;

const LONG: Duration = Duration::from_secs(60);

/// A launch of several tensors that is refused on one rank is one call on all: the next calls meet.
#[test]
fn a_refused_launch_keeps_the_ranks_in_step() {
    ranks(2, LONG, |_, mut comm| {
        for _ in 0..10 {
            let (mut a, mut b, mut c) = ([1.0_f32; 4], [2_i64; 3], [3_u8; 2]);
            let error = if comm.rank() == 0 {
                comm.all_reduce_many(&mut []).unwrap_err()
            } else {
                let mut parts = [
                    Part::in_place(&mut a, ReduceOp::Sum),
                    Part::in_place(&mut b, ReduceOp::Sum),
                    Part::in_place(&mut c, ReduceOp::Sum),
                ];
                comm.all_reduce_many(&mut parts).unwrap_err()
            };
            let expected = if comm.rank() == 0 { ErrorKind::InvalidArgument } else { ErrorKind::PeerRejected };
            assert_eq!(error.kind(), &expected, "{error}");
            let mut x = [comm.rank() as u32 + 1];
            comm.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
            assert_eq!(x, [3]);
        }
    });
}

/// Two joins of one rank, as by two libraries: a wait in one moves what was started in the other.
#[test]
fn a_wait_in_one_join_moves_the_calls_of_another() {
    World::threads(2, |world| {
        let join = || {
            let config = Config::new().timeout(LONG);
            let raw = rankwise_shm::driver().join(&world, &config).unwrap();
            Backend::new(raw, config.resolve().unwrap()).world().unwrap()
        };
        let (mut one, mut other) = (join(), join());
        // Many ring steps, so that it needs this rank again and again.
        let source = vec![world.rank() as u64 + 1; 1 << 20];
        for _ in 0..3 {
            if world.rank() == 0 {
                let mut sums = vec![0; source.len()];
                one.all_reduce(&source, &mut sums, ReduceOp::Sum).unwrap();
                assert!(sums.iter().all(|sum| *sum == 3));
                other.barrier().unwrap();
            } else {
                let call = Call::all_reduce(source.clone(), vec![0; source.len()], ReduceOp::Sum);
                let work: Numbers = one.start(call).unwrap();
                other.barrier().unwrap();
                assert!(work.wait().unwrap().iter().all(|sum| *sum == 3));
            }
        }
    })
    .unwrap();
}

/// A refused send tells a receiver once; refused on both sides, a message leaves nothing behind for the next one.
#[test]
fn a_refused_message_is_gone_on_both_sides() {
    World::threads(2, |world| {
        let raw = rankwise_shm::driver().join(&world, &Config::new()).unwrap();
        let comm = raw.communicator(&CommSpec::new(Group::world(2)), LONG).unwrap();
        let me = world.rank();
        let why = Error::invalid("refused by this test");
        let kind = if me == 0 { OpKind::Send } else { OpKind::Recv };
        let refuse = || {
            let mut refusal = Refusal::new(kind, &why, 1);
            refusal.peer = Some(1 - me);
            comm.reject(&refusal);
        };
        let transfer = |value: u64| {
            let mut word = value;
            let mut call = RawCall::new(kind, DType::U64, 1);
            call.root = 1 - me;
            let buffer = RawBuf::host((&raw mut word).cast(), 8);
            if me == 0 {
                call.src = buffer
            } else {
                call.dst = buffer
            }
            // SAFETY: `word` is valid for reads and writes and used by nobody else during the call.
            unsafe { comm.run(&[call], LONG) }.map(|()| word)
        };
        for round in 1..20 {
            refuse();
            assert_eq!(transfer(round * (1 - me as u64)).unwrap(), round);
            if me == 0 {
                refuse();
            } else {
                assert_eq!(transfer(0).unwrap_err().kind(), &ErrorKind::PeerRejected);
            }
            assert_eq!(transfer(round * (1 - me as u64)).unwrap(), round);
        }
    })
    .unwrap();
}

/// A message that is thrown away does not hold up its sender, whatever the receiver waits in.
#[test]
fn a_refused_receive_does_not_block_a_long_send() {
    World::threads(2, |world| {
        let raw = rankwise_shm::driver().join(&world, &Config::new()).unwrap();
        let comm = raw.communicator(&CommSpec::new(Group::world(2)), LONG).unwrap();
        let me = world.rank();
        let mut data = vec![7_u8; 3 << 20];
        if me == 0 {
            let why = Error::invalid("refused by this test");
            let mut refusal = Refusal::new(OpKind::Recv, &why, 1);
            refusal.peer = Some(1);
            // Only after the sender is past the look at refusals.
            std::thread::sleep(Duration::from_millis(300));
            comm.reject(&refusal);
        } else {
            let mut call = RawCall::new(OpKind::Send, DType::U8, data.len());
            call.src = RawBuf::host(data.as_mut_ptr(), data.len());
            // SAFETY: `data` is valid and used by nobody else during the call.
            unsafe { comm.run(&[call], LONG) }.unwrap();
        }
        // SAFETY: a barrier has no buffers.
        unsafe { comm.run(&[RawCall::new(OpKind::Barrier, DType::U8, 0)], LONG) }.unwrap();
        comm.finalize(LONG).unwrap();
    })
    .unwrap();
}

/// A wait looks at every peer that its own calls wait for, and at no other.
#[test]
fn a_wait_sees_the_peer_that_left_among_several() {
    ranks(3, LONG, |_, mut comm| match comm.rank() {
        0 => {
            let from_one = comm.start(Call::recv(vec![0_u8; 8], 1)).unwrap();
            let from_two = comm.start(Call::recv(vec![0_u8; 8], 2)).unwrap();
            let begin = Instant::now();
            let error = from_one.wait().unwrap_err().into_error();
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLeft, &[1_usize][..]), "{error}");
            assert!(begin.elapsed() < Duration::from_secs(20), "only noticed after {:?}", begin.elapsed());
            drop(from_two);
        }
        1 => drop(comm),
        _ => std::thread::sleep(Duration::from_secs(2)),
    });
}

/// Started calls that are dropped with their communicator don't keep the rank busy.
#[test]
fn works_end_with_their_communicator() {
    ranks(2, LONG, |_, mut comm| {
        let mut split = comm.split(Some(0), 0).unwrap().unwrap();
        let work = split.start(Call::recv(vec![0_u8; 8], 1 - split.rank())).unwrap();
        drop(work);
        drop(split);
        comm.barrier().unwrap();
    });
}

/// Many started calls, waited for backwards, on two communicators in opposite order.
#[test]
fn works_finish_in_any_order_of_waiting() {
    ranks(3, LONG, |_, mut comm| {
        let mut other = comm.split(Some(0), -(comm.rank() as i64)).unwrap().unwrap();
        let me = comm.rank() as u64;
        let mut works = Vec::new();
        let mut others = Vec::new();
        for i in 0..200_usize {
            let len = if i % 7 == 0 { 30_000 } else { i };
            works.push((
                i,
                comm.start(Call::all_reduce(vec![me + i as u64; len], vec![0; len], ReduceOp::Sum)).unwrap(),
            ));
            others.push((i, other.start(Call::all_reduce(vec![me; len], vec![0; len], ReduceOp::Max)).unwrap()));
        }
        let wait_first = |works: Vec<(usize, Numbers)>, sum: bool| {
            for (i, work) in works.into_iter().rev() {
                let expected = if sum { 3 + 3 * i as u64 } else { 2 };
                assert!(work.wait().unwrap().iter().all(|x| *x == expected));
            }
        };
        if me == 1 {
            wait_first(works, true);
            wait_first(others, false);
        } else {
            wait_first(others, false);
            wait_first(works, true);
        }
        comm.barrier().unwrap();
    });
}

/// A ring in which everybody starts to receive before it sends.
#[test]
fn started_messages_do_not_wait_for_each_other() {
    ranks(4, LONG, |_, mut comm| {
        let (n, me) = (comm.size(), comm.rank());
        let out = vec![me as u32; 300_000];
        let mut back = vec![0_u32; 300_000];
        comm.scope(|s| {
            s.start(Call::recv(&mut back[..], (me + n - 1) % n))?;
            s.start(Call::send(&out[..], (me + 1) % n))?;
            Ok(())
        })
        .unwrap();
        assert!(back.iter().all(|x| *x as usize == (me + n - 1) % n));
    });
}

/// The deadline of a receive names the silent peer and carries no call number.
#[test]
fn a_receive_in_vain_times_out() {
    ranks(2, Duration::from_millis(300), |_, mut comm| {
        if comm.rank() == 0 {
            let error = comm.recv(&mut [0_u8; 4], 1).unwrap_err();
            assert_eq!((error.kind(), error.peers(), error.sequence()), (&ErrorKind::Timeout, &[1_usize][..], None));
        } else {
            std::thread::sleep(Duration::from_millis(800));
        }
    });
}

/// A started receive learns of a peer's failure in a later collective, although this rank's last call was one too.
#[test]
fn a_started_receive_learns_of_a_later_failure() {
    ranks(2, LONG, |_, mut comm| {
        if comm.rank() == 0 {
            let receive = comm.start(Call::recv(vec![0_u8; 8], 1)).unwrap();
            comm.barrier().unwrap();
            let begin = Instant::now();
            let error = receive.wait().unwrap_err().into_error();
            assert_eq!(error.kind(), &ErrorKind::Timeout, "{error}");
            assert!(begin.elapsed() < Duration::from_secs(20), "only after {:?}", begin.elapsed());
        } else {
            comm.barrier().unwrap();
            comm.set_timeout(Duration::from_millis(200));
            assert_eq!(comm.barrier().unwrap_err().kind(), &ErrorKind::Timeout);
            // Stays: its leaving would be another reason.
            std::thread::sleep(Duration::from_secs(3));
        }
    });
}
