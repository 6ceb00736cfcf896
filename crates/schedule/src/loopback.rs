//! A transport between the ranks of one process, with delays, reordering and faults on demand. For tests and examples.
//!
//! Deterministic: with one seed and ranks polled in one order, everything happens in the same order. Ranks may also be threads. Tags are cut as
//! [`Tag::pack`] cuts them, so that what wraps around does so here too.

#![allow(unsafe_code)]

use crate::transport::{Envelope, Lent, Tag, Transport, mismatch};
use rankwise_core::descriptor::Words;
use rankwise_core::{Error, ErrorKind, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How a network behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Messages up to this many bytes are taken along by the send; longer ones are copied when they are received.
    pub eager: usize,
    /// A message arrives after at most this many polls of its receiver, at random. 0: at once.
    pub delay: u32,
    /// Of the delays.
    pub seed: u64,
}

impl Default for Settings {
    /// 64 bytes, no delays.
    fn default() -> Settings {
        Settings { eager: 64, delay: 0, seed: 0 }
    }
}

/// The transports of `n` ranks, by rank. At most 65536.
pub fn world(n: usize, settings: Settings) -> Vec<Loopback> {
    let hub = Hub {
        settings,
        random: settings.seed,
        clock: 0,
        ranks: (0..n).map(|_| Rank::default()).collect(),
        requests: Vec::new(),
        free: Vec::new(),
        cancels_work: true,
    };
    let hub = Arc::new(Mutex::new(hub));
    (0..n).map(|rank| Loopback { rank, network: Network { hub: hub.clone() } }).collect()
}

/// One rank's end.
#[derive(Debug)]
pub struct Loopback {
    rank: usize,
    network: Network,
}

/// What the ends have in common; also what breaks it.
#[derive(Clone, Debug)]
pub struct Network {
    hub: Arc<Mutex<Hub>>,
}

impl Loopback {
    /// The network this is an end of.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Requests of this rank that have not ended.
    pub fn outstanding(&self) -> usize {
        self.network
            .hub()
            .requests
            .iter()
            .filter(|state| matches!(state, State::Pending { rank, .. } if *rank == self.rank))
            .count()
    }
}

impl Network {
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// From now on messages with this rank fail with `PeerLost`, on both sides, those under way included.
    pub fn lose(&self, rank: usize) {
        let mut hub = self.hub();
        hub.ranks[rank].lost = true;
        for index in 0..hub.requests.len() {
            if let State::Pending { rank: owner, peer } = hub.requests[index]
                && (owner == rank || peer == rank)
            {
                hub.withdraw(index as u32);
                hub.requests[index] = State::Failed(lost(rank));
            }
        }
    }

    /// From now on what this rank sends arrives nowhere, and nobody is told.
    pub fn silence(&self, rank: usize) {
        self.hub().ranks[rank].silent = true;
    }

    /// Whether a cancelled message ends. If not, its memory is stuck, as with an engine that can't stop.
    pub fn let_cancels_work(&self, work: bool) {
        self.hub().cancels_work = work;
    }
}

/// A message under way.
#[derive(Debug)]
pub struct Request(u32);

#[derive(Debug)]
struct Hub {
    settings: Settings,
    random: u64,
    /// Microseconds; one passes with each poll.
    clock: u64,
    ranks: Vec<Rank>,
    requests: Vec<State>,
    free: Vec<u32>,
    cancels_work: bool,
}

#[derive(Debug, Default)]
struct Rank {
    polls: u64,
    lost: bool,
    silent: bool,
    queues: HashMap<u64, Queue>,
    /// Queues with a message and a receive for it that wait for the message's time.
    delayed: Vec<u64>,
}

/// Messages and receives with one tag of one sender, in order.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    receives: VecDeque<Receive>,
}

#[derive(Debug)]
struct Message {
    sender: usize,
    words: Option<Words>,
    data: Data,
    /// In polls of the receiver.
    arrives: u64,
}

#[derive(Debug)]
enum Data {
    Taken(Vec<u8>),
    Lent(Lent, u32),
}

#[derive(Debug)]
struct Receive {
    words: Option<Words>,
    lent: Lent,
    request: u32,
}

#[derive(Debug)]
enum State {
    Free,
    Pending { rank: usize, peer: usize },
    Done,
    Failed(Error),
}

fn lost(rank: usize) -> Error {
    Error::new(ErrorKind::PeerLost, format!("rank {rank} is lost; go on without it")).with_peers([rank])
}

impl Hub {
    fn request(&mut self, rank: usize, peer: usize) -> u32 {
        let state = State::Pending { rank, peer };
        if let Some(index) = self.free.pop() {
            self.requests[index as usize] = state;
            return index;
        }
        self.requests.push(state);
        (self.requests.len() - 1) as u32
    }

    fn end(&mut self, request: u32, result: Result<()>) {
        self.requests[request as usize] = match result {
            Ok(()) => State::Done,
            Err(error) => State::Failed(error),
        };
    }

    /// Takes what a request put into a queue out of it.
    fn withdraw(&mut self, request: u32) {
        for queue in self.ranks.iter_mut().flat_map(|rank| rank.queues.values_mut()) {
            queue.receives.retain(|receive| receive.request != request);
            queue.messages.retain(|message| !matches!(message.data, Data::Lent(_, sender) if sender == request));
        }
    }

    /// splitmix64
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Lets the first message of a queue meet the first receive, as long as there are both and it is time. True when one did.
    fn deliver(&mut self, to: usize, key: u64) -> bool {
        let mut moved = false;
        loop {
            let rank = &mut self.ranks[to];
            let polls = rank.polls;
            let Some(queue) = rank.queues.get_mut(&key) else { return moved };
            let (Some(message), Some(_)) = (queue.messages.front(), queue.receives.front()) else {
                if queue.messages.is_empty() && queue.receives.is_empty() {
                    rank.queues.remove(&key);
                }
                return moved;
            };
            if message.arrives > polls {
                if !rank.delayed.contains(&key) {
                    rank.delayed.push(key);
                }
                return moved;
            }
            let (Some(message), Some(receive)) = (queue.messages.pop_front(), queue.receives.pop_front()) else {
                return moved;
            };
            let result = hand_over(&message, &receive);
            self.end(receive.request, result);
            if let Data::Lent(_, request) = message.data {
                self.end(request, Ok(()));
            }
            moved = true;
        }
    }
}

/// Copies a message into the memory that waits for it, if they fit.
fn hand_over(message: &Message, receive: &Receive) -> Result<()> {
    if let (Some(theirs), Some(ours)) = (message.words, receive.words)
        && theirs != ours
    {
        return Err(mismatch(message.sender, theirs, ours));
    }
    let (from, bytes) = match &message.data {
        Data::Taken(data) => (data.as_ptr(), data.len()),
        Data::Lent(lent, _) => (lent.ptr.cast_const(), lent.bytes),
    };
    if bytes != receive.lent.bytes || message.words.is_some() != receive.words.is_some() {
        let (rank, expected) = (message.sender, receive.lent.bytes);
        return Err(Error::new(
            ErrorKind::Mismatch,
            format!(
                "rank {rank} sent {bytes} bytes where {expected} are expected; make both call with the same counts"
            ),
        )
        .with_peers([rank]));
    }
    // SAFETY: both are lent until their requests have ended, which they have not, and have this length.
    unsafe { std::ptr::copy_nonoverlapping(from, receive.lent.ptr, bytes) };
    Ok(())
}

// SAFETY: lent memory is touched only in `hand_over`, by a message and a receive that are taken out of their queue for it and whose requests end
// right after; `withdraw` takes out what ends otherwise.
unsafe impl Transport for Loopback {
    type Request = Request;

    fn near(&self, _: usize) -> bool {
        true
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.network.hub().clock)
    }

    unsafe fn send(&self, to: Envelope, data: Lent) -> Result<Option<Request>> {
        let mut hub = self.network.hub();
        for rank in [to.peer, self.rank] {
            if hub.ranks[rank].lost {
                return Err(lost(rank));
            }
        }
        let eager = data.bytes <= hub.settings.eager;
        let (data, request) = if eager {
            // SAFETY: readable by the caller's promise; an address of no bytes is not null.
            (Data::Taken(unsafe { std::slice::from_raw_parts(data.ptr, data.bytes) }.to_vec()), None)
        } else {
            let request = hub.request(self.rank, to.peer);
            (Data::Lent(data, request), Some(Request(request)))
        };
        if hub.ranks[self.rank].silent {
            return Ok(request);
        }
        let delay = hub.settings.delay;
        let delay = if delay == 0 { 0 } else { hub.random() % (u64::from(delay) + 1) };
        let key = to.tag.pack(self.rank as u16);
        let receiver = &mut hub.ranks[to.peer];
        let arrives = receiver.polls + delay;
        receiver.queues.entry(key).or_default().messages.push_back(Message {
            sender: self.rank,
            words: to.words,
            data,
            arrives,
        });
        hub.deliver(to.peer, key);
        Ok(request)
    }

    unsafe fn receive(&self, from: Envelope, lent: Lent) -> Result<Option<Request>> {
        let mut hub = self.network.hub();
        for rank in [from.peer, self.rank] {
            if hub.ranks[rank].lost {
                return Err(lost(rank));
            }
        }
        let request = hub.request(self.rank, from.peer);
        let key = Tag::pack(from.tag, from.peer as u16);
        let queue = hub.ranks[self.rank].queues.entry(key).or_default();
        queue.receives.push_back(Receive { words: from.words, lent, request });
        hub.deliver(self.rank, key);
        Ok(Some(Request(request)))
    }

    fn test(&self, request: &mut Request) -> Result<bool> {
        let mut hub = self.network.hub();
        let state = &mut hub.requests[request.0 as usize];
        match std::mem::replace(state, State::Free) {
            pending @ State::Pending { .. } => {
                *state = pending;
                return Ok(false);
            }
            State::Free => return Ok(true),
            State::Done => hub.free.push(request.0),
            State::Failed(error) => {
                hub.free.push(request.0);
                return Err(error);
            }
        }
        Ok(true)
    }

    fn progress(&self) -> bool {
        let mut hub = self.network.hub();
        hub.clock += 1;
        let rank = &mut hub.ranks[self.rank];
        rank.polls += 1;
        let delayed = std::mem::take(&mut rank.delayed);
        let mut moved = false;
        for key in delayed {
            moved |= hub.deliver(self.rank, key);
        }
        moved
    }

    fn stray(&self, tag: Tag, ours: Words) -> Option<(usize, Words)> {
        let hub = self.network.hub();
        let same_call = |key: u64| key as u32 == tag.pack(0) as u32 && (key >> 32) as u16 == tag.communicator;
        let queues =
            hub.ranks[self.rank].queues.iter().filter(|(key, queue)| same_call(**key) && queue.receives.is_empty());
        let first = queues.filter_map(|(_, queue)| queue.messages.front());
        let other = first.filter_map(|message| Some((message.sender, message.words.filter(|theirs| *theirs != ours)?)));
        other.min_by_key(|(sender, _)| *sender)
    }

    fn cancel(&self, request: &mut Request) {
        let mut hub = self.network.hub();
        if hub.cancels_work && matches!(hub.requests[request.0 as usize], State::Pending { .. }) {
            hub.withdraw(request.0);
            hub.end(request.0, Ok(()));
        }
    }
}

// SAFETY: the lent addresses in it are used as the safety of `Transport` says, from whichever thread.
unsafe impl Send for Hub {}
