//! Buffers in flight: nothing frees or shows memory that the engine may still touch.

use crate::fake::{Event, Fake, WorkPlan, lock};
use rankwise_core::{Call, Communicator, Error, ErrorKind, OnStuck, ReduceOp, Result, Settings};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const DONE: u32 = 0x1111_1111;
const SUM: ReduceOp = ReduceOp::Sum;

fn two() -> (Communicator, Arc<Fake>) {
    two_with(OnStuck::Exit)
}

fn two_with(on_stuck: OnStuck) -> (Communicator, Arc<Fake>) {
    let mut settings = Settings::default();
    settings.on_stuck = on_stuck;
    let (backend, fake) = Fake::with(0, 2, crate::fake::capabilities(), settings);
    let comm = backend.world().unwrap();
    fake.events();
    (comm, fake)
}

fn failing(kinds: &[ErrorKind], cancellable: bool) -> WorkPlan {
    WorkPlan { failures: kinds.to_vec(), cancellable, finished: false }
}

#[test]
fn wait_gives_the_buffers_back() {
    let (mut comm, fake) = two();
    let mut work = comm.start(Call::all_reduce(vec![1_u32; 3], vec![0; 3], SUM)).unwrap();
    assert!(!work.test().unwrap());
    let (src, dst) = work.wait_both().unwrap();
    assert_eq!((src, dst), (vec![1; 3], vec![DONE; 3]));
    let work = comm.start(Call::all_reduce_in_place(vec![0_u32; 2], SUM)).unwrap();
    assert_eq!(std::thread::spawn(|| work.wait().unwrap()).join().unwrap(), [DONE; 2]);
    assert!(!fake.events().iter().any(|event| matches!(event, Event::Detach | Event::Cancel)));
}

#[test]
fn tested_until_finished() {
    let (mut comm, fake) = two();
    fake.plan(WorkPlan { finished: true, ..WorkPlan::default() });
    let mut work = comm.start(Call::all_reduce_in_place(vec![0_u32; 2], SUM)).unwrap();
    assert!(work.test().unwrap() && work.test().unwrap());
    assert_eq!(work.wait().unwrap(), [DONE; 2]);
}

#[test]
fn dropped_unfinished_goes_to_the_engine() {
    let (mut comm, fake) = two();
    let buf = vec![0_u32; 4];
    let address = buf.as_ptr() as usize;
    drop(comm.start(Call::all_reduce(vec![1; 4], buf, SUM)).unwrap());
    assert_eq!(fake.events().last(), Some(&Event::Detach));
    drop(comm);
    // The engine finishes later; the memory is still there.
    let (target, owned) = lock(&fake.detached).pop().unwrap();
    target.write();
    drop(owned);
    assert_ne!(address, 0);
}

#[test]
fn forgotten_work_leaks_its_buffers() {
    let (mut comm, fake) = two();
    let work = comm.start(Call::all_reduce_in_place(vec![0_u32; 4], SUM)).unwrap();
    std::mem::forget(work);
    assert_eq!(fake.events().len(), 1);
}

#[test]
fn a_stopped_work_gives_its_buffers_back() {
    let (mut comm, fake) = two();
    fake.plan(failing(&[ErrorKind::Timeout], true));
    let work = comm.start(Call::all_reduce(vec![1_u32], vec![0], SUM)).unwrap();
    let failed = work.wait().unwrap_err();
    assert_eq!(failed.error().kind(), &ErrorKind::Timeout);
    assert_eq!(failed.error().rank(), Some(0));
    assert_eq!(failed.into_buffers(), Some((vec![1], vec![0])));
}

#[test]
fn a_work_that_cannot_be_stopped_keeps_them() {
    let (mut comm, fake) = two();
    fake.plan(failing(&[ErrorKind::Timeout], false));
    let work = comm.start(Call::all_reduce(vec![1_u32], vec![0], SUM)).unwrap();
    let failed = work.wait().unwrap_err();
    assert!(!failed.has_buffers());
    assert_eq!(fake.events()[1..], [Event::Cancel, Event::Detach]);
    lock(&fake.detached)[0].0.write();
    let error: Error = failed.into();
    assert_eq!(error.kind(), &ErrorKind::Timeout);
}

#[test]
fn a_failure_is_final() {
    let (mut comm, fake) = two();
    fake.plan(failing(&[ErrorKind::PeerLost], true));
    let mut work = comm.start(Call::all_reduce_in_place(vec![0_u32; 2], SUM)).unwrap();
    assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::PeerLost);
    assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::PeerLost);
    assert_eq!(work.wait().unwrap_err().error().kind(), &ErrorKind::PeerLost);
}

#[test]
fn wait_fits_the_question_mark() {
    fn sum(comm: &mut Communicator) -> Result<Vec<u32>> {
        let work = comm.start(Call::all_reduce_in_place(vec![0_u32; 2], SUM))?;
        Ok(work.wait()?)
    }
    assert_eq!(sum(&mut two().0).unwrap(), [DONE; 2]);
}

#[test]
fn counts_may_be_gone_after_start() {
    let (mut comm, _fake) = two();
    let work = {
        let counts = vec![1, 2];
        comm.start(Call::all_gather_v(vec![0_u32], vec![0; 3], &counts)).unwrap()
    };
    assert_eq!(work.wait().unwrap(), [DONE; 3]);
}

#[test]
fn scope_finishes_what_was_not_waited_for() {
    let (mut comm, _fake) = two();
    let (src, mut a, mut b) = ([1_u32; 2], [0_u32; 2], vec![0_u32; 2]);
    let answer = comm
        .scope(|s| {
            let first = s.start(Call::all_reduce(&src, &mut a, SUM))?;
            let _unused = s.start(Call::all_reduce_in_place(&mut b, SUM))?;
            s.run(Call::barrier())?;
            let a = first.wait()?;
            assert_eq!(*a, [DONE; 2]);
            a[0] = 5;
            Ok(42)
        })
        .unwrap();
    assert_eq!((answer, a, b), (42, [5, DONE], vec![DONE; 2]));
}

#[test]
fn scope_survives_forgotten_handles() {
    let (mut comm, _fake) = two();
    let mut buf = [0_u32; 2];
    comm.scope(|s| {
        std::mem::forget(s.start(Call::all_reduce_in_place(&mut buf, SUM))?);
        drop(s.start(Call::all_reduce_in_place(vec![0_u32; 9], SUM))?);
        Ok(())
    })
    .unwrap();
    assert_eq!(buf, [DONE; 2], "finished before scope returned");
}

#[test]
fn scope_returns_the_error_of_a_work_nobody_waited_for() {
    let (mut comm, fake) = two();
    fake.plan(failing(&[ErrorKind::PeerLost], true));
    let mut buf = [0_u32; 2];
    let error = comm.scope(|s| s.start(Call::all_reduce_in_place(&mut buf, SUM)).map(drop)).unwrap_err();
    assert_eq!((error.kind(), error.rank()), (&ErrorKind::PeerLost, Some(0)));
    // One that was waited for and handled is no error of the scope.
    comm.scope(|s| {
        let work = s.start(Call::all_reduce_in_place(&mut buf, SUM))?;
        assert!(work.wait().is_err_and(|failed| failed.has_buffers()));
        Ok(())
    })
    .unwrap();
    // One that was only tested is final too.
    comm.scope(|s| {
        let mut work = s.start(Call::all_reduce_in_place(&mut buf, SUM))?;
        assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::PeerLost);
        assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::PeerLost);
        assert_eq!(work.wait().unwrap_err().error().kind(), &ErrorKind::PeerLost);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_panic_stops_the_works_first() {
    let (mut comm, fake) = two();
    fake.plan(failing(&[], true));
    let mut buf = [0_u32; 2];
    let panic = catch_unwind(AssertUnwindSafe(|| {
        comm.scope(|s| {
            let _work = s.start(Call::all_reduce_in_place(&mut buf, SUM))?;
            if s.run(Call::barrier()).is_ok() {
                panic!("in the closure");
            }
            Ok(())
        })
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"in the closure"));
    assert_eq!(fake.events().last(), Some(&Event::Cancel));
    comm.barrier().unwrap();
}

#[test]
fn stuck_and_waiting() {
    let (mut comm, fake) = two_with(OnStuck::Wait);
    fake.plan(failing(&[ErrorKind::Timeout, ErrorKind::Timeout], false));
    let mut buf = [0_u32; 2];
    let error = comm
        .scope(|s| {
            let work = s.start(Call::all_reduce_in_place(&mut buf, SUM))?;
            let failed = work.wait().unwrap_err();
            assert!(!failed.has_buffers(), "the engine holds them");
            Err::<(), _>(failed.into())
        })
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Timeout);
    assert_eq!(buf, [DONE; 2], "the scope waited for the engine");
}

const CHILD: &str = "RANKWISE_TEST_STUCK_CHILD";

#[test]
fn stuck_and_exiting() {
    if std::env::var_os(CHILD).is_some() {
        let (mut comm, fake) = two();
        fake.plan(failing(&[ErrorKind::Timeout], false));
        let mut buf = [0_u32; 2];
        let _ = comm.scope(|s| s.start(Call::all_reduce_in_place(&mut buf, SUM)).map(drop));
        unreachable!("the scope must not return while the engine holds its buffer");
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "in_flight::stuck_and_exiting", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(70), "{text}");
    assert!(text.contains("all_reduce on group (0,1) at rank 0 failed with Timeout"), "{text}");
    assert!(text.contains("RANKWISE_ON_STUCK"), "{text}");
}
