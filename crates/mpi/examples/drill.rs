//! What the suite can't show from within: `ci/mpi` starts this under mpirun and looks at how it ends.
//!
//! - `cycles N`: N communicators are made and dropped; MPICH has some 2,000.
//! - `stuck`: rank 0 waits for rank 1, which never comes; the watching thread ends the process.
//! - `coexist`: the program has initialised MPI through rsmpi, gives a communicator of its own, and ends MPI.
//! - `environment`: the world is the launcher's, from its variables, instead of MPI's.
//! - `too-late`: MPI has been finalized before anybody joins.
//! - `death`: rank 1 dies; with enforced deadlines rank 0 learns of it, if the launcher lets it live (Open MPI: `--enable-recovery`);
//!   `death watched` is the same in a blocking call of an MPI with fault tolerance (Open MPI 5: `--with-ft ulfm`).
//! - `allocations`: blocking calls allocate nothing.
//! - `overhead`: what a call costs beyond the same call made directly, in turn in one process.

use mpi::ffi;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _};
use rankwise_core::{Backend, Communicator, Config, DeadlineMode, Group, ReduceOp, Result};
use rankwise_world::{Attachment, World};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Counts what each thread allocates through Rust; what MPI does is its own matter.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn allocated() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: the system's allocator, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn join(config: Config) -> Result<Backend> {
    join_in(&rankwise_mpi::driver().world()?, config)
}

fn join_in(world: &World, config: Config) -> Result<Backend> {
    Ok(Backend::new(rankwise_mpi::driver().join(world, &config)?, config.resolve()?))
}

fn environment() -> Result<()> {
    let world = World::from_env()?;
    let mut comm = join_in(&world, Config::new())?.world()?;
    let mut x = [1];
    comm.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
    assert_eq!(x, [world.size() as i32]);
    println!("{} ranks of {}", world.size(), world.source());
    Ok(())
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
        let theirs = universe.world();
        let (mut x, mut sum) = ([theirs.rank() + 1], 0);
        theirs.all_reduce_into(&x[0], &mut sum, mpi::collective::SystemOperation::sum());
        join(Config::new())?.world()?.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
        assert_eq!(x, [sum]);
        // One of the program's own, with the ranks the other way round, and freed before it is used.
        let reversed = theirs.split_by_color_with_key(mpi::topology::Color::with_value(1), -theirs.rank());
        let reversed = reversed.ok_or_else(|| rankwise_core::Error::invalid("no communicator"))?;
        let world = rankwise_mpi::world_of(&reversed)?;
        drop(reversed);
        assert_eq!(
            (world.rank(), world.size()),
            ((theirs.size() - 1 - theirs.rank()) as usize, theirs.size() as usize)
        );
        let mut comm = join_in(&world, Config::new())?.world()?;
        let mut all = vec![0; world.size()];
        comm.all_gather(&[theirs.rank()], &mut all)?;
        assert!(all.iter().rev().copied().eq(0..theirs.size()), "{all:?}");
        let alone = rankwise_mpi::world_of(&mpi::topology::SimpleCommunicator::self_comm())?;
        assert_eq!(alone.size(), 1);
    }
    drop(universe);
    println!("rsmpi has ended MPI");
    Ok(())
}

fn too_late() -> Result<()> {
    drop(mpi::initialize());
    join(Config::new()).map(|_| ())
}

fn death(deadline: DeadlineMode) -> Result<()> {
    let config = Config::new().deadline(deadline).timeout(Duration::from_secs(20));
    let world = rankwise_mpi::driver().world()?;
    let mut comm = join_in(&world, config)?.world()?;
    comm.barrier()?;
    if world.rank() == 1 {
        // SAFETY: signals this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let start = Instant::now();
    let error = comm.barrier().err();
    let (kind, lost) = error.map(|error| (error.kind().clone(), error.peers().to_vec())).unzip();
    println!("after {:.1} s: {kind:?} {lost:?}", start.elapsed().as_secs_f64());
    // The first to end with an error may take the others with it.
    let survivors = Group::new((0..world.size()).filter(|rank| *rank != 1))?;
    world.store().exchange("told", "the end", &survivors, &[], Attachment::None, Duration::from_secs(10))?;
    // MPI's goodbye would wait for the dead.
    std::process::exit(3);
}

/// One of every blocking call that takes no allocation to name.
fn calls(comm: &mut Communicator, x: &mut [f32], all: &mut [f32]) -> Result<()> {
    let (n, counts) = (comm.size(), [x.len(); 2]);
    comm.all_reduce_in_place(x, ReduceOp::Sum)?;
    comm.all_reduce_in_place(x, ReduceOp::Max)?;
    comm.all_reduce_in_place(x, ReduceOp::Avg)?;
    comm.all_gather(x, all)?;
    comm.reduce_scatter(all, x, ReduceOp::Sum)?;
    comm.broadcast(x, 0)?;
    if n == counts.len() {
        comm.all_gather_v(x, all, &counts)?;
        comm.reduce_scatter_v(all, x, &counts, ReduceOp::Sum)?;
    }
    comm.barrier()
}

fn allocations() -> Result<()> {
    let mut world = join(Config::new())?.world()?;
    for len in [2, 20_000] {
        let (mut x, mut all) = (vec![0.5_f32; len], vec![0.5_f32; len * world.size()]);
        // Scratch memory grows at first.
        calls(&mut world, &mut x, &mut all)?;
        let before = allocated();
        for _ in 0..100 {
            calls(&mut world, &mut x, &mut all)?;
        }
        assert_eq!(allocated() - before, 0, "allocations in calls of {len} elements");
    }
    println!("no allocations on rank {}", world.rank());
    Ok(())
}

type Ours = fn(&mut Communicator, &mut [f32], &mut [f32], &mut [f32]) -> Result<()>;

/// An operation as a user calls it, and the same call made directly. `x` has a rank's elements, `all` and `out` those of all.
struct Pair {
    name: &'static str,
    ours: Ours,
    direct: fn(&mut [f32], &mut [f32], &mut [f32]) -> i32,
}

fn at(x: &mut [f32]) -> *mut std::ffi::c_void {
    x.as_mut_ptr().cast()
}

const PAIRS: [Pair; 6] = [
    Pair {
        name: "all_reduce",
        ours: |comm, x, _, _| comm.all_reduce_in_place(x, ReduceOp::Sum),
        // SAFETY: MPI is initialised, and the functions get buffers of their counts; likewise below.
        direct: |x, _, _| unsafe {
            let (float, sum, world) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, ffi::RSMPI_COMM_WORLD);
            ffi::MPI_Allreduce(IN_PLACE, at(x), x.len() as i32, float, sum, world)
        },
    },
    Pair {
        name: "all_gather",
        ours: |comm, x, all, _| comm.all_gather(x, all),
        // SAFETY: as above.
        direct: |x, all, _| unsafe {
            let (n, float) = (x.len() as i32, ffi::RSMPI_FLOAT);
            ffi::MPI_Allgather(at(x), n, float, at(all), n, float, ffi::RSMPI_COMM_WORLD)
        },
    },
    Pair {
        name: "reduce_scatter",
        ours: |comm, x, all, _| comm.reduce_scatter(all, x, ReduceOp::Sum),
        // SAFETY: as above.
        direct: |x, all, _| unsafe {
            let (n, float, sum) = (x.len() as i32, ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
            ffi::MPI_Reduce_scatter_block(at(all), at(x), n, float, sum, ffi::RSMPI_COMM_WORLD)
        },
    },
    Pair {
        name: "all_to_all",
        ours: |comm, _, all, out| comm.all_to_all(all, out),
        // SAFETY: as above.
        direct: |x, all, out| unsafe {
            let (n, float) = (x.len() as i32, ffi::RSMPI_FLOAT);
            ffi::MPI_Alltoall(at(all), n, float, at(out), n, float, ffi::RSMPI_COMM_WORLD)
        },
    },
    Pair {
        name: "broadcast",
        // Without the barrier the root would run ahead and measure how many messages fit into the queue.
        ours: |comm, x, _, _| comm.broadcast(x, 0).and_then(|()| comm.barrier()),
        // SAFETY: as above.
        direct: |x, _, _| unsafe {
            ffi::MPI_Bcast(at(x), x.len() as i32, ffi::RSMPI_FLOAT, 0, ffi::RSMPI_COMM_WORLD)
                + ffi::MPI_Barrier(ffi::RSMPI_COMM_WORLD)
        },
    },
    Pair {
        name: "barrier",
        ours: |comm, _, _, _| comm.barrier(),
        // SAFETY: as above.
        direct: |_, _, _| unsafe { ffi::MPI_Barrier(ffi::RSMPI_COMM_WORLD) },
    },
];

fn overhead() -> Result<()> {
    const ROUNDS: usize = 40;
    let mut world = join(Config::new())?.world()?;
    for pair in &PAIRS {
        for (bytes, calls) in [(8, 5000), (4096, 2000), (65_536, 500), (1 << 20, 30)] {
            if pair.name == "barrier" && bytes > 8 {
                continue;
            }
            let len = bytes / 4;
            let mut x = vec![0.0_f32; len];
            let (mut all, mut out) = (vec![0.0_f32; len * world.size()], vec![0.0_f32; len * world.size()]);
            let (mut ratios, mut added) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let mut took = [0.0; 2];
                // The other one first in every other round.
                for turn in [round % 2, 1 - round % 2] {
                    world.barrier()?;
                    let start = Instant::now();
                    for _ in 0..calls {
                        match turn {
                            0 => assert_eq!((pair.direct)(&mut x, &mut all, &mut out), 0),
                            _ => (pair.ours)(&mut world, &mut x, &mut all, &mut out)?,
                        }
                    }
                    took[turn] = start.elapsed().as_secs_f64();
                }
                ratios.push(took[1] / took[0]);
                added.push((took[1] - took[0]) / f64::from(calls) * 1e9);
            }
            ratios.sort_by(f64::total_cmp);
            added.sort_by(f64::total_cmp);
            if world.rank() == 0 {
                let quarter = |of: &[f64], n: usize| of[ROUNDS * n / 4];
                println!(
                    "{:<14} {bytes:>8} bytes: {:.3} of MPI's own ({:.3} to {:.3}), {:+.0} ns a call ({:+.0} to {:+.0})",
                    pair.name,
                    quarter(&ratios, 2),
                    quarter(&ratios, 1),
                    quarter(&ratios, 3),
                    quarter(&added, 2),
                    quarter(&added, 1),
                    quarter(&added, 3),
                );
            }
        }
    }
    Ok(())
}

/// Open MPI's handles are pointers, and its `MPI_IN_PLACE` is 1; MPICH's is -1.
const IN_PLACE: *const std::ffi::c_void =
    std::ptr::without_provenance(if size_of::<ffi::MPI_Comm>() == 8 { 1 } else { usize::MAX });

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["cycles", count] => count.parse().map_or(Ok(()), cycles),
        ["stuck"] => stuck(),
        ["coexist"] => coexist(),
        ["environment"] => environment(),
        ["too-late"] => too_late(),
        ["death"] => death(DeadlineMode::Enforce),
        ["death", "watched"] => death(DeadlineMode::Watch),
        ["allocations"] => allocations(),
        ["overhead"] => overhead(),
        _ => {
            eprintln!(
                "usage: drill cycles N | stuck | coexist | environment | too-late | death [watched] | allocations | overhead"
            );
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
