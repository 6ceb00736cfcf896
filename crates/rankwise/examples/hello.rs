//! The smallest program: every rank contributes a number, every rank gets the sum.
//!
//! Alone: `cargo run -p rankwise --example hello`. As four processes:
//!
//! ```sh
//! cargo build -p rankwise --examples
//! cargo run -p rankwise-cli -- launch -n 4 -- target/debug/examples/hello
//! ```

use rankwise::{Config, ReduceOp, Result};

fn main() -> Result<()> {
    let config = Config::new().backend_or("shm");
    let world = rankwise::world(&config)?;
    let backend = rankwise::join(&world, &config)?;
    let mut comm = backend.world()?;
    let mut sum = [world.rank() as f32 + 1.0];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    println!("rank {} of {}: the sum is {}", comm.rank(), comm.size(), sum[0]);
    comm.finalize()
}
