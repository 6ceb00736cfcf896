//! Failures and who learns what of them: leaving, aborts, mismatches, refusals and deadlines, between threads.
#![cfg(not(loom))]

use rankwise_core::{Backend, Call, Communicator, Config, ErrorKind, Group, Part, ReduceOp};
use rankwise_world::World;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn ranks(n: usize, timeout: Duration, f: impl Fn(Backend, Communicator) + Send + Sync) {
    World::threads(n, |world| {
        let config = Config::new().timeout(timeout).join_timeout(Duration::from_secs(20));
        let raw = rankwise_shm::driver().join(&world, &config).unwrap();
        let backend = Backend::new(raw, config.resolve().unwrap());
        let comm = backend.world().unwrap();
        f(backend, comm);
    })
    .unwrap();
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// A peer that did its whole part and left is not `PeerLeft` while another one is late.
#[test]
fn a_contributor_that_is_done_may_leave() {
    for round in 0..60 {
        ranks(3, LONG, |_b, mut comm| {
            let mine = vec![comm.rank() as u8; 128 * 1024];
            match comm.rank() {
                0 => {
                    let mut all = vec![9; 3 * mine.len()];
                    let result = comm.gather(&mine, Some(&mut all), 0);
                    result.unwrap_or_else(|e| panic!("round {round}: {e}"));
                    assert_eq!(all[mine.len() * 2], 2);
                }
                1 => {
                    pause(3);
                    comm.gather(&mine, None, 0).unwrap();
                }
                _ => {
                    let work = comm.start(Call::gather(mine, None::<Vec<u8>>, 0)).unwrap();
                    pause(15);
                    work.wait().unwrap();
                }
            }
        });
    }
}

/// The member that is missing for good need not be the one that is looked at first.
#[test]
fn a_missing_member_is_noticed_whoever_is_late() {
    ranks(3, LONG, |_b, mut comm| match comm.rank() {
        0 => {
            pause(100);
            let began = Instant::now();
            let error = comm.barrier().unwrap_err();
            println!("after {:?}: {error}", began.elapsed());
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLeft, &[2_usize][..]), "{error}");
            assert!(began.elapsed() < Duration::from_millis(3500), "only after {:?}", began.elapsed());
        }
        1 => {
            pause(4000);
            let _ = comm.barrier();
        }
        _ => {}
    });
}

/// Every work gets the first cause, not "cancelled by this rank".
#[test]
fn other_works_learn_the_cause() {
    ranks(2, LONG, |_b, mut comm| {
        if comm.rank() == 0 {
            let a = comm.start(Call::all_reduce(vec![1_u8], vec![0], ReduceOp::Sum)).unwrap();
            let b = comm.start(Call::all_reduce(vec![1_u8], vec![0], ReduceOp::Sum)).unwrap();
            let a = a.wait().unwrap_err().into_error();
            let b = b.wait().unwrap_err().into_error();
            println!("{a}\n{b}");
            assert_eq!(a.kind(), &ErrorKind::PeerLeft);
            assert!(matches!(b.kind(), ErrorKind::PeerLeft | ErrorKind::Poisoned), "{b}");
        }
    });
}

#[test]
fn a_send_after_abort_fails() {
    ranks(2, LONG, |_b, mut comm| {
        if comm.rank() == 0 {
            comm.abort();
            let first = comm.send(&[1_u8], 1).map_err(|e| e.kind().clone());
            let second = comm.send(&[1_u8], 1).map_err(|e| e.kind().clone());
            println!("{first:?} {second:?}");
            assert_eq!(first, Err(ErrorKind::Aborted));
            assert_eq!(second, Err(ErrorKind::Poisoned));
        } else {
            pause(300);
            let mut x = [0_u8];
            let r = comm.recv(&mut x, 0).map_err(|e| e.kind().clone());
            let s = comm.send(&[1_u8], 0).map_err(|e| e.kind().clone());
            println!("peer: {r:?} {s:?}");
            assert!(r.is_err() && s.is_err());
        }
    });
}

/// Its handle is gone, so peers must see that it left.
#[test]
fn a_finalize_that_failed_has_left() {
    ranks(2, Duration::from_secs(5), |_b, mut comm| {
        if comm.rank() == 0 {
            let error = comm.finalize().unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::PeerRejected);
            pause(8000);
        } else {
            comm.all_reduce_many(&mut []).unwrap_err();
            pause(500);
            let error = comm.barrier().unwrap_err();
            println!("{error}");
            assert_eq!(error.kind(), &ErrorKind::PeerLeft, "{error}");
        }
    });
}

/// Whatever blocks progresses what was started.
#[test]
fn registration_progresses_works() {
    ranks(3, LONG, |backend, mut comm| {
        let pair = Group::new([0, 1]).unwrap();
        match comm.rank() {
            0 => {
                let work = comm.start(Call::recv(vec![0_u8; 4 << 20], 1)).unwrap();
                backend.register(&pair).unwrap();
                work.wait().unwrap();
            }
            1 => {
                comm.send(&vec![1_u8; 4 << 20], 0).unwrap();
                backend.register(&pair).unwrap();
            }
            _ => {}
        }
    });
}

/// Abort and deadline end a long call too.
#[test]
fn abort_ends_a_long_call() {
    ranks(2, LONG, |_b, mut comm| {
        let mut x = vec![1.0_f32; 16 << 20];
        comm.barrier().unwrap();
        let abort = comm.abort_handle();
        let begin = Instant::now();
        let t = (comm.rank() == 0).then(|| {
            std::thread::spawn(move || {
                pause(50);
                abort.abort();
            })
        });
        let result = comm.all_reduce_in_place(&mut x, ReduceOp::Sum).map_err(|e| e.kind().clone());
        let took = begin.elapsed();
        if let Some(t) = t {
            t.join().unwrap();
        }
        println!("{result:?} after {took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    });
}

#[test]
fn a_deadline_ends_a_long_call() {
    ranks(2, LONG, |_b, mut comm| {
        let mut x = vec![1.0_f32; 16 << 20];
        comm.barrier().unwrap();
        let begin = Instant::now();
        let call = Call::all_reduce_in_place(&mut x[..], ReduceOp::Sum).timeout(Duration::from_millis(50));
        let result = comm.run(call).map_err(|e| e.kind().clone());
        let took = begin.elapsed();
        println!("{result:?} after {took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    });
}

/// Mismatch leaves outputs unchanged, on all members.
#[test]
fn counts_that_differ_leave_outputs_unchanged() {
    ranks(3, Duration::from_secs(5), |_b, mut comm| {
        let me = comm.rank();
        let mut send = [4_usize; 3];
        let recv = [4_usize; 3];
        if me == 0 {
            send[1] = 5;
        }
        let src = vec![1_u8; send.iter().sum()];
        let mut dst = vec![7_u8; 12];
        let error = comm.all_to_all_v(&src, &send, &mut dst, &recv);
        println!(
            "{me}: {:?} {:?} {dst:?}",
            error.as_ref().map_err(|e| e.kind().name()),
            error.as_ref().map_err(|e| e.peers().to_vec())
        );
        assert!(error.is_err(), "rank {me} got Ok");
        assert_eq!(dst, [7; 12], "rank {me}");
    });
}

#[test]
fn a_launch_that_differs_leaves_outputs_unchanged() {
    ranks(2, Duration::from_secs(5), |_b, mut comm| {
        let (mut a, mut b) = ([1_u32; 4], vec![1_u32; 4 + comm.rank()]);
        let mut parts = [Part::in_place(&mut a, ReduceOp::Sum), Part::in_place(&mut b, ReduceOp::Sum)];
        let error = comm.all_reduce_many(&mut parts).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Mismatch);
        assert_eq!(a, [1; 4]);
    });
}

#[test]
fn abort_reaches_a_rank_that_is_behind() {
    ranks(3, LONG, |_b, mut comm| match comm.rank() {
        0 => {
            let began = Instant::now();
            let error = comm.barrier().unwrap_err();
            println!("{:?} {error}", began.elapsed());
            assert!(began.elapsed() < Duration::from_millis(3500), "only after {:?}", began.elapsed());
        }
        1 => {
            pause(4000);
            let _ = comm.barrier();
        }
        _ => {
            pause(200);
            for _ in 0..3 {
                comm.all_reduce_many(&mut []).unwrap_err();
            }
            comm.abort();
            pause(4500);
        }
    });
}

/// A call whose data has fully arrived returns Ok, whatever a peer does after it.
#[test]
fn what_a_peer_does_later_does_not_fail_a_complete_call() {
    ranks(2, LONG, |_b, mut comm| {
        if comm.rank() == 0 {
            let work = comm.start(Call::all_reduce(vec![1_u8], vec![0], ReduceOp::Sum)).unwrap();
            pause(800);
            let result = work.wait().map_err(|e| e.into_error());
            println!("{result:?}");
            assert_eq!(result.unwrap(), [2]);
        } else {
            let (src, mut dst) = ([1_u8], [0_u8]);
            comm.all_reduce(&src, &mut dst, ReduceOp::Sum).unwrap();
            let call = Call::recv(&mut dst[..], 0).timeout(Duration::from_millis(100));
            comm.run(call).unwrap_err();
        }
    });
}

/// The cause below Poisoned says which operation it was.
#[test]
fn the_cause_keeps_its_context() {
    ranks(2, Duration::from_millis(200), |_b, mut comm| {
        if comm.rank() == 0 {
            comm.barrier().unwrap_err();
            let poisoned = comm.barrier().unwrap_err();
            let cause = std::error::Error::source(&poisoned).unwrap().downcast_ref::<rankwise_core::Error>().unwrap();
            println!("{poisoned:?}");
            assert_eq!(cause.operation(), Some(rankwise_core::OpKind::Barrier));
            assert!(cause.elapsed().is_some());
        } else {
            pause(1000);
        }
    });
}

/// Longest and shortest deadlines.
#[test]
fn extreme_deadlines() {
    ranks(2, Duration::MAX, |_b, mut comm| {
        let mut seg = comm.alloc::<u64>(70_000).unwrap();
        comm.all_reduce_in_place(&mut seg, ReduceOp::Sum).unwrap();
        let work = comm.start(Call::all_reduce(vec![1_u8; 8], vec![0; 8], ReduceOp::Sum)).unwrap();
        let mut child = comm.split(Some(1), 0).unwrap().unwrap();
        child.barrier().unwrap();
        work.wait().unwrap();
        comm.set_timeout(Duration::ZERO);
        let r = comm.barrier().map_err(|e| e.kind().clone());
        println!("{r:?}");
        drop(child);
        pause(200);
    });
}

/// Waiting with a started call outstanding is cheap too.
#[cfg(target_os = "linux")]
#[test]
fn idle_waiting_with_works_is_cheap() {
    ranks(2, LONG, |_b, mut comm| {
        if comm.rank() == 0 {
            let cpu = || {
                let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: `t` is valid for the call.
                unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
                t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
            };
            let (wall, began) = (Instant::now(), cpu());
            let works: Vec<_> = (0..64).map(|_| comm.start(Call::recv(vec![0_u8; 8], 1)).unwrap()).collect();
            for work in works {
                work.wait().unwrap();
            }
            let share = (cpu() - began) / wall.elapsed().as_secs_f64();
            println!("{:.1} % of a core", share * 100.0);
            assert!(share < 0.05, "{share}");
        } else {
            pause(5000);
            for _ in 0..64 {
                comm.send(&[1_u8; 8], 0).unwrap();
            }
        }
    });
}

/// The sender of a message whose receive was refused learns of it.
#[test]
fn a_refused_receive_tells_its_sender() {
    ranks(2, Duration::from_secs(2), |_b, mut comm| {
        if comm.rank() == 0 {
            comm.run(Call::recv::<u8>(None::<Vec<u8>>, 1)).unwrap_err();
            let mut x = [0_u8];
            println!("{:?}", comm.recv(&mut x, 1).map_err(|e| e.kind().clone()));
            pause(500);
        } else {
            pause(200);
            let error = comm.send(&[1_u8], 0).map_err(|e| e.kind().clone());
            pause(2500);
            assert_eq!(error, Err(ErrorKind::PeerRejected));
        }
    });
}

/// Two handles of one group split from two threads.
#[test]
fn splits_of_two_threads_do_not_mix() {
    for _ in 0..100 {
        ranks(2, LONG, |backend, comm| {
            drop(comm);
            std::thread::scope(|s| {
                for id in 0..2_u64 {
                    let mut comm = backend.world().unwrap();
                    s.spawn(move || {
                        let mut child = loop {
                            match comm.split(Some(0), 0) {
                                Ok(child) => break child.unwrap(),
                                Err(e) if e.kind() == &ErrorKind::Busy => std::thread::yield_now(),
                                Err(e) => panic!("{e}"),
                            }
                        };
                        let _ = id;
                        let mut x = [1_u8];
                        child.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
                        assert_eq!(x, [2]);
                    });
                }
            });
        });
    }
}

/// Every member learns of a mismatch in its call or its next, senders too.
#[test]
fn a_sender_learns_of_a_mismatch_at_its_next_call() {
    ranks(2, Duration::from_secs(5), |_b, mut comm| {
        if comm.rank() == 0 {
            comm.send(&[1_u8], 1).unwrap();
            pause(500);
            let error = comm.send(&[2_u8; 2], 1).map_err(|e| e.kind().clone());
            assert_eq!(error, Err(ErrorKind::Mismatch));
        } else {
            let error = comm.recv(&mut [0_u8; 2], 0).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Mismatch);
            pause(1000);
        }
    });
}

/// A factor that is not a number is the same factor on all ranks, whatever its bits.
#[test]
fn nan_factors_agree() {
    ranks(2, Duration::from_secs(5), |_b, mut comm| {
        let factor = if comm.rank() == 0 { f64::NAN } else { -f64::NAN };
        let mut x = [1.0_f32];
        comm.all_reduce_in_place(&mut x, ReduceOp::PreMulSum(factor)).unwrap();
        assert!(x[0].is_nan());
    });
}
