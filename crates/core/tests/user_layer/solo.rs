//! A group of one validates, copies, and never reaches the engine.

use crate::fake::{Fake, capabilities};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use rankwise_core::{Call, Communicator, Elem, ErrorKind, Group, Part, ReduceOp, Settings};
use std::sync::Arc;

fn alone() -> (Communicator, Arc<Fake>) {
    let (backend, fake) = Fake::joined(2, 4);
    (backend.communicator(&Group::new([2]).unwrap()).unwrap(), fake)
}

#[test]
fn copies() {
    let (mut comm, fake) = alone();
    assert_eq!((comm.rank(), comm.global_rank(), comm.size()), (0, 2, 1));
    let (src, mut dst) = ([1_i32, -2, 3], [0; 3]);
    comm.barrier().unwrap();
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::BXor] {
        dst = [0; 3];
        comm.all_reduce(&src, &mut dst, op).unwrap();
        assert_eq!(dst, src, "{op}");
    }
    let mut clear = || std::mem::take(&mut dst);
    let check = |dst: [i32; 3]| assert_eq!(dst, src);
    let mut dst = clear();
    comm.all_gather(&src, &mut dst).unwrap();
    check(std::mem::take(&mut dst));
    comm.reduce_scatter(&src, &mut dst, ReduceOp::Sum).unwrap();
    check(std::mem::take(&mut dst));
    comm.all_to_all(&src, &mut dst).unwrap();
    check(std::mem::take(&mut dst));
    comm.reduce(&src, Some(&mut dst), ReduceOp::Sum, 0).unwrap();
    check(std::mem::take(&mut dst));
    comm.gather(&src, Some(&mut dst), 0).unwrap();
    check(std::mem::take(&mut dst));
    comm.scatter(Some(&src), &mut dst, 0).unwrap();
    check(std::mem::take(&mut dst));
    comm.all_to_all_v(&src, &[3], &mut dst, &[3]).unwrap();
    check(std::mem::take(&mut dst));
    comm.token_all_gather(&src, &mut dst, 3, &[1]).unwrap();
    check(std::mem::take(&mut dst));
    comm.token_reduce_scatter(&src, &mut dst, 1, &[3], ReduceOp::Max).unwrap();
    check(std::mem::take(&mut dst));
    comm.gather_v(&src, Some(&mut dst), &[3], 0).unwrap();
    check(std::mem::take(&mut dst));
    comm.scatter_v(Some(&src), &mut dst, &[3], 0).unwrap();
    check(dst);
    let mut bytes = b"xyz".to_vec();
    comm.broadcast_bytes(&mut bytes, 0).unwrap();
    assert_eq!(bytes, b"xyz");
    comm.all_reduce_many(&mut [Part::new(&[9_u8], &mut [0], ReduceOp::Sum)]).unwrap();
    let mut seg = comm.alloc::<f32>(4).unwrap();
    assert_eq!(*seg, [0.0; 4]);
    comm.all_gather_in_place(&mut seg).unwrap();
    let child = comm.split(Some(3), 0).unwrap().unwrap();
    assert_eq!(child.size(), 1);
    assert!(comm.split(None, 0).unwrap().is_none());
    assert_eq!(comm.shrink().unwrap().size(), 1);
    let work = comm.start(Call::all_reduce(vec![4.0_f32], vec![0.0], ReduceOp::Sum)).unwrap();
    assert_eq!(work.wait().unwrap(), [4.0]);
    comm.finalize().unwrap();
    assert_eq!(fake.events(), [], "the engine was asked");
}

#[test]
fn moves_bits_unchanged() {
    let (mut comm, _fake) = alone();
    let src = [f32::from_bits(0x7f80_1234), -0.0];
    let mut dst = [0.0; 2];
    comm.all_gather(&src, &mut dst).unwrap();
    assert_eq!(dst.map(f32::to_bits), src.map(f32::to_bits));
}

fn scaled<T: Elem>(values: &[T], factor: f64) -> Vec<T> {
    let (mut comm, _fake) = alone();
    let mut out = values.to_vec();
    comm.all_reduce(values, &mut out, ReduceOp::PreMulSum(factor)).unwrap();
    let mut place = values.to_vec();
    comm.all_reduce_in_place(&mut place, ReduceOp::PreMulSum(factor)).unwrap();
    assert_eq!(bytemuck::cast_slice::<T, u8>(&place), bytemuck::cast_slice::<T, u8>(&out));
    out
}

#[test]
fn pre_mul_sum_rounds_once() {
    assert_eq!(scaled(&[3.0_f64], 0.1), [3.0 * 0.1]);
    // The factor is rounded to f32 first.
    assert_eq!(scaled(&[3.0_f32], 0.1), [3.0_f32 * 0.1_f32]);
    assert_eq!(scaled(&[f16::from_f32(3.0)], 0.1), [f16::from_f32(3.0 * 0.1_f32)]);
    // 1 + 2^-8 lies halfway between two bf16: to even.
    assert_eq!(scaled(&[bf16::ONE], 1.003_906_25), [bf16::ONE]);
    assert_eq!(scaled(&[f16::from_bits(1)], 3.0), [f16::from_bits(3)], "subnormals are kept");
    assert_eq!(scaled(&[F8E4M3::from_bits(0x7e)], 1.0)[0].to_bits(), 0x7e);
    assert_eq!(scaled(&[F8E4M3::from_bits(0x7e)], 2.0)[0].to_bits(), 0x7f, "448 * 2 is NaN");
    assert_eq!(scaled(&[F8E5M2::from_bits(0x7b)], 2.0)[0].to_bits(), 0x7c, "57344 * 2 is infinity");
    assert_eq!(scaled(&[f32::from_bits(0xffc0_0001)], 2.0)[0].to_bits(), 0x7fc0_0000, "NaN is canonical");
}

#[test]
fn avg_of_one_is_itself() {
    let (mut comm, _fake) = alone();
    let mut values = [f32::MAX, -0.0, 1e-45];
    comm.all_reduce_in_place(&mut values, ReduceOp::Avg).unwrap();
    assert_eq!(values.map(f32::to_bits), [f32::MAX, -0.0, 1e-45].map(f32::to_bits));
}

#[test]
fn checks_hold() {
    let (mut comm, fake) = alone();
    let kind = |result: rankwise_core::Result<()>| result.unwrap_err().kind().clone();
    assert_eq!(kind(comm.all_reduce(&[0_i32; 2], &mut [0; 3], ReduceOp::Sum)), ErrorKind::InvalidArgument);
    assert_eq!(kind(comm.all_reduce_in_place(&mut [0_i32], ReduceOp::Avg)), ErrorKind::UnsupportedOp);
    assert_eq!(kind(comm.broadcast(&mut [0_u8], 1)), ErrorKind::InvalidArgument);
    assert_eq!(kind(comm.send(&[0_u8], 0)), ErrorKind::InvalidArgument);
    assert_eq!(kind(comm.recv(&mut [0_u8], 0)), ErrorKind::InvalidArgument);
    assert_eq!(kind(comm.all_gather_v(&[0_u8], &mut [0], &[1, 1])), ErrorKind::InvalidArgument);
    assert_eq!(fake.events(), []);
}

#[test]
fn abort_then_poisoned() {
    let (mut comm, _fake) = alone();
    comm.abort_handle().abort();
    comm.abort();
    let error = comm.barrier().unwrap_err();
    assert_eq!((error.kind(), error.peers()), (&ErrorKind::Aborted, &[2][..]));
    assert_eq!(comm.barrier().unwrap_err().kind(), &ErrorKind::Poisoned);
}

#[test]
fn lacks_what_the_backend_lacks() {
    let (backend, _fake) = Fake::with(0, 1, capabilities().with_nonblocking(false, false), Settings::default());
    let mut comm = backend.world().unwrap();
    assert!(comm.alloc::<u8>(1).is_err());
    assert!(comm.start(Call::all_reduce_in_place(vec![1.0_f32], ReduceOp::Sum)).is_err());
}
