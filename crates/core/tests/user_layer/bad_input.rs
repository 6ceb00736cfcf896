//! Every wrong argument is refused before anything moves, peers are told, and the communicator stays usable.

use crate::fake::{Event, Fake, capabilities};
use bytemuck::{Pod, Zeroable};
use rankwise_core::{Call, Communicator, ErrorKind, OpKind, Part, ReduceOp, Result, Settings};

/// Rank 1 of three.
fn three() -> (Communicator, std::sync::Arc<Fake>) {
    let (backend, fake) = Fake::joined(1, 3);
    let comm = backend.world().unwrap();
    fake.events();
    (comm, fake)
}

/// Makes the call, expects the error and that peers learn of it, then that the communicator still works.
fn refused(kind: OpKind, why: ErrorKind, words: &[&str], call: impl FnOnce(&mut Communicator) -> Result<()>) {
    let (mut comm, fake) = three();
    let error = call(&mut comm).unwrap_err();
    assert_eq!(error.kind(), &why, "{error}");
    assert_eq!(error.operation(), Some(kind), "{error}");
    assert_eq!((error.group(), error.rank()), (Some(comm.group()), Some(1)), "{error}");
    for word in words {
        assert!(error.message().contains(word), "{error} does not say {word:?}");
    }
    assert_eq!(fake.events(), [Event::Reject { kind, peer: None, why, calls: 1 }], "{error}");
    let mut sum = [0.0_f32];
    comm.all_reduce(&[1.0], &mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(fake.only_call().kind, OpKind::AllReduce);
}

use ErrorKind::{CountTooLarge, InvalidArgument};
const SUM: ReduceOp = ReduceOp::Sum;

#[test]
fn lengths() {
    refused(OpKind::AllReduce, InvalidArgument, &["4", "3"], |c| c.all_reduce(&[0_i32; 4], &mut [0; 3], SUM));
    refused(OpKind::AllGather, InvalidArgument, &["5", "6", "2"], |c| c.all_gather(&[0_u8; 2], &mut [0; 5]));
    refused(OpKind::AllGather, InvalidArgument, &["7", "3"], |c| c.all_gather_in_place(&mut [0_u8; 7]));
    refused(OpKind::ReduceScatter, InvalidArgument, &["7", "6"], |c| c.reduce_scatter(&[0_i32; 7], &mut [0; 2], SUM));
    refused(OpKind::ReduceScatter, InvalidArgument, &["8", "3"], |c| c.reduce_scatter_in_place(&mut [0_i32; 8], SUM));
    refused(OpKind::AllToAll, InvalidArgument, &["6", "9"], |c| c.all_to_all(&[0_u8; 6], &mut [0; 9]));
    refused(OpKind::AllToAll, InvalidArgument, &["8", "3"], |c| c.all_to_all(&[0_u8; 8], &mut [0; 8]));
    refused(OpKind::Reduce, InvalidArgument, &["2", "1"], |c| c.reduce(&[0_i32; 2], Some(&mut [0]), SUM, 1));
    refused(OpKind::Gather, InvalidArgument, &["5", "6"], |c| c.gather(&[0_u8; 2], Some(&mut [0; 5]), 1));
    refused(OpKind::Scatter, InvalidArgument, &["5", "6"], |c| c.scatter(Some(&[0_u8; 5]), &mut [0; 2], 1));
}

#[test]
fn roots_and_peers() {
    refused(OpKind::Broadcast, InvalidArgument, &["root 3", "3"], |c| c.broadcast(&mut [0_u8; 2], 3));
    refused(OpKind::Broadcast, InvalidArgument, &["root 9"], |c| c.broadcast_bytes(&mut vec![1], 9));
    refused(OpKind::Reduce, InvalidArgument, &["root"], |c| c.reduce(&[0_i32], None, SUM, usize::MAX));
    refused(OpKind::Gather, InvalidArgument, &["root"], |c| c.gather(&[0_u8], None, 3));
    refused(OpKind::Scatter, InvalidArgument, &["root"], |c| c.scatter(None, &mut [0_u8], 3));
    refused(OpKind::GatherV, InvalidArgument, &["root"], |c| c.gather_v(&[0_u8], None, &[1, 1, 1], 3));
    refused(OpKind::ScatterV, InvalidArgument, &["root"], |c| c.scatter_v(None, &mut [0_u8], &[1, 1, 1], 4));
    refused(OpKind::Send, InvalidArgument, &["itself"], |c| c.send(&[0_u8], 1));
    refused(OpKind::Recv, InvalidArgument, &["itself"], |c| c.recv(&mut [0_u8], 1));
    refused(OpKind::Send, InvalidArgument, &["destination 3"], |c| c.send(&[0_u8], 3));
    refused(OpKind::Recv, InvalidArgument, &["source 7"], |c| c.recv(&mut [0_u8], 7));
}

#[test]
fn the_peer_of_a_refused_send_is_named() {
    let table = capabilities().without_kind(OpKind::Send);
    let (backend, fake) = Fake::with(1, 3, table, Settings::default());
    let mut comm = backend.world().unwrap();
    fake.events();
    assert_eq!(comm.send(&[0_u8], 2).unwrap_err().kind(), &ErrorKind::UnsupportedOp);
    let why = ErrorKind::UnsupportedOp;
    assert_eq!(fake.events(), [Event::Reject { kind: OpKind::Send, peer: Some(2), why, calls: 1 }]);
}

#[test]
fn buffers_at_the_root_only() {
    refused(OpKind::Reduce, InvalidArgument, &["Some"], |c| c.reduce(&[0_i32], None, SUM, 1));
    refused(OpKind::Reduce, InvalidArgument, &["None"], |c| c.reduce(&[0_i32], Some(&mut [0]), SUM, 0));
    refused(OpKind::Gather, InvalidArgument, &["Some"], |c| c.gather(&[0_u8], None, 1));
    refused(OpKind::Gather, InvalidArgument, &["None"], |c| c.gather(&[0_u8], Some(&mut [0; 3]), 2));
    refused(OpKind::Scatter, InvalidArgument, &["Some"], |c| c.scatter(None, &mut [0_u8], 1));
    refused(OpKind::Scatter, InvalidArgument, &["None"], |c| c.scatter(Some(&[0_u8; 3]), &mut [0], 0));
    refused(OpKind::GatherV, InvalidArgument, &["Some"], |c| c.gather_v(&[0_u8], None, &[1, 1, 1], 1));
    refused(OpKind::ScatterV, InvalidArgument, &["Some"], |c| c.scatter_v(None, &mut [0_u8], &[1, 1, 1], 1));
}

#[test]
fn counts() {
    refused(OpKind::AllGatherV, InvalidArgument, &["2", "3"], |c| c.all_gather_v(&[0_u8], &mut [0; 2], &[1, 1]));
    refused(OpKind::AllGatherV, InvalidArgument, &["2", "1", "counts[1]"], |c| {
        c.all_gather_v(&[0_u8; 2], &mut [0; 3], &[1, 1, 1])
    });
    refused(OpKind::AllGatherV, InvalidArgument, &["4", "3", "sum"], |c| {
        c.all_gather_v(&[0_u8], &mut [0; 4], &[1, 1, 1])
    });
    refused(OpKind::ReduceScatterV, InvalidArgument, &["5", "6", "sum"], |c| {
        c.reduce_scatter_v(&[0_i32; 5], &mut [0; 2], &[1, 2, 3], SUM)
    });
    refused(OpKind::ReduceScatterV, InvalidArgument, &["1", "2", "counts[1]"], |c| {
        c.reduce_scatter_v(&[0_i32; 6], &mut [0; 1], &[1, 2, 3], SUM)
    });
    refused(OpKind::AllToAllV, InvalidArgument, &["4", "3", "send"], |c| {
        c.all_to_all_v(&[0_u8; 4], &[1; 4], &mut [0; 3], &[1; 3])
    });
    refused(OpKind::AllToAllV, InvalidArgument, &["0", "3", "receive"], |c| {
        c.all_to_all_v(&[0_u8; 3], &[1; 3], &mut [0; 3], &[])
    });
    refused(OpKind::AllToAllV, InvalidArgument, &["2 elements", "receives 1", "position 1"], |c| {
        c.all_to_all_v(&[0_u8; 4], &[1, 2, 1], &mut [0; 3], &[1; 3])
    });
    refused(OpKind::GatherV, InvalidArgument, &["2", "1"], |c| c.gather_v(&[0_u8; 2], None, &[1; 3], 0));
    refused(OpKind::ScatterV, InvalidArgument, &["2", "1"], |c| c.scatter_v(None, &mut [0_u8; 2], &[1; 3], 0));
    refused(OpKind::AllGatherV, CountTooLarge, &[], |c| c.all_gather_v(&[0_u8], &mut [0], &[usize::MAX, 1, 1]));
}

#[test]
fn tokens() {
    // Rows of two elements: three rows given, one counted.
    refused(OpKind::AllGatherV, InvalidArgument, &["3 rows of 2", "1 rows"], |c| {
        c.token_all_gather(&[0_u8; 6], &mut [0; 8], 2, &[2, 1, 1])
    });
    // Three elements are no whole number of rows.
    refused(OpKind::AllGatherV, InvalidArgument, &["3 elements"], |c| {
        c.token_all_gather(&[0_u8; 3], &mut [0; 8], 2, &[2, 1, 1])
    });
    refused(OpKind::ReduceScatterV, InvalidArgument, &["4 rows of 2", "5 rows"], |c| {
        c.token_reduce_scatter(&[0_i32; 8], &mut [0; 2], 2, &[2, 1, 2], SUM)
    });
    refused(OpKind::AllGatherV, CountTooLarge, &[], |c| {
        c.token_all_gather(&[0_u8; 2], &mut [0; 8], usize::MAX / 2, &[2, 1, 1])
    });
}

#[test]
fn types_and_operators() {
    refused(OpKind::AllReduce, ErrorKind::UnsupportedOp, &["avg", "i32"], |c| {
        c.all_reduce_in_place(&mut [0_i32; 2], ReduceOp::Avg)
    });
    refused(OpKind::Reduce, ErrorKind::UnsupportedOp, &["premulsum"], |c| {
        c.reduce(&[0_u8], None, ReduceOp::PreMulSum(2.0), 0)
    });
    refused(OpKind::ReduceScatter, ErrorKind::UnsupportedOp, &["bxor", "f64"], |c| {
        c.reduce_scatter(&[0.0_f64; 3], &mut [0.0], ReduceOp::BXor)
    });
    refused(OpKind::AllReduce, ErrorKind::UnsupportedDtype, &["i16"], |c| c.all_reduce_in_place(&mut [0_i16], SUM));
}

#[test]
fn sizes() {
    // The table says 1 MiB a buffer.
    let big = vec![0_u64; (1 << 17) + 1];
    refused(OpKind::AllReduce, CountTooLarge, &["131073", "1048576"], |c| {
        c.all_reduce(&big, &mut vec![0; big.len()], SUM)
    });
    // The root's buffer would be too large; the others refuse alike.
    refused(OpKind::Gather, CountTooLarge, &[], |c| c.gather(&big[..1 << 16], None, 0));
    refused(OpKind::Broadcast, CountTooLarge, &["1048577"], |c| c.broadcast_bytes(&mut vec![0; (1 << 20) + 1], 1));
    let nothing = vec![(); usize::MAX];
    refused(OpKind::AllGather, CountTooLarge, &[], |c| c.all_gather(&nothing, &mut [(); 8]));
    let (mut comm, fake) = three();
    comm.broadcast(&mut vec![0_u8; 1 << 20], 0).unwrap();
    assert_eq!(fake.only_call().count, 1 << 20);
}

#[test]
fn lengths_from_a_peer_are_bounded() {
    for (length, max, why) in [
        ((1 << 20) + 1, 1 << 20, CountTooLarge),
        (isize::MAX as u64 + 1, u64::MAX, ErrorKind::NoMemory { need: isize::MAX as u64 + 1, limit: 0 }),
    ] {
        let (backend, fake) = Fake::with(1, 3, capabilities().with_max_bytes(max), Settings::default());
        let mut comm = backend.world().unwrap();
        fake.answer(move |call| {
            let bytes = u64::to_le_bytes(length);
            assert_eq!((call.dst.bytes, call.tag != 0), (8, true));
            // SAFETY: the destination has eight bytes.
            unsafe { call.dst.ptr.copy_from(bytes.as_ptr(), 8) };
            Ok(())
        });
        let mut bytes = vec![5];
        let error = comm.broadcast_bytes(&mut bytes, 0).unwrap_err();
        assert_eq!(error.kind(), &why, "{error}");
        let events = fake.events();
        assert_eq!(events.last(), Some(&Event::Reject { kind: OpKind::Broadcast, peer: None, why, calls: 1 }));
    }
}

#[test]
fn several_at_once() {
    let (mut comm, fake) = three();
    let error = comm.all_reduce_many(&mut []).unwrap_err();
    assert_eq!(error.kind(), &InvalidArgument);
    assert_eq!(fake.events(), [Event::Reject { kind: OpKind::AllReduce, peer: None, why: InvalidArgument, calls: 1 }]);
    let (mut a, mut b, mut c) = ([0.0_f32; 2], [0_i32; 3], [0_u8; 1]);
    let mut parts =
        [Part::new(&[1.0, 2.0], &mut a, SUM), Part::new(&[1; 4], &mut b, SUM), Part::in_place(&mut c, ReduceOp::Max)];
    let error = comm.all_reduce_many(&mut parts).unwrap_err();
    assert_eq!(error.kind(), &InvalidArgument);
    assert_eq!(fake.events(), [Event::Reject { kind: OpKind::AllReduce, peer: None, why: InvalidArgument, calls: 3 }]);
}

#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Wide([u8; 128]);
// SAFETY: bytes without padding.
unsafe impl Zeroable for Wide {}
// SAFETY: bytes without padding.
unsafe impl Pod for Wide {}

#[test]
fn allocations() {
    refused(OpKind::Alloc, InvalidArgument, &["128"], |c| c.alloc::<Wide>(1).map(drop));
    refused(OpKind::Alloc, CountTooLarge, &["1048576"], |c| c.alloc::<f64>((1 << 17) + 1).map(drop));
    refused(OpKind::Alloc, CountTooLarge, &[], |c| c.alloc::<f64>(usize::MAX).map(drop));
}

#[test]
fn what_the_backend_lacks() {
    let table = capabilities().with_nonblocking(false, false).without_kind(OpKind::AllToAll);
    let (backend, fake) = Fake::with(1, 3, table, Settings::default());
    let mut comm = backend.world().unwrap();
    fake.events();
    let error = comm.start(Call::all_reduce_in_place(vec![1.0_f32], SUM)).map(drop).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::UnsupportedMode);
    let scoped = comm.scope(|s| s.start(Call::all_reduce_in_place(vec![1.0_f32], SUM)).map(drop)).unwrap_err();
    assert_eq!(scoped.kind(), &ErrorKind::UnsupportedMode);
    let error = comm.alloc::<u8>(1).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
    let error = comm.all_to_all(&[0_u8; 3], &mut [0; 3]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::UnsupportedOp);
    let rejected: Vec<OpKind> = fake
        .events()
        .into_iter()
        .map(|event| match event {
            Event::Reject { kind, calls: 1, .. } => kind,
            other => panic!("{other:?} reached the engine"),
        })
        .collect();
    assert_eq!(rejected, [OpKind::AllReduce, OpKind::AllReduce, OpKind::Alloc, OpKind::AllToAll]);
}
