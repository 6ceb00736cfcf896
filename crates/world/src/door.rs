//! The listening socket of a meeting place: lets in processes of this user that greet in time, and forgets all others.

use crate::greeting::Greeting;
use crate::hub::Arrival;
use crate::link::Link;
use crate::not_inherited::NotInherited;
use crate::packet_socket::{PacketBuffer, ReceiveError};
use crate::peer::Peer;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a connection may take to greet.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most connections that have not greeted yet.
const PENDING: usize = 64;
/// When there are that many, one that has been silent for this long makes room for the next: a rank greets at once.
const SILENCE: Duration = Duration::from_millis(20);
/// Most users that are named in the log.
const NAMED: usize = 4;
/// Pause after the kernel could not hand out a connection.
const BREATH: Duration = Duration::from_millis(10);

pub(crate) struct Door {
    /// Before the listener, so that it ends first.
    _not_inherited: NotInherited,
    listener: OwnedFd,
    pending: Vec<Pending>,
    rests_until: Option<Instant>,
    /// Users that are in the log already: they must not fill it.
    strangers: Vec<u32>,
}

struct Pending {
    socket: OwnedFd,
    pid: u32,
    since: Instant,
}

impl Door {
    /// `listener` is a listening Unix packet socket that does not block.
    pub(crate) fn new(listener: OwnedFd) -> Door {
        Door {
            _not_inherited: NotInherited::new(listener.as_fd()),
            listener,
            pending: Vec::new(),
            rests_until: None,
            strangers: Vec::new(),
        }
    }

    /// Adds what to wait for, and until when at the latest.
    pub(crate) fn poll<'a>(&'a self, polled: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let now = Instant::now();
        let mut until = self.pending.iter().map(|pending| pending.since + PATIENCE).min();
        let mut by = |when: Instant| until = Some(until.map_or(when, |sooner| sooner.min(when)));
        match self.rests_until.filter(|when| *when > now) {
            Some(when) => by(when),
            None if self.has_room() => polled.push(PollFd::new(&self.listener, PollFlags::IN)),
            None => by(self.pending[0].since + SILENCE),
        }
        polled.extend(self.pending.iter().map(|pending| PollFd::new(&pending.socket, PollFlags::IN)));
        until
    }

    /// Those who have greeted since the last call; never blocks.
    pub(crate) fn arrivals(&mut self, buffer: &mut PacketBuffer) -> Vec<Arrival> {
        let mut arrived = Vec::new();
        self.hear(buffer, &mut arrived);
        // A bounded number, so that a flood does not starve those inside.
        for _ in 0..PENDING {
            if !self.has_room() {
                break;
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    self.rests_until = Some(Instant::now() + BREATH);
                    break;
                }
            }
        }
        self.hear(buffer, &mut arrived);
        arrived
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(peer) = Peer::of(&socket) else { return };
        if !peer.is_this_user() {
            if self.strangers.len() < NAMED && !self.strangers.contains(&peer.uid) {
                self.strangers.push(peer.uid);
                tracing::warn!(uid = peer.uid, "a process of another user knocked where this job meets");
            }
            return;
        }
        if self.pending.len() == PENDING {
            self.pending.remove(0);
        }
        self.pending.push(Pending { socket, pid: peer.pid, since: Instant::now() });
    }

    /// Whether there is a place for one more, if need be that of the oldest.
    fn has_room(&self) -> bool {
        self.pending.len() < PENDING || self.pending[0].since.elapsed() >= SILENCE
    }

    fn hear(&mut self, buffer: &mut PacketBuffer, arrived: &mut Vec<Arrival>) {
        for pending in std::mem::take(&mut self.pending) {
            match buffer.receive(&pending.socket) {
                Ok(packet) => {
                    if let Ok(greeting) = Greeting::decode(packet.bytes) {
                        let who = crate::hub::process(pending.pid);
                        arrived.push(Arrival { link: Link::packets(pending.socket), who, greeting });
                    }
                }
                Err(ReceiveError::WouldBlock) if pending.since.elapsed() < PATIENCE => self.pending.push(pending),
                Err(_) => {}
            }
        }
    }
}
