//! Only numeric types can be reduced.

use rankwise_core::{Communicator, ReduceOp, Result};

fn booleans(comm: &mut Communicator, src: &[bool], dst: &mut [bool]) -> Result<()> {
    comm.all_reduce(src, dst, ReduceOp::Sum)
}

fn main() {}
