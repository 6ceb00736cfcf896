//! The user's trait: shapes in, shapes out.

use crate::fake::{Event, Fake, capabilities};
use rankwise_core::{
    Backend, CommBackend, DType, ErrorKind, Group, OpKind, ReduceOp, Settings, Tensor, TensorMut, TensorRef,
};
use std::sync::Arc;

/// Rank 1 of three, registered.
fn three() -> (Backend, Group, Arc<Fake>) {
    let (backend, fake) = Fake::joined(1, 3);
    let group = Group::world(3);
    backend.register(&group).unwrap();
    fake.events();
    (backend, group, fake)
}

/// Member r sends `100 * r + x` for every x of this rank's.
fn each_its_own(fake: &Fake) {
    fake.answer(|call| {
        let count = call.src.bytes / 4;
        for r in 0..call.dst.bytes / call.src.bytes {
            for i in 0..count {
                // SAFETY: both are i32 within their lengths.
                unsafe {
                    let x = call.src.ptr.cast::<i32>().add(i).read_unaligned();
                    call.dst.ptr.cast::<i32>().add(r * count + i).write_unaligned(100 * r as i32 + x);
                }
            }
        }
        Ok(())
    });
}

fn kind<T: std::fmt::Debug>(result: rankwise_core::Result<T>) -> ErrorKind {
    result.unwrap_err().kind().clone()
}

#[test]
fn all_gather_along_every_dimension() {
    let (backend, group, fake) = three();
    each_its_own(&fake);
    let (shape, n) = ([2, 3, 2], 3);
    let data: Vec<i32> = (0..12).collect();
    let tensor = TensorRef::from_slice(&data, &shape).unwrap();
    for dim in -3..3_isize {
        let axis = dim.rem_euclid(3) as usize;
        let out = backend.all_gather(tensor, &group, dim).unwrap();
        let mut expected_shape = shape;
        expected_shape[axis] *= n;
        assert_eq!(out.shape(), expected_shape);
        let values = out.as_slice::<i32>().unwrap();
        let [a, b, c] = expected_shape;
        for (i, value) in values.iter().enumerate() {
            let mut index = [i / (b * c), i / c % b, i % c];
            assert!(index[0] < a);
            let r = index[axis] / shape[axis];
            index[axis] %= shape[axis];
            let x = (index[0] * 3 + index[1]) * 2 + index[2];
            assert_eq!(*value, (100 * r + x) as i32, "dim {dim}, element {i}");
        }
    }
    assert_eq!(fake.events().len(), 6, "one call each");
}

#[test]
fn bad_dimensions() {
    let (backend, group, fake) = three();
    let tensor = TensorRef::from_slice(&[0_i32; 4], &[2, 2]).unwrap();
    for dim in [2, -3, isize::MAX, isize::MIN] {
        assert_eq!(kind(backend.all_gather(tensor, &group, dim)), ErrorKind::InvalidArgument);
    }
    let scalar = TensorRef::from_slice(&[1_i32], &[]).unwrap();
    assert_eq!(kind(backend.all_gather(scalar, &group, 0)), ErrorKind::InvalidArgument);
    assert_eq!(kind(backend.reduce_scatter(scalar, &group)), ErrorKind::InvalidArgument);
    assert_eq!(kind(backend.token_all_gather(scalar, &group, &[1, 1, 1])), ErrorKind::InvalidArgument);
    assert_eq!(kind(backend.token_reduce_scatter(scalar, &group, &[1, 0, 0])), ErrorKind::InvalidArgument);
    let events = fake.events();
    assert_eq!(events.len(), 8);
    assert!(events.iter().all(|event| matches!(event, Event::Reject { calls: 1, .. })), "{events:?}");
    assert_eq!(backend.all_reduce(scalar, &group, ReduceOp::Sum).unwrap().shape(), [0; 0]);
}

#[test]
fn shapes_of_results() {
    let (backend, group, fake) = three();
    let tensor = TensorRef::from_slice(&[0.0_f32; 24], &[6, 4]).unwrap();
    assert_eq!(backend.all_reduce(tensor, &group, ReduceOp::Sum).unwrap().shape(), [6, 4]);
    assert_eq!(backend.all_gather(tensor, &group, 0).unwrap().shape(), [18, 4]);
    assert_eq!(backend.reduce_scatter(tensor, &group).unwrap().shape(), [2, 4]);
    assert_eq!(backend.token_all_gather(tensor, &group, &[0, 6, 1]).unwrap().shape(), [7, 4]);
    assert_eq!(backend.token_reduce_scatter(tensor, &group, &[1, 5, 0]).unwrap().shape(), [5, 4]);
    assert_eq!(backend.gather(tensor, &group, 1).unwrap().unwrap().shape(), [18, 4]);
    assert!(backend.gather(tensor, &group, 0).unwrap().is_none());
    assert_eq!(backend.reduce(tensor, &group, ReduceOp::Max, 1).unwrap().unwrap().shape(), [6, 4]);
    assert!(backend.reduce(tensor, &group, ReduceOp::Max, 2).unwrap().is_none());
    assert_eq!(backend.all_gather_v(tensor, &group, &[0, 24, 2]).unwrap().shape(), [26]);
    assert_eq!(backend.reduce_scatter_v(tensor, &group, &[20, 4, 0], ReduceOp::Sum).unwrap().shape(), [4]);
    assert_eq!(fake.events().len(), 11);
}

#[test]
fn rows_must_fit() {
    let (backend, group, fake) = three();
    let tensor = TensorRef::from_slice(&[0.0_f32; 12], &[4, 3]).unwrap();
    let refusal = |result: rankwise_core::Result<Tensor>| {
        let error = result.unwrap_err();
        let events = fake.events();
        assert!(matches!(events[..], [Event::Reject { calls: 1, .. }]), "{events:?}");
        (error.kind().clone(), error.message().to_string())
    };
    // 12 elements divide by three, four rows don't.
    let (why, text) = refusal(backend.reduce_scatter(tensor, &group));
    assert!(why == ErrorKind::InvalidArgument && text.contains("4 rows"), "{text}");
    let (why, text) = refusal(backend.token_all_gather(tensor, &group, &[1, 3, 1]));
    assert!(why == ErrorKind::InvalidArgument && text.contains("4 rows") && text.contains('3'), "{text}");
    let (why, text) = refusal(backend.token_reduce_scatter(tensor, &group, &[1, 3, 1]));
    assert!(why == ErrorKind::InvalidArgument && text.contains("4 rows") && text.contains('5'), "{text}");
    let (why, text) = refusal(backend.token_all_gather(tensor, &group, &[0, 4]));
    assert!(why == ErrorKind::InvalidArgument && text.contains('2') && text.contains('3'), "{text}");
    let (why, _) = refusal(backend.token_all_gather(tensor, &group, &[usize::MAX, 4, 1]));
    assert_eq!(why, ErrorKind::CountTooLarge);
    // No columns: lengths in elements are all zero, the rows still count.
    let empty = TensorRef::new(DType::F32, &[4, 0], &[]).unwrap();
    assert_eq!(refusal(backend.token_all_gather(empty, &group, &[1, 3, 1])).0, ErrorKind::InvalidArgument);
    assert_eq!(backend.token_all_gather(empty, &group, &[1, 4, 1]).unwrap().shape(), [6, 0]);
}

#[test]
fn nothing_is_ordinary() {
    let (backend, group, _fake) = three();
    let empty = TensorRef::new(DType::F32, &[0, 4], &[]).unwrap();
    assert_eq!(backend.all_reduce(empty, &group, ReduceOp::Sum).unwrap().shape(), [0, 4]);
    assert_eq!(backend.all_gather(empty, &group, 1).unwrap().shape(), [0, 12]);
    assert_eq!(backend.reduce_scatter(empty, &group).unwrap().shape(), [0, 4]);
    assert_eq!(backend.token_all_gather(empty, &group, &[0, 0, 0]).unwrap().shape(), [0, 4]);
    assert_eq!(backend.token_reduce_scatter(empty, &group, &[0, 0, 0]).unwrap().shape(), [0, 4]);
    let columns = TensorRef::new(DType::F32, &[2, 0, 3], &[]).unwrap();
    assert_eq!(backend.all_gather(columns, &group, -1).unwrap().shape(), [2, 0, 9]);
}

#[test]
fn into_the_callers_buffers() {
    let (backend, group, fake) = three();
    let (input, mut output) = ([1_u16, 2], [0_u16; 6]);
    let tensor = TensorRef::from_slice(&input, &[2]).unwrap();
    backend.all_gather_into_tensor(TensorMut::from_slice(&mut output, &[6]).unwrap(), tensor, &group).unwrap();
    assert_eq!(output, [1, 2, 1, 2, 1, 2]);
    backend.all_gather_in_place(TensorMut::from_slice(&mut output, &[3, 2]).unwrap(), &group).unwrap();
    backend.all_reduce_in_place(TensorMut::from_slice(&mut output, &[6]).unwrap(), &group, ReduceOp::Sum).unwrap();
    let six = [3_u16; 6];
    let source = TensorRef::from_slice(&six, &[6]).unwrap();
    backend.all_to_all_single(TensorMut::from_slice(&mut output, &[6]).unwrap(), source, &group).unwrap();
    backend
        .all_reduce_into_tensor(TensorMut::from_slice(&mut output, &[6]).unwrap(), source, &group, ReduceOp::Sum)
        .unwrap();
    assert_eq!(output, six);
    fake.events();
    let mut other = [0_i16; 6];
    let wrong_type = TensorMut::from_slice(&mut other, &[6]).unwrap();
    assert_eq!(kind(backend.all_gather_into_tensor(wrong_type, tensor, &group)), ErrorKind::InvalidArgument);
    let too_short = TensorMut::from_slice(&mut output[..5], &[5]).unwrap();
    assert_eq!(kind(backend.all_gather_into_tensor(too_short, tensor, &group)), ErrorKind::InvalidArgument);
    assert!(fake.events().iter().all(|event| matches!(event, Event::Reject { kind: OpKind::AllGather, .. })));
}

#[test]
fn several_tensors_are_one_call() {
    let (backend, group, fake) = three();
    let (a, b) = ([1.0_f32, 2.0], [3_i64]);
    let list = [TensorRef::from_slice(&a, &[2]).unwrap(), TensorRef::from_slice(&b, &[1, 1]).unwrap()];
    let out = backend.all_reduce_tensors(&list, &group, ReduceOp::Sum).unwrap();
    assert_eq!((out[0].as_slice::<f32>().unwrap(), out[1].as_slice::<i64>().unwrap()), (&a[..], &b[..]));
    let events = fake.events();
    assert!(matches!(&events[..], [Event::Run(calls)] if calls.len() == 2), "{events:?}");
    assert_eq!(kind(backend.all_reduce_tensors(&[], &group, ReduceOp::Sum)), ErrorKind::InvalidArgument);
    fake.events();
    assert_eq!(kind(backend.all_reduce_tensors(&list, &group, ReduceOp::Avg)), ErrorKind::UnsupportedOp);
    assert!(matches!(fake.events()[..], [Event::Reject { calls: 2, .. }]));
}

#[test]
fn outputs_in_collective_memory() {
    let (backend, group, fake) = three();
    let like = [TensorRef::from_slice(&[0.0_f32; 6], &[2, 3]).unwrap()];
    let mut out = backend.acquire_all_reduce_outputs(&like, &group).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0; 6]);
    fake.events();
    backend.all_reduce_in_place(out[0].as_mut(), &group, ReduceOp::Sum).unwrap();
    assert!(fake.only_call().dst.segment.is_some());
    let tensor = backend.alloc(DType::BF16, &[2, 2], &group).unwrap();
    assert_eq!((tensor.dtype(), tensor.bytes().len()), (DType::BF16, 8));
    // Without collective memory: ordinary outputs, no communication; alloc says so.
    let (backend, fake) = Fake::with(1, 3, capabilities().with_nonblocking(true, false), Settings::default());
    backend.register(&group).unwrap();
    fake.events();
    assert_eq!(backend.acquire_all_reduce_outputs(&like, &group).unwrap()[0].shape(), [2, 3]);
    assert_eq!(fake.events(), []);
    assert!(matches!(kind(backend.alloc(DType::F32, &[1], &group)), ErrorKind::Unsupported { .. }));
}

#[test]
fn object_safe_and_complete() {
    let (backend, group, fake) = three();
    let shared: Arc<dyn CommBackend> = Arc::new(backend);
    assert_eq!((shared.rank(), shared.world_size()), (1, 3));
    let (one, mut three) = ([1_u8], [0_u8; 3]);
    let tensor = TensorRef::from_slice(&one, &[1]).unwrap();
    shared.barrier(&group).unwrap();
    shared.send(tensor, &group, 0).unwrap();
    shared.recv(TensorMut::from_slice(&mut three, &[3]).unwrap(), &group, 2).unwrap();
    shared.broadcast(TensorMut::from_slice(&mut three, &[3]).unwrap(), &group, 1).unwrap();
    shared.broadcast_bytes(&mut vec![1, 2], &group, 1).unwrap();
    shared.scatter(None, TensorMut::from_slice(&mut three, &[3]).unwrap(), &group, 0).unwrap();
    shared
        .all_to_all_v(TensorMut::from_slice(&mut three, &[3]).unwrap(), tensor, &group, &[1, 0, 0], &[2, 0, 1])
        .unwrap();
    assert!(shared.split(&group, Some(1), 0).unwrap().is_some());
    assert_eq!(shared.shrink(&group).unwrap().size(), 2);
    shared.abort(&group).unwrap();
    assert!(shared.group_capabilities(&group).unwrap().has_kind(OpKind::Send));
    assert!(!fake.events().iter().any(|event| matches!(event, Event::Reject { .. })));
}

#[test]
fn views_are_checked() {
    let bytes = [0_u8; 24];
    assert!(TensorRef::new(DType::F32, &[2, 3], &bytes).is_ok());
    for shape in [&[7][..], &[2, 2], &[]] {
        assert_eq!(kind(TensorRef::new(DType::F32, shape, &bytes)), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(TensorRef::new(DType::F32, &[usize::MAX, 2], &bytes)), ErrorKind::CountTooLarge);
    assert_eq!(kind(TensorRef::new(DType::F64, &[usize::MAX / 4], &bytes)), ErrorKind::CountTooLarge);
    assert_eq!(kind(TensorRef::new(DType::Opaque, &[24], &bytes)), ErrorKind::InvalidArgument);
    assert_eq!(kind(TensorRef::from_slice(&[(); 3], &[3])), ErrorKind::InvalidArgument);
    let strided = |shape: &'static [usize], strides: &[usize]| {
        TensorRef::with_strides(DType::F32, shape, strides, &[0; 24]).map(|tensor| tensor.shape())
    };
    assert_eq!(strided(&[2, 3], &[3, 1]).unwrap(), [2, 3]);
    assert_eq!(strided(&[6, 1], &[1, 99]).unwrap(), [6, 1], "the stride of one element is never used");
    assert_eq!(kind(strided(&[3, 2], &[1, 3])), ErrorKind::InvalidArgument);
    assert_eq!(kind(strided(&[2, 3], &[4, 1])), ErrorKind::InvalidArgument);
    assert_eq!(kind(strided(&[2, 3], &[3])), ErrorKind::InvalidArgument);
    assert!(TensorRef::with_strides(DType::F32, &[0, 3], &[7, 7], &[]).is_ok());
    let mut bytes = bytes;
    assert!(TensorMut::with_strides(DType::F32, &[3, 2], &[1, 3], &mut bytes).is_err());
}

#[test]
fn owned_tensors() {
    let mut tensor = Tensor::from_slice(&[1.5_f32, 2.5], &[2, 1]).unwrap();
    assert_eq!(tensor.bytes().as_ptr() as usize % 64, 0);
    assert_eq!(kind(tensor.as_slice::<i32>()), ErrorKind::InvalidArgument);
    assert_eq!(kind(tensor.as_slice::<[u8; 4]>()), ErrorKind::InvalidArgument);
    tensor.as_mut_slice::<f32>().unwrap()[0] = 9.0;
    assert_eq!(tensor.as_ref().shape(), [2, 1]);
    let tensor = tensor.reshaped(&[1, 2]).unwrap();
    assert_eq!(tensor.into_vec::<f32>().unwrap(), [9.0, 2.5]);
    assert!(Tensor::zeroed(DType::F32, &[3]).unwrap().reshaped(&[2]).is_err());
    assert_eq!(kind(Tensor::zeroed(DType::U8, &[usize::MAX])), ErrorKind::NoMemory { need: u64::MAX, limit: 0 });
    assert_eq!(Tensor::zeroed(DType::I8, &[0]).unwrap().bytes(), []);
    let pairs = Tensor::from_slice(&[[1_u8, 2], [3, 4]], &[2]).unwrap();
    assert_eq!(pairs.dtype(), DType::Opaque);
    assert_eq!(pairs.as_slice::<[u8; 2]>().unwrap(), [[1, 2], [3, 4]]);
}
