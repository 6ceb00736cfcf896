//! The checks that every toy passes through the backend interface itself.

use super::{KINDS, lock};
use bytemuck::Pod;
use rankwise_core::backend::{CommSpec, Counts, RawBackend, RawBuf, RawCall, RawCommunicator, RawWork};
use rankwise_core::{DType, Determinism, Error, ErrorKind, Group, OpKind, Queue, ReduceOp, Result};
use std::any::Any;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

/// Makes the backends of a world.
pub(crate) type MakeWorld = fn(usize) -> Vec<Arc<dyn RawBackend>>;

/// Far beyond what any check needs: a hang fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn spec(n: usize) -> CommSpec {
    let mut spec = CommSpec::new(Group::world(n));
    spec.check = true;
    spec
}

/// Ends the process when a check hangs in a wait without a deadline, which then can't be a failed assertion.
pub(crate) fn watchdog() -> std::sync::mpsc::Sender<()> {
    let (alive, done) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = done.recv_timeout(4 * LONG) {
            eprintln!("a check of the toy backends hangs; ending the process");
            std::process::exit(101);
        }
    });
    alive
}

/// Runs `f` on a thread for each rank of a fresh world; the panic of one fails the check.
pub(crate) fn on_ranks(make: MakeWorld, n: usize, f: impl Fn(&Arc<dyn RawBackend>) + Sync) {
    let _alive = watchdog();
    let backends = make(n);
    std::thread::scope(|scope| backends.iter().for_each(|backend| drop(scope.spawn(|| f(backend)))));
}

/// As [`on_ranks`], with a communicator of all.
pub(crate) fn on_members(make: MakeWorld, n: usize, f: impl Fn(usize, &dyn RawCommunicator) + Sync) {
    on_ranks(make, n, |backend| f(backend.rank(), &*backend.communicator(&spec(n), LONG).unwrap()));
}

fn input(rank: usize, i: usize) -> i32 {
    ((31 * rank + 7 * i) % 13) as i32
}

pub(crate) fn inputs<T: Number>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| T::from_i32(input(rank, i))).collect()
}

pub(crate) trait Number: Pod + PartialEq + std::fmt::Debug {
    fn from_i32(value: i32) -> Self;
}

impl Number for i32 {
    fn from_i32(value: i32) -> i32 {
        value
    }
}

impl Number for f32 {
    fn from_i32(value: i32) -> f32 {
        value as f32
    }
}

pub(crate) fn buf<T>(slice: &[T]) -> RawBuf {
    if slice.is_empty() { RawBuf::NONE } else { RawBuf::host(slice.as_ptr().cast(), size_of_val(slice)) }
}

pub(crate) fn buf_mut<T>(slice: &mut [T]) -> RawBuf {
    if slice.is_empty() { RawBuf::NONE } else { RawBuf::host(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

/// A call; sums when the kind reduces.
pub(crate) fn call<T: Pod>(kind: OpKind, count: usize, root: usize, src: RawBuf, dst: RawBuf) -> RawCall<'static> {
    let mut call = RawCall::new(kind, DType::of::<T>(), count);
    (call.op, call.root, call.src, call.dst) = (kind.reduces().then_some(ReduceOp::Sum), root, src, dst);
    call
}

/// One sum over all, to see that the communicator works.
pub(crate) fn known_answer(rank: usize, comm: &dyn RawCommunicator) -> Result<()> {
    let (n, src) = (comm.group().len(), [rank as i32 + 1]);
    let mut dst = [0];
    let sum = call::<i32>(OpKind::AllReduce, 1, 0, buf(&src), buf_mut(&mut dst));
    // SAFETY: both arrays live until return, and nobody else uses them.
    unsafe { comm.run(&[sum], LONG) }?;
    assert_eq!(dst[0] as usize, n * (n + 1) / 2);
    Ok(())
}

fn uneven(n: usize, first: usize) -> Vec<usize> {
    (0..n).map(|p| (first + 2 * p) % 4).collect()
}

/// Runs one call of each kind with `count` elements, blocking or started, and compares with what it should give.
fn every_kind<T: Number>(me: usize, comm: &dyn RawCommunicator, count: usize, blocking: bool) {
    let n = comm.group().len();
    let run = |call: RawCall<'_>| {
        // SAFETY: callers below keep the buffers until return, and the work is waited for before.
        unsafe {
            match blocking {
                true => comm.run(&[call], LONG).unwrap(),
                false => comm.start(&[call], Queue::Host, LONG).unwrap().wait(LONG).unwrap(),
            }
        }
    };
    let sum = |i: usize| T::from_i32((0..n).map(|r| input(r, i)).sum());
    let (all, own) = (inputs::<T>(me, n * count), inputs::<T>(me, count));
    let zero = T::zeroed();

    let mut dst = vec![zero; count];
    run(call::<T>(OpKind::AllReduce, count, 0, buf(&own), buf_mut(&mut dst)));
    assert_eq!(dst, (0..count).map(sum).collect::<Vec<_>>());
    let mut dst = own.clone();
    let place = buf_mut(&mut dst);
    run(call::<T>(OpKind::AllReduce, count, 0, place, place));
    assert_eq!(dst, (0..count).map(sum).collect::<Vec<_>>(), "in place");

    let mut dst = vec![zero; n * count];
    run(call::<T>(OpKind::AllGather, count, 0, buf(&own), buf_mut(&mut dst)));
    assert_eq!(dst, (0..n).flat_map(|r| inputs::<T>(r, count)).collect::<Vec<_>>());

    let mut dst = vec![zero; count];
    run(call::<T>(OpKind::ReduceScatter, count, 0, buf(&all), buf_mut(&mut dst)));
    assert_eq!(dst, (me * count..(me + 1) * count).map(sum).collect::<Vec<_>>());

    let mut dst = vec![zero; n * count];
    run(call::<T>(OpKind::AllToAll, count, 0, buf(&all), buf_mut(&mut dst)));
    let part = |r: usize| inputs::<T>(r, n * count)[me * count..(me + 1) * count].to_vec();
    assert_eq!(dst, (0..n).flat_map(part).collect::<Vec<_>>());

    for root in 0..n {
        let mut dst = if me == root { own.clone() } else { vec![zero; count] };
        let place = buf_mut(&mut dst);
        let src = if me == root { place } else { RawBuf::NONE };
        run(call::<T>(OpKind::Broadcast, count, root, src, place));
        assert_eq!(dst, inputs::<T>(root, count), "from {root}");
    }
    run(call::<T>(OpKind::Barrier, 0, 0, RawBuf::NONE, RawBuf::NONE));

    let counts = uneven(n, count);
    let total: usize = counts.iter().sum();
    let own = inputs::<T>(me, counts[me]);
    let mut dst = vec![zero; total];
    let mut gather = call::<T>(OpKind::AllGatherV, 0, 0, buf(&own), buf_mut(&mut dst));
    gather.counts.recv = &counts;
    run(gather);
    assert_eq!(dst, (0..n).flat_map(|r| inputs::<T>(r, counts[r])).collect::<Vec<_>>());

    let start: usize = counts[..me].iter().sum();
    let all = inputs::<T>(me, total);
    let mut dst = vec![zero; counts[me]];
    let mut scatter = call::<T>(OpKind::ReduceScatterV, 0, 0, buf(&all), buf_mut(&mut dst));
    scatter.counts.send = &counts;
    run(scatter);
    assert_eq!(dst, (start..start + counts[me]).map(sum).collect::<Vec<_>>());

    // Rank r sends (r + 2 p) % 4 elements to p.
    let sends = |r: usize| uneven(n, r);
    let src = inputs::<T>(me, sends(me).iter().sum());
    let recvs: Vec<usize> = (0..n).map(|r| sends(r)[me]).collect();
    let mut dst = vec![zero; recvs.iter().sum()];
    let mut exchange = call::<T>(OpKind::AllToAllV, 0, 0, buf(&src), buf_mut(&mut dst));
    let mine = sends(me);
    exchange.counts = Counts { send: &mine, recv: &recvs };
    run(exchange);
    let part = |r: usize| {
        let start: usize = sends(r)[..me].iter().sum();
        inputs::<T>(r, start + recvs[r]).split_off(start)
    };
    assert_eq!(dst, (0..n).flat_map(part).collect::<Vec<_>>());

    let mut dst = vec![zero; count];
    match me {
        0 => run(call::<T>(OpKind::Send, count, n - 1, buf(&inputs::<T>(0, count)), RawBuf::NONE)),
        _ if me == n - 1 => {
            run(call::<T>(OpKind::Recv, count, 0, RawBuf::NONE, buf_mut(&mut dst)));
            assert_eq!(dst, inputs::<T>(0, count));
        }
        _ => {}
    }
}

pub(crate) fn values(make: MakeWorld) {
    for n in 2..=4 {
        on_members(make, n, |me, comm| {
            assert!(KINDS.iter().all(|kind| comm.capabilities().has_kind(*kind)));
            assert!(!comm.capabilities().has_kind(OpKind::Reduce));
            for (count, blocking) in [(0, true), (1, false), (5, true), (5, false), (64, true)] {
                every_kind::<f32>(me, comm, count, blocking);
                every_kind::<i32>(me, comm, count, blocking);
            }
            comm.finalize(LONG).unwrap();
        });
    }
}

/// Several calls as one: of different types, and a ring of sends and receives that would hang one after the other.
pub(crate) fn groups_of_calls(make: MakeWorld) {
    on_members(make, 3, |me, comm| {
        let (a, b) = (inputs::<f32>(me, 4), inputs::<i32>(me, 9));
        let (mut x, mut y, mut got) = (vec![0.0f32; 4], vec![0i32; 9], [0i32]);
        let own = [me as i32];
        let calls = [
            call::<f32>(OpKind::AllReduce, 4, 0, buf(&a), buf_mut(&mut x)),
            call::<i32>(OpKind::AllReduce, 9, 0, buf(&b), buf_mut(&mut y)),
            call::<i32>(OpKind::Send, 1, (me + 1) % 3, buf(&own), RawBuf::NONE),
            call::<i32>(OpKind::Recv, 1, (me + 2) % 3, RawBuf::NONE, buf_mut(&mut got)),
        ];
        // SAFETY: the buffers live until return, and nobody else uses them.
        unsafe { comm.run(&calls, Duration::MAX) }.unwrap();
        let sum = |i| (0..3).map(|r| input(r, i)).sum::<i32>();
        assert_eq!(x, (0..4).map(|i| sum(i) as f32).collect::<Vec<_>>());
        assert_eq!(y, (0..9).map(sum).collect::<Vec<_>>());
        assert_eq!(got, [((me + 2) % 3) as i32]);
    });
}

pub(crate) type Sum = ([i32; 2], [i32; 2]);
pub(crate) type Started = (Box<Mutex<Sum>>, Box<dyn RawWork>);

/// A started sum with the buffers it uses.
pub(crate) fn started(comm: &dyn RawCommunicator, value: i32, deadline: Duration) -> Result<Started> {
    let held = Box::new(Mutex::new(([value, -value], [0; 2])));
    let (src, dst) = {
        let mut sum = lock(&held);
        (buf(&sum.0), buf_mut(&mut sum.1))
    };
    // SAFETY: callers keep the box until the work is idle and look into it only then.
    let work = unsafe { comm.start(&[call::<i32>(OpKind::AllReduce, 2, 0, src, dst)], Queue::Host, deadline) }?;
    Ok((held, work))
}

/// Works of two communicators, waited for in different orders; a blocking call in between must advance them too.
pub(crate) fn works_in_any_order(make: MakeWorld) {
    on_ranks(make, 3, |backend| {
        let (me, world) = (backend.rank(), backend.communicator(&spec(3), LONG).unwrap());
        let turned = CommSpec::new(Group::new([2, 0, 1]).unwrap());
        let other = backend.communicator(&turned, LONG).unwrap();
        let order = if me == 0 { [&world, &other] } else { [&other, &world] };
        let mut works: Vec<_> = (0..6).map(|i| started(&**order[i % 2], (me + i / 2) as i32, LONG).unwrap()).collect();
        known_answer(me, &*world).unwrap();
        if me == 1 {
            works.reverse();
        }
        for (i, (held, work)) in works.iter_mut().enumerate() {
            work.wait(LONG).unwrap();
            assert!(work.test().unwrap(), "stays finished");
            let step = if me == 1 { 5 - i } else { i } as i32 / 2;
            assert_eq!(lock(held).1, [3 + 3 * step, -3 - 3 * step]);
        }
    });
}

/// Making a communicator, and the goodbye, advance what is in flight: peers that wait for it do not hang.
pub(crate) fn whatever_blocks_progresses(make: MakeWorld) {
    on_ranks(make, 3, |backend| {
        let (me, world) = (backend.rank(), backend.communicator(&spec(3), LONG).unwrap());
        let mut again = spec(3);
        again.tag = 1;
        let (held, mut work) = started(&*world, me as i32, LONG).unwrap();
        if me == 1 {
            work.wait(LONG).unwrap();
        }
        let other = backend.communicator(&again, LONG).unwrap();
        work.wait(LONG).unwrap();
        assert_eq!(lock(&held).1, [3, -3]);
        let mut works: Vec<_> = (0..4).map(|i| started(&*other, i, LONG).unwrap()).collect();
        other.finalize(LONG).unwrap();
        for (i, (held, work)) in works.iter_mut().enumerate() {
            assert!(work.test().unwrap(), "the goodbye comes after works in flight");
            assert_eq!(lock(held).1, [3 * i as i32, -3 * i as i32]);
        }
    });
}

/// What the engine keeps when a work is dropped unfinished is freed once it is idle, and the peers get their result.
pub(crate) fn work_dropped_unfinished(make: MakeWorld) {
    struct Freed(#[allow(dead_code)] Box<Mutex<Sum>>, Arc<Mutex<bool>>);
    impl Drop for Freed {
        fn drop(&mut self) {
            *lock(&self.1) = true;
        }
    }
    on_members(make, 2, |me, comm| {
        let freed = Arc::new(Mutex::new(false));
        let (held, mut work) = started(comm, 1, LONG).unwrap();
        match me {
            0 => work.detach(Box::new(Freed(held, Arc::clone(&freed))) as Box<dyn Any + Send>),
            _ => {
                // Rank 0 must be in another call, or nobody advances the dropped one on a transport without a thread.
                work.wait(LONG).unwrap();
                assert_eq!(lock(&held).1, [2, -2]);
            }
        }
        known_answer(me, comm).unwrap();
        let until = Instant::now() + LONG;
        while me == 0 && !*lock(&freed) {
            assert!(Instant::now() < until, "the engine keeps the buffers for ever");
            std::thread::yield_now();
        }
    });
}

fn first_cause(error: &Error) -> ErrorKind {
    assert_eq!(error.kind(), &ErrorKind::Poisoned);
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<Error>());
    cause.expect("a poisoned call names the first cause").kind().clone()
}

pub(crate) fn timeout(make: MakeWorld) {
    let late = Barrier::new(3);
    on_members(make, 3, |me, comm| {
        if me != 2 {
            let (src, mut dst) = ([1], [-1]);
            let sum = call::<i32>(OpKind::AllReduce, 1, 0, buf(&src), buf_mut(&mut dst));
            let (deadline, begin) = (Duration::from_millis(150), Instant::now());
            // SAFETY: the arrays live until return, and nobody else uses them.
            let error = unsafe { comm.run(&[sum], deadline) }.unwrap_err();
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::Timeout, &[2][..]));
            // The other rank may have begun, and so given up, a little earlier.
            assert!(begin.elapsed() >= deadline / 10);
            assert_eq!(dst, [-1]);
        }
        late.wait();
        assert_eq!(first_cause(&known_answer(me, comm).unwrap_err()), ErrorKind::Timeout);
    });
}

pub(crate) fn abort(make: MakeWorld) {
    on_members(make, 3, |me, comm| match me {
        0 => {
            std::thread::sleep(Duration::from_millis(30));
            std::thread::scope(|scope| drop(scope.spawn(|| comm.abort())));
            comm.abort();
            let errors = [0, 1].map(|_| known_answer(me, comm).unwrap_err());
            assert_eq!((errors[0].kind(), errors[0].peers()), (&ErrorKind::Aborted, &[0][..]));
            assert_eq!(first_cause(&errors[1]), ErrorKind::Aborted);
        }
        _ => {
            let error = known_answer(me, comm).unwrap_err();
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::Aborted, &[0][..]));
            assert_eq!(first_cause(&known_answer(me, comm).unwrap_err()), ErrorKind::Aborted);
        }
    });
}

/// A work that can't finish is cancelled; its memory is free at once, and the communicator broken on all members.
pub(crate) fn cancel(make: MakeWorld) {
    let done = Barrier::new(2);
    on_members(make, 2, |me, comm| {
        if me == 0 {
            let (mut held, mut work) = started(comm, 5, LONG).unwrap();
            assert!(!work.test().unwrap());
            assert!(work.cancel());
            *held = Mutex::default();
            assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::Aborted);
            drop((work, held));
        }
        done.wait();
        if me == 1 {
            assert_eq!(known_answer(me, comm).unwrap_err().kind(), &ErrorKind::Aborted);
        }
        assert_eq!(first_cause(&known_answer(me, comm).unwrap_err()), ErrorKind::Aborted);
    });
}

/// The work's own deadline holds, whatever the wait allows; and a wait's deadline holds for a work that has more time.
pub(crate) fn deadlines_of_works(make: MakeWorld) {
    const SHORT: Duration = Duration::from_millis(60);
    for (of_work, of_wait) in [(SHORT, LONG), (LONG, SHORT), (SHORT, Duration::MAX)] {
        let done = Barrier::new(2);
        on_members(make, 2, |me, comm| {
            if me == 0 {
                let (held, mut work) = started(comm, 5, of_work).unwrap();
                assert_eq!(work.wait(of_wait).unwrap_err().kind(), &ErrorKind::Timeout);
                assert!(work.cancel());
                assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::Timeout, "an error is final");
                assert_eq!(lock(&held).1, [0, 0]);
                assert_eq!(first_cause(&known_answer(me, comm).unwrap_err()), ErrorKind::Timeout);
            }
            done.wait();
        });
    }
    // Also for who only tests.
    let done = Barrier::new(2);
    on_members(make, 2, |me, comm| {
        if me == 0 {
            let (held, mut work) = started(comm, 5, SHORT).unwrap();
            let (begin, mut result) = (Instant::now(), Ok(false));
            while let Ok(false) = result {
                assert!(begin.elapsed() < LONG, "a test past the deadline goes on");
                std::thread::yield_now();
                result = work.test();
            }
            assert_eq!(result.unwrap_err().kind(), &ErrorKind::Timeout);
            assert!(begin.elapsed() >= SHORT / 2 && work.cancel());
            assert_eq!(lock(&held).1, [0, 0]);
        }
        done.wait();
    });
}

pub(crate) fn registration(make: MakeWorld) {
    let failed = Barrier::new(3);
    on_ranks(make, 3, |backend| {
        let tuple = if backend.rank() == 2 { vec![2, 1, 0] } else { vec![0, 1, 2] };
        let odd = CommSpec::new(Group::new(tuple).unwrap());
        let deadline = Duration::from_millis(if backend.rank() == 0 { 200 } else { 400 });
        let Err(error) = backend.communicator(&odd, deadline) else { panic!("members with different tuples met") };
        assert_eq!(error.kind(), &ErrorKind::Timeout);
        if backend.rank() == 0 {
            assert_eq!(error.peers(), [2]);
            assert!(error.message().contains("(2,1,0)"), "{error}");
        }
        failed.wait();
        // A failed attempt does not disturb the next one of the same group.
        known_answer(backend.rank(), &*backend.communicator(&spec(3), LONG).unwrap()).unwrap();
        let mut fixed = spec(3);
        (fixed.determinism, fixed.tag) = (Determinism::Fixed, 1);
        match backend.capabilities().determinism() {
            Determinism::Fixed => drop(backend.communicator(&fixed, LONG).unwrap()),
            _ => {
                let refused = backend.communicator(&fixed, LONG).err().expect("not offered");
                assert_eq!(refused.kind(), &ErrorKind::UnsupportedMode);
            }
        }
    });
}
