//! A work on borrowed buffers can't leave its scope.

use rankwise_core::{Call, Communicator, ReduceOp, Result};

fn escape(comm: &mut Communicator, buf: &mut [f32]) -> Result<()> {
    let work = comm.scope(|s| s.start(Call::all_reduce_in_place(&mut *buf, ReduceOp::Sum)))?;
    work.wait()?;
    Ok(())
}

fn main() {}
