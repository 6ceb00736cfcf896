//! Joining a job on several hosts: a TCP connection of every rank to rank 0, which serves the store there.

#![allow(unsafe_code)]

use crate::deadline::Deadline;
use crate::departure::announce_at_exit;
use crate::environment::{PROTOCOL, Spread, Standing};
use crate::greeting::{Answer, Greeting};
use crate::handshake::{Challenge, Hash, Hello};
use crate::hub::{Entrance, HOST, Hub};
use crate::join_errors::{Circumstances, refused, taken};
use crate::limits::descriptors;
use crate::line::{Server, ready};
use crate::link::Link;
use crate::liveness::Departed;
use crate::meeting_point::{Address, LISTEN_FD, MeetingPoint, TOKEN_FD, TokenPlace};
use crate::packet_socket::{PacketBuffer, ReceiveError};
use crate::process_store::ProcessStore;
use crate::remote_door::RemoteDoor;
use crate::roll_call::{self, Present};
use crate::tcp;
use crate::token::{Token, random_bytes};
use crate::wire::{MAX_RANKS, Seat};
use crate::world::{Inner, Placement, random_id};
use rankwise_core::{Config, Error, ErrorKind, Result};
use rustix::event::PollFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::sockopt;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long it may take to resolve the name, and then to be connected, before that is tried again. Once connected, the wait is
/// for the deadline: who gave up and came again would find its own place taken.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pauses between attempts begin and end with these.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How long an inherited descriptor may take to give the token, and the name of rank 0's own host to be known.
const PATIENCE: Duration = Duration::from_secs(10);
/// Descriptors that rank 0 needs besides those for the ranks.
const DESCRIPTORS: u64 = 128;

/// A rank's way into the job, and rank 0's hub.
pub(crate) struct Way {
    pub(crate) link: Link,
    pub(crate) job: u128,
    pub(crate) hub: Option<Hub>,
}

/// Joins, which is collective: returns when all ranks have come, or fails on all of them that have.
pub(crate) fn join(spread: Spread) -> Result<Inner> {
    let Spread { standing, key, point } = spread;
    let deadline = Deadline::after(Config::new().resolve()?.join_timeout);
    let token = load(&point.token, &deadline)?;
    let listener = match standing.rank {
        HOST => Some(listener(&point, &deadline).map_err(|error| error.with_rank(standing.rank))?),
        _ => None,
    };
    join_at(standing, &key, &point.at, token, listener)
}

/// The same when it is known where: `listener` is rank 0's.
pub(crate) fn join_at(
    standing: Standing,
    key: &str,
    at: &Address,
    token: Token,
    listener: Option<(OwnedFd, SocketAddr)>,
) -> Result<Inner> {
    let Standing { source, rank, size, local_rank, local_size } = standing;
    if size > MAX_RANKS {
        return Err(Error::config(format!("{size} ranks are too many; a job has at most {MAX_RANKS}")));
    }
    let limit = Config::new().resolve()?.join_timeout;
    let deadline = Deadline::after(limit);
    let present = Present::here();
    let place = match &listener {
        Some((_, address)) => listens_on(address),
        None => format!("rank 0 at {} port {}", at.host, at.port),
    };
    let circumstances = Circumstances { rank, size, source, key, place: &place, limit };
    let way = if let Some((listener, address)) = listener {
        tracing::info!(%address, "rank 0 listens");
        host(listener, size, key, token)?
    } else {
        let seat = Seat { rank: rank as u32, size: size as u32 };
        let hello = hello(seat, key, present.hash())?;
        call(at, &hello, &token, &deadline, &circumstances).map_err(|error| error.with_rank(rank))?
    };
    let departed = Departed::none_of(size);
    let store = ProcessStore::connect(way.link, rank, size, Server::Remote(departed.clone()))?;
    store.line().read_in_background()?;
    let met = roll_call::answer_across(&store, present, rank, size, &deadline);
    let met = match met {
        Ok(met) => met,
        Err(error) => {
            let error = circumstances.explain(error, way.hub.as_ref());
            // Tells the others what they wait for in vain, which this rank's own end must not come before.
            drop(way.hub);
            return Err(error);
        }
    };
    announce_at_exit(store.line(), way.hub.is_some());
    Ok(Inner {
        rank,
        size,
        local_rank,
        local_size,
        job: way.job,
        source,
        placement: Placement::Processes,
        cpus: met.cpus,
        hosts: Some(met.hosts),
        store: Box::new(store),
        liveness: Box::new(departed),
        hub: way.hub,
    })
}

/// Serves the store as rank 0.
pub(crate) fn host(listener: OwnedFd, size: usize, key: &str, token: Token) -> Result<Way> {
    let (have, need) = (descriptors(), DESCRIPTORS + size as u64);
    if have < need {
        let kind = ErrorKind::Limit { which: "RLIMIT_NOFILE".into(), have, need };
        let message = "rank 0 serves the store and needs a descriptor for every rank; raise the limit (ulimit -n)";
        return Err(Error::new(kind, message).with_rank(HOST));
    }
    let job = random_id();
    let door = RemoteDoor::new(listener, token, hash(key));
    let (hub, link) = Hub::open(size, job, Entrance::Remote(door))?;
    Ok(Way { link, job, hub: Some(hub) })
}

pub(crate) fn hello(seat: Seat, key: &str, settings: Hash) -> Result<Hello> {
    let greeting = Greeting { protocol: PROTOCOL.into(), version: env!("CARGO_PKG_VERSION").into(), seat };
    Ok(Hello { greeting, job: hash(key), settings, process: std::process::id(), nonce: random_bytes()? })
}

fn hash(key: &str) -> Hash {
    Sha256::digest(key.as_bytes()).into()
}

fn load(place: &TokenPlace, deadline: &Deadline) -> Result<Token> {
    match place {
        TokenPlace::File(path) => Token::read(path),
        TokenPlace::Descriptor(number) => {
            let wrong = |what: &str| {
                Error::config(format!("{TOKEN_FD} names descriptor {number}, which {what}; open the token file for it"))
            };
            // SAFETY: borrowed for two fcntl calls only, which is harmless on any number, open or not.
            let inherited = unsafe { BorrowedFd::borrow_raw(*number) };
            let own = rustix::io::fcntl_dupfd_cloexec(inherited, 3)
                .map_err(|errno| wrong("is not open here").with_source(errno))?;
            // What this rank starts is not to find it.
            let _ = rustix::io::fcntl_setfd(inherited, FdFlags::CLOEXEC);
            let patience = Deadline::after(deadline.remaining().min(PATIENCE));
            Token::from_descriptor(own.as_fd(), &patience)
                .ok_or_else(|| wrong("holds no token (64 hexadecimal digits), or has been read already"))
        }
    }
}

/// The socket that rank 0 listens on: the one that it inherited, or its own.
fn listener(point: &MeetingPoint, deadline: &Deadline) -> Result<(OwnedFd, SocketAddr)> {
    let Some(number) = point.listen_fd else {
        // A name may get its address only a moment after its host has come up.
        let patience = Deadline::after(deadline.remaining().min(PATIENCE));
        let addresses = loop {
            match tcp::resolve(&point.at.host, point.at.port, deadline) {
                Err(_) if tcp::in_digits(&point.at.host).is_none() && !patience.remaining().is_zero() => {
                    std::thread::sleep(LONGEST_PAUSE);
                }
                result => break result?,
            }
        };
        return tcp::listen_on(&addresses, point.at.interface.as_deref());
    };
    let wrong = |what: &str| Error::config(format!("{LISTEN_FD} names descriptor {number}, which {what}"));
    // SAFETY: borrowed for fcntl and getsockopt calls only, which are harmless on any number, open or not.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    if !sockopt::socket_acceptconn(inherited).map_err(|errno| wrong("is not a socket").with_source(errno))? {
        return Err(wrong("does not listen"));
    }
    let own = rustix::io::fcntl_dupfd_cloexec(inherited, 3).map_err(|errno| wrong("is not open").with_source(errno))?;
    let _ = rustix::io::fcntl_setfd(inherited, FdFlags::CLOEXEC);
    let flags = rustix::fs::fcntl_getfl(&own).map_err(|errno| wrong("cannot be used").with_source(errno))?;
    rustix::fs::fcntl_setfl(&own, flags | rustix::fs::OFlags::NONBLOCK)
        .map_err(|errno| wrong("cannot be used").with_source(errno))?;
    let address = rustix::net::getsockname(&own).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let address = address.ok_or_else(|| wrong("is no TCP socket"))?;
    if address.ip().is_unspecified() {
        return Err(wrong("listens on all addresses of this host; bind it to one of them"));
    }
    Ok((own, address))
}

fn listens_on(address: &SocketAddr) -> String {
    // The name of a host often leads to such an address on that host itself.
    let hint = match address.ip().is_loopback() {
        true => ", which other hosts cannot reach: give the address of this host's interface instead of a name",
        false => "",
    };
    format!("listening on {address}{hint}")
}

/// Calls rank 0 until it answers.
pub(crate) fn call(
    at: &Address,
    hello: &Hello,
    token: &Token,
    deadline: &Deadline,
    circumstances: &Circumstances<'_>,
) -> Result<Way> {
    let mut pause = FIRST_PAUSE;
    loop {
        // Each time, because a name may get its address only when rank 0's host comes up.
        let patience = deadline.remaining().min(ATTEMPT);
        let connected = match tcp::resolve(&at.host, at.port, &Deadline::after(patience)) {
            Ok(addresses) => tcp::connect_to(&addresses, at.interface.as_deref(), patience)?,
            Err(error) => Err(error.message().to_string()),
        };
        let why = match connected.map(|socket| attempt(socket, hello, token, deadline.remaining())) {
            Ok(Ok((link, Answer::Welcome { job }))) => return Ok(Way { link, job, hub: None }),
            Ok(Ok((_, Answer::Refused { key, here, there }))) => return Err(refused(key, here, there)),
            Ok(Ok((_, Answer::Taken { by, you }))) => return Err(taken(circumstances.rank, &by, &you)),
            Ok(Err(Failure::OtherToken)) => {
                let kind = ErrorKind::Refused {
                    key: "token".into(),
                    ours: "this rank's".into(),
                    theirs: "another one".into(),
                };
                let message = format!(
                    "rank 0 at {} port {} does not hold the same token, or it is an impostor; copy the token file of rank 0's \
                     host to all hosts",
                    at.host, at.port
                );
                return Err(Error::new(kind, message).with_peers([HOST]));
            }
            Ok(Err(Failure::Passing(what))) => what.into(),
            Err(what) => what,
        };
        if deadline.remaining().is_zero() {
            return Err(circumstances.nobody_there(&format!("the last attempt: {why}")));
        }
        std::thread::sleep(pause.min(deadline.remaining()));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Failure {
    OtherToken,
    /// May go better the next time.
    Passing(&'static str),
}

fn attempt(
    socket: OwnedFd,
    hello: &Hello,
    token: &Token,
    patience: Duration,
) -> std::result::Result<(Link, Answer), Failure> {
    let deadline = Deadline::after(patience);
    let link = Link::stream(socket, Vec::new());
    let mut buffer = PacketBuffer::new();
    // Every attempt has its own nonce.
    let hello = Hello { nonce: random_bytes().map_err(|_| Failure::Passing("no random bytes"))?, ..hello.clone() };
    let bytes = hello.encode();
    let send = |frame: &[u8]| link.send(&[frame], &[]).map_err(|_: Errno| Failure::Passing("the connection broke"));
    send(&bytes)?;
    let frame = hear(&link, &mut buffer, &deadline)?;
    let challenge = Challenge::decode(frame).map_err(|_| Failure::Passing("another program than rankwise answers"))?;
    if !challenge.is_genuine(&bytes, token) {
        return Err(Failure::OtherToken);
    }
    send(&challenge.answer(&bytes, token))?;
    let frame = hear(&link, &mut buffer, &deadline)?;
    let answer = Answer::decode(frame).map_err(|_| Failure::Passing("rank 0 answers in another form"))?;
    Ok((link, answer))
}

fn hear<'a>(link: &Link, buffer: &'a mut PacketBuffer, deadline: &Deadline) -> std::result::Result<&'a [u8], Failure> {
    let length = loop {
        match link.receive(buffer) {
            Ok(arrived) => break arrived.bytes.len(),
            Err(ReceiveError::WouldBlock) if deadline.remaining().is_zero() => {
                return Err(Failure::Passing("no answer in time"));
            }
            Err(ReceiveError::WouldBlock) => ready(link.as_fd(), PollFlags::IN, deadline.remaining()),
            Err(ReceiveError::Closed) => return Err(Failure::Passing("the connection was closed")),
            Err(ReceiveError::TooLong) => return Err(Failure::Passing("another program than rankwise answers")),
            Err(ReceiveError::Other(_)) => return Err(Failure::Passing("the connection broke")),
        }
    };
    Ok(&buffer.space()[..length])
}

#[cfg(test)]
mod tests;
