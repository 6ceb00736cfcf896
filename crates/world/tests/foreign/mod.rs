//! Starting ranks without our launcher, and looking at sockets from outside.

// Each test binary uses its part of this.
#![allow(dead_code)]

pub(crate) mod engine;

use rankwise_core::Group;
use rankwise_world::{Attachment, World};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A user that is nobody in particular.
pub(crate) const NOBODY: u32 = 65534;
pub(crate) const ROLE: &str = "RANKWISE_TEST_ROLE";
const WATCHDOG: Duration = Duration::from_secs(60);
const NAME: &str = "SQUATTED_NAME";

/// How a process ended, and what it printed.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

/// Processes of one job with torchrun's variables, in the order in which they were started.
pub(crate) struct Ranks {
    key: String,
    envs: Vec<(String, String)>,
    running: Vec<Running>,
    lines: (Sender<String>, Receiver<String>),
    size: usize,
    /// Ranks of one host.
    per_host: usize,
    /// For each host, the command that the program is started under.
    hosts: Vec<Vec<String>>,
}

struct Running {
    child: Child,
    output: Option<JoinHandle<String>>,
    watched: bool,
}

/// A generous deadline.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The world of this rank; a refusal is printed and ends the process.
pub(crate) fn joined() -> World {
    let world = match engine::Files::of_environment() {
        Some(engine) => World::bootstrap(&engine),
        None => World::from_env(),
    };
    world.unwrap_or_else(|error| {
        println!("REFUSED {:?} {:?} {error}", error.kind(), error.peers());
        std::process::exit(3);
    })
}

pub(crate) fn meet(world: &World, key: &str) {
    let all = Group::world(world.size());
    world.store().exchange(key, "a barrier", &all, &[], Attachment::None, LONG).unwrap();
}

/// A text that no other test has.
fn unique() -> String {
    let mut random = [0_u8; 16];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    random.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Ranks {
    pub(crate) fn new(size: usize, role: &str) -> Ranks {
        let key = unique();
        let mut ranks = Ranks {
            key: key.clone(),
            envs: Vec::new(),
            running: Vec::new(),
            lines: channel(),
            size,
            per_host: size,
            hosts: Vec::new(),
        };
        for (name, value) in [
            ("WORLD_SIZE", size.to_string().as_str()),
            ("LOCAL_WORLD_SIZE", &size.to_string()),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", &key),
            (ROLE, role),
        ] {
            ranks.set(name, value);
        }
        ranks
    }

    /// Spreads the ranks evenly over hosts, which meet at this address and a free port of it; each host is a command that the
    /// program is started under.
    pub(crate) fn spread(&mut self, address: &str, port: u16, token: &Path, hosts: &[&[&str]]) {
        self.on(hosts);
        self.set("MASTER_ADDR", address);
        self.set("RANKWISE_PORT", &port.to_string());
        self.set("RANKWISE_TOKEN_FILE", token.to_str().unwrap());
    }

    /// Puts the ranks on hosts without saying where they meet.
    pub(crate) fn on(&mut self, hosts: &[&[&str]]) {
        self.per_host = self.size / hosts.len().max(1);
        self.hosts = hosts.iter().map(|command| command.iter().map(|word| word.to_string()).collect()).collect();
        self.set("LOCAL_WORLD_SIZE", &self.per_host.to_string());
    }

    /// For those started from now on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.envs.retain(|(known, _)| known != name);
        self.envs.push((name.into(), value.into()));
    }

    pub(crate) fn start(&mut self, rank: usize) {
        let exe = std::env::current_exe().unwrap();
        let wrapped = self.hosts.get(rank / self.per_host).filter(|command| !command.is_empty());
        let mut command = match wrapped {
            Some(wrapper) => {
                let mut command = Command::new(&wrapper[0]);
                command.args(&wrapper[1..]).arg(exe);
                command
            }
            None => Command::new(exe),
        };
        let mut child = command
            .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
            .envs(self.envs.iter().cloned())
            .envs([("RANK", rank.to_string()), ("LOCAL_RANK", (rank % self.per_host).to_string())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let lines = self.lines.0.clone();
        let output = thread::spawn(move || {
            let mut text = String::new();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                text.push_str(&line);
                text.push('\n');
                let _ = lines.send(line);
            }
            let mut errors = Vec::new();
            let _ = stderr.read_to_end(&mut errors);
            text + &String::from_utf8_lossy(&errors)
        });
        self.running.push(Running { child, output: Some(output), watched: true });
    }

    pub(crate) fn start_all(&mut self) {
        (0..self.size).for_each(|rank| self.start(rank));
    }

    pub(crate) fn pid(&self, started: usize) -> u32 {
        self.running[started].child.id()
    }

    /// Until this text has come in so many lines.
    pub(crate) fn wait_for(&self, text: &str, times: usize) {
        let mut seen = Vec::new();
        let until = Instant::now() + WATCHDOG;
        while seen.iter().filter(|line: &&String| line.contains(text)).count() < times {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.1.recv_timeout(left) {
                Ok(line) => seen.push(line),
                Err(_) => panic!("`{text}` did not come {times} times: {seen:#?}"),
            }
        }
    }

    pub(crate) fn kill(&mut self, started: usize) {
        self.running[started].child.kill().unwrap();
    }

    /// Waits for one of the processes.
    pub(crate) fn finish_one(&mut self, started: usize) -> Ended {
        let running = &mut self.running[started];
        let until = Instant::now() + WATCHDOG;
        let status = loop {
            if let Some(status) = running.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > until {
                let _ = running.child.kill();
                let text = running.output.take().map(|output| output.join().unwrap());
                panic!("a rank does not end:\n{}", text.unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(2));
        };
        running.watched = false;
        let text = running.output.take().map(|output| output.join().unwrap());
        Ended { code: status.code(), text: text.unwrap_or_default() }
    }

    /// Waits for all processes.
    pub(crate) fn finish(&mut self) -> Vec<Ended> {
        (0..self.running.len()).map(|started| self.finish_one(started)).collect()
    }

    pub(crate) fn all_done(&mut self) {
        for (rank, Ended { code, text }) in self.finish().into_iter().enumerate() {
            assert_eq!(code, Some(0), "rank {rank}:\n{text}");
            assert!(text.contains("DONE"), "rank {rank}:\n{text}");
        }
    }

    /// Where these ranks meet.
    pub(crate) fn first_name(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(rustix::process::geteuid().as_raw().to_le_bytes());
        hash.update(format!("TORCHELASTIC_RUN_ID={} MASTER_PORT=29500", self.key).as_bytes());
        let hex = hash.finalize()[..16].iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        format!("rankwise-{hex}-0")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for running in self.running.iter_mut().filter(|running| running.watched) {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

/// Sockets of this process that accept connections: TCP of both kinds, and Unix; each by its inode.
pub(crate) fn listeners_of_this_process() -> Vec<String> {
    let own: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_string()))
        .collect();
    let mut found = Vec::new();
    // Columns of the state and of the inode, and the state that means listening.
    for (table, state, inode, listening) in [("tcp", 3, 9, "0A"), ("tcp6", 3, 9, "0A"), ("unix", 3, 6, "00010000")] {
        let Ok(text) = std::fs::read_to_string(format!("/proc/self/net/{table}")) else { continue };
        for line in text.lines().skip(1) {
            let columns: Vec<&str> = line.split_ascii_whitespace().collect();
            if columns.get(state) == Some(&listening) && columns.get(inode).is_some_and(|i| own.iter().any(|o| o == i))
            {
                found.push(format!("{table} {}", columns[inode]));
            }
        }
    }
    found
}

fn packet_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Connects so many times, as soon as somebody listens.
pub(crate) fn knock(name: &str, times: usize) -> Vec<OwnedFd> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let until = Instant::now() + WATCHDOG;
    let mut sockets = Vec::new();
    while sockets.len() < times && Instant::now() < until {
        let socket = packet_socket();
        match connect(&socket, &address) {
            Ok(()) => sockets.push(socket),
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
    sockets
}

/// What a squatter's process does: takes the name and never answers.
pub(crate) fn squat() {
    let name = std::env::var(NAME).unwrap();
    let socket = packet_socket();
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    listen(&socket, 4).unwrap();
    println!("squatting");
    thread::sleep(WATCHDOG);
}

/// What an intruder's process does: greets as rank 1 of 2, and says what it hears.
pub(crate) fn intrude() {
    let name = std::env::var(NAME).unwrap();
    let socket = knock(&name, 1).remove(0);
    let mut greeting = b"rankwise\x01".to_vec();
    for word in [rankwise_world::PROTOCOL, env!("CARGO_PKG_VERSION")] {
        greeting.extend_from_slice(&(word.len() as u32).to_le_bytes());
        greeting.extend_from_slice(word.as_bytes());
    }
    greeting.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    let _ = rustix::net::send(&socket, &greeting, rustix::net::SendFlags::NOSIGNAL);
    let until = Instant::now() + WATCHDOG;
    let heard = loop {
        let mut answer = [0; 64];
        match rustix::io::read(&socket, &mut answer) {
            Err(rustix::io::Errno::AGAIN) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
            Ok(n) if n > 0 => break "let in",
            _ => break "shut out",
        }
    };
    println!("{heard}");
}

/// Ended when dropped.
pub(crate) struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of a user in a role at this name, once it says this; `None`, with the reason printed, where it can't run.
pub(crate) fn start_stranger(user: u32, role: &str, name: &str, says: &str) -> Option<Stranger> {
    // The program may lie where the other user cannot read it: hand it over by descriptor.
    let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty()).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&program));
    let child = Command::new(path)
        .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
        .envs([(ROLE, role), (NAME, name)])
        .current_dir("/")
        .uid(user)
        .gid(user)
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            println!("SKIPPED: a process of another user does not start here: {error}");
            return None;
        }
    };
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut heard = Vec::new();
    let said = lines.map_while(Result::ok).inspect(|line| heard.push(line.clone())).any(|line| line.contains(says));
    let stranger = Stranger(child);
    assert!(said, "the stranger did not say `{says}`: {heard:#?}");
    Some(stranger)
}
