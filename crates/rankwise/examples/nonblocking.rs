//! Operations in flight while the rank computes: owned buffers with `start`, borrowed ones inside `scope`.
//!
//! ```sh
//! cargo build -p rankwise --examples
//! cargo run -p rankwise-cli -- launch -n 4 -- target/debug/examples/nonblocking
//! ```

use rankwise::{Call, Communicator, Config, ReduceOp, Result};

const BUCKETS: usize = 4;
const LEN: usize = 10_000;

fn main() -> Result<()> {
    let config = Config::new().backend_or("shm");
    let world = rankwise::world(&config)?;
    let backend = rankwise::join(&world, &config)?;
    let mut comm = backend.world()?;
    owned(&mut comm)?;
    borrowed(&mut comm)?;
    println!("rank {}: {BUCKETS} sums in flight, then two inside a scope, all exact", comm.rank());
    comm.finalize()
}

/// As gradients are summed in training: while one bucket is on its way, the next is computed.
fn owned(comm: &mut Communicator) -> Result<()> {
    let mut in_flight = Vec::new();
    for bucket in 0..BUCKETS {
        let gradients = compute(comm.rank(), bucket);
        // The call takes both buffers; `wait` gives the result back.
        let sums = vec![0.0; gradients.len()];
        in_flight.push(comm.start(Call::all_reduce(gradients, sums, ReduceOp::Sum))?);
    }
    for (bucket, work) in in_flight.into_iter().enumerate() {
        assert_eq!(work.wait()?, expected(comm.size(), bucket));
    }
    Ok(())
}

/// Buffers on this function's stack frame: the scope returns only when no engine can touch them any more.
fn borrowed(comm: &mut Communicator) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let gradients = compute(rank, 0);
    let mut sums = vec![0.0; LEN];
    let mut largest = [rank as i32];
    let next = comm.scope(|scope| {
        let sum = scope.start(Call::all_reduce(&gradients, &mut sums, ReduceOp::Sum))?;
        // Not waited for: the scope does it.
        scope.start(Call::all_reduce_in_place(&mut largest, ReduceOp::Max))?;
        let next = compute(rank, 1);
        // The borrow of the result ends its flight here, so it may be used before the scope ends.
        let sums = sum.wait()?;
        assert_eq!(sums[1], expected(size, 0)[1]);
        Ok(next)
    })?;
    assert_eq!((next[0], largest[0] as usize), (rank as f32 + 1.0, size - 1));
    assert_eq!(sums, expected(size, 0));
    Ok(())
}

/// Small whole numbers, so that sums are exact.
fn compute(rank: usize, bucket: usize) -> Vec<f32> {
    (0..LEN).map(|i| (rank + bucket + i % 7) as f32).collect()
}

fn expected(size: usize, bucket: usize) -> Vec<f32> {
    (0..LEN).map(|i| (size * (size - 1) / 2 + size * (bucket + i % 7)) as f32).collect()
}
