//! The listening TCP sockets of rank 0 of a job on several hosts. Lets in who proves in time that it holds the token, and
//! forgets all others: scanners, junk, and those who say nothing.

use crate::greeting::Answer;
use crate::handshake::{self, Challenge, Hash, Hello, Nonce};
use crate::hub::Arrival;
use crate::link::{LENGTH, Link};
use crate::not_inherited::NotInherited;
use crate::tcp;
use crate::token::{Token, random_bytes};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, acceptfrom_with, recv, send, shutdown};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the handshake may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most connections in the middle of it.
const PENDING: usize = 64;
/// When there are that many, one that has said nothing for this long makes room for the next: a rank says hello at once.
const HASTE: Duration = Duration::from_millis(100);
/// Or one that has not answered for this long: as much as a way around the world and a busy host may take.
const LONGER_HASTE: Duration = Duration::from_millis(400);
/// Pause after the kernel could not hand out a connection.
const BREATH: Duration = Duration::from_millis(10);

pub(crate) struct RemoteDoor {
    /// Before the listener, so that it ends first.
    _not_inherited: NotInherited,
    listener: OwnedFd,
    token: Token,
    job: Hash,
    pending: Vec<Pending>,
    rests_until: Option<Instant>,
}

struct Pending {
    socket: OwnedFd,
    from: String,
    since: Instant,
    received: Vec<u8>,
    state: State,
}

impl Pending {
    /// From when on another may take its place.
    fn replaceable(&self) -> Instant {
        self.since + if matches!(self.state, State::Silent) { HASTE } else { LONGER_HASTE }
    }
}

enum State {
    Silent,
    Challenged { hello: Vec<u8>, decoded: Box<Hello>, nonce: Nonce },
}

/// What becomes of a connection.
enum Verdict {
    Wait(Pending),
    Enter(Arrival),
    Drop(Option<String>),
}

impl RemoteDoor {
    /// `listener` listens and does not block; `job` is the hash of the job's key.
    pub(crate) fn new(listener: OwnedFd, token: Token, job: Hash) -> RemoteDoor {
        let _not_inherited = NotInherited::new(listener.as_fd());
        RemoteDoor { _not_inherited, listener, token, job, pending: Vec::new(), rests_until: None }
    }

    /// Adds what to wait for, and until when at the latest.
    pub(crate) fn poll<'a>(&'a self, polled: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let now = Instant::now();
        let mut until = self.pending.iter().map(|pending| pending.since + PATIENCE).min();
        let mut by = |when: Instant| until = Some(until.map_or(when, |sooner| sooner.min(when)));
        match self.rests_until.filter(|when| *when > now) {
            Some(when) => by(when),
            None if self.has_room() => polled.push(PollFd::new(&self.listener, PollFlags::IN)),
            None => self.pending.iter().for_each(|pending| by(pending.replaceable())),
        }
        polled.extend(self.pending.iter().map(|pending| PollFd::new(&pending.socket, PollFlags::IN)));
        until
    }

    /// Those who have come through since the last call; never blocks. What should be told to those who wait goes to `notes`.
    pub(crate) fn arrivals(&mut self, notes: &mut Vec<String>) -> Vec<Arrival> {
        let mut arrived = Vec::new();
        self.hear(&mut arrived, notes);
        // A bounded number, so that a flood does not starve those inside.
        for _ in 0..PENDING {
            if !self.has_room() {
                break;
            }
            match acceptfrom_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((socket, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    let from = from.map_or_else(|| "somebody".to_string(), |from| from.to_string());
                    tcp::set_options(&socket);
                    let (since, received, state) = (Instant::now(), Vec::new(), State::Silent);
                    if let Some(place) = self.replaceable().filter(|_| self.pending.len() == PENDING) {
                        self.pending.remove(place);
                    }
                    self.pending.push(Pending { socket, from, since, received, state });
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    self.rests_until = Some(Instant::now() + BREATH);
                    break;
                }
            }
        }
        self.hear(&mut arrived, notes);
        arrived
    }

    /// Whether there is a place for one more, if need be that of another.
    fn has_room(&self) -> bool {
        self.pending.len() < PENDING || self.replaceable().is_some()
    }

    fn replaceable(&self) -> Option<usize> {
        let now = Instant::now();
        self.pending.iter().position(|pending| pending.replaceable() <= now)
    }

    fn hear(&mut self, arrived: &mut Vec<Arrival>, notes: &mut Vec<String>) {
        for pending in std::mem::take(&mut self.pending) {
            match self.advance(pending) {
                Verdict::Wait(pending) if pending.since.elapsed() < PATIENCE => self.pending.push(pending),
                Verdict::Wait(pending) => tracing::debug!(from = pending.from, "dropped: no handshake in time"),
                Verdict::Enter(arrival) => arrived.push(arrival),
                Verdict::Drop(note) => notes.extend(note),
            }
        }
    }

    /// Takes what has come on a connection, as far as it goes.
    fn advance(&self, mut pending: Pending) -> Verdict {
        loop {
            let frame = match next_frame(&pending.socket, &mut pending.received) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Verdict::Wait(pending),
                Err(()) => return Verdict::Drop(None),
            };
            pending.state = match pending.state {
                State::Silent => {
                    let (Ok(decoded), Ok(nonce)) = (Hello::decode(&frame), random_bytes()) else {
                        return Verdict::Drop(None);
                    };
                    let challenge = Challenge::to(&frame, nonce, &self.token).encode();
                    if send_frame(&pending.socket, &challenge).is_err() {
                        return Verdict::Drop(None);
                    }
                    State::Challenged { hello: frame, decoded: Box::new(decoded), nonce }
                }
                State::Challenged { hello, decoded, nonce } => {
                    let Pending { socket, from, received, .. } = pending;
                    let rank = decoded.greeting.seat.rank;
                    let who = format!("process {} at {from}", decoded.process);
                    if !handshake::is_genuine(&frame, &hello, &nonce, &self.token) {
                        return Verdict::Drop(Some(format!("{from} came as rank {rank} with another token")));
                    }
                    let link = Link::stream(socket, received);
                    if decoded.job != self.job {
                        let (here, there) = (short(&self.job), short(&decoded.job));
                        let note = format!("{who} came as rank {rank} of another job (hash {there}, this is {here})");
                        let answer = Answer::Refused { key: "hash of the job key".into(), here, there };
                        let _ = link.send(&[&answer.encode()], &[]);
                        return Verdict::Drop(Some(note));
                    }
                    return Verdict::Enter(Arrival { link, who, greeting: decoded.greeting });
                }
            };
        }
    }
}

impl Drop for RemoteDoor {
    fn drop(&mut self) {
        // Ends the listening also where another descriptor of the socket is open, as the inherited one is.
        let _ = shutdown(&self.listener, Shutdown::Read);
    }
}

fn short(hash: &Hash) -> String {
    hash[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The next whole frame, `None` while it is not there, an error when none can come any more or it is too long.
fn next_frame(socket: &OwnedFd, received: &mut Vec<u8>) -> Result<Option<Vec<u8>>, ()> {
    loop {
        if let Some(length) = received.first_chunk::<LENGTH>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length == 0 || length > handshake::MAX_FRAME {
                return Err(());
            }
            if received.len() >= LENGTH + length {
                let frame = received[LENGTH..LENGTH + length].to_vec();
                received.drain(..LENGTH + length);
                return Ok(Some(frame));
            }
        }
        let mut space = [0; 512];
        match recv(socket, &mut space[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(()),
            Ok((n, _)) => received.extend_from_slice(&space[..n]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(_) => return Err(()),
        }
    }
}

/// Sends a frame, for which a fresh connection has room.
fn send_frame(socket: &OwnedFd, frame: &[u8]) -> Result<(), Errno> {
    let bytes = [&(frame.len() as u32).to_le_bytes(), frame].concat();
    match send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(Errno::AGAIN),
    }
}
