//! A buffer lent to an operation can't be touched before the operation gives it back.

use rankwise_core::{Call, Communicator, ReduceOp, Result};

fn write_in_flight(comm: &mut Communicator, buf: &mut [f32]) -> Result<()> {
    comm.scope(|s| {
        let work = s.start(Call::all_reduce_in_place(&mut *buf, ReduceOp::Sum))?;
        buf[0] = 1.0;
        work.wait()?;
        Ok(())
    })
}

fn write_source_in_flight(comm: &mut Communicator, src: &mut [f32], dst: &mut [f32]) -> Result<()> {
    comm.scope(|s| {
        let work = s.start(Call::all_reduce(&*src, &mut *dst, ReduceOp::Sum))?;
        src[0] = 1.0;
        work.wait()?;
        Ok(())
    })
}

fn main() {}
