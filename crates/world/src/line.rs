//! A rank's end of the connection to the hub: sends frames, and hands replies to those who wait for them.
//!
//! Any thread may call. Whichever waiting thread finds nobody reading the connection reads it and hands replies to their
//! owners, the others sleep. Where the hub also tells who has ended, a thread of its own reads all the time.

use crate::deadline::Deadline;
use crate::hub::HOST;
use crate::life::Life;
use crate::limits::out_of_descriptors;
use crate::link::Link;
use crate::liveness::{Departed, Liveness, PeerStatus};
use crate::packet_socket::{PacketBuffer, ReceiveError};
use crate::table::{Carried, Reply, Request};
use crate::wire::{self, Frame, Malformed, Received, Seat};
use rankwise_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a waiting rank looks whether rank 0 lives, where that serves the store: what rank 0 forked keeps its sockets.
const LOOK: Duration = Duration::from_millis(50);
/// How long the kernel may take to end a process whose sockets are closed already.
const DEMISE: Duration = Duration::from_millis(200);

/// Who has the other end.
pub(crate) enum Server {
    Launcher,
    /// Rank 0 on this host, whose end this shows.
    Host(Arc<Life>),
    /// Rank 0 of a job on several hosts; the hub tells who has ended.
    Remote(Departed),
}

pub(crate) struct Line {
    server: Server,
    rank: usize,
    link: Link,
    state: Mutex<State>,
    changed: Condvar,
    buffer: Mutex<PacketBuffer>,
}

#[derive(Default)]
struct State {
    slots: HashMap<u64, Slot>,
    /// A thread is reading.
    reading: bool,
    broken: Option<Error>,
}

pub(crate) type Item = (Vec<u8>, Option<OwnedFd>);

enum Slot {
    Empty,
    Partly { items: Vec<Option<Item>>, missing: usize },
    Ready(Result<Outcome>),
}

pub(crate) enum Outcome {
    Reply(Reply),
    Seat(Seat),
    Items(Vec<Item>),
}

impl Line {
    pub(crate) fn new(link: Link, rank: usize, server: Server) -> Line {
        let (state, changed, buffer) = (Mutex::default(), Condvar::new(), Mutex::new(PacketBuffer::new()));
        Line { server, rank, link, state, changed, buffer }
    }

    /// From now on a thread of its own reads, until the connection ends.
    pub(crate) fn read_in_background(self: &Arc<Line>) -> Result<()> {
        self.lock().reading = true;
        let line = self.clone();
        let body = move || {
            crate::signals::leave_to_other_threads();
            loop {
                ready(line.link.as_fd(), PollFlags::IN, Duration::from_secs(3600));
                let state = line.read_all();
                line.changed.notify_all();
                if state.broken.is_some() {
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("rankwise-line".into()).spawn(body) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.lock().reading = false;
                Err(crate::limits::refused_by_system("start the thread that listens to rank 0", 1, error))
            }
        }
    }

    /// Whether descriptors can be sent to all ranks.
    pub(crate) fn carries_descriptors(&self) -> bool {
        !matches!(self.server, Server::Remote(_))
    }

    /// Expects a reply to this ticket.
    pub(crate) fn open(&self, ticket: u64) {
        self.lock().slots.insert(ticket, Slot::Empty);
    }

    /// Expects none any more.
    pub(crate) fn close(&self, ticket: u64) {
        self.lock().slots.remove(&ticket);
    }

    /// Tells the hub, without waiting, that this process ends; then waits until the hub has closed the connection when it is
    /// in this process.
    pub(crate) fn say_goodbye(&self, hub_is_here: bool, limit: Duration) {
        let frame = wire::encode_request(0, &Frame::Goodbye);
        if self.link.send(&[&frame], &[]).is_ok() && hub_is_here {
            // Nothing may be read here: that belongs to the threads of the program.
            ready(self.link.as_fd(), PollFlags::empty(), limit);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, ticket: u64, frame: &Frame, deadline: &Deadline) -> Result<()> {
        let bytes = wire::encode_request(ticket, frame);
        let fds: Vec<BorrowedFd<'_>> = match frame {
            Frame::Request(Request::Exchange { carried: Carried::Fd(fd), .. }) => vec![fd.as_fd()],
            _ => Vec::new(),
        };
        loop {
            match self.link.send(&[&bytes], &fds) {
                Ok(()) => return self.flush(deadline),
                Err(Errno::AGAIN) if !deadline.remaining().is_zero() => {
                    ready(self.link.as_fd(), PollFlags::OUT, deadline.remaining());
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

    /// Gets the rest of a frame out, without which the next could not be sent.
    fn flush(&self, deadline: &Deadline) -> Result<()> {
        while self.link.has_unsent() {
            match self.link.flush() {
                Ok(()) => {}
                Err(Errno::AGAIN) if !deadline.remaining().is_zero() => {
                    ready(self.link.as_fd(), PollFlags::OUT, deadline.remaining().min(LOOK));
                }
                Err(Errno::AGAIN) => return Err(self.silent()),
                Err(_) => return Err(self.lock().broken.clone().unwrap_or_else(|| self.closed())),
            }
        }
        Ok(())
    }

    /// Waits for the reply to a ticket; `None` when the deadline passes.
    pub(crate) fn receive(&self, ticket: u64, deadline: &Deadline) -> Result<Option<Outcome>> {
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
            ready(self.link.as_fd(), PollFlags::IN, slice);
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
            let broken = match self.link.receive(&mut buffer) {
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
                            self.mark_host_gone();
                            let mut state = self.lock();
                            state.broken = Some(host_left());
                            return state;
                        }
                        (_, _, Ok((_, Received::Gone(rank)))) => {
                            if let Server::Remote(departed) = &self.server {
                                departed.mark(rank as usize);
                            }
                            continue;
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
            Server::Host(_) | Server::Remote(_) => "rank 0, which serves the store,",
        }
    }

    fn host_is_gone(&self) -> bool {
        match &self.server {
            Server::Launcher | Server::Remote(_) => false,
            Server::Host(life) => self.rank != HOST && life.status(HOST) == PeerStatus::Gone,
        }
    }

    fn mark_host_gone(&self) {
        if let Server::Remote(departed) = &self.server {
            departed.mark(HOST);
        }
    }

    /// The other end is closed.
    fn closed(&self) -> Error {
        self.mark_host_gone();
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
            Server::Remote(_) => {
                let message = "the connection to rank 0, which serves the store, has ended: rank 0 died, its host can't be \
                               reached, or it counts this rank as ended; look at its output";
                return Error::new(ErrorKind::PeerLost, message).with_peers([HOST]);
            }
        };
        Error::new(ErrorKind::Closed, message)
    }

    pub(crate) fn silent(&self) -> Error {
        let message = format!("{} does not answer; is it stopped, or the machine overloaded?", self.server());
        Error::new(ErrorKind::Timeout, message)
    }
}

impl Slot {
    fn put(&mut self, received: Received, rank: usize) {
        match received {
            Received::Whole(Reply::Failed(failure)) => *self = Slot::Ready(Err(failure.into_error(rank))),
            Received::Seat(seat) => *self = Slot::Ready(Ok(Outcome::Seat(seat))),
            Received::Closing | Received::Gone(_) => {}
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

/// Blocks until the socket is ready or the time is over; the caller looks again in any case.
pub(crate) fn ready(socket: BorrowedFd<'_>, flags: PollFlags, limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::from_borrowed_fd(socket, flags)], Some(&limit));
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
