//! Ranks on several hosts, which meet at a TCP port of rank 0. Hosts are network namespaces joined by a veth pair where this
//! may make them, and otherwise only by what the variables say.
#![cfg(target_os = "linux")]

mod foreign;

use foreign::{Ended, LONG, ROLE, Ranks, meet};
use rankwise_core::{ErrorKind, Group};
use rankwise_world::launch::{Across, Event, Exit, Launch, Output};
use rankwise_world::{Attachment, PeerStatus, Token, World};
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn as_a_rank() {
    let Ok(role) = std::env::var(ROLE) else {
        println!("nothing to do: this is the program that the other tests launch");
        return;
    };
    let world = foreign::joined();
    match role.as_str() {
        "identity" => identity(&world),
        "victim" => victim(&world),
        "forker" => forker(&world),
        "cut off" => cut_off(&world),
        other => panic!("unknown role {other}"),
    }
    println!("DONE {} of {}", world.rank(), world.size());
}

fn identity(world: &World) {
    let n = world.size();
    let per_host: usize = std::env::var("LOCAL_WORLD_SIZE").unwrap().parse().unwrap();
    assert_eq!((world.local_rank(), world.local_size()), (world.rank() % per_host, per_host));
    let real = std::env::var("REAL_HOSTS").is_ok();
    for rank in 0..n {
        assert_eq!(world.host_of(rank), if real { rank / per_host } else { 0 }, "rank {rank}");
        assert_eq!(world.liveness().status(rank), PeerStatus::Alive, "rank {rank}");
    }
    let all = Group::world(n);
    let met = world.store().exchange("job", "job", &all, &world.job().to_le_bytes(), Attachment::None, LONG).unwrap();
    assert!(met.iter().all(|(job, _)| *job == world.job().to_le_bytes()));
    let file = Attachment::Fd(File::open("/dev/null").unwrap().into());
    let error = world.store().exchange("fd", "fd", &all, &[], file, LONG).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
    world.store().add("count", world.rank() as i64).unwrap();
    meet(world, "counted");
    assert_eq!(world.store().add("count", 0).unwrap() as usize, n * (n - 1) / 2);
    let value = vec![7; rankwise_world::MAX_VALUE];
    if world.rank() == n - 1 {
        thread::sleep(Duration::from_millis(50));
        world.store().set("large", &value).unwrap();
    }
    assert_eq!(world.store().wait("large", LONG).unwrap(), value);
    let error = world.store().wait("never", Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Timeout, "{error}");
    meet(world, "end");
    // The door is closed.
    assert!(foreign::listeners_of_this_process().is_empty());
    meet(world, "looked");
}

struct TokenFile(PathBuf);

impl TokenFile {
    fn new() -> TokenFile {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rankwise-hosts-{}-{number}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Token::random().unwrap().write_new(&path).unwrap();
        TokenFile(path)
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A port that is free now; the next to be asked for gets another.
fn free_port(address: &str) -> u16 {
    std::net::TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port()
}

fn spread(size: usize, role: &str, address: &str) -> (Ranks, TokenFile) {
    let token = TokenFile::new();
    let mut ranks = Ranks::new(size, role);
    ranks.spread(address, free_port(address), &token.0, &[&[], &[]]);
    (ranks, token)
}

#[test]
fn ranks_meet_over_ipv4_and_ipv6() {
    for address in ["127.0.0.1", "::1"] {
        if std::net::TcpListener::bind((address, 0)).is_err() {
            println!("SKIPPED: {address} is not here");
            continue;
        }
        let (mut ranks, _token) = spread(4, "identity", address);
        ranks.start_all();
        ranks.all_done();
    }
}

#[test]
fn rank_0_may_come_last() {
    let (mut ranks, _token) = spread(4, "identity", "127.0.0.1");
    for rank in [3, 1, 2, 0] {
        ranks.start(rank);
        thread::sleep(Duration::from_millis(200));
    }
    ranks.all_done();
}

/// Two network namespaces joined by a pair of interfaces, with IPv4 and IPv6.
struct TwoHosts {
    names: [String; 2],
    veths: [String; 2],
}

impl TwoHosts {
    /// `None`, with the reason printed, where they can't be made.
    fn new() -> Option<TwoHosts> {
        // Several tests of one process may run at a time.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let names = ["a", "b"].map(|side| format!("rankwise-{process}-{number}{side}"));
        let veths = ["a", "b"].map(|side| format!("rw{process}-{number}{side}"));
        let hosts = TwoHosts { names, veths };
        let ([a, b], [veth_a, veth_b]) = (&hosts.names, &hosts.veths);
        let mut script = format!(
            "set -e; ip netns add {a}; ip netns add {b}; ip link add {veth_a} netns {a} type veth peer name {veth_b} netns {b}; "
        );
        for (name, veth, last) in [(a, veth_a, 1), (b, veth_b, 2)] {
            script += &format!(
                "ip -n {name} link set lo up; ip -n {name} addr add 10.77.0.{last}/24 dev {veth}; \
                 ip -n {name} addr add fd77::{last}/64 dev {veth} nodad; ip -n {name} link set {veth} up; "
            );
        }
        match Command::new("sh").args(["-c", &script]).output() {
            Ok(output) if output.status.success() => Some(hosts),
            Ok(output) => {
                println!("SKIPPED: no network namespaces: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("SKIPPED: no shell: {error}");
                None
            }
        }
    }

    fn commands(&self) -> [[&str; 4]; 2] {
        [0, 1].map(|i| ["ip", "netns", "exec", &self.names[i]])
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn two_hosts_meet() {
    let Some(hosts) = TwoHosts::new() else { return };
    let [a, b] = hosts.commands();
    for address in ["10.77.0.1", "fd77::1"] {
        let token = TokenFile::new();
        let mut ranks = Ranks::new(4, "identity");
        ranks.spread(address, 7077, &token.0, &[&a, &b]);
        ranks.set("REAL_HOSTS", "1");
        ranks.start_all();
        ranks.all_done();
    }
    // A host that is cut off: nobody answers there.
    let token = TokenFile::new();
    let mut ranks = Ranks::new(2, "identity");
    ranks.spread("10.77.0.9", 7077, &token.0, &[&a, &b]);
    ranks.set("RANKWISE_JOIN_TIMEOUT", "2");
    ranks.start_all();
    let ended = ranks.finish();
    assert!(ended[0].text.contains("REFUSED Config") && ended[0].text.contains("10.77.0.1"), "{}", ended[0].text);
    assert!(ended[1].text.contains("REFUSED Timeout [0]"), "{}", ended[1].text);
}

/// A directory that ends with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rankwise-engine-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ranks that an engine has brought together, and who are told nothing else.
fn brought_together(size: usize, role: &str, hosts: &[&[&str]]) -> (Ranks, Directory) {
    let directory = Directory::new();
    let mut ranks = Ranks::new(size, role);
    ranks.on(hosts);
    ranks.set("MASTER_ADDR", "");
    ranks.set(foreign::engine::ENGINE, directory.0.to_str().unwrap());
    (ranks, directory)
}

#[test]
fn ranks_of_an_engine_meet_without_an_address_or_a_token() {
    // On one host the store can carry descriptors, so the role differs.
    let (mut ranks, _directory) = brought_together(3, "victim", &[]);
    ranks.set("VICTIM", "1");
    ranks.start_all();
    ranks.wait_for("waiting", 3);
    ranks.kill(1);
    for rank in [0, 2] {
        let Ended { code, text } = ranks.finish_one(rank);
        assert_eq!(code, Some(0), "rank {rank}:\n{text}");
    }
    let Some(hosts) = TwoHosts::new() else { return };
    let [a, b] = hosts.commands();
    let (mut ranks, _directory) = brought_together(4, "identity", &[&a, &b]);
    ranks.set("REAL_HOSTS", "1");
    ranks.start_all();
    ranks.all_done();
    // What rank 0 can't do all hear.
    let (mut ranks, _directory) = brought_together(4, "identity", &[&a, &b]);
    ranks.set("RANKWISE_INTERFACE", "nonet9");
    ranks.start_all();
    for (rank, Ended { code, text }) in ranks.finish().iter().enumerate() {
        assert_eq!(*code, Some(3), "rank {rank}:\n{text}");
        assert!(text.contains("REFUSED Config") && text.contains("nonet9"), "rank {rank}:\n{text}");
    }
}

#[test]
fn a_rank_that_an_engine_misses_is_named() {
    let (mut ranks, _directory) = brought_together(3, "victim", &[]);
    ranks.set("VICTIM", "1");
    ranks.set("RANKWISE_JOIN_TIMEOUT", "1");
    [0, 2].into_iter().for_each(|rank| ranks.start(rank));
    for Ended { code, text } in ranks.finish() {
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("REFUSED Timeout [1]"), "{text}");
    }
}

#[test]
fn a_host_that_vanishes_without_a_word_is_given_up() {
    let Some(hosts) = TwoHosts::new() else { return };
    let [a, b] = hosts.commands();
    let token = TokenFile::new();
    let mut ranks = Ranks::new(4, "cut off");
    ranks.spread("10.77.0.1", 7077, &token.0, &[&a, &b]);
    ranks.start_all();
    ranks.wait_for("waiting", 4);
    let cut =
        Command::new("ip").args(["-n", &hosts.names[1], "link", "set", &hosts.veths[1], "down"]).status().unwrap();
    assert!(cut.success());
    ranks.all_done();
}

fn cut_off(world: &World) {
    meet(world, "start");
    println!("waiting");
    // Rank 0 sees that those of the other host are gone, and they that it is.
    let others = if world.rank() < 2 { [2, 3].as_slice() } else { &[0] };
    let started = Instant::now();
    for rank in others {
        while world.liveness().status(*rank) == PeerStatus::Alive {
            assert!(started.elapsed() < LONG, "rank {rank} is not given up");
            thread::sleep(Duration::from_millis(5));
        }
    }
    println!("given up after {:?}", started.elapsed());
    if world.rank() < 2 {
        assert_eq!(world.liveness().status(1 - world.rank()), PeerStatus::Alive);
        let here = Group::new([0, 1]).unwrap();
        world.store().exchange("here", "this host", &here, &[], Attachment::None, LONG).unwrap();
    }
}

#[test]
fn the_death_of_any_rank_reaches_all() {
    for victim in [0, 1, 3] {
        let (mut ranks, _token) = spread(4, "victim", "127.0.0.1");
        ranks.set("VICTIM", &victim.to_string());
        ranks.start_all();
        ranks.wait_for("waiting", 4);
        thread::sleep(Duration::from_millis(50));
        ranks.kill(victim);
        for (rank, Ended { code, text }) in ranks.finish().iter().enumerate().filter(|(rank, _)| *rank != victim) {
            assert_eq!(*code, Some(0), "rank {rank} after {victim} was killed:\n{text}");
        }
    }
}

#[test]
fn what_a_rank_forked_does_not_hide_its_death() {
    for victim in [0, 1] {
        let (mut ranks, _token) = spread(4, "forker", "127.0.0.1");
        ranks.set("VICTIM", &victim.to_string());
        ranks.start_all();
        ranks.wait_for("waiting", 4);
        ranks.kill(victim);
        for survivor in (0..4).filter(|rank| *rank != victim) {
            let Ended { code, text } = ranks.finish_one(survivor);
            assert_eq!(code, Some(0), "rank {survivor} after {victim} was killed:\n{text}");
        }
    }
}

#[allow(unsafe_code)]
fn forker(world: &World) {
    let number: usize = std::env::var("VICTIM").unwrap().parse().unwrap();
    if world.rank() == number {
        // SAFETY: the child makes async-signal-safe calls only.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: as above; the process ends here, long after the test.
            unsafe {
                libc::close(1);
                libc::close(2);
                libc::sleep(60);
                libc::_exit(0)
            }
        }
    }
    victim(world);
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
    // Without any call into the store.
    let started = Instant::now();
    while world.liveness().status(victim) == PeerStatus::Alive {
        assert!(started.elapsed() < LONG, "rank {victim} does not end");
        thread::sleep(Duration::from_millis(1));
    }
    let all = Group::world(world.size());
    let error = world.store().exchange("k", "what nobody gets", &all, &[], Attachment::None, LONG).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PeerLost, "{error}");
    assert_eq!(error.peers(), [victim]);
    if victim != 0 {
        // Rank 0 serves the store, so it goes last.
        let rest = Group::new((0..world.size()).filter(|rank| *rank != victim)).unwrap();
        world.store().exchange("rest", "the rest", &rest, &[], Attachment::None, LONG).unwrap();
    }
}

#[test]
fn those_who_do_not_come_are_named() {
    for missing in [0, 2] {
        let (mut ranks, _token) = spread(4, "identity", "127.0.0.1");
        ranks.set("RANKWISE_JOIN_TIMEOUT", "1");
        (0..4).filter(|rank| *rank != missing).for_each(|rank| ranks.start(rank));
        for Ended { code, text } in ranks.finish() {
            assert_eq!(code, Some(3), "{text}");
            assert!(text.contains(&format!("REFUSED Timeout [{missing}]")), "{text}");
        }
    }
}

#[test]
fn another_token_is_refused_on_both_sides() {
    let (mut ranks, token) = spread(2, "identity", "127.0.0.1");
    let other = TokenFile::new();
    ranks.set("RANKWISE_JOIN_TIMEOUT", "2");
    ranks.start(0);
    ranks.set("RANKWISE_TOKEN_FILE", other.0.to_str().unwrap());
    ranks.start(1);
    let secrets = [&token, &other].map(|file| std::fs::read_to_string(&file.0).unwrap());
    let ended = ranks.finish();
    assert!(ended[1].text.contains("REFUSED Refused") && ended[1].text.contains("token"), "{}", ended[1].text);
    assert!(ended[0].text.contains("REFUSED Timeout [1]"), "{}", ended[0].text);
    assert!(ended.iter().all(|end| secrets.iter().all(|secret| !end.text.contains(secret.trim()))));
}

#[test]
fn different_settings_are_refused_on_both_sides() {
    let (mut ranks, _token) = spread(2, "identity", "127.0.0.1");
    for (rank, value) in ["0", "1"].iter().enumerate() {
        ranks.set("RANKWISE_CHECK", value);
        ranks.start(rank);
    }
    for (rank, Ended { text, .. }) in ranks.finish().into_iter().enumerate() {
        let both = format!("(RANKWISE_CHECK: ours {rank}, theirs {})", 1 - rank);
        assert!(text.contains("REFUSED Refused") && text.contains(&both), "{both}: {text}");
    }
}

#[test]
fn what_stands_in_the_way_is_said_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for (name, value, expected) in [
        ("RANKWISE_PORT", taken.local_addr().unwrap().port().to_string(), "REFUSED AddrInUse"),
        ("RANKWISE_INTERFACE", "nonet9".into(), "lo 127.0.0.1"),
        ("RANKWISE_TOKEN_FILE", "/dev/null".into(), "not a regular file"),
        ("RANKWISE_TOKEN_FILE", String::new(), "rankwise token new"),
        ("MASTER_ADDR", "no such host.invalid".into(), "cannot be resolved"),
    ] {
        let (mut ranks, _token) = spread(2, "identity", "127.0.0.1");
        ranks.set(name, &value);
        let started = Instant::now();
        ranks.start(0);
        let Ended { code, text } = ranks.finish_one(0);
        assert_eq!(code, Some(3), "{name}={value}: {text}");
        assert!(text.contains(expected), "{name}={value}: {text}");
        assert!(started.elapsed() < LONG / 2);
    }
}

#[test]
fn launchers_on_several_hosts_start_one_job() {
    let token = TokenFile::new();
    let start = |node: usize, port: u16| {
        let exe = std::env::current_exe().unwrap();
        Launch::new(2, exe)
            .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
            .env(ROLE, "identity")
            .env("LOCAL_WORLD_SIZE", "2")
            .timeout(LONG)
            .output(Output::Lines)
            .across(Across::new(3, node, "127.0.0.1", port, &token.0))
            .spawn()
    };
    let first = start(0, 0).unwrap();
    let port = first.listens_on().unwrap().port();
    // That of a job that runs is taken.
    assert_eq!(start(0, port).map(drop).unwrap_err().kind(), &ErrorKind::AddrInUse);
    assert_eq!(start(3, port).map(drop).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(start(1, 0).map(drop).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    let run = |job: rankwise_world::launch::Job| {
        let mut lines = Vec::new();
        let outcome = job.run(&mut |event| {
            if let Event::Line { rank, text, .. } = event {
                lines.push(format!("[{rank}] {}", String::from_utf8_lossy(&text)));
            }
        });
        assert_eq!(outcome.exits, [Exit::Code(0); 2], "{}", lines.join("\n"));
        lines
    };
    thread::scope(|scope| {
        // A job stays on the thread that started it.
        let others: Vec<_> = [1, 2].map(|node| scope.spawn(move || run(start(node, port).unwrap()))).into();
        let mut lines = run(first);
        lines.extend(others.into_iter().flat_map(|other| other.join().unwrap()));
        for rank in 0..6 {
            let done = format!("DONE {rank} of 6");
            assert!(
                lines.iter().any(|line| line.starts_with(&format!("[{rank}]")) && line.contains(&done)),
                "{lines:#?}"
            );
        }
    });
}
