//! What reaches the engine for a call that passes the checks.

use crate::fake::{Event, Fake, Seen};
use rankwise_core::{Call, Communicator, DType, OpKind, Part, ReduceOp};
use std::sync::Arc;
use std::time::Duration;

/// Rank 1 of three.
fn three() -> (Communicator, Arc<Fake>) {
    let (backend, fake) = Fake::joined(1, 3);
    let comm = backend.world().unwrap();
    fake.events();
    (comm, fake)
}

fn sides(seen: &Seen) -> ((usize, usize), (usize, usize)) {
    ((seen.src.address, seen.src.bytes), (seen.dst.address, seen.dst.bytes))
}

fn at<T>(slice: &[T]) -> (usize, usize) {
    (slice.as_ptr() as usize, size_of_val(slice))
}

#[test]
fn out_of_place() {
    let (mut comm, fake) = three();
    let (src, mut dst) = ([1.0_f32, 2.0], [0.0; 2]);
    comm.all_reduce(&src, &mut dst, ReduceOp::Max).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.kind, seen.dtype, seen.elem_size, seen.count), (OpKind::AllReduce, DType::F32, 4, 2));
    assert_eq!((seen.op, seen.tag, seen.root), (Some(ReduceOp::Max), 0, 0));
    assert_eq!(sides(&seen), (at(&src), at(&dst)));
    assert_eq!(dst, src);

    let mut all = [0.0_f32; 6];
    comm.all_gather(&src, &mut all).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.kind, seen.count, seen.op), (OpKind::AllGather, 2, None));
    assert_eq!(sides(&seen), (at(&src), at(&all)));

    comm.reduce_scatter(&all, &mut dst, ReduceOp::Sum).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.kind, seen.count), (OpKind::ReduceScatter, 2));
    assert_eq!(sides(&seen), (at(&all), at(&dst)));

    let mut turned = [0.0_f32; 6];
    comm.all_to_all(&all, &mut turned).unwrap();
    assert_eq!(fake.only_call().count, 2);
}

#[test]
fn in_place_uses_the_own_slot() {
    let (mut comm, fake) = three();
    let mut buf = [0_u32; 6];
    comm.all_gather_in_place(&mut buf).unwrap();
    assert_eq!(sides(&fake.only_call()), (at(&buf[2..4]), at(&buf)));
    comm.reduce_scatter_in_place(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(sides(&fake.only_call()), (at(&buf), at(&buf[2..4])));
    comm.all_reduce_in_place(&mut buf, ReduceOp::BOr).unwrap();
    assert_eq!(sides(&fake.only_call()), (at(&buf), at(&buf)));
}

#[test]
fn rooted() {
    let (mut comm, fake) = three();
    let (small, mut big) = ([1_u16; 2], [0_u16; 6]);
    let mut own = [0_u16; 2];
    comm.broadcast(&mut big, 1).unwrap();
    assert_eq!(sides(&fake.only_call()), (at(&big), at(&big)));
    comm.broadcast(&mut big, 0).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.src.bytes, sides(&seen).1, seen.count, seen.root), (0, at(&big), 6, 0));
    comm.reduce(&small, Some(&mut own), ReduceOp::Sum, 1).unwrap();
    assert_eq!(sides(&fake.only_call()), (at(&small), at(&own)));
    comm.reduce(&small, None, ReduceOp::Sum, 2).unwrap();
    assert_eq!(fake.only_call().dst.bytes, 0);
    comm.gather(&small, Some(&mut big), 1).unwrap();
    assert_eq!(sides(&fake.only_call()), (at(&small), at(&big)));
    comm.gather(&small, None, 0).unwrap();
    assert_eq!(fake.only_call().count, 2);
    comm.scatter(Some(&big), &mut own, 1).unwrap();
    assert_eq!(sides(&fake.only_call()), (at(&big), at(&own)));
    comm.scatter(None, &mut own, 0).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.src.bytes, seen.count), (0, 2));
}

#[test]
fn uneven() {
    let (mut comm, fake) = three();
    let mut dst = [0_u8; 12];
    comm.all_gather_v(&[1; 2], &mut dst[..3], &[0, 2, 1]).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.kind, seen.count, seen.recv, seen.send), (OpKind::AllGatherV, 0, vec![0, 2, 1], vec![]));
    // Tokens reach the engine as elements.
    comm.token_all_gather(&[1; 8], &mut dst, 4, &[0, 2, 1]).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.recv, seen.send), (vec![0, 8, 4], vec![]));
    comm.token_reduce_scatter(&dst, &mut [0; 8], 4, &[0, 2, 1], ReduceOp::Sum).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.kind, seen.send, seen.recv), (OpKind::ReduceScatterV, vec![0, 8, 4], vec![]));
    comm.all_to_all_v(&[0_u8; 3], &[1, 2, 0], &mut dst[..7], &[5, 2, 0]).unwrap();
    let seen = fake.only_call();
    assert_eq!((seen.send, seen.recv), (vec![1, 2, 0], vec![5, 2, 0]));
    comm.gather_v(&[0_u8; 2], Some(&mut dst[..3]), &[0, 2, 1], 1).unwrap();
    assert_eq!(fake.only_call().recv, [0, 2, 1]);
    comm.scatter_v(None, &mut dst[..2], &[0, 2, 1], 0).unwrap();
    assert_eq!(fake.only_call().send, [0, 2, 1]);
}

#[test]
fn nothing_is_ordinary() {
    let (mut comm, fake) = three();
    let none: [f32; 0] = [];
    comm.all_reduce(&none, &mut [], ReduceOp::Sum).unwrap();
    comm.all_gather(&none, &mut []).unwrap();
    comm.reduce_scatter(&none, &mut [], ReduceOp::Sum).unwrap();
    comm.all_to_all(&none, &mut []).unwrap();
    comm.broadcast::<f32>(&mut [], 0).unwrap();
    comm.token_all_gather(&none, &mut [], 0, &[3, 2, 1]).unwrap();
    comm.token_all_gather(&none, &mut [], 4, &[0, 0, 0]).unwrap();
    comm.all_gather_v(&[(); 2], &mut [(); 6], &[3, 2, 1]).unwrap();
    comm.all_gather(&[(); 2], &mut [(); 6]).unwrap();
    comm.send(&none, 0).unwrap();
    let events = fake.events();
    assert_eq!(events.len(), 10);
    for event in events {
        let Event::Run(calls) = event else { panic!("{event:?}") };
        let call = &calls[0];
        assert_eq!((call.count, call.src.bytes, call.dst.bytes), (0, 0, 0), "{call:?}");
        assert!(call.elem_size > 0 && call.recv.iter().all(|count| *count == 0), "{call:?}");
    }
}

#[test]
fn several_run_as_one() {
    let (mut comm, fake) = three();
    for parts in [1, 3, 8, 9, 40] {
        let mut buffers: Vec<Vec<f32>> = (0..parts).map(|i| vec![i as f32; i]).collect();
        let mut list: Vec<Part<'_>> = buffers.iter_mut().map(|b| Part::in_place(b, ReduceOp::Sum)).collect();
        comm.all_reduce_many(&mut list).unwrap();
        let events = fake.events();
        let [Event::Run(calls)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(calls.iter().map(|call| call.count).collect::<Vec<_>>(), (0..parts).collect::<Vec<_>>());
    }
}

#[test]
fn deadlines() {
    let (mut comm, fake) = three();
    comm.barrier().unwrap();
    assert_eq!(fake.only_call().deadline, Duration::from_secs(300));
    comm.set_timeout(Duration::from_secs(7));
    comm.barrier().unwrap();
    assert_eq!(fake.only_call().deadline, Duration::from_secs(7));
    comm.run(Call::barrier().timeout(Duration::from_millis(5))).unwrap();
    assert_eq!(fake.only_call().deadline, Duration::from_millis(5));
}

#[test]
fn bytes_of_unknown_length() {
    let (mut comm, fake) = three();
    let mut bytes = b"abc".to_vec();
    comm.broadcast_bytes(&mut bytes, 1).unwrap();
    let tags: Vec<(u32, usize)> = fake
        .events()
        .iter()
        .map(|event| match event {
            Event::Run(calls) => (calls[0].tag, calls[0].count),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tags, [(1, 8), (2, 3)]);
    assert_eq!(bytes, b"abc");
}

#[test]
fn borrowed_forms_of_owned_buffers() {
    let (mut comm, fake) = three();
    let (source, mut result) = (vec![3_i64; 2], vec![0_i64; 2]);
    comm.run(Call::all_reduce(&source, &mut result, ReduceOp::Sum)).unwrap();
    assert_eq!(result, source);
    let mut array = [0_i64; 2];
    comm.run(Call::all_reduce(&[7, 8], &mut array, ReduceOp::Sum)).unwrap();
    assert_eq!(array, [7, 8]);
    assert_eq!(fake.events().len(), 2);
}
