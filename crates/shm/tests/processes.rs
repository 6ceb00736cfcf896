//! The shared-memory backend between real processes: what threads can't show. The test binary launches itself: `as_a_rank`
//! is the program, and an environment variable says which part it plays.
#![cfg(all(target_os = "linux", not(loom)))]

use rankwise_core::{Backend, Communicator, Config, ErrorKind, Group, ReduceOp};
use rankwise_world::World;
use rankwise_world::launch::{Event, Exit, Launch, Outcome, Output};
use std::time::{Duration, Instant};

const ROLE: &str = "RANKWISE_TEST_ROLE";
const LONG: Duration = Duration::from_secs(120);

fn run(ranks: usize, role: &str) -> (Outcome, String) {
    let mut lines = Vec::new();
    let outcome = Launch::new(ranks, std::env::current_exe().unwrap())
        .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .timeout(LONG)
        .output(Output::Lines)
        .spawn()
        .unwrap()
        .run(&mut |event| {
            if let Event::Line { rank, text, .. } = event {
                lines.push(format!("[{rank}] {}", String::from_utf8_lossy(&text)));
            }
        });
    (outcome, lines.join("\n"))
}

fn passes(ranks: usize, role: &str) {
    let (outcome, lines) = run(ranks, role);
    assert!(outcome.success(), "{role} with {ranks} ranks: {outcome:?}\n{lines}");
}

fn join() -> (World, Backend, Communicator) {
    let world = World::from_env().unwrap();
    let config = Config::new().timeout(Duration::from_secs(20));
    let raw = rankwise_shm::driver().join(&world, &config).unwrap();
    let backend = Backend::new(raw, config.resolve().unwrap());
    let comm = backend.world().unwrap();
    (world, backend, comm)
}

fn known_answer(comm: &mut Communicator) {
    let mut x = [comm.rank() as u64 + 1; 3];
    comm.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
    let n = comm.size() as u64;
    assert_eq!(x, [n * (n + 1) / 2; 3]);
}

#[test]
fn as_a_rank() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => println!("nothing to do: this is the program that the other tests launch"),
        Ok("fork") => forked_child(),
        Ok("exit") => exits_without_goodbye(),
        Ok("underscore-exit") => vanishes(),
        Ok("direct") => direct_calls(),
        Ok("many") => many_communicators(),
        Ok("idle") => idle_wait(),
        Ok("fsize") => small_file_limit(),
        Ok("crowd") => crowd(),
        Ok(other) => panic!("unknown role {other}"),
    }
}

/// A forked child can neither call, nor by its drops or exit make this rank look as if it had left.
fn forked_child() {
    let (world, backend, mut comm) = join();
    known_answer(&mut comm);
    if world.rank() == 0 {
        // SAFETY: this program has one other thread (the test harness's main thread), which holds no lock the child needs.
        match unsafe { libc::fork() } {
            0 => {
                let refused = comm.barrier().unwrap_err();
                let fine = refused.kind() == &ErrorKind::ForkedProcess;
                drop(comm);
                drop(backend);
                // Runs the exit handlers.
                std::process::exit(if fine { 0 } else { 1 });
            }
            child => {
                let mut status = 0;
                // SAFETY: `status` is valid for the call.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0, "the child's call was not refused with ForkedProcess");
            }
        }
    }
    for _ in 0..100 {
        known_answer(&mut comm);
    }
    comm.finalize().unwrap();
}

#[test]
fn a_forked_child_does_not_speak_for_its_parent() {
    passes(3, "fork");
}

fn exits_without_goodbye() {
    let (world, _backend, mut comm) = join();
    known_answer(&mut comm);
    if world.rank() == 1 {
        std::process::exit(0);
    }
    let error = comm.barrier().unwrap_err();
    assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLeft, &[1_usize][..]), "{error}");
    let error = comm.barrier().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Poisoned);
}

#[test]
fn an_exit_without_goodbye_is_a_peer_that_left() {
    passes(4, "exit");
}

fn vanishes() {
    let (world, backend, mut comm) = join();
    let pair = Group::new([0, 1]).unwrap();
    let mut small = (world.rank() < 2).then(|| backend.communicator(&pair).unwrap());
    known_answer(&mut comm);
    if world.rank() == 1 {
        // SAFETY: ends the process at once, like a crash: no handler runs.
        unsafe { libc::_exit(3) };
    }
    let begin = Instant::now();
    let error = comm.barrier().unwrap_err();
    assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLost, &[1_usize][..]), "{error}");
    println!("noticed after {:?}", begin.elapsed());
    // The other communicator with the dead rank knows without waiting for it.
    if let Some(small) = &mut small {
        let error = small.barrier().unwrap_err();
        assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLost, &[1_usize][..]), "{error}");
    }
}

#[test]
fn a_dead_peer_is_lost_on_every_communicator() {
    let (outcome, lines) = run(3, "underscore-exit");
    assert_eq!(outcome.exits, [Exit::Code(0), Exit::Code(3), Exit::Code(0)], "{lines}");
}

/// Calls on allocated memory, in place and out of place, also mixed with ordinary memory.
fn direct_calls() {
    let (world, _backend, mut comm) = join();
    let (n, me) = (world.size(), world.rank());
    let len = 50_001;
    let value = |rank: usize, i: usize| ((31 * rank + 7 * i) % 251) as i64;
    let mut src = comm.alloc::<i64>(len + 3).unwrap();
    let mut dst = comm.alloc::<i64>(n * len).unwrap();
    assert!(dst.iter().all(|x| *x == 0));
    for round in 0..20 {
        for i in 0..len {
            src[i + 3] = value(me, i) + round;
        }
        let sum = |i: usize| (0..n).map(|r| value(r, i) + round).sum::<i64>();
        comm.all_reduce(&src[3..], &mut dst[..len], ReduceOp::Sum).unwrap();
        assert!((0..len).all(|i| dst[i] == sum(i)));
        // In place on some ranks, out of place to ordinary memory on others.
        if me % 2 == 0 {
            comm.all_reduce_in_place(&mut src[3..], ReduceOp::Sum).unwrap();
            assert!((0..len).all(|i| src[i + 3] == sum(i)));
            (0..len).for_each(|i| src[i + 3] = value(me, i) + round);
        } else {
            let mut plain = vec![0; len];
            comm.all_reduce(&src[3..], &mut plain, ReduceOp::Sum).unwrap();
            assert!((0..len).all(|i| plain[i] == sum(i)));
        }
        comm.all_reduce_in_place(&mut src[3..], ReduceOp::Sum).unwrap();
        assert!((0..len).all(|i| src[i + 3] == sum(i)));
        // The source is overwritten as soon as the call has returned: peers must be done with it.
        (0..len).for_each(|i| src[i + 3] = value(me, i));
        comm.all_gather(&src[3..], &mut dst).unwrap();
        src[3..].fill(-1);
        assert!((0..n).all(|r| (0..len).all(|i| dst[r * len + i] == value(r, i))));
        let mut part = vec![0; len];
        comm.reduce_scatter(&dst, &mut part, ReduceOp::Max).unwrap();
        dst.fill(-1);
        assert!((0..len).all(|i| part[i] == value(me, i)));
    }
    // The memory outlives the communicator.
    comm.finalize().unwrap();
    dst[0] = 5;
    assert_eq!(dst[0], 5);
}

#[test]
fn allocated_memory_is_read_directly_and_never_too_late() {
    for ranks in [2, 3, 5] {
        passes(ranks, "direct");
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:rankwise")).count()
}

fn many_communicators() {
    let (world, _backend, mut comm) = join();
    let make = |comm: &mut Communicator| {
        let mut half = comm.split(Some(world.rank() as u64 % 2), -(world.rank() as i64)).unwrap().unwrap();
        known_answer(&mut half);
        let mut segment = half.alloc::<u8>(100).unwrap();
        segment[0] = 1;
    };
    make(&mut comm);
    let before = (open_files(), mappings());
    for _ in 0..300 {
        make(&mut comm);
    }
    assert_eq!((open_files(), mappings()), before);
    comm.finalize().unwrap();
}

#[test]
fn communicators_leave_nothing_behind() {
    passes(4, "many");
}

fn processor_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writes; all zero is a valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// A rank that waits for one that does not come sleeps.
fn idle_wait() {
    let (world, _backend, mut comm) = join();
    comm.barrier().unwrap();
    if world.rank() == 0 {
        std::thread::sleep(Duration::from_secs(3));
        comm.barrier().unwrap();
    } else {
        let before = processor_time();
        comm.barrier().unwrap();
        let burnt = processor_time() - before;
        assert!(burnt < Duration::from_millis(150), "{burnt:?} of processor time in 3 s of waiting");
    }
}

#[test]
fn waiting_ranks_sleep() {
    passes(3, "idle");
}

/// RLIMIT_FSIZE would raise SIGXFSZ on the shared file; it is a named error instead.
fn small_file_limit() {
    let world = World::from_env().unwrap();
    let limit = libc::rlimit { rlim_cur: 1 << 16, rlim_max: 1 << 16 };
    // SAFETY: a valid limit structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let config = Config::new().join_timeout(Duration::from_secs(20));
    let raw = rankwise_shm::driver().join(&world, &config).unwrap();
    let backend = Backend::new(raw, config.resolve().unwrap());
    let error = backend.world().err().unwrap();
    match error.kind() {
        ErrorKind::Limit { which, have, need } => {
            assert_eq!((which.as_str(), *have), ("RLIMIT_FSIZE", 1 << 16));
            assert!(*need > 1 << 16);
        }
        other => panic!("{other:?}: {error}"),
    }
}

#[test]
fn a_small_file_limit_is_a_named_error() {
    passes(2, "fsize");
}

/// Many ranks on few processors: every operation class once.
fn crowd() {
    let (world, _backend, mut comm) = join();
    comm.set_timeout(LONG);
    let n = world.size();
    known_answer(&mut comm);
    let src: Vec<u32> = (0..20_000).map(|i| (world.rank() + i) as u32).collect();
    let mut dst = vec![0; src.len()];
    comm.all_reduce(&src, &mut dst, ReduceOp::Sum).unwrap();
    let ranks: usize = (0..n).sum();
    assert!(dst.iter().enumerate().all(|(i, x)| *x as usize == ranks + n * i));
    let mut all = vec![0_u32; n];
    comm.all_gather(&[world.rank() as u32], &mut all).unwrap();
    assert!(all.iter().enumerate().all(|(r, x)| *x as usize == r));
    comm.finalize().unwrap();
}

#[test]
fn sixty_four_ranks_fit_one_host() {
    passes(64, "crowd");
}
