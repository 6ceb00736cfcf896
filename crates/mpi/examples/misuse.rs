//! Programs that are hard on the backend, or wrong; `ci/mpi` starts them under mpirun. Each once returned wrong data, hung or crashed.
//!
//! - `stray`: a message on a communicator that its receiver has left does not reach the next communicator (3 ranks).
//! - `forms`: with `check` a blocking call meets a started one.
//! - `order`: with `check` calls are started and waited for in different orders.
//! - `left`: with enforced deadlines a call that a member has left before is `PeerLeft`.
//! - `exit`: `main` returns while a thread is in a call.
//! - `fork`: a forked child ends, and MPI stays whole.
//! - `finalized`: everything is called after the program has ended MPI.
//! - `absent`: a rank does not join in time, and is named.

use rankwise_core::{Backend, Call, Config, DeadlineMode, ErrorKind, Group, ReduceOp, Result};
use rankwise_world::{Attachment, World};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

fn join(config: Config) -> Result<Backend> {
    let world = rankwise_mpi::driver().world()?;
    Ok(Backend::new(rankwise_mpi::driver().join(&world, &config)?, config.resolve()?))
}

fn moment() {
    sleep(Duration::from_millis(300));
}

fn stray(check: bool) -> Result<()> {
    let backend = join(Config::new().check(check).timeout(LONG))?;
    let mut world = backend.world()?;
    let me = world.rank();
    let mut first = world.split((me < 2).then_some(0), 0)?;
    world.barrier()?;
    if let Some(first) = first.as_mut().filter(|_| me == 1) {
        moment();
        // To a rank that has left. The message is small, so the sender does not wait.
        first.send(&[666], 0)?;
    } else {
        drop(first.take());
        let mut second = backend.communicator(&Group::new([0, 2])?)?;
        sleep(Duration::from_secs(1));
        if me == 2 {
            second.send(&[777], 0)?;
        } else {
            let mut x = [0];
            second.recv(&mut x, 1)?;
            assert_eq!(x, [777]);
        }
    }
    world.barrier()
}

fn forms() -> Result<()> {
    let mut world = join(Config::new().check(true).timeout(LONG))?.world()?;
    for len in [1, 100_000] {
        let mut x = vec![1.0_f32; len];
        if world.rank() == 0 {
            world.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
        } else {
            x = world.start(Call::all_reduce_in_place(x, ReduceOp::Sum))?.wait()?;
        }
        assert_eq!(x, vec![world.size() as f32; len]);
    }
    Ok(())
}

fn order() -> Result<()> {
    let mut world = join(Config::new().check(true).timeout(LONG))?.world()?;
    let (n, counts) = (world.size(), vec![1; world.size()]);
    let exchange = Call::all_to_all_v(vec![world.rank(); n], &counts, vec![0; n], &counts);
    let sum = Call::all_reduce_in_place(vec![1], ReduceOp::Sum);
    let (exchanged, sum) = if world.rank() == 0 {
        let (exchange, sum) = (world.start(exchange)?, world.start(sum)?);
        (exchange.wait()?, sum.wait()?)
    } else {
        moment();
        let exchanged = world.start(exchange)?.wait()?;
        (exchanged, world.start(sum)?.wait()?)
    };
    assert!(exchanged.into_iter().eq(0..n));
    assert_eq!(sum, [n as i32]);
    Ok(())
}

fn left() -> Result<()> {
    let mut world = join(Config::new().deadline(DeadlineMode::Enforce).timeout(LONG))?.world()?;
    let Some(mut pair) = world.split(Some(0), 0)? else { return Ok(()) };
    pair.barrier()?;
    if world.rank() == 0 {
        let error = pair.barrier().err();
        assert_eq!(error.as_ref().map(|error| error.kind()), Some(&ErrorKind::PeerLeft), "{error:?}");
    } else {
        drop(pair);
    }
    world.barrier()
}

fn exit(deadline: DeadlineMode) -> Result<()> {
    let mut world = join(Config::new().deadline(deadline).timeout(LONG))?.world()?;
    world.barrier()?;
    if world.rank() == 0 {
        std::thread::spawn(move || world.barrier());
        moment();
    }
    Ok(())
}

fn fork() -> Result<()> {
    let mut world = join(Config::new().timeout(LONG))?.world()?;
    world.barrier()?;
    if world.rank() == 0 {
        // SAFETY: the child only ends, with what the process has registered for that.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::process::exit(0);
        }
        let (begun, mut status) = (Instant::now(), 0);
        // SAFETY: asks about the child.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            assert!(begun.elapsed() < LONG, "the child does not end");
            sleep(Duration::from_millis(1));
        }
        assert_eq!(status, 0, "the child's end");
    }
    let mut x = vec![1; 20_000];
    world.all_reduce_in_place(&mut x, ReduceOp::Max)?;
    assert_eq!(x, vec![1; 20_000]);
    Ok(())
}

fn finalized(config: Config) -> Result<()> {
    let Some((universe, _)) = mpi::initialize_with_threading(mpi::Threading::Multiple) else { return Ok(()) };
    let backend = join(config.clone())?;
    let mut world = backend.world()?;
    let other = backend.communicator(&Group::world(world.size()))?;
    let work = world.start(Call::barrier())?;
    work.wait()?;
    drop(universe);
    for error in [world.barrier().err(), world.start(Call::barrier()).err()] {
        let kind = error.as_ref().map(|error| error.kind());
        assert!(matches!(kind, Some(ErrorKind::Closed | ErrorKind::Poisoned)), "{error:?}");
    }
    assert!(world.split(Some(0), 0).is_err());
    for error in [join(config).err(), rankwise_mpi::world_of(&mpi::topology::SimpleCommunicator::world()).err()] {
        assert_eq!(error.as_ref().map(|error| error.kind()), Some(&ErrorKind::Closed), "{error:?}");
    }
    other.abort();
    Ok(())
}

fn absent() -> Result<()> {
    let world = World::from_env()?;
    if world.rank() == 0 {
        let config = Config::new().join_timeout(Duration::from_millis(500));
        let error = rankwise_mpi::driver().join(&world, &config).err();
        assert_eq!(error.as_ref().map(|error| error.kind()), Some(&ErrorKind::Timeout), "{error:?}");
        assert_eq!(error.as_ref().map(|error| error.peers()), Some(&[1][..]));
    }
    let all = Group::world(world.size());
    world.store().exchange("told", "the end", &all, &[], Attachment::None, LONG).map(drop)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["stray"] => stray(false),
        ["stray", "checked"] => stray(true),
        ["forms"] => forms(),
        ["order"] => order(),
        ["left"] => left(),
        ["exit"] => exit(DeadlineMode::Watch),
        ["exit", "enforced"] => exit(DeadlineMode::Enforce),
        ["fork"] => fork(),
        ["finalized"] => finalized(Config::new()),
        ["finalized", "checked"] => finalized(Config::new().check(true)),
        ["finalized", "enforced"] => finalized(Config::new().deadline(DeadlineMode::Enforce)),
        ["absent"] => absent(),
        _ => {
            eprintln!(
                "usage: misuse stray [checked] | forms | order | left | exit [enforced] | fork | finalized [checked | enforced] | absent"
            );
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => {
            println!("survived {}", words.join(" "));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
