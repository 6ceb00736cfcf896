//! Every operation with more than TOTAL elements of a byte on some rank, checked to the last one: `large TOTAL [WHAT]`, under mpirun.
//!
//! 2147483648 is one more than MPI's `int` counts to; it takes up to 4.5 times as many bytes a rank. `ci/mpi` runs it with a small one, for which
//! it takes an `int` to hold less (`RANKWISE_MPI_MOST_COUNT`). WHAT is the beginning of a name: one that fits is run, else all.

use rankwise_core::{Backend, Call, Communicator, Config, ReduceOp, Result};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What rank `rank` has at element `i`.
fn value(rank: usize, i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 9) as u8 ^ (rank * 37 + 1) as u8
}

fn filled(rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| value(rank, i)).collect()
}

/// `expected` says what each element has to be.
fn check(what: &str, found: &[u8], expected: impl Fn(usize) -> u8) {
    if let Some((i, found)) = found.iter().enumerate().find(|(i, found)| **found != expected(*i)) {
        panic!("{what}: element {i} is {found}, not {}", expected(i));
    }
}

/// What lies one after the other: the part of each member begins where the one before it ends, at the beginning of its own data.
fn check_parts(what: &str, found: &[u8], counts: &[usize]) {
    let mut at = 0;
    for (rank, count) in counts.iter().enumerate() {
        check(what, &found[at..at + count], |i| value(rank, i));
        at += count;
    }
    assert_eq!(at, found.len(), "{what}");
}

/// Counts without a common unit, together more than `total`.
fn odd(total: usize, n: usize) -> Vec<usize> {
    let mut counts = vec![total / n + 1; n];
    counts[0] += 1;
    counts
}

fn reduce(world: &mut Communicator, total: usize, op: ReduceOp) -> Result<()> {
    let (n, me) = (world.size(), world.rank());
    let expected = |i: usize| {
        let all = (0..n).map(|rank| value(rank, i));
        if op == ReduceOp::Max { all.max().unwrap_or(0) } else { all.fold(0, |a, b| a ^ b) }
    };
    let mut x = filled(me, total + 1);
    world.all_reduce_in_place(&mut x, op)?;
    check("all_reduce", &x, expected);
    Ok(())
}

fn scattered(world: &mut Communicator, total: usize, op: ReduceOp) -> Result<()> {
    let (n, me) = (world.size(), world.rank());
    let expected = |i: usize| {
        let all = (0..n).map(|rank| value(rank, i));
        if op == ReduceOp::Max { all.max().unwrap_or(0) } else { all.fold(0, |a, b| a ^ b) }
    };
    let each = total / n + 1;
    let mut x = filled(me, each * n);
    world.reduce_scatter_in_place(&mut x, op)?;
    check("reduce_scatter", &x[me * each..][..each], |i| expected(me * each + i));
    drop(x);
    let counts = odd(total, n);
    let x = filled(me, counts.iter().sum());
    let mut own = vec![0; counts[me]];
    world.reduce_scatter_v(&x, &mut own, &counts, op)?;
    let before: usize = counts[..me].iter().sum();
    check("reduce_scatter_v", &own, |i| expected(before + i));
    Ok(())
}

fn started(world: &mut Communicator, total: usize) -> Result<()> {
    let (n, me) = (world.size(), world.rank());
    let x = filled(me, total + 1);
    let x = world.start(Call::all_reduce_in_place(x, ReduceOp::BXor))?.wait()?;
    check("started all_reduce", &x, |i| (0..n).map(|rank| value(rank, i)).fold(0, |a, b| a ^ b));
    drop(x);
    let counts = odd(total, n);
    let all = vec![0; counts.iter().sum()];
    let all = world.start(Call::all_gather_v(filled(me, counts[me]), all, &counts))?.wait()?;
    check_parts("started all_gather_v", &all, &counts);
    Ok(())
}

fn gathered(world: &mut Communicator, total: usize) -> Result<()> {
    let (n, me) = (world.size(), world.rank());
    let each = total / n + 1;
    let mut all = vec![0; each * n];
    all[me * each..][..each].copy_from_slice(&filled(me, each));
    world.all_gather_in_place(&mut all)?;
    check_parts("all_gather", &all, &vec![each; n]);
    drop(all);
    let counts = odd(total, n);
    let sum = counts.iter().sum();
    let mut all = vec![0; sum];
    world.all_gather_v(&filled(me, counts[me]), &mut all, &counts)?;
    check_parts("all_gather_v", &all, &counts);
    Ok(())
}

fn broadcast(world: &mut Communicator, total: usize) -> Result<()> {
    let (me, root) = (world.rank(), world.size() - 1);
    let mut x = if me == root { filled(root, total + 1) } else { vec![0; total + 1] };
    world.broadcast(&mut x, root)?;
    check("broadcast", &x, |i| value(root, i));
    Ok(())
}

/// Gather, and scatter back.
fn rooted(world: &mut Communicator, total: usize) -> Result<()> {
    let (n, me, root) = (world.size(), world.rank(), world.size() - 1);
    for counts in [vec![total / n + 1; n], odd(total, n)] {
        let even = counts[0] == counts[n - 1];
        let all_len = if me == root { counts.iter().sum() } else { 0 };
        let own = filled(me, counts[me]);
        let mut all = vec![0; all_len];
        let place = (me == root).then_some(&mut all[..]);
        if even {
            world.gather(&own, place, root)?
        } else {
            world.gather_v(&own, place, &counts, root)?
        }
        if me == root {
            check_parts("gather", &all, &counts);
        }
        let mut back = vec![0; counts[me]];
        let all = (me == root).then_some(&all[..]);
        if even {
            world.scatter(all, &mut back, root)?
        } else {
            world.scatter_v(all, &mut back, &counts, root)?
        }
        check("scatter", &back, |i| value(me, i));
    }
    Ok(())
}

fn exchanged(world: &mut Communicator, total: usize) -> Result<()> {
    const ROW: usize = 64;
    let (n, me) = (world.size(), world.rank());
    let each = total / n + 1;
    let mut back = vec![0; each * n];
    world.all_to_all(&filled(me, each * n), &mut back)?;
    for (rank, part) in back.chunks(each).enumerate() {
        check("all_to_all", part, |i| value(rank, me * each + i));
    }
    drop(back);
    // Rank 0 sends and gets much, the others don't: they can't know.
    let rows =
        |from: usize, to: usize| if from == 0 || to == 0 { (total / n / ROW + 1 + from + to) * ROW } else { ROW };
    let send: Vec<usize> = (0..n).map(|to| rows(me, to)).collect();
    let recv: Vec<usize> = (0..n).map(|from| rows(from, me)).collect();
    let mut back = vec![0; recv.iter().sum()];
    world.all_to_all_v(&filled(me, send.iter().sum()), &send, &mut back, &recv)?;
    let mut at = 0;
    for (from, count) in recv.iter().enumerate() {
        let before: usize = (0..me).map(|to| rows(from, to)).sum();
        check("all_to_all_v", &back[at..at + count], |i| value(from, before + i));
        at += count;
    }
    Ok(())
}

fn messages(world: &mut Communicator, total: usize) -> Result<()> {
    match world.rank() {
        0 => world.send(&filled(0, total + 1), 1),
        1 => {
            let mut x = vec![0; total + 1];
            world.recv(&mut x, 0)?;
            check("recv", &x, |i| value(0, i));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn run(total: usize, what: &str) -> Result<()> {
    let config = Config::new().timeout(Duration::from_secs(300));
    let backend =
        Backend::new(rankwise_mpi::driver().join(&rankwise_mpi::driver().world()?, &config)?, config.resolve()?);
    let mut world = backend.world()?;
    type Step = fn(&mut Communicator, usize) -> Result<()>;
    let steps: [(&str, Step); 10] = [
        ("all-reduce", |world, total| reduce(world, total, ReduceOp::BXor)),
        ("all-reduce-own", |world, total| reduce(world, total, ReduceOp::Max)),
        ("reduce-scatter", |world, total| scattered(world, total, ReduceOp::BXor)),
        ("reduce-scatter-own", |world, total| scattered(world, total, ReduceOp::Max)),
        ("started", started),
        ("gathered", gathered),
        ("broadcast", broadcast),
        ("rooted", rooted),
        ("exchanged", exchanged),
        ("messages", messages),
    ];
    for (name, step) in steps.into_iter().filter(|(name, _)| name.starts_with(what)) {
        let begun = Instant::now();
        step(&mut world, total)?;
        world.barrier()?;
        if world.rank() == 0 {
            println!("{name} of more than {total}: right, {:.1} s", begun.elapsed().as_secs_f64());
        }
    }
    println!("all is right on rank {}", world.rank());
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (total, what) = match &arguments[..] {
        [total] => (total.parse(), ""),
        [total, what] => (total.parse(), what.as_str()),
        _ => return usage(),
    };
    let Ok(total) = total else { return usage() };
    match run(total, what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: large TOTAL [WHAT]");
    ExitCode::from(2)
}
