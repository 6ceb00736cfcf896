//! Registration, handles of one group, and the end of a communicator.

use crate::fake::{Event, Fake};
use rankwise_core::{CommBackend, ErrorKind, Group, OpKind, ReduceOp, TensorRef};
use std::sync::mpsc;
use std::time::Duration;

fn group(ranks: &[usize]) -> Group {
    Group::new(ranks.iter().copied()).unwrap()
}

fn kind<T>(result: rankwise_core::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.kind().clone(),
    }
}

#[test]
fn registering() {
    let (backend, fake) = Fake::joined(1, 3);
    assert_eq!(kind(backend.register(&group(&[0, 1, 3]))), ErrorKind::InvalidArgument);
    assert_eq!(kind(backend.register(&group(&[0, 2]))), ErrorKind::NotMember);
    assert_eq!(fake.events(), []);
    let pair = group(&[1, 0]);
    assert!(!backend.is_registered(&pair));
    backend.register(&pair).unwrap();
    backend.register(&group(&[1, 0])).unwrap();
    assert!(backend.is_registered(&pair) && !backend.is_registered(&group(&[0, 1])));
    let comm = backend.communicator(&pair).unwrap();
    assert_eq!((comm.rank(), comm.global_rank(), comm.size()), (0, 1, 2));
    assert_eq!(fake.events(), [Event::Communicator { group: "(1,0)".into(), tag: 0 }], "registered once");
    backend.register(&group(&[0, 1])).unwrap();
    assert_eq!(
        fake.events(),
        [Event::Communicator { group: "(0,1)".into(), tag: 0 }],
        "the other order is another group"
    );
}

#[test]
fn calls_by_group_need_registration() {
    let (backend, fake) = Fake::joined(1, 3);
    let data = [1.0_f32];
    let tensor = TensorRef::from_slice(&data, &[1]).unwrap();
    let error = backend.all_reduce(tensor, &group(&[0, 1]), ReduceOp::Sum).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::UnknownGroup);
    assert_eq!(error.operation(), Some(OpKind::AllReduce));
    assert_eq!(kind(backend.all_reduce(tensor, &group(&[0, 2]), ReduceOp::Sum)), ErrorKind::NotMember);
    assert_eq!(kind(backend.barrier(&group(&[1]))), ErrorKind::UnknownGroup);
    assert_eq!(fake.events(), []);
    CommBackend::register(&backend, &group(&[1])).unwrap();
    backend.barrier(&group(&[1])).unwrap();
    assert_eq!(fake.events(), []);
}

#[test]
fn a_second_call_at_a_time_is_busy() {
    let (backend, fake) = Fake::joined(0, 2);
    let mut first = backend.world().unwrap();
    let mut second = backend.world().unwrap();
    let mut other = backend.communicator(&group(&[1, 0])).unwrap();
    let (entered, is_entered) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    fake.answer(move |_| {
        let _ = entered.send(());
        may_leave.recv_timeout(Duration::from_secs(60)).map_err(|_| panic!("never released"))
    });
    std::thread::scope(|s| {
        s.spawn(move || first.barrier().unwrap());
        is_entered.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(kind(second.barrier()), ErrorKind::Busy);
        assert_eq!(kind(backend.barrier(&Group::world(2))), ErrorKind::Busy);
        assert_eq!(kind(second.split(Some(0), 0)), ErrorKind::Busy);
        other.barrier().unwrap();
        leave.send(()).unwrap();
    });
    second.set_timeout(Duration::from_secs(1));
    fake.answer(|_| Ok(()));
    second.barrier().unwrap();
    assert!(!fake.events().iter().any(|event| matches!(event, Event::Reject { .. })), "Busy is no rejection");
}

#[test]
fn closed_after_finalize() {
    let (backend, fake) = Fake::joined(0, 2);
    let first = backend.world().unwrap();
    let mut second = backend.world().unwrap();
    first.finalize().unwrap();
    assert_eq!(fake.events().last(), Some(&Event::Finalize));
    assert_eq!(kind(second.barrier()), ErrorKind::Closed);
    assert_eq!(kind(second.alloc::<u8>(1)), ErrorKind::Closed);
    assert_eq!(kind(second.split(None, 0)), ErrorKind::Closed);
    assert_eq!(kind(backend.barrier(&Group::world(2))), ErrorKind::Closed);
    assert_eq!(kind(backend.world().unwrap().barrier()), ErrorKind::Closed);
    assert_eq!(kind(second.finalize()), ErrorKind::Closed);
    assert_eq!(fake.events(), []);
}

#[test]
fn engine_errors_get_their_context() {
    let (backend, fake) = Fake::joined(1, 2);
    let mut comm = backend.world().unwrap();
    fake.answer(|_| Err(rankwise_core::Error::new(ErrorKind::PeerLost, "rank 0 died").with_peers([0])));
    let error = comm.all_gather(&[1_u8], &mut [0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "all_gather on group (0,1) at rank 1 failed with PeerLost: rank 0 died");
}

#[test]
fn the_registry_keeps_a_group_as_long_as_anything_uses_the_backend() {
    let (backend, fake) = Fake::joined(0, 2);
    let comm = backend.world().unwrap();
    let abort = comm.abort_handle();
    fake.events();
    drop(comm);
    assert_eq!(fake.events(), []);
    let comm = backend.world().unwrap();
    drop(backend);
    assert_eq!(fake.events(), []);
    abort.abort();
    assert_eq!(fake.events(), [Event::Abort]);
    drop(comm);
    assert_eq!(fake.events(), [Event::Dropped("(0,1)".into())]);
    abort.abort();
    assert_eq!(fake.events(), []);
}

#[test]
fn a_forked_child_is_refused() {
    let (backend, fake) = Fake::joined(0, 2);
    let mut comm = backend.world().unwrap();
    let work = comm.start(rankwise_core::Call::all_reduce_in_place(vec![0_u8; 4], ReduceOp::Sum)).unwrap();
    fake.events();
    // SAFETY: the child only uses what this thread owns, and leaves by _exit.
    match unsafe { libc::fork() } {
        -1 => panic!("fork failed"),
        0 => {
            let refused = comm.barrier().is_err_and(|e| e.kind() == &ErrorKind::ForkedProcess);
            let unregistered = backend.register(&group(&[1, 0])).is_err_and(|e| e.kind() == &ErrorKind::ForkedProcess);
            let waited = work.wait().is_err_and(|e| e.error().kind() == &ErrorKind::ForkedProcess);
            comm.abort();
            drop((comm, backend));
            let silent = fake.events().is_empty();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(if refused && unregistered && waited && silent { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for our own child; `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
            comm.barrier().unwrap();
            work.wait().unwrap();
        }
    }
}
