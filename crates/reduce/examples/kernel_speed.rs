//! Time of the reduction kernels against a copy of the same bytes, per instruction set.
//!
//! `cargo run --release -p rankwise-reduce --example kernel_speed [elements] [sources]`
//!
//! The copy reads every source and writes the destination once per source, in the same buffers; a ratio of 1 means that the arithmetic
//! is free. Copy and kernel alternate, so that both see the same clock and the same neighbours.

use rankwise_core::{DType, ReduceOp};
use rankwise_reduce::{Isa, Reducer};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(256 * 1024);
    let sources = numbers.next().unwrap_or(2).max(1);
    println!("{count} elements, {sources} sources, out of place; us = best of 60, ratio = kernel / copy");
    println!("{:<10}{:<10}{:<10}{:>10}{:>10}{:>8}", "type", "op", "isa", "us", "copy us", "ratio");
    for (dtype, op) in cases() {
        for isa in Isa::available() {
            let Some(reducer) = Reducer::with_isa(dtype, op, sources, isa) else { continue };
            let (kernel, copy) = measure(&reducer, count, sources);
            let ratio = kernel / copy;
            println!("{:<10}{:<10}{:<10}{kernel:>10.1}{copy:>10.1}{ratio:>8.2}", dtype.name(), op.name(), isa.name());
        }
    }
}

fn cases() -> Vec<(DType, ReduceOp)> {
    let mut cases: Vec<_> = DType::NUMERIC.into_iter().map(|dtype| (dtype, ReduceOp::Sum)).collect();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        cases.extend([ReduceOp::Max, ReduceOp::Avg, ReduceOp::PreMulSum(0.5)].map(|op| (dtype, op)));
    }
    cases.extend([(DType::I64, ReduceOp::Prod), (DType::I8, ReduceOp::Prod), (DType::U32, ReduceOp::BXor)]);
    cases
}

/// Microseconds of the kernel and of the copy, best of many.
fn measure(reducer: &Reducer, count: usize, sources: usize) -> (f64, f64) {
    let bytes = count * reducer.elem_size();
    // A pattern whose sums are normal numbers in every type.
    let buffers: Vec<Vec<u8>> = (0..sources).map(|_| vec![0x3Au8; bytes]).collect();
    let pointers: Vec<*const u8> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    let mut dst = vec![0u8; bytes];
    let (mut kernel, mut copy) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..60 {
        let start = Instant::now();
        // SAFETY: every buffer holds `bytes` bytes, and `dst` is none of the sources.
        unsafe { reducer.fold(black_box(dst.as_mut_ptr()), black_box(&pointers), count) };
        kernel = kernel.min(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        for source in &pointers {
            // SAFETY: as above.
            unsafe { rankwise_reduce::copy::copy(black_box(dst.as_mut_ptr()), black_box(*source), bytes) };
        }
        copy = copy.min(start.elapsed().as_secs_f64() * 1e6);
    }
    (kernel, copy)
}
