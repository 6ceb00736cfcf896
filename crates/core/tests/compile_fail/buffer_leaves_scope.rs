//! A buffer that lives inside the closure can't be lent to the scope.

use rankwise_core::{Call, Communicator, ReduceOp, Result};

fn inner(comm: &mut Communicator) -> Result<()> {
    comm.scope(|s| {
        let mut inside = [0.0_f32; 4];
        let work = s.start(Call::all_reduce_in_place(&mut inside, ReduceOp::Sum))?;
        work.wait()?;
        Ok(())
    })
}

fn main() {}
