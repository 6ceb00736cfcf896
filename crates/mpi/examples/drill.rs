//! What the suite can't show from within: `ci/mpi` starts this under mpirun and looks at how it ends.
//!
//! - `cycles N`: N communicators are made and dropped; MPICH has some 2,000.
//! - `stuck`: rank 0 waits for rank 1, which never comes; the watching thread ends the process.
//! - `coexist`: the program has initialised MPI through rsmpi, and ends it.
//! - `too-late`: MPI has been finalized before anybody joins.

use mpi::traits::*;
use rankwise_core::{Backend, Config, ReduceOp, Result};
use rankwise_world::World;
use std::process::ExitCode;
use std::time::Duration;

fn join(config: Config) -> Result<Backend> {
    let world = World::from_env()?;
    Ok(Backend::new(rankwise_mpi::driver().join(&world, &config)?, config.resolve()?))
}

fn cycles(count: usize) -> Result<()> {
    let mut world = join(Config::new())?.world()?;
    for i in 0..count {
        let Some(mut child) = world.split(Some(0), 0)? else { continue };
        if i % 1000 == 0 {
            let mut x = [1_i32];
            child.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
            assert_eq!(x[0] as usize, world.size());
        }
    }
    println!("{count} cycles on rank {}", world.rank());
    Ok(())
}

fn stuck() -> Result<()> {
    let mut world = join(Config::new().timeout(Duration::from_millis(500)))?.world()?;
    if world.rank() == 0 {
        world.barrier()?;
        println!("the barrier came back");
    } else {
        std::thread::sleep(Duration::from_secs(20));
    }
    Ok(())
}

fn coexist() -> Result<()> {
    let Some((universe, _)) = mpi::initialize_with_threading(mpi::Threading::Multiple) else { return Ok(()) };
    {
        let mut world = join(Config::new())?.world()?;
        let mut x = [world.rank() as i32 + 1];
        world.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
        let theirs = universe.world();
        let mut sum = 0;
        theirs.all_reduce_into(&(theirs.rank() + 1), &mut sum, mpi::collective::SystemOperation::sum());
        assert_eq!(x, [sum]);
    }
    drop(universe);
    println!("rsmpi has ended MPI");
    Ok(())
}

fn too_late() -> Result<()> {
    // Before the end of MPI, which takes MPICH's name of the job with it.
    World::from_env()?;
    drop(mpi::initialize());
    join(Config::new()).map(|_| ())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["cycles", count] => count.parse().map_or(Ok(()), cycles),
        ["stuck"] => stuck(),
        ["coexist"] => coexist(),
        ["too-late"] => too_late(),
        _ => {
            eprintln!("usage: drill cycles N | stuck | coexist | too-late");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
