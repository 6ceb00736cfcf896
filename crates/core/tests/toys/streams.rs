//! What only a stream-ordered backend can do: enqueued, finished, waited and ordered are four different moments.

use super::spi::{LONG, buf_mut, call, spec};
use super::{direct, lock, stream, transport};
use rankwise_core::backend::{RawBuf, RawCall, RawCommunicator};
use rankwise_core::{ErrorKind, OpKind, Queue};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One number on the heap that streams and host look at in turn.
type Cell = Arc<Mutex<[i32; 1]>>;

fn cell(value: i32) -> Cell {
    Arc::new(Mutex::new([value]))
}

fn sum_in_place(cell: &Cell) -> RawCall<'static> {
    let place: RawBuf = buf_mut(&mut *lock(cell));
    call::<i32>(OpKind::AllReduce, 1, 0, place, place)
}

fn on_devices(n: usize, f: impl Fn(usize, &dyn RawCommunicator, &stream::Device) + Sync) {
    let _alive = super::spi::watchdog();
    let world = stream::world_with_devices(n);
    std::thread::scope(|scope| {
        for (backend, device) in &world {
            let f = &f;
            scope.spawn(move || f(backend.rank(), &*backend.communicator(&spec(n), LONG).unwrap(), device));
        }
    });
}

pub(crate) fn enqueued_is_not_finished() {
    on_devices(3, |me, comm, device| {
        let (s, value, (open, gate)) = (device.stream(), cell(0), channel::<()>());
        // The producer of the input is itself only enqueued, and held back.
        let input = Arc::clone(&value);
        device.enqueue(s, move || {
            gate.recv_timeout(LONG).expect("the host opens the gate");
            *lock(&input) = [me as i32 + 1];
        });
        // SAFETY: the cell outlives the stream's work: `synchronize` below waits for it.
        let mut work = unsafe { comm.start(&[sum_in_place(&value)], Queue::Stream(s), LONG) }.unwrap();
        assert_eq!(*lock(&value), [0], "returned is not finished");
        assert!(!work.test().unwrap(), "nor is it waited for");
        let (seen, consumer) = (cell(0), Arc::clone(&value));
        let sees = Arc::clone(&seen);
        device.enqueue(s, move || *lock(&sees) = *lock(&consumer));
        open.send(()).unwrap();
        device.synchronize(s);
        assert_eq!((*lock(&value), *lock(&seen)), ([6], [6]), "stream order carries input, sum and output");
        assert!(work.test().unwrap(), "the host can learn it without a wait");
    });
}

pub(crate) fn order_between_streams() {
    on_devices(2, |me, comm, device| {
        let (s, t, value, (open, gate)) = (device.stream(), device.stream(), cell(me as i32 + 1), channel::<()>());
        device.enqueue(s, move || gate.recv_timeout(LONG).expect("the host opens the gate"));
        // SAFETY: the cell outlives the work, which is waited for below.
        let mut work = unsafe { comm.start(&[sum_in_place(&value)], Queue::Stream(s), LONG) }.unwrap();
        work.order(Queue::Stream(t)).unwrap();
        let (seen, consumer) = (cell(-1), Arc::clone(&value));
        let sees = Arc::clone(&seen);
        device.enqueue(t, move || *lock(&sees) = *lock(&consumer));
        assert!(!work.test().unwrap(), "ordered is not waited");
        assert_eq!(*lock(&seen), [-1], "the other stream waits");
        // A host call overtakes the stream's: it is later in number, so this needs a stream of its own.
        let other = cell(10);
        // SAFETY: the cell outlives the call, which is finished on return.
        unsafe { comm.run(&[sum_in_place(&other)], LONG) }.unwrap();
        assert_eq!(*lock(&other), [20]);
        open.send(()).unwrap();
        work.order(Queue::Host).unwrap();
        assert!(work.test().unwrap());
        device.synchronize(t);
        assert_eq!(*lock(&seen), [3]);
    });
}

pub(crate) fn cancelled_before_its_turn() {
    on_devices(2, |me, comm, device| {
        if me == 1 {
            return;
        }
        let (s, value, (open, gate)) = (device.stream(), cell(5), channel::<()>());
        device.enqueue(s, move || gate.recv_timeout(LONG).expect("the host opens the gate"));
        // SAFETY: the cell outlives the work, which is cancelled below.
        let mut work = unsafe { comm.start(&[sum_in_place(&value)], Queue::Stream(s), LONG) }.unwrap();
        assert!(work.cancel());
        // Idle although the stream still has it: the memory may go.
        drop(value);
        assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::Aborted);
        open.send(()).unwrap();
        device.synchronize(s);
    });
}

/// The deadline counts from the start, not from the turn on the stream.
pub(crate) fn late_for_its_turn() {
    on_devices(2, |me, comm, device| {
        let (s, value, (open, gate)) = (device.stream(), cell(5), channel::<()>());
        device.enqueue(s, move || gate.recv_timeout(LONG).expect("the host opens the gate"));
        let deadline = Duration::from_millis(50);
        // SAFETY: the cell outlives the work, which has failed and is cancelled below.
        let mut work = unsafe { comm.start(&[sum_in_place(&value)], Queue::Stream(s), deadline) }.unwrap();
        let (begin, mut result) = (Instant::now(), Ok(false));
        while let Ok(false) = result {
            assert!(begin.elapsed() < LONG, "neither a wait nor a test ends at the deadline");
            result = if me == 0 { work.wait(Duration::MAX).map(|()| true) } else { work.test() };
        }
        assert_eq!(result.unwrap_err().kind(), &ErrorKind::Timeout);
        assert!(work.cancel());
        open.send(()).unwrap();
        device.synchronize(s);
        assert_eq!(*lock(&value), [5]);
    });
}

/// The goodbye waits for works on every stream.
pub(crate) fn goodbye_after_streams() {
    on_devices(2, |me, comm, device| {
        let (s, value, (open, gate)) = (device.stream(), cell(me as i32 + 1), channel::<()>());
        device.enqueue(s, move || gate.recv_timeout(LONG).expect("somebody opens the gate"));
        // SAFETY: the cell outlives the work, which the goodbye waits for.
        let mut work = unsafe { comm.start(&[sum_in_place(&value)], Queue::Stream(s), LONG) }.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                open.send(()).expect("the gate is still there");
            });
            comm.finalize(LONG).unwrap();
        });
        assert!(work.test().unwrap());
        assert_eq!(*lock(&value), [3]);
    });
}

/// Each rank's wrong stream is its own mistake: peers learn of it, and the communicator goes on.
pub(crate) fn refused() {
    for (make, expected) in [
        (direct::world as super::spi::MakeWorld, ErrorKind::UnsupportedMode),
        (transport::world, ErrorKind::UnsupportedMode),
        (stream::world, ErrorKind::InvalidArgument),
    ] {
        super::spi::on_ranks(make, 2, |backend| {
            let comm = backend.communicator(&spec(2), LONG).unwrap();
            let value = cell(1);
            if backend.rank() == 0 {
                // SAFETY: refused, so the memory is not touched.
                let refused = unsafe { comm.start(&[sum_in_place(&value)], Queue::Stream(99), LONG) };
                assert_eq!(refused.err().expect("there is no such stream").kind(), &expected);
            } else {
                // SAFETY: the cell outlives the call, which is over on return.
                let error = unsafe { comm.run(&[sum_in_place(&value)], LONG) }.unwrap_err();
                assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerRejected, &[0][..]));
            }
            // SAFETY: as above.
            unsafe { comm.run(&[sum_in_place(&value)], LONG) }.unwrap();
            assert_eq!(*lock(&value), [2]);
        });
    }
}
