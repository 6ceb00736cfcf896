//! The store of ranks that are processes: a client of the hub, which is in our launcher or in rank 0.
//!
//! Any thread may call. Requests carry tickets; whichever waiting thread finds nobody reading the socket reads it and
//! hands replies to their owners, the others sleep. So a long wait of one thread never holds up another.

use crate::deadline::Deadline;
use crate::environment::{PROTOCOL, RANK, WORLD_SIZE};
use crate::hub::HOST;
use crate::life::Life;
use crate::limits::out_of_descriptors;
use crate::liveness::{Liveness, PeerStatus};
use crate::packet_socket::{self, PacketBuffer, ReceiveError};
use crate::store::{Attachment, Store, check_exchange, check_key, check_value, forked};
use crate::table::{Carried, Reply, Request};
use crate::wire::{self, Frame, MAX_WHAT, Malformed, Received, Seat};
use rankwise_core::fork::Generation;
use rankwise_core::{Error, ErrorKind, Group, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a waiting rank looks whether rank 0 lives, where that serves the store: what rank 0 forked keeps its sockets.
const LOOK: Duration = Duration::from_millis(50);
/// How long the kernel may take to end a process whose sockets are closed already.
const DEMISE: Duration = Duration::from_millis(200);
/// How long the server may take for an answer that needs nobody else.
const PROMPT: Duration = Duration::from_secs(10);
/// How long it may take to say who is missing, once a deadline has passed.
const DIAGNOSIS: Duration = Duration::from_secs(1);

/// Who has the other end of the socket.
pub(crate) enum Server {
    Launcher,
    /// Rank 0, whose end this shows.
    Host(Arc<Life>),
}

pub(crate) struct ProcessStore {
    server: Server,
    rank: usize,
    size: usize,
    socket: OwnedFd,
    next_ticket: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    buffer: Mutex<PacketBuffer>,
    generation: Generation,
}

#[derive(Default)]
struct State {
    slots: HashMap<u64, Slot>,
    /// A thread is reading the socket.
    reading: bool,
    broken: Option<Error>,
}

type Item = (Vec<u8>, Option<OwnedFd>);

enum Slot {
    Empty,
    Partly { items: Vec<Option<Item>>, missing: usize },
    Ready(Result<Outcome>),
}

enum Outcome {
    Reply(Reply),
    Seat(Seat),
    Items(Vec<Item>),
}

impl ProcessStore {
    /// Says hello to the hub, which knows whose end of a socket this is: `Refused` when it is not this rank's of a world of
    /// this size. The caller holds its life lock already.
    pub(crate) fn connect(socket: OwnedFd, rank: usize, size: usize, server: Server) -> Result<ProcessStore> {
        let store = ProcessStore {
            server,
            rank,
            size,
            socket,
            next_ticket: AtomicU64::new(1),
            state: Mutex::default(),
            changed: Condvar::new(),
            buffer: Mutex::new(PacketBuffer::new()),
            generation: Generation::current(),
        };
        let ours = Seat { rank: rank as u32, size: size as u32 };
        match store.call(&Frame::Hello { protocol: PROTOCOL.into(), seat: ours }, PROMPT)? {
            Outcome::Seat(theirs) if theirs == ours => Ok(store),
            Outcome::Seat(theirs) => Err(another_seat(ours, theirs).with_rank(rank)),
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, frame: &Frame, limit: Duration) -> Result<Outcome> {
        if !self.generation.is_current() {
            return Err(forked());
        }
        let deadline = Deadline::after(limit);
        // Relaxed: only uniqueness matters.
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        self.lock().slots.insert(ticket, Slot::Empty);
        let result = self.converse(ticket, frame, &deadline);
        self.lock().slots.remove(&ticket);
        result.map_err(|error| error.with_rank(self.rank).with_elapsed(deadline.elapsed()))
    }

    fn converse(&self, ticket: u64, frame: &Frame, deadline: &Deadline) -> Result<Outcome> {
        // A launcher that takes no packet within ten seconds is stuck, whatever the deadline.
        self.send(ticket, frame, &Deadline::after(PROMPT))?;
        if let Some(outcome) = self.receive(ticket, deadline)? {
            return Ok(outcome);
        }
        let patience = Deadline::after(DIAGNOSIS);
        let cancel = Frame::Request(Request::Cancel { ticket });
        let cancel_ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        self.send(cancel_ticket, &cancel, &patience)?;
        match self.receive(ticket, &patience)? {
            Some(outcome) => Ok(outcome),
            None => Err(self.silent()),
        }
    }

    fn send(&self, ticket: u64, frame: &Frame, deadline: &Deadline) -> Result<()> {
        let bytes = wire::encode_request(ticket, frame);
        let fds: Vec<BorrowedFd<'_>> = match frame {
            Frame::Request(Request::Exchange { carried: Carried::Fd(fd), .. }) => vec![fd.as_fd()],
            _ => Vec::new(),
        };
        loop {
            match packet_socket::send(&self.socket, &[&bytes], &fds) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) if !deadline.remaining().is_zero() => {
                    ready(self.socket.as_fd(), PollFlags::OUT, deadline.remaining());
                }
                // Too many descriptors are in flight between processes of this user; they drain.
                Err(Errno::TOOMANYREFS) if !deadline.remaining().is_zero() => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => return Err(self.silent()),
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    // Why may have come already.
                    let broken = self.read_all().broken.clone();
                    return Err(broken.unwrap_or_else(|| self.closed()));
                }
                Err(errno) => {
                    let message = "does the program close descriptors it did not open?";
                    return Err(Error::new(ErrorKind::Closed, format!("cannot send to {}; {message}", self.server()))
                        .with_source(errno));
                }
            }
        }
    }

    /// Waits for the reply to a ticket; `None` when the deadline passes.
    fn receive(&self, ticket: u64, deadline: &Deadline) -> Result<Option<Outcome>> {
        let mut state = self.lock();
        loop {
            if matches!(state.slots.get(&ticket), Some(Slot::Ready(_)))
                && let Some(Slot::Ready(result)) = state.slots.remove(&ticket)
            {
                return result.map(Some);
            }
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            let left = deadline.remaining();
            if left.is_zero() {
                return Ok(None);
            }
            if state.reading {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.reading = true;
            drop(state);
            let slice = if matches!(self.server, Server::Launcher) { left } else { left.min(LOOK) };
            ready(self.socket.as_fd(), PollFlags::IN, slice);
            state = self.read_all();
            if state.broken.is_none() && self.host_is_gone() {
                // What it sent before its end counts.
                drop(state);
                state = self.read_all();
                state.broken.get_or_insert_with(host_lost);
            }
            state.reading = false;
            self.changed.notify_all();
        }
    }

    /// Hands everything that has arrived to its owners.
    fn read_all(&self) -> MutexGuard<'_, State> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let broken = match buffer.receive(&self.socket) {
                Ok(arrived) => {
                    let lost = arrived.fds_lost;
                    let ticket = arrived.bytes.get(1..9).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
                    match (lost, ticket, wire::decode_reply(arrived.bytes, arrived.fds)) {
                        (true, Some(ticket), _) => {
                            if let Some(slot) = self.lock().slots.get_mut(&ticket) {
                                *slot = Slot::Ready(Err(out_of_descriptors()));
                            }
                            continue;
                        }
                        (_, _, Ok((_, Received::Closing))) => {
                            let mut state = self.lock();
                            state.broken = Some(host_left());
                            return state;
                        }
                        (_, _, Ok((ticket, received))) => {
                            if let Some(slot) = self.lock().slots.get_mut(&ticket) {
                                slot.put(received, self.rank);
                            }
                            continue;
                        }
                        (_, _, Err(Malformed(what))) => {
                            Error::new(ErrorKind::Closed, format!("{} sent nonsense: {what}", self.server()))
                        }
                    }
                }
                Err(ReceiveError::WouldBlock) => return self.lock(),
                Err(ReceiveError::Closed) => self.closed(),
                Err(ReceiveError::TooLong) => {
                    let message = format!("{} sent a packet longer than the protocol allows", self.server());
                    Error::new(ErrorKind::Closed, message)
                }
                Err(ReceiveError::Other(errno)) => {
                    Error::new(ErrorKind::Closed, format!("cannot read from {}", self.server())).with_source(errno)
                }
            };
            let mut state = self.lock();
            state.broken.get_or_insert(broken);
            return state;
        }
    }

    fn server(&self) -> &'static str {
        match self.server {
            Server::Launcher => "the launcher",
            Server::Host(_) => "rank 0, which serves the store,",
        }
    }

    fn host_is_gone(&self) -> bool {
        match &self.server {
            Server::Launcher => false,
            Server::Host(life) => self.rank != HOST && life.status(HOST) == PeerStatus::Gone,
        }
    }

    /// The other end of the socket is closed.
    fn closed(&self) -> Error {
        if let Server::Host(_) = self.server {
            let patience = Deadline::after(DEMISE);
            while !patience.remaining().is_zero() {
                if self.host_is_gone() {
                    return host_lost();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let message = match self.server {
            Server::Launcher => {
                "the launcher closed its connection: it has ended, or counts this rank as ended; see what it printed"
            }
            Server::Host(_) => {
                "rank 0, which serves the store, closed its connection: it counts this rank as ended; see what it printed"
            }
        };
        Error::new(ErrorKind::Closed, message)
    }

    fn silent(&self) -> Error {
        let message = format!("{} does not answer; is it stopped, or the machine overloaded?", self.server());
        Error::new(ErrorKind::Timeout, message)
    }

    fn ask(&self, request: Request, limit: Duration) -> Result<Reply> {
        match self.call(&Frame::Request(request), limit)? {
            Outcome::Reply(reply) => Ok(reply),
            Outcome::Items(_) | Outcome::Seat(_) => Err(unexpected()),
        }
    }
}

impl Slot {
    fn put(&mut self, received: Received, rank: usize) {
        match received {
            Received::Whole(Reply::Failed(failure)) => *self = Slot::Ready(Err(failure.into_error(rank))),
            Received::Seat(seat) => *self = Slot::Ready(Ok(Outcome::Seat(seat))),
            Received::Closing => {}
            Received::Whole(reply) => *self = Slot::Ready(Ok(Outcome::Reply(reply))),
            Received::Part { total, first, items: arrived } => {
                if matches!(self, Slot::Empty) {
                    *self = Slot::Partly { items: (0..total).map(|_| None).collect(), missing: total };
                }
                let Slot::Partly { items, missing } = self else { return };
                for (place, item) in items.iter_mut().skip(first).zip(arrived) {
                    *missing -= usize::from(place.is_none());
                    *place = Some(item);
                }
                if *missing == 0 {
                    let items = std::mem::take(items).into_iter().flatten().collect();
                    *self = Slot::Ready(Ok(Outcome::Items(items)));
                }
            }
        }
    }
}

impl Store for ProcessStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.ask(Request::Set { key: key.into(), value: value.into() }, PROMPT).map(drop)
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        match self.ask(Request::Get { key: key.into() }, PROMPT)? {
            Reply::Value(value) => Ok(value),
            _ => Err(unexpected()),
        }
    }

    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        check_key(key)?;
        match self.ask(Request::Wait { key: key.into() }, deadline)? {
            Reply::Value(Some(value)) => Ok(value),
            _ => Err(unexpected()),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        check_key(key)?;
        match self.ask(Request::Add { key: key.into(), delta }, PROMPT)? {
            Reply::Number(sum) => Ok(sum),
            _ => Err(unexpected()),
        }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_key(key)?;
        match self.ask(Request::Delete { key: key.into() }, PROMPT)? {
            Reply::Flag(there) => Ok(there),
            _ => Err(unexpected()),
        }
    }

    fn exchange(
        &self,
        key: &str,
        what: &str,
        members: &Group,
        payload: &[u8],
        attachment: Attachment,
        deadline: Duration,
    ) -> Result<Vec<(Vec<u8>, Attachment)>> {
        check_exchange(key, members, payload, self.rank, self.size)?;
        if matches!(attachment, Attachment::Local(_)) && members.len() > 1 {
            return Err(Error::invalid(
                "an object of this process cannot be sent to another; send bytes or a descriptor",
            ));
        }
        if members.len() == 1 {
            return Ok(vec![(payload.to_vec(), attachment)]);
        }
        let request = Request::Exchange {
            key: key.into(),
            what: wire::cut(what, MAX_WHAT).into(),
            members: members.ranks().map(|rank| rank as u32).collect(),
            payload: payload.into(),
            carried: attachment.into(),
        };
        match self.call(&Frame::Request(request), deadline)? {
            Outcome::Items(items) if items.len() == members.len() => Ok(items
                .into_iter()
                .map(|(payload, fd)| (payload, fd.map_or(Attachment::None, Attachment::Fd)))
                .collect()),
            _ => Err(unexpected()),
        }
    }
}

/// Blocks until the socket is ready or the time is over; the caller looks again in any case.
fn ready(socket: BorrowedFd<'_>, flags: PollFlags, limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::from_borrowed_fd(socket, flags)], Some(&limit));
}

fn another_seat(ours: Seat, theirs: Seat) -> Error {
    let (key, ours, theirs) = match ours.size == theirs.size {
        true => (RANK, ours.rank, theirs.rank),
        false => (WORLD_SIZE, ours.size, theirs.size),
    };
    let kind = ErrorKind::Refused { key: key.into(), ours: ours.to_string(), theirs: theirs.to_string() };
    let message = "the environment does not say what the launcher gave this process; leave the variables RANKWISE_* as \
                   `rankwise launch` sets them";
    Error::new(kind, message)
}

fn host_lost() -> Error {
    let message = "rank 0 has died, which serves the store of a job without our launcher; look at its output";
    Error::new(ErrorKind::PeerLost, message).with_peers([HOST])
}

fn host_left() -> Error {
    let message = "rank 0 has exited, which serves the store of a job without our launcher: let it exit last, or start the \
                   job with `rankwise launch`";
    Error::new(ErrorKind::PeerLeft, message).with_peers([HOST])
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Closed, "the answer is to something else than was asked; are the versions the same?")
}
