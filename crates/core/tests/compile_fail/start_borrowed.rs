//! `start` refuses borrowed buffers: its work may be forgotten.

use rankwise_core::{Call, Communicator, ReduceOp, Result};

fn borrowed(comm: &mut Communicator, src: &[f32], dst: &mut [f32]) -> Result<()> {
    let work = comm.start(Call::all_reduce(src, dst, ReduceOp::Sum))?;
    std::mem::forget(work);
    Ok(())
}

fn main() {}
