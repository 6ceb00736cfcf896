//! Ranks as processes: joining, the store through the hub, liveness. The test binary launches itself: `as_a_rank` is the
//! program, and an environment variable says which part it plays.
#![cfg(target_os = "linux")]

use rankwise_core::{ErrorKind, Group};
use rankwise_world::launch::{Event, Exit, Launch, Outcome, Output, Signal};
use rankwise_world::{Attachment, MAX_PAYLOAD, PeerStatus, Placement, World};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

const ROLE: &str = "RANKWISE_TEST_ROLE";
const LONG: Duration = Duration::from_secs(60);

fn launch(ranks: usize, role: &str) -> Launch {
    Launch::new(ranks, std::env::current_exe().unwrap())
        .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .timeout(LONG)
        .output(Output::Lines)
}

/// Runs a role to its end; all lines of output, for the message of a failing test.
fn run(launch: Launch) -> (Outcome, Vec<String>) {
    let mut lines = Vec::new();
    let outcome = launch.spawn().unwrap().run(&mut |event| {
        if let Event::Line { rank, text, .. } = event {
            lines.push(format!("[{rank}] {}", String::from_utf8_lossy(&text)));
        }
    });
    (outcome, lines)
}

fn passes(ranks: usize, role: &str) {
    let (outcome, lines) = run(launch(ranks, role));
    assert!(outcome.success(), "{role} with {ranks} ranks: {outcome:?}\n{}", lines.join("\n"));
    assert_eq!(outcome.exits, vec![Exit::Code(0); ranks]);
}

#[test]
fn as_a_rank() {
    let Ok(role) = std::env::var(ROLE) else {
        println!("nothing to do: this is the program that the other tests launch");
        return;
    };
    let world = World::from_env().unwrap();
    match role.as_str() {
        "identity" => identity(&world),
        "exchange" => exchange(&world),
        "store" => store(&world),
        "tuples" => tuples(&world),
        "victim" => victim(&world),
        "leaver" => leaver(&world),
        "threads" => overlapping(&world),
        "liveness" => liveness(&world),
        "many-fds" => many_descriptors(&world),
        "fork" => forked_child(&world),
        "hostile" => hostile(&world),
        "few-fds" => few_descriptors(&world),
        other => panic!("unknown role {other}"),
    }
}

fn meet(world: &World, key: &str) {
    let all = Group::world(world.size());
    world.store().exchange(key, "a barrier", &all, &[], Attachment::None, LONG).unwrap();
}

fn memfd(text: &str) -> File {
    let fd = rustix::fs::memfd_create("rankwise-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(fd);
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn text_of(attachment: Attachment) -> String {
    let Attachment::Fd(fd) = attachment else { panic!("no descriptor came") };
    // The offset is shared with the other receivers, so do not use it.
    let mut buffer = [0; 64];
    let n = File::from(fd).read_at(&mut buffer, 0).unwrap();
    String::from_utf8(buffer[..n].to_vec()).unwrap()
}

#[test]
fn every_rank_knows_who_it_is() {
    passes(1, "identity");
    passes(3, "identity");
}

fn identity(world: &World) {
    let again = World::from_env().unwrap();
    assert_eq!((again.rank(), again.job()), (world.rank(), world.job()));
    assert_eq!(world.local_rank(), world.rank());
    assert_eq!(world.local_size(), world.size());
    assert_eq!(world.placement(), if world.size() == 1 { Placement::Solo } else { Placement::Processes });
    assert!(world.source().contains("rankwise launch"));
    assert!(world.cpus() >= 1);
    let all = Group::world(world.size());
    let mine = [world.job().to_le_bytes().as_slice(), &(world.rank() as u64).to_le_bytes()].concat();
    let met = world.store().exchange("who", "who", &all, &mine, Attachment::None, LONG).unwrap();
    for (rank, (bytes, _)) in met.iter().enumerate() {
        assert_eq!(bytes[..16], world.job().to_le_bytes());
        assert_eq!(bytes[16..], (rank as u64).to_le_bytes());
    }
    // The descriptors must not reach programs that a rank starts.
    let inherited = std::process::Command::new("sh")
        .args(["-c", "for fd in /proc/self/fd/*; do readlink $fd; done"])
        .output()
        .unwrap();
    let inherited = String::from_utf8_lossy(&inherited.stdout);
    assert!(!inherited.contains("socket:") && !inherited.contains("rankwise-life"), "{inherited}");
}

#[test]
fn payloads_and_descriptors_reach_everybody() {
    for ranks in [2, 8, 40] {
        passes(ranks, "exchange");
    }
}

fn exchange(world: &World) {
    let n = world.size();
    let reversed = Group::new((0..n).rev()).unwrap();
    for round in 0..5 {
        let payload = vec![world.rank() as u8; MAX_PAYLOAD - round];
        let file = memfd(&format!("file {round} of {}", world.rank()));
        // Some ranks send no descriptor.
        let attachment = if world.rank() % 3 == 2 { Attachment::None } else { Attachment::Fd(file.into()) };
        let met = world.store().exchange("same key", "test", &reversed, &payload, attachment, LONG).unwrap();
        assert_eq!(met.len(), n);
        for (rank, (bytes, attachment)) in reversed.ranks().zip(met) {
            assert_eq!(bytes, vec![rank as u8; MAX_PAYLOAD - round]);
            match rank % 3 {
                2 => assert!(matches!(attachment, Attachment::None)),
                _ => assert_eq!(text_of(attachment), format!("file {round} of {rank}")),
            }
        }
    }
    // Neighbours, without the rest of the world.
    let pair = world.rank() / 2 * 2;
    if pair + 1 < n {
        let group = Group::new([pair + 1, pair]).unwrap();
        let key = format!("pair {pair}");
        let met = world.store().exchange(&key, "pair", &group, &[world.rank() as u8], Attachment::None, LONG).unwrap();
        assert_eq!([met[0].0[0] as usize, met[1].0[0] as usize], [pair + 1, pair]);
    }
}

#[test]
fn the_store_works_between_processes() {
    passes(4, "store");
}

fn store(world: &World) {
    let store = world.store();
    assert_eq!(store.get("nothing").unwrap(), None);
    for _ in 0..100 {
        store.add("count", 1).unwrap();
    }
    meet(world, "counted");
    assert_eq!(store.add("count", 0).unwrap(), 400);
    if world.rank() == 3 {
        thread::sleep(Duration::from_millis(50));
        store.set("late", b"here").unwrap();
    }
    assert_eq!(store.wait("late", LONG).unwrap(), b"here");
    meet(world, "seen");
    if world.rank() == 0 {
        assert!(store.delete("late").unwrap());
        assert!(!store.delete("late").unwrap());
    }
    meet(world, "deleted");
    assert_eq!(store.get("late").unwrap(), None);
    let error = store.wait("never", Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Timeout);
    assert!(error.message().contains("`never`"), "{error}");
    let big = vec![0; MAX_PAYLOAD + 1];
    let all = Group::world(4);
    let oversize = store.exchange("big", "big", &all, &big, Attachment::None, LONG).unwrap_err();
    assert_eq!(oversize.kind(), &ErrorKind::InvalidArgument);
    let local = Attachment::Local(std::sync::Arc::new(1));
    let error = store.exchange("local", "local", &all, &[], local, LONG).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    assert_eq!(store.set("v", &vec![7; 40_000]).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    meet(world, "the connection still works");
}

#[test]
fn different_tuples_time_out_and_show_each_other() {
    passes(2, "tuples");
}

fn tuples(world: &World) {
    let group = if world.rank() == 0 { Group::new([0, 1]) } else { Group::new([1, 0]) }.unwrap();
    let key = format!("register {group}");
    let deadline = Duration::from_millis(500);
    let error = world.store().exchange(&key, "registration", &group, &[], Attachment::None, deadline).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Timeout);
    assert_eq!(error.peers(), [1 - world.rank()]);
    assert_eq!(error.rank(), Some(world.rank()));
    let theirs = if world.rank() == 0 { "`registration` over (1,0)" } else { "`registration` over (0,1)" };
    assert!(error.message().contains(theirs), "{error}");
    meet(world, "the connection still works");
}

#[test]
fn a_killed_rank_is_lost_to_those_who_wait() {
    for victim in 0..3 {
        let mut waiting = 0;
        let mut lines = Vec::new();
        let job = launch(3, "victim").env("VICTIM", victim.to_string()).spawn().unwrap();
        let handle = job.handle();
        let outcome = job.run(&mut |event| match event {
            Event::Line { rank, text, .. } => {
                let text = String::from_utf8_lossy(&text).into_owned();
                if text.contains("waiting") {
                    waiting += 1;
                    if waiting == 3 {
                        // Long enough for all to be in the exchange; correct at any time.
                        thread::sleep(Duration::from_millis(50));
                        handle.signal(victim, Signal::KILL).unwrap();
                    }
                }
                lines.push(format!("[{rank}] {text}"));
            }
            Event::Exited { rank, exit } => lines.push(format!("[{rank}] {exit}")),
            _ => {}
        });
        assert_eq!(outcome.first_failure, Some((victim, Exit::Signal(9))), "{}", lines.join("\n"));
        assert_eq!(outcome.code(), 137);
        for (rank, exit) in outcome.exits.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            assert_eq!(*exit, Exit::Code(0), "rank {rank} after {victim} was killed:\n{}", lines.join("\n"));
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
    assert!(error.message().contains("SIGKILL") || error.message().contains("died"), "{error}");
    assert_eq!(world.liveness().status(victim), PeerStatus::Gone);
    assert_eq!(world.liveness().status(world.rank()), PeerStatus::Alive);
    let later = world.store().exchange("later", "later", &all, &[], Attachment::None, LONG).unwrap_err();
    assert_eq!(later.kind(), &ErrorKind::PeerLost);
}

#[test]
fn a_rank_that_exits_has_left() {
    passes(3, "leaver");
}

fn leaver(world: &World) {
    meet(world, "start");
    if world.rank() == 1 {
        return;
    }
    let started = Instant::now();
    let all = Group::world(3);
    let error = world.store().exchange("k", "test", &all, &[], Attachment::None, LONG).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PeerLeft, "{error}");
    assert_eq!(error.peers(), [1]);
    assert!(started.elapsed() < LONG / 2);
    let pair = Group::new([0, 2]).unwrap();
    world.store().exchange("rest", "the rest", &pair, &[], Attachment::None, LONG).unwrap();
}

#[test]
fn threads_of_a_rank_use_the_store_at_once() {
    passes(3, "threads");
}

fn overlapping(world: &World) {
    let n = world.size();
    thread::scope(|scope| {
        for offset in 0..16 {
            // Every rank starts its exchanges in another order.
            let i = (offset + 5 * world.rank()) % 16;
            scope.spawn(move || {
                for round in 0..20 {
                    let key = format!("{i}");
                    let payload = [i as u8, round, world.rank() as u8];
                    let all = Group::world(n);
                    let met = world.store().exchange(&key, "overlap", &all, &payload, Attachment::None, LONG).unwrap();
                    for (rank, (bytes, _)) in met.iter().enumerate() {
                        assert_eq!(bytes[..], [i as u8, round, rank as u8]);
                    }
                    world.store().add("rounds", 1).unwrap();
                }
            });
        }
    });
    meet(world, "end");
    assert_eq!(world.store().add("rounds", 0).unwrap(), 16 * 20 * n as i64);
}

#[test]
fn liveness_comes_from_the_kernel() {
    passes(3, "liveness");
}

fn liveness(world: &World) {
    // Nobody is dead, whether it has joined already or not.
    for rank in 0..3 {
        assert_eq!(world.liveness().status(rank), PeerStatus::Alive, "rank {rank}");
    }
    assert_eq!(world.liveness().status(3), PeerStatus::Gone);
    meet(world, "start");
    let started = Instant::now();
    for _ in 0..1000 {
        assert_eq!(world.liveness().status((world.rank() + 1) % 3), PeerStatus::Alive);
    }
    println!("one look takes {:.2} us", started.elapsed().as_secs_f64() * 1e3);
    meet(world, "looked");
    if world.rank() == 2 {
        return;
    }
    let started = Instant::now();
    while world.liveness().status(2) == PeerStatus::Alive {
        assert!(started.elapsed() < LONG, "rank 2 does not end");
        thread::sleep(Duration::from_millis(1));
    }
    let pair = Group::new([0, 1]).unwrap();
    world.store().exchange("pair", "pair", &pair, &[], Attachment::None, LONG).unwrap();
}

#[test]
fn hundreds_of_descriptors_pass() {
    passes(130, "many-fds");
}

fn many_descriptors(world: &World) {
    let all = Group::world(world.size());
    let file = memfd(&world.rank().to_string());
    let met = world.store().exchange("fds", "fds", &all, &[], Attachment::Fd(file.into()), LONG).unwrap();
    for (rank, (_, attachment)) in met.into_iter().enumerate() {
        assert_eq!(text_of(attachment), rank.to_string());
    }
}

#[test]
fn a_forked_child_is_refused() {
    passes(2, "fork");
}

#[allow(unsafe_code)]
fn forked_child(world: &World) {
    // SAFETY: the child makes one call that takes no lock of another thread, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let refused = world.store().get("x").is_err_and(|error| error.kind() == &ErrorKind::ForkedProcess);
            // SAFETY: ends this process without running what belongs to the parent.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) };
        }
        child => {
            let mut status = -1;
            // SAFETY: waits for the child forked above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    meet(world, "the parent goes on");
}

#[test]
fn too_few_descriptors_are_a_named_limit() {
    passes(40, "few-fds");
}

fn few_descriptors(world: &World) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    meet(world, "start");
    if world.rank() == 1 {
        let few = Rlimit { current: Some(20), maximum: before.maximum };
        setrlimit(Resource::Nofile, few).unwrap();
    }
    let all = Group::world(world.size());
    let file = Attachment::Fd(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let result = world.store().exchange("fds", "fds", &all, &[], file, LONG);
    if world.rank() == 1 {
        let error = result.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Limit { which, have: 20, .. } if which == "RLIMIT_NOFILE"),
            "{error}"
        );
    } else {
        assert_eq!(result.unwrap().len(), 40);
    }
    meet(world, "the connection still works");
}

#[test]
fn nonsense_from_a_rank_ends_that_rank_only() {
    passes(3, "hostile");
}

#[allow(unsafe_code)]
fn hostile(world: &World) {
    meet(world, "start");
    let trio = Group::world(3);
    if world.rank() == 1 {
        let number = std::env::var("RANKWISE_CONTROL_FD").unwrap().parse().unwrap();
        // SAFETY: the launcher's socket, which nothing closes.
        let control = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        // An exchange that announces four billion members.
        let mut frame = vec![7_u8, 9, 0, 0, 0, 0, 0, 0, 0];
        for field in [&b"k"[..], b"what", b""] {
            frame.extend_from_slice(&(field.len() as u32).to_le_bytes());
            frame.extend_from_slice(field);
        }
        frame.extend_from_slice(&[0, 0xff, 0xff, 0xff, 0xff]);
        rustix::io::write(control, &frame).unwrap();
        let error = world.store().get("x").unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Closed, "{error}");
        // Stay until the others have seen it, or leaving would be what they see.
        while world.liveness().status(0) == PeerStatus::Alive {
            thread::sleep(Duration::from_millis(1));
        }
        return;
    }
    let error = world.store().exchange("k", "test", &trio, &[], Attachment::None, LONG).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PeerLost);
    assert_eq!(error.peers(), [1]);
    assert!(error.message().contains("nonsense (a group is too large)"), "{error}");
    let pair = Group::new([2, 0]).unwrap();
    world.store().exchange("rest", "the rest", &pair, &[], Attachment::None, LONG).unwrap();
}

#[test]
fn the_child_of_a_rank_is_no_rank() {
    // The shell's child inherits the variables, and descriptors 100 and 101 are not open there.
    for (name, value, expected) in [
        ("RANKWISE_CONTROL_FD", "100", "RANKWISE_CONTROL_FD names descriptor 100, which is not open"),
        ("RANKWISE_CONTROL_FD", "$RANKWISE_LIFE_FD", "both name"),
        ("RANKWISE_LIFE_FD", "101", "RANKWISE_LIFE_FD names descriptor 101, which is not open"),
        ("RANKWISE_PROTOCOL", "0", "RANKWISE_PROTOCOL: ours 2, theirs 0"),
        ("RANKWISE_RANK", "1", "RANKWISE_RANK is 1"),
    ] {
        let exe = std::env::current_exe().unwrap();
        let script = format!("export {name}={value}; exec {} --exact as_a_rank --nocapture", exe.display());
        let shell = Launch::new(1, "sh").args(["-c", &script]).env(ROLE, "identity").timeout(LONG);
        let (outcome, lines) = run(shell.output(Output::Lines));
        assert_eq!(outcome.code(), 101, "{name}={value}: {lines:#?}");
        assert!(lines.iter().any(|line| line.contains(expected)), "{name}={value}: {lines:#?}");
    }
}

#[test]
fn one_rank_is_one_process() {
    let exe = std::env::current_exe().unwrap();
    let script =
        format!("{exe} --exact as_a_rank & {exe} --exact as_a_rank; a=$?; wait $!; echo $a $?", exe = exe.display());
    let shell = Launch::new(1, "sh").args(["-c", &script]).env(ROLE, "identity").timeout(LONG);
    let (_, lines) = run(shell.output(Output::Lines));
    assert!(lines.iter().any(|line| line.ends_with("0 101") || line.ends_with("101 0")), "{lines:#?}");
}

/// Ranks whose shell changes what the launcher said, with the script before the program.
fn disguised(ranks: usize, script: &str) -> (Outcome, Vec<String>) {
    let script = format!("{script}; exec {} --exact as_a_rank --nocapture", std::env::current_exe().unwrap().display());
    // The others have the time to report.
    let shell = Launch::new(ranks, "sh").args(["-c", &script]).env(ROLE, "identity").timeout(LONG).grace(LONG);
    run(shell.output(Output::Lines))
}

#[test]
fn swapped_ranks_are_refused() {
    let (outcome, lines) = disguised(2, "export RANKWISE_RANK=$((1-RANKWISE_RANK)) RANKWISE_LOCAL_RANK=$RANKWISE_RANK");
    assert_eq!(outcome.exits, [Exit::Code(101); 2], "{lines:#?}");
    for (rank, claimed) in [(0, 1), (1, 0)] {
        let expected = format!("(RANKWISE_RANK: ours {claimed}, theirs {rank})");
        let found = lines
            .iter()
            .any(|line| line.starts_with(&format!("[{rank}]")) && line.contains("Refused") && line.contains(&expected));
        assert!(found, "{expected}: {lines:#?}");
    }
}

#[test]
fn a_world_of_another_size_is_refused() {
    let alone = "export RANKWISE_RANK=0 RANKWISE_WORLD_SIZE=1 RANKWISE_LOCAL_RANK=0 RANKWISE_LOCAL_SIZE=1";
    // One after the other, so that they do not compete for rank 0's lock.
    let (outcome, lines) = disguised(2, &format!("[ $RANKWISE_RANK = 0 ] || sleep 1; {alone}"));
    assert_eq!(outcome.exits, [Exit::Code(101); 2], "{lines:#?}");
    for rank in 0..2 {
        let found = lines.iter().any(|line| {
            line.starts_with(&format!("[{rank}]")) && line.contains("(RANKWISE_WORLD_SIZE: ours 1, theirs 2)")
        });
        assert!(found, "rank {rank}: {lines:#?}");
    }
    let (outcome, lines) = disguised(1, "export RANKWISE_WORLD_SIZE=2");
    assert_eq!(outcome.code(), 101, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("(RANKWISE_WORLD_SIZE: ours 2, theirs 1)")), "{lines:#?}");
}
