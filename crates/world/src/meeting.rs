//! Ranks of one host that another launcher started: they meet where rank 0 listens, under a name that follows from what
//! they share.
//!
//! The name is that of an abstract Unix socket: it has no file, and ends with the process. Others on this host can take
//! names, so there are a few, and both ends make sure that the other belongs to the same user.

use crate::deadline::Deadline;
use crate::departure::announce_at_exit;
use crate::door::Door;
use crate::environment::{PROTOCOL, Standing};
use crate::greeting::{Answer, Greeting};
use crate::hub::{Entrance, HOST, Hub, process};
use crate::join_errors::{Circumstances, refused, taken};
use crate::life::Life;
use crate::limits::descriptors;
use crate::line::Server;
use crate::link::Link;
use crate::packet_socket::{self, PacketBuffer, ReceiveError};
use crate::peer::Peer;
use crate::process_store::ProcessStore;
use crate::roll_call::{self, Present};
use crate::wire::{MAX_RANKS, Seat};
use crate::world::{Inner, Placement, random_id};
use rankwise_core::{Config, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How many names there are, for the case that another user sits on one.
const NAMES: usize = 4;
/// How long rank 0 tries to get the name from a process that is ending.
const SUCCESSION: Duration = Duration::from_secs(1);
/// Descriptors that rank 0 needs besides one for each rank's connection and one for what each rank may send.
const DESCRIPTORS: u64 = 64;
/// Pauses between attempts begin and end with these.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Joins, which is collective: returns when all ranks have come, or fails on all of them that have.
pub(crate) fn join(standing: Standing, key: &str) -> Result<Inner> {
    let Standing { source, rank, size, local_rank, local_size } = standing;
    if size > MAX_RANKS {
        return Err(Error::config(format!("{size} ranks are too many; one host has at most {MAX_RANKS}")));
    }
    let limit = Config::new().resolve()?.join_timeout;
    let deadline = Deadline::after(limit);
    let circumstances = Circumstances { rank, size, source, key, place: "", limit };
    let (link, life, job, hub) = if rank == HOST {
        let door = Door::new(open(key, &deadline).map_err(|error| error.with_rank(rank))?);
        let (have, need) = (descriptors(), DESCRIPTORS + 2 * size as u64);
        if have < need {
            let kind = ErrorKind::Limit { which: "RLIMIT_NOFILE".into(), have, need };
            let message = "rank 0 serves the store and needs descriptors for all ranks; raise the limit (ulimit -n)";
            return Err(Error::new(kind, message).with_rank(rank));
        }
        let job = random_id();
        let (hub, link) = Hub::open(size, job, Entrance::Local(door))?;
        let life = hub.duplicate_life()?;
        (link, life, job, Some(hub))
    } else {
        let (socket, life, job) = visit(&circumstances, &deadline).map_err(|error| error.with_rank(rank))?;
        (Link::packets(socket), life, job, None)
    };
    let life = Life::take(life, rank, size).map(Arc::new).map_err(|holder| match holder {
        Some(pid) => taken(rank, &process(pid as u32), &process(std::process::id())),
        None => Error::config("what rank 0 sent is not a life file; are the versions the same?"),
    })?;
    let store = ProcessStore::connect(link, rank, size, Server::Host(life.clone())).inspect_err(|_| life.let_go())?;
    let cpus = match roll_call::answer(&store, Present::here(), rank, size, deadline.remaining()) {
        Ok(cpus) => cpus,
        Err(error) => {
            let error = circumstances.explain(error, hub.as_ref());
            // Tells the others what they wait for in vain, which this rank's own end must not come before.
            drop(hub);
            life.let_go();
            return Err(error);
        }
    };
    announce_at_exit(store.line(), hub.is_some());
    Ok(Inner {
        rank,
        size,
        local_rank,
        local_size,
        job,
        source,
        placement: Placement::Processes,
        cpus,
        store: Box::new(store),
        liveness: Box::new(life),
        hosts: None,
        hub,
    })
}

/// The names under which the ranks of a job may meet, in order.
fn names(key: &str) -> Result<[SocketAddrUnix; NAMES]> {
    let user = rustix::process::geteuid().as_raw();
    let mut hash = Sha256::new();
    hash.update(user.to_le_bytes());
    hash.update(key.as_bytes());
    let mut text = String::from("rankwise-");
    for byte in &hash.finalize()[..16] {
        let _ = write!(text, "{byte:02x}");
    }
    let name = |i: usize| SocketAddrUnix::new_abstract_name(format!("{text}-{i}").as_bytes());
    let all = [name(0), name(1), name(2), name(3)];
    let [a, b, c, d] = all.map(|name| name.map_err(|errno| broken("name a socket", errno)));
    Ok([a?, b?, c?, d?])
}

fn packet_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(|errno| broken("make a socket", errno))
}

fn broken(what: &str, errno: Errno) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE => crate::limits::out_of_descriptors(),
        errno => Error::config(format!("cannot {what} to meet the other ranks")).with_source(errno),
    }
}

/// Listens under the first name that no other user has.
fn open(key: &str, deadline: &Deadline) -> Result<OwnedFd> {
    let names = names(key)?;
    let succession = Deadline::after(SUCCESSION.min(deadline.remaining()));
    loop {
        let mut strangers = Vec::new();
        let mut predecessor = None;
        for name in &names {
            let socket = packet_socket()?;
            match bind(&socket, name) {
                Ok(()) => {
                    listen(&socket, 4096).map_err(|errno| broken("listen", errno))?;
                    return Ok(socket);
                }
                Err(Errno::ADDRINUSE) => match connect(&socket, name).and_then(|()| Peer::of(&socket)) {
                    Ok(peer) if peer.is_this_user() => {
                        predecessor = Some(peer.pid);
                        break;
                    }
                    Ok(peer) => strangers.push(peer),
                    // It does not listen, or is overrun: that is no way for rank 0 to behave.
                    Err(_) => strangers.push(Peer { pid: 0, uid: u32::MAX }),
                },
                Err(errno) => return Err(broken("bind a socket", errno)),
            }
        }
        if !strangers.is_empty() && predecessor.is_none() {
            return Err(occupied(&strangers, key));
        }
        if succession.remaining().is_zero() {
            return Err(taken(HOST, &process(predecessor.unwrap_or(0)), &process(std::process::id())));
        }
        std::thread::sleep(LONGEST_PAUSE);
    }
}

fn occupied(strangers: &[Peer], key: &str) -> Error {
    let owner = |peer: &Peer| match peer.uid {
        u32::MAX => "a process that does not answer".to_string(),
        uid => format!("user {uid} (process {})", peer.pid),
    };
    let owners: Vec<String> = strangers.iter().map(owner).collect();
    let kind = ErrorKind::AddrInUse;
    let message = format!(
        "the names where the ranks of job key `{key}` would meet are taken by {}; set RANKWISE_JOB_ID to a random text for \
         all ranks",
        owners.join(", ")
    );
    Error::new(kind, message)
}

/// Comes to where rank 0 listens, and greets; again and again until it answers.
fn visit(circumstances: &Circumstances<'_>, deadline: &Deadline) -> Result<(OwnedFd, OwnedFd, u128)> {
    let Circumstances { rank, size, key, .. } = *circumstances;
    let names = names(key)?;
    let seat = Seat { rank: rank as u32, size: size as u32 };
    let greeting = Greeting { protocol: PROTOCOL.into(), version: env!("CARGO_PKG_VERSION").into(), seat }.encode();
    let mut pause = FIRST_PAUSE;
    let mut strangers: Vec<Peer> = Vec::new();
    loop {
        strangers.clear();
        for name in &names {
            let socket = packet_socket()?;
            if connect(&socket, name).is_err() {
                continue;
            }
            match Peer::of(&socket) {
                Ok(peer) if peer.is_this_user() => {}
                Ok(peer) => {
                    strangers.push(peer);
                    continue;
                }
                Err(_) => continue,
            }
            if packet_socket::send(&socket, &[&greeting], &[]).is_err() {
                continue;
            }
            // Not less than all: who gave up and came again would find its own place taken.
            match hear(&socket, deadline.remaining()) {
                Some((Answer::Welcome { job }, Some(life))) => return Ok((socket, life, job)),
                Some((Answer::Refused { key, here, there }, _)) => {
                    return Err(refused(key, here, there));
                }
                Some((Answer::Taken { by, you }, _)) => return Err(taken(rank, &by, &you)),
                _ => {}
            }
        }
        if deadline.remaining().is_zero() {
            break;
        }
        std::thread::sleep(pause.min(deadline.remaining()));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    if !strangers.is_empty() {
        return Err(occupied(&strangers, key));
    }
    Err(circumstances.nobody_there("the ranks of one host need the same user and network namespace"))
}

/// The answer to a greeting; `None` when none comes in time, or nonsense.
fn hear(socket: &OwnedFd, limit: Duration) -> Option<(Answer, Option<OwnedFd>)> {
    let deadline = Deadline::after(limit);
    let mut buffer = PacketBuffer::new();
    loop {
        match buffer.receive(socket) {
            Ok(mut packet) => return Some((Answer::decode(packet.bytes).ok()?, packet.fds.pop())),
            Err(ReceiveError::WouldBlock) => {
                let left = deadline.remaining();
                if left.is_zero() {
                    return None;
                }
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                let _ = poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)], Some(&left));
            }
            Err(_) => return None,
        }
    }
}
