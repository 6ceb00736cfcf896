//! Collective memory is found by address.

use crate::fake::{Event, Fake};
use rankwise_core::{Call, Communicator, Group, ReduceOp, SegBuf};
use std::sync::Arc;

fn two() -> (Communicator, Arc<Fake>) {
    let (backend, fake) = Fake::joined(0, 2);
    let comm = backend.world().unwrap();
    fake.events();
    (comm, fake)
}

fn run(comm: &mut Communicator, fake: &Fake, buf: &mut [f32]) -> Option<(u64, usize)> {
    comm.all_reduce_in_place(buf, ReduceOp::Sum).unwrap();
    let seen = fake.only_call();
    assert_eq!(seen.src.segment, seen.dst.segment);
    seen.dst.segment
}

#[test]
fn slices_of_a_segment_name_it() {
    let (mut comm, fake) = two();
    let mut plain = [0.0; 8];
    assert_eq!(run(&mut comm, &fake, &mut plain), None);
    let mut first: SegBuf<f32> = comm.alloc(16).unwrap();
    let mut second: SegBuf<f32> = comm.alloc(16).unwrap();
    assert_eq!(fake.events(), [Event::Alloc(64), Event::Alloc(64)]);
    assert_eq!(*first, [0.0; 16], "zeroed");
    let (id, offset) = run(&mut comm, &fake, &mut first).unwrap();
    assert_eq!(offset, 0);
    assert_eq!(run(&mut comm, &fake, &mut first[3..5]), Some((id, 12)));
    assert_eq!(run(&mut comm, &fake, &mut first[15..]), Some((id, 60)));
    assert_eq!(run(&mut comm, &fake, &mut first[3..3]), None, "no bytes lie nowhere");
    assert_ne!(run(&mut comm, &fake, &mut second).unwrap().0, id);
    assert_eq!(run(&mut comm, &fake, &mut plain), None);
    drop(first);
    assert_eq!(run(&mut comm, &fake, &mut plain), None);
    assert!(run(&mut comm, &fake, &mut second).is_some());
}

#[test]
fn all_handles_of_the_group_know_it_and_other_groups_do_not() {
    let (backend, fake) = Fake::joined(0, 2);
    let mut comm = backend.world().unwrap();
    let mut again = backend.world().unwrap();
    let mut other = backend.communicator(&Group::new([1, 0]).unwrap()).unwrap();
    let mut buf: SegBuf<f32> = comm.alloc(4).unwrap();
    fake.events();
    assert!(run(&mut again, &fake, &mut buf).is_some());
    assert_eq!(run(&mut other, &fake, &mut buf), None);
}

#[test]
fn outlives_its_communicator() {
    let (mut comm, fake) = two();
    let mut buf: SegBuf<u64> = comm.alloc(4).unwrap();
    drop(comm);
    buf[3] = 9;
    drop(fake);
    assert_eq!(*buf, [0, 0, 0, 9]);
}

#[test]
fn owned_in_a_call() {
    let (mut comm, fake) = two();
    let (src, dst): (SegBuf<f32>, SegBuf<f32>) = (comm.alloc(4).unwrap(), comm.alloc(4).unwrap());
    fake.events();
    let work = comm.start(Call::all_reduce(src, dst, ReduceOp::Sum)).unwrap();
    let seen = fake.only_call();
    assert!(seen.src.segment.is_some() && seen.dst.segment.is_some() && seen.src.segment != seen.dst.segment);
    let (src, dst) = work.wait_both().unwrap();
    assert_eq!((src[0], dst[0].to_bits()), (0.0, 0x1111_1111));
}

#[test]
fn nothing_can_be_allocated() {
    let (mut comm, fake) = two();
    let mut buf: SegBuf<f32> = comm.alloc(0).unwrap();
    assert!(buf.is_empty());
    assert_eq!(fake.events(), [Event::Alloc(1)]);
    assert_eq!(run(&mut comm, &fake, &mut buf), None);
}

#[test]
fn moves_between_threads() {
    let (mut comm, _fake) = two();
    let mut buf: SegBuf<u8> = comm.alloc(4).unwrap();
    let buf = std::thread::spawn(move || {
        buf[0] = 1;
        buf
    })
    .join()
    .unwrap();
    assert_eq!(*buf, [1, 0, 0, 0]);
}
