//! A buffer given to `start` is gone until `wait` gives it back.

use rankwise_core::{Call, Communicator, ReduceOp, Result};

fn read_in_flight(comm: &mut Communicator) -> Result<f32> {
    let buf = vec![1.0_f32];
    let work = comm.start(Call::all_reduce_in_place(buf, ReduceOp::Sum))?;
    let early = buf[0];
    work.wait()?;
    Ok(early)
}

fn main() {}
