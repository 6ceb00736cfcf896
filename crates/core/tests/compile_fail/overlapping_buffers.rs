//! Overlapping source and destination can't be written down.

use rankwise_core::{Communicator, ReduceOp, Result};

fn overlap(comm: &mut Communicator, buf: &mut [f32]) -> Result<()> {
    comm.all_reduce(&buf[..2], &mut buf[1..3], ReduceOp::Sum)
}

fn main() {}
