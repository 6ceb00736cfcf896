//! Ranks that our launcher did not start: they meet on this host. The test binary is the program, `as_a_rank` its entry, and
//! the launchers are torchrun's variables set by hand, Open MPI and MPICH.
#![cfg(target_os = "linux")]

mod foreign;

use foreign::{Ended, LONG, NOBODY, ROLE, Ranks, meet};
use rankwise_core::{ErrorKind, Group};
use rankwise_world::{Attachment, PeerStatus, Placement, World};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn as_a_rank() {
    let Ok(role) = std::env::var(ROLE) else {
        println!("nothing to do: this is the program that the other tests launch");
        return;
    };
    match role.as_str() {
        "squatter" => return foreign::squat(),
        "intruder" => return foreign::intrude(),
        _ => {}
    }
    // A launcher may have left some of its own.
    let before = foreign::listeners_of_this_process();
    let world = foreign::joined();
    let after = foreign::listeners_of_this_process();
    let new: Vec<_> = after.iter().filter(|listener| !before.contains(listener)).collect();
    assert!(new.is_empty(), "{new:?}");
    match role.as_str() {
        "identity" => identity(&world),
        "victim" => victim(&world),
        "leaver" => leaver(&world),
        "forker" => forker(&world),
        other => panic!("unknown role {other}"),
    }
    println!("DONE {} of {}", world.rank(), world.size());
}

fn identity(world: &World) {
    let n = world.size();
    assert_eq!(world.placement(), Placement::Processes);
    assert_eq!((world.local_rank(), world.local_size()), (world.rank(), n));
    assert!(world.source().contains(&std::env::var("EXPECTED_SOURCE").unwrap()), "{}", world.source());
    assert!(world.cpus() >= 1);
    let all = Group::world(n);
    let mut file = File::from(rustix::fs::memfd_create("rankwise-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    write!(file, "file of {}", world.rank()).unwrap();
    let mine = [world.job().to_le_bytes().as_slice(), &(world.cpus() as u64).to_le_bytes()].concat();
    let met = world.store().exchange("who", "who", &all, &mine, Attachment::Fd(file.into()), LONG).unwrap();
    for (rank, (bytes, attachment)) in met.into_iter().enumerate() {
        assert_eq!(bytes, mine, "rank {rank} has another job or other CPUs");
        let Attachment::Fd(fd) = attachment else { panic!("no descriptor came") };
        let mut buffer = [0; 64];
        let length = File::from(fd).read_at(&mut buffer, 0).unwrap();
        assert_eq!(buffer[..length], *format!("file of {rank}").as_bytes());
        assert_eq!(world.liveness().status(rank), PeerStatus::Alive, "rank {rank}");
    }
    world.store().add("count", world.rank() as i64).unwrap();
    meet(world, "counted");
    assert_eq!(world.store().add("count", 0).unwrap() as usize, n * (n - 1) / 2);
    let error = world.store().wait("never", Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Timeout, "{error}");
    meet(world, "end");
}

#[test]
fn ranks_with_torchruns_variables_meet() {
    for n in [2, 5] {
        let mut ranks = Ranks::new(n, "identity");
        ranks.set("EXPECTED_SOURCE", "torchrun");
        ranks.start_all();
        ranks.all_done();
    }
}

#[test]
fn ranks_come_in_any_order_and_late() {
    let mut ranks = Ranks::new(3, "identity");
    ranks.set("EXPECTED_SOURCE", "torchrun");
    for rank in [2, 1, 0] {
        ranks.start(rank);
        thread::sleep(Duration::from_millis(300));
    }
    ranks.all_done();
}

#[test]
fn open_mpi_starts_ranks() {
    if is_here("mpirun.openmpi", "--version") {
        under("mpirun.openmpi", &["-n", "3", "--oversubscribe"], "mpirun");
    }
}

#[test]
fn mpich_starts_ranks() {
    if is_here("mpirun.mpich", "--version") {
        under("mpirun.mpich", &["-n", "3"], "mpiexec");
    }
}

#[test]
fn srun_starts_ranks() {
    if !is_here("srun", "--version") {
        return;
    }
    // The command is there; is a cluster?
    let state = Command::new("timeout").args(["5", "sinfo", "--noheader", "--format=%a"]).output().unwrap();
    if !state.status.success() || !String::from_utf8_lossy(&state.stdout).contains("up") {
        println!("SKIPPED: no Slurm cluster answers here");
        return;
    }
    under("srun", &["-N", "1", "-n", "3", "--overcommit"], "srun");
}

fn is_here(launcher: &str, harmless: &str) -> bool {
    let here = Command::new(launcher).arg(harmless).output().is_ok();
    if !here {
        println!("SKIPPED: there is no {launcher} here");
    }
    here
}

/// Runs the identity role under a launcher, directly and behind a shell.
fn under(launcher: &str, args: &[&str], source: &str) {
    let exe = std::env::current_exe().unwrap();
    let direct = vec![exe.to_str().unwrap().to_string()];
    let script = format!("true; '{}' \"$@\"; exit $?", exe.display());
    let shell = ["sh", "-c", &script, "sh"].map(String::from).to_vec();
    for program in [direct, shell] {
        let output = Command::new("timeout")
            .args(["60", launcher])
            .args(args)
            .args(&program)
            .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
            .envs([(ROLE, "identity"), ("EXPECTED_SOURCE", source)])
            .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
        for rank in 0..3 {
            assert!(text.contains(&format!("DONE {rank} of 3")), "{program:?}: {text}");
        }
    }
}

#[test]
fn any_rank_that_is_killed_is_lost() {
    for victim in 0..3 {
        let mut ranks = Ranks::new(3, "victim");
        ranks.set("VICTIM", &victim.to_string());
        ranks.start_all();
        ranks.wait_for("waiting", 3);
        // Long enough for all to be in the exchange; correct at any time.
        thread::sleep(Duration::from_millis(50));
        ranks.kill(victim);
        let ended = ranks.finish();
        for (rank, Ended { code, text }) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            assert_eq!(*code, Some(0), "rank {rank} after {victim} was killed:\n{text}");
        }
    }
}

fn victim(world: &World) {
    let victim: usize = std::env::var("VICTIM").unwrap().parse().unwrap();
    meet(world, "start");
    println!("waiting");
    if world.rank() == victim {
        loop {
            thread::park();
        }
    }
    let all = Group::world(3);
    let error = world.store().exchange("k", "what nobody gets", &all, &[], Attachment::None, LONG).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PeerLost, "{error}");
    assert_eq!(error.peers(), [victim]);
    let started = Instant::now();
    while world.liveness().status(victim) == PeerStatus::Alive {
        assert!(started.elapsed() < LONG, "rank {victim} does not end");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(world.liveness().status(world.rank()), PeerStatus::Alive);
    let later = world.store().exchange("later", "later", &all, &[], Attachment::None, LONG).unwrap_err();
    assert_eq!(later.kind(), &ErrorKind::PeerLost);
    if victim != 0 {
        // Rank 0 serves the store, so it goes last.
        let pair = Group::new([0, 3 - victim]).unwrap();
        world.store().exchange("rest", "the rest", &pair, &[], Attachment::None, LONG).unwrap();
    }
}

#[test]
fn any_rank_that_exits_has_left() {
    for leaver in 0..3 {
        let mut ranks = Ranks::new(3, "leaver");
        ranks.set("LEAVER", &leaver.to_string());
        ranks.start_all();
        ranks.all_done();
    }
}

fn leaver(world: &World) {
    let leaver: usize = std::env::var("LEAVER").unwrap().parse().unwrap();
    meet(world, "start");
    if world.rank() == leaver {
        return;
    }
    let all = Group::world(3);
    let error = world.store().exchange("k", "test", &all, &[], Attachment::None, LONG).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PeerLeft, "{error}");
    assert_eq!(error.peers(), [leaver]);
    if leaver != 0 {
        let pair = Group::new([0, 3 - leaver]).unwrap();
        world.store().exchange("rest", "the rest", &pair, &[], Attachment::None, LONG).unwrap();
    }
}

#[test]
fn what_rank_0_forked_does_not_hide_its_death() {
    let mut ranks = Ranks::new(2, "forker");
    ranks.start_all();
    ranks.wait_for("waiting", 2);
    ranks.kill(0);
    let started = Instant::now();
    let Ended { code, text } = ranks.finish_one(1);
    assert_eq!(code, Some(0), "{text}");
    // The forked child keeps rank 0's sockets for twenty seconds.
    assert!(started.elapsed() < Duration::from_secs(10), "{text}");
}

#[allow(unsafe_code)]
fn forker(world: &World) {
    meet(world, "start");
    if world.rank() == 0 {
        // SAFETY: the child makes async-signal-safe calls only.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: as above; the process ends here.
            unsafe {
                libc::close(1);
                libc::close(2);
                libc::sleep(20);
                libc::_exit(0)
            }
        }
        println!("waiting");
        loop {
            thread::park();
        }
    }
    println!("waiting");
    let error = world.store().wait("never", LONG).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PeerLost, "{error}");
    assert_eq!(error.peers(), [0]);
}

#[test]
fn those_who_do_not_come_are_named() {
    for missing in 0..3 {
        let mut ranks = Ranks::new(3, "identity");
        ranks.set("RANKWISE_JOIN_TIMEOUT", "1");
        (0..3).filter(|rank| *rank != missing).for_each(|rank| ranks.start(rank));
        for Ended { code, text } in ranks.finish() {
            assert_eq!(code, Some(3), "{text}");
            assert!(text.contains(&format!("REFUSED Timeout [{missing}]")), "{text}");
            assert!(text.contains("RANKWISE_JOIN_TIMEOUT") && text.contains("job key"), "{text}");
        }
    }
}

#[test]
fn two_processes_of_one_rank_are_both_named() {
    for twice in [0, 1] {
        let mut ranks = Ranks::new(3, "identity");
        ranks.set("EXPECTED_SOURCE", "torchrun");
        ranks.start(0);
        ranks.start(1);
        thread::sleep(Duration::from_millis(300));
        ranks.start(twice);
        let second = ranks.finish_one(2);
        assert_eq!(second.code, Some(3), "{}", second.text);
        let [a, b] = [ranks.pid(twice), ranks.pid(2)];
        assert!(
            second.text.contains(&format!("process {a} and process {b} both came as rank {twice}")),
            "{}",
            second.text
        );
        // The job is unharmed.
        ranks.start(2);
        for rank in [0, 1, 3] {
            let Ended { code, text } = ranks.finish_one(rank);
            assert_eq!(code, Some(0), "{text}");
        }
    }
}

#[test]
fn different_sizes_and_settings_are_refused_on_both_sides() {
    for (name, values, key) in [
        ("WORLD_SIZE", ["2", "3"], "RANKWISE_WORLD_SIZE"),
        ("RANKWISE_CHECK", ["0", "1"], "RANKWISE_CHECK"),
        ("RANKWISE_BACKEND", ["shm", "mpi"], "RANKWISE_BACKEND"),
    ] {
        let mut ranks = Ranks::new(2, "identity");
        for (rank, value) in values.iter().enumerate() {
            ranks.set(name, value);
            if name == "WORLD_SIZE" {
                ranks.set("LOCAL_WORLD_SIZE", value);
            }
            ranks.start(rank);
        }
        for (rank, Ended { code, text }) in ranks.finish().into_iter().enumerate() {
            assert_eq!(code, Some(3), "{text}");
            assert!(text.contains("REFUSED Refused"), "{text}");
            let both = format!("({key}: ours {}, theirs {})", values[rank], values[1 - rank]);
            assert!(text.contains(&both), "{both}: {text}");
        }
    }
}

#[test]
fn another_user_who_takes_the_name_is_stepped_around() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let mut ranks = Ranks::new(2, "identity");
    ranks.set("EXPECTED_SOURCE", "torchrun");
    // What rank 0 would be called is seen from one that comes first.
    ranks.set("RANKWISE_JOIN_TIMEOUT", "30");
    let name = ranks.first_name();
    let Some(squatter) = foreign::start_stranger(NOBODY, "squatter", &name, "squatting") else { return };
    ranks.start_all();
    ranks.all_done();
    drop(squatter);
}

#[test]
fn another_user_is_not_let_in() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let mut ranks = Ranks::new(2, "identity");
    ranks.set("EXPECTED_SOURCE", "torchrun");
    let name = ranks.first_name();
    ranks.start(0);
    let intruder = foreign::start_stranger(NOBODY, "intruder", &name, "shut out");
    drop(intruder);
    ranks.start(1);
    ranks.all_done();
    // The same greeting from this user is good.
    let mut ranks = Ranks::new(2, "identity");
    ranks.start(0);
    drop(foreign::start_stranger(0, "intruder", &ranks.first_name(), "let in"));
    assert!(ranks.finish_one(0).text.contains("REFUSED PeerLost [1]"));
}

#[test]
fn strangers_and_junk_at_the_door_do_not_disturb() {
    let mut ranks = Ranks::new(2, "identity");
    ranks.set("EXPECTED_SOURCE", "torchrun");
    let name = ranks.first_name();
    ranks.start(0);
    let idle = foreign::knock(&name, 200);
    assert_eq!(idle.len(), 200);
    for (i, socket) in idle.iter().enumerate().take(100) {
        let junk = [&b"GET / HTTP/1.1\r\n\r\n"[..], b"rankwise", b"rankwise\x01\xff\xff\xff\xff", &[0xff; 4000]][i % 4];
        let _ = rustix::net::send(socket, junk, rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL);
    }
    ranks.start(1);
    let started = Instant::now();
    ranks.all_done();
    assert!(started.elapsed() < Duration::from_secs(10), "took {:?}", started.elapsed());
    drop(idle);
}
