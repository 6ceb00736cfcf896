//! Two linear layers divided among the ranks, as in tensor-parallel inference: the first by columns, the second by rows.
//!
//! `y = relu(x W1) W2`. Each rank holds some columns of `W1` and the same rows of `W2`. The first product needs no
//! communication, since relu works on each column alone; the second gives partial sums, which one all-reduce adds up.
//! Weights and inputs are small whole numbers, every sum is exact, and so the result must equal the undivided one bit for
//! bit, for any number of ranks.
//!
//! ```sh
//! cargo build -p rankwise --examples
//! cargo run -p rankwise-cli -- launch -n 4 -- target/debug/examples/tensor_parallel_mlp
//! ```
//!
//! Prints `equal: true`, or ends with exit code 1.

use rankwise::{Config, ReduceOp, Result};
use std::ops::Range;
use std::process::ExitCode;

const TOKENS: usize = 5;
const HIDDEN: usize = 48;
const INNER: usize = 192;

fn main() -> Result<ExitCode> {
    let config = Config::new().backend_or("shm");
    let world = rankwise::world(&config)?;
    let backend = rankwise::join(&world, &config)?;
    let mut comm = backend.world()?;

    let x = small_numbers(1, TOKENS * HIDDEN);
    let w1 = small_numbers(2, HIDDEN * INNER);
    let w2 = small_numbers(3, INNER * HIDDEN);

    // This rank's share of the inner dimension; a real program would load only that.
    let mine = share(INNER, comm.rank(), comm.size());
    let w1_columns: Vec<f32> = w1.chunks(INNER).flat_map(|row| &row[mine.clone()]).copied().collect();
    let w2_rows = &w2[mine.start * HIDDEN..mine.end * HIDDEN];

    let mut y = mlp(&x, &w1_columns, w2_rows, mine.len());
    comm.all_reduce_in_place(&mut y, ReduceOp::Sum)?;

    // Every rank compares its result with the undivided layers; the smallest verdict speaks for all.
    let mut equal = [u8::from(y == mlp(&x, &w1, &w2, INNER))];
    comm.all_reduce_in_place(&mut equal, ReduceOp::Min)?;
    let equal = equal[0] == 1;
    if comm.rank() == 0 {
        println!("output {TOKENS} x {HIDDEN}, sum {}, equal: {equal}", y.iter().sum::<f32>());
    }
    comm.finalize()?;
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `relu(x w1) w2` with an inner dimension of `inner`.
fn mlp(x: &[f32], w1: &[f32], w2: &[f32], inner: usize) -> Vec<f32> {
    let mut middle = multiply(x, w1, HIDDEN, inner);
    middle.iter_mut().for_each(|value| *value = value.max(0.0));
    multiply(&middle, w2, inner, HIDDEN)
}

/// The product of `a` (TOKENS x inner) and `b` (inner x columns), row by row.
fn multiply(a: &[f32], b: &[f32], inner: usize, columns: usize) -> Vec<f32> {
    let mut product = vec![0.0; TOKENS * columns];
    for row in 0..TOKENS {
        for k in 0..inner {
            let factor = a[row * inner + k];
            for column in 0..columns {
                product[row * columns + column] += factor * b[k * columns + column];
            }
        }
    }
    product
}

/// Part `rank` of `0..len` in `size` parts that differ by at most one.
fn share(len: usize, rank: usize, size: usize) -> Range<usize> {
    rank * len / size..(rank + 1) * len / size
}

/// Whole numbers from -2 to 2 that look random. The largest sum, 192 * (48 * 4) * 2, is far below 2^24.
fn small_numbers(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 16) % 5
    };
    (0..len).map(|_| next() as f32 - 2.0).collect()
}
