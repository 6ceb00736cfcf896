//! The checks that every toy passes under the typed layer.

use super::spi::{LONG, MakeWorld, on_ranks};
use rankwise_core::{Backend, Call, Communicator, ErrorKind, Group, OpKind, ReduceOp, Settings};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn on_members(make: MakeWorld, n: usize, f: impl Fn(&Backend, Communicator) + Sync) {
    on_ranks(make, n, |raw| {
        let mut settings = Settings::default();
        (settings.timeout, settings.join_timeout) = (LONG, LONG);
        let backend = Backend::new(Arc::clone(raw), settings);
        f(&backend, backend.world().unwrap());
    });
}

fn known_answer(comm: &mut Communicator) -> Result<(), ErrorKind> {
    let (n, src, mut dst) = (comm.size() as i32, [comm.rank() as i32 + 1], [0]);
    comm.all_reduce(&src, &mut dst, ReduceOp::Sum).map_err(|error| error.kind().clone())?;
    assert_eq!(dst, [n * (n + 1) / 2]);
    Ok(())
}

pub(crate) fn typed_values(make: MakeWorld) {
    for n in 1..=4 {
        on_members(make, n, |backend, mut comm| {
            let me = comm.rank();
            known_answer(&mut comm).unwrap();
            let mut all = vec![0u8; 3 * n];
            comm.all_gather(&[me as u8; 3], &mut all).unwrap();
            assert_eq!(all, (0..3 * n).map(|i| (i / 3) as u8).collect::<Vec<_>>());
            let mut own = all.clone();
            own.iter_mut().enumerate().filter(|(i, _)| i / 3 != me).for_each(|(_, x)| *x = 0xA5);
            comm.all_gather_in_place(&mut own).unwrap();
            assert_eq!(own, all);

            let ramp: Vec<f32> = (0..2 * n).map(|i| i as f32).collect();
            let mut part = [0.0; 2];
            comm.reduce_scatter(&ramp, &mut part, ReduceOp::Sum).unwrap();
            assert_eq!(part, [(2 * me * n) as f32, ((2 * me + 1) * n) as f32]);
            let mut place = ramp.clone();
            comm.reduce_scatter_in_place(&mut place, ReduceOp::Sum).unwrap();
            assert_eq!(place[2 * me..2 * me + 2], part);

            let pairs: Vec<[u16; 2]> = (0..n).map(|p| [me as u16, p as u16]).collect();
            let mut turned = vec![[0u16; 2]; n];
            comm.all_to_all(&pairs, &mut turned).unwrap();
            assert_eq!(turned, (0..n).map(|p| [p as u16, me as u16]).collect::<Vec<_>>());

            let mut bytes = if me == n - 1 { b"known to the root only".to_vec() } else { vec![7; 2] };
            comm.broadcast_bytes(&mut bytes, n - 1).unwrap();
            assert_eq!(bytes, b"known to the root only");

            // Uneven tokens of width 2: rank r has r of them.
            let counts: Vec<usize> = (0..n).collect();
            let rows: usize = counts.iter().sum();
            let mut tokens = vec![-1i32; 2 * rows];
            comm.token_all_gather(&vec![me as i32; 2 * me], &mut tokens, 2, &counts).unwrap();
            let expected: Vec<i32> = (0..n).flat_map(|r| vec![r as i32; 2 * r]).collect();
            assert_eq!(tokens, expected);
            let mut mine = vec![0; 2 * me];
            comm.token_reduce_scatter(&tokens, &mut mine, 2, &counts, ReduceOp::Sum).unwrap();
            assert_eq!(mine, vec![(me * n) as i32; 2 * me]);

            if n > 1 && me < 2 {
                let mut got = [0u64];
                let mine = [me as u64 + 10];
                if me == 0 { comm.send(&mine, 1) } else { comm.recv(&mut got, 0) }.unwrap();
                if me == 1 { comm.send(&mine, 0) } else { comm.recv(&mut got, 1) }.unwrap();
                assert_eq!(got, [(1 - me) as u64 + 10]);
            }

            let half = comm.split(Some(me as u64 % 2), -(me as i64)).unwrap();
            let mut half = half.expect("a colour was given");
            let members: Vec<usize> = (0..n).rev().filter(|r| r % 2 == me % 2).collect();
            assert_eq!(half.group(), &Group::new(members).unwrap());
            known_answer(&mut half).unwrap();
            known_answer(&mut comm).unwrap();
            comm.finalize().unwrap();
            assert_eq!(known_answer(&mut backend.world().unwrap()), Err(ErrorKind::Closed));
        });
    }
}

/// Buffers that do not fit are refused above; peers learn of it, and the communicator goes on.
pub(crate) fn typed_refusals(make: MakeWorld) {
    on_members(make, 3, |_, mut comm| {
        for _ in 0..3 {
            let mut dst = vec![-1; if comm.rank() == 2 { 3 } else { 4 }];
            let error = comm.all_reduce(&[1; 4], &mut dst, ReduceOp::Sum).unwrap_err();
            if comm.rank() == 2 {
                assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
            } else {
                assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerRejected, &[2][..]));
                assert_eq!((error.operation(), error.rank()), (Some(OpKind::AllReduce), Some(comm.rank())));
            }
            assert!(dst.iter().all(|x| *x == -1));
            known_answer(&mut comm).unwrap();
            // The tables decline these, alike on all ranks.
            let mut dst = [0; 4];
            let dst = (comm.rank() == 0).then_some(&mut dst[..]);
            assert_eq!(comm.reduce(&[1; 4], dst, ReduceOp::Sum, 0).unwrap_err().kind(), &ErrorKind::UnsupportedOp);
            let error = comm.all_reduce_in_place(&mut [1.0f64], ReduceOp::Sum).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::UnsupportedDtype);
            known_answer(&mut comm).unwrap();
        }
    });
}

/// A send that is refused is told to the one that receives; the pair goes on.
pub(crate) fn typed_refused_send(make: MakeWorld) {
    on_members(make, 3, |_, mut comm| {
        let mut got = [0u8; 1];
        match comm.rank() {
            0 => {
                // Never touched, so that it costs address space only.
                let too_long = vec![0u8; (1 << 30) + 1];
                assert_eq!(comm.send(&too_long, 2).unwrap_err().kind(), &ErrorKind::CountTooLarge);
                comm.send(&[9u8], 2).unwrap();
            }
            2 => {
                let error = comm.recv(&mut got, 0).unwrap_err();
                assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerRejected, &[0][..]));
                assert_eq!((error.operation(), got), (Some(OpKind::Recv), [0]));
                comm.recv(&mut got, 0).unwrap();
                assert_eq!(got, [9]);
            }
            _ => {}
        }
        known_answer(&mut comm).unwrap();
    });
}

pub(crate) fn typed_works(make: MakeWorld) {
    for n in 1..=4 {
        on_members(make, n, |_, mut comm| {
            let n = n as i32;
            let start = |comm: &mut Communicator, value: i32| {
                comm.start(Call::all_reduce(vec![value; 3], vec![0; 3], ReduceOp::Sum)).unwrap()
            };
            let mut works: Vec<_> = (0..5).map(|i| (i, start(&mut comm, i))).collect();
            // Dropped in flight: its buffers go to the engine, the peers still get their part.
            drop(works.remove(comm.rank()));
            if comm.rank() % 2 == 1 {
                works.reverse();
            }
            for (value, work) in works {
                let sums = work.wait().unwrap();
                assert_eq!(sums, [value * n; 3]);
            }
            let mut work = start(&mut comm, 7);
            while !work.test().unwrap() {
                std::thread::yield_now();
            }
            std::mem::forget(start(&mut comm, 8));
            assert_eq!(work.wait_both().unwrap(), (vec![7; 3], vec![7 * n; 3]));
            comm.barrier().unwrap();
            known_answer(&mut comm).unwrap();
        });
    }
}

pub(crate) fn typed_scope(make: MakeWorld) {
    for n in 1..=4 {
        on_members(make, n, |_, mut comm| {
            let (a, mut b, mut c, mut d) = ([1, 2], [0; 2], [1.5f32; 3], [4]);
            comm.scope(|s| {
                let sum = s.start(Call::all_reduce(&a[..], &mut b[..], ReduceOp::Sum))?;
                std::mem::forget(s.start(Call::all_reduce_in_place(&mut c[..], ReduceOp::Sum))?);
                s.run(Call::barrier())?;
                drop(s.start(Call::all_reduce_in_place(&mut d[..], ReduceOp::Sum))?);
                sum.wait()?[1] += 1;
                Ok(())
            })
            .unwrap();
            let n = n as i32;
            assert_eq!((b, c, d), ([n, 2 * n + 1], [1.5 * n as f32; 3], [4 * n]));
            known_answer(&mut comm).unwrap();
        });
    }
}

/// A panic inside a scope leaves it only when nothing can touch the buffers; the peers do not hang.
pub(crate) fn typed_scope_panics(make: MakeWorld) {
    on_members(make, 2, |_, mut comm| {
        if comm.rank() == 1 {
            let result = known_answer(&mut comm);
            // Whether the peer's part was sent before it gave up depends on the engine.
            assert!(matches!(result, Ok(()) | Err(ErrorKind::Aborted)), "{result:?}");
            return;
        }
        let mut lent = vec![1];
        let panics = catch_unwind(AssertUnwindSafe(|| {
            comm.scope(|s| -> rankwise_core::Result<()> {
                let _sum = s.start(Call::all_reduce_in_place(&mut lent[..], ReduceOp::Sum))?;
                panic!("a bug of the user, on purpose")
            })
        }));
        drop(lent);
        assert!(panics.is_err());
    });
}

/// The deadline holds blocking and in flight, the buffers come back, and the late rank does not hang.
pub(crate) fn typed_timeout(make: MakeWorld) {
    let late = Barrier::new(2);
    on_members(make, 2, |_, mut comm| {
        if comm.rank() == 0 {
            let call = Call::all_reduce(vec![1], vec![0], ReduceOp::Sum).timeout(Duration::from_millis(50));
            let failed = comm.start(call).unwrap().wait().unwrap_err();
            assert_eq!(failed.error().kind(), &ErrorKind::Timeout);
            assert_eq!(failed.into_buffers(), Some((vec![1], vec![0])));
        }
        late.wait();
        assert_eq!(known_answer(&mut comm), Err(ErrorKind::Poisoned));
        let mut buf = [1];
        let result = comm.scope(|s| s.start(Call::all_reduce_in_place(&mut buf, ReduceOp::Sum)).map(drop));
        assert_eq!(result.unwrap_err().kind(), &ErrorKind::Poisoned);
    });
}

pub(crate) fn typed_abort(make: MakeWorld) {
    on_members(make, 3, |_, mut comm| {
        if comm.rank() == 1 {
            let handle = comm.abort_handle();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    handle.abort();
                    handle.abort();
                });
                // Nobody else comes to this: without the abort it would last until the deadline.
                assert_eq!(comm.recv(&mut [0u8], 0).unwrap_err().kind(), &ErrorKind::Aborted);
            });
        } else {
            assert_eq!(known_answer(&mut comm), Err(ErrorKind::Aborted));
        }
        assert_eq!(known_answer(&mut comm), Err(ErrorKind::Poisoned));
    });
}

/// Segments: offered by the toy over direct memory, refused by the others on all ranks.
pub(crate) fn typed_alloc(make: MakeWorld) {
    for n in 1..=3 {
        on_members(make, n, |_, mut comm| {
            if !comm.capabilities().alloc() {
                let error = comm.alloc::<f32>(5).map(drop).unwrap_err();
                assert_eq!(error.kind().name(), "Unsupported");
                return known_answer(&mut comm).unwrap();
            }
            let (mut a, mut b) = (comm.alloc::<f32>(5).unwrap(), comm.alloc::<f32>(5 * n).unwrap());
            assert!(a.iter().chain(b.iter()).all(|x| *x == 0.0));
            for round in 0..20 {
                a.fill(1.0 + round as f32);
                comm.all_reduce_in_place(&mut a, ReduceOp::Sum).unwrap();
                assert!(a.iter().all(|x| *x == n as f32 * (1.0 + round as f32)), "{:?}", &a[..]);
                // Part of a segment, into another one.
                comm.all_gather(&a[1..3], &mut b[..2 * n]).unwrap();
                assert!(b[..2 * n].iter().all(|x| *x == a[0]));
                // Given away and back while in flight.
                let whole = comm.alloc::<f32>(5).unwrap();
                let before = a[0];
                let work = comm.start(Call::all_reduce(a, whole, ReduceOp::Sum)).unwrap();
                a = work.wait().unwrap();
                assert!(a.iter().all(|x| *x == n as f32 * before));
            }
            drop(comm);
            a[0] = 1.0;
        });
    }
}
