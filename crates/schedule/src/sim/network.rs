//! A network in virtual time: messages as events.

#![allow(unsafe_code)]

use super::links::{Links, Passage};
use super::memory::Processor;
use super::model::{Model, picoseconds};
use super::queues::{NONE, Queues, Slab, Waiting};
use crate::transport::{Envelope, Lent, Transport, mismatch};
use rankwise_core::descriptor::Words;
use rankwise_core::{Error, ErrorKind, Result};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

/// What a rank has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Bytes of data in them.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A message's first byte is at its next link.
    Move(u32),
    /// Its last byte is at its receiver.
    Arrive(u32),
    /// A link has taken the last byte of a send.
    Sent(u32),
    /// A rank looks what has happened.
    Wake(u32),
}

#[derive(Debug)]
pub(super) struct Message {
    from: u32,
    to: u32,
    bytes: usize,
    key: u64,
    words: Option<Words>,
    data: Option<Box<[u8]>>,
    passage: Passage,
    /// The request of its send.
    send: u32,
}

/// A send or a receive.
#[derive(Debug)]
pub(super) struct Posted {
    rank: u32,
    state: State,
    key: u64,
    lent: Lent,
    words: Option<Words>,
    receives: bool,
}

#[derive(Debug)]
enum State {
    Pending,
    Done,
    Failed(Error),
}

#[derive(Debug)]
struct Rank {
    processor: Processor,
    /// Whether a `Wake` is among the events.
    woken: bool,
    sent: Traffic,
}

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) model: Model,
    pub(super) with_data: bool,
    /// Picoseconds.
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Of events, so that those of one time happen in the order in which they were made.
    number: u64,
    ranks: Vec<Rank>,
    links: Links,
    messages: Slab<Message>,
    posted: Slab<Posted>,
    queues: Queues,
}

/// One rank's end of the network.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) rank: usize,
    pub(super) hub: Rc<RefCell<Hub>>,
}

/// A send or a receive under way.
#[derive(Debug)]
pub(super) struct Request(u32);

impl Hub {
    pub(super) fn new(model: Model, ranks: usize, with_data: bool) -> Hub {
        let rank = || Rank { processor: Processor::default(), woken: false, sent: Traffic::default() };
        Hub {
            model,
            with_data,
            now: 0,
            events: BinaryHeap::new(),
            number: 0,
            ranks: (0..ranks).map(|_| rank()).collect(),
            links: Links::new(&model, ranks),
            messages: Slab::default(),
            posted: Slab::default(),
            queues: Queues::default(),
        }
    }

    pub(super) fn processor(&self, rank: usize) -> &Processor {
        &self.ranks[rank].processor
    }

    pub(super) fn sent(&self, rank: usize) -> Traffic {
        self.ranks[rank].sent
    }

    /// Lets things happen until a rank has to look; `None` when nothing more happens.
    pub(super) fn next(&mut self) -> Option<usize> {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            match event {
                Event::Move(message) => self.pass(message),
                Event::Arrive(message) => self.arrive(message),
                Event::Sent(request) => self.end(request, Ok(())),
                Event::Wake(rank) => {
                    let state = &mut self.ranks[rank as usize];
                    let free = state.processor.get();
                    if free > time {
                        // Its processor is busy with what came meanwhile.
                        self.push(free, event);
                        continue;
                    }
                    state.woken = false;
                    state.processor.set(time);
                    return Some(rank as usize);
                }
            }
        }
        None
    }

    fn push(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn wake(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if !state.woken {
            state.woken = true;
            let time = state.processor.get().max(self.now);
            self.push(time, Event::Wake(rank));
        }
    }

    fn pass(&mut self, index: u32) {
        let message = self.messages.get_mut(index);
        let ends = (message.from as usize, message.to as usize);
        let passed = self.links.pass(&self.model, ends, message.bytes, self.now, &mut message.passage);
        let send = std::mem::replace(&mut message.send, NONE);
        if send != NONE {
            self.push(passed.taken, Event::Sent(send));
        }
        match passed.next {
            Some(time) => self.push(time, Event::Move(index)),
            None => self.push(passed.taken, Event::Arrive(index)),
        }
    }

    fn arrive(&mut self, index: u32) {
        let (to, key) = {
            let message = self.messages.get_mut(index);
            (message.to, message.key)
        };
        let processor = &self.ranks[to as usize].processor;
        processor.set(processor.get().max(self.now).saturating_add(picoseconds(self.model.receive_overhead)));
        if let Some(receive) = self.queues.meet(to, key, Waiting::Messages, index) {
            let result = self.hand_over(index, receive);
            self.end(receive, result);
        }
    }

    /// Takes the message and copies its data into the memory of a receive, if they fit.
    fn hand_over(&mut self, message: u32, receive: u32) -> Result<()> {
        let message = self.messages.remove(message);
        let posted = self.posted.get_mut(receive);
        let rank = message.from as usize;
        if let (Some(theirs), Some(ours)) = (message.words, posted.words)
            && theirs != ours
        {
            return Err(mismatch(rank, theirs, ours));
        }
        let (bytes, expected) = (message.bytes, posted.lent.bytes);
        if bytes != expected || message.words.is_some() != posted.words.is_some() {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "rank {rank} sent {bytes} bytes where {expected} are expected; make both call with the same counts"
                ),
            )
            .with_peers([rank]));
        }
        if let Some(data) = message.data {
            // SAFETY: writable until the receive has ended, which it has not; of this length.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), posted.lent.ptr, bytes) };
        }
        Ok(())
    }

    fn end(&mut self, request: u32, result: Result<()>) {
        let posted = self.posted.get_mut(request);
        posted.state = match result {
            Ok(()) => State::Done,
            Err(error) => State::Failed(error),
        };
        let rank = posted.rank;
        self.wake(rank);
    }
}

// SAFETY: with data, memory is read in `send` and written in `hand_over`, for a receive that is taken out of its queue for it and ends right after, or that
// has just been posted. A cancelled receive is taken out. Without data no memory is touched.
unsafe impl Transport for Port {
    type Request = Request;

    fn near(&self, peer: usize) -> bool {
        let model = &self.hub.borrow().model;
        model.host(peer) == model.host(self.rank)
    }

    fn now(&self) -> Duration {
        let hub = self.hub.borrow();
        Duration::from_nanos(hub.processor(self.rank).get().max(hub.now) / 1000)
    }

    unsafe fn send(&self, to: Envelope, data: Lent) -> Result<Option<Request>> {
        let mut hub = self.hub.borrow_mut();
        let hub = &mut *hub;
        let (rank, bytes) = (self.rank as u32, data.bytes);
        let key = to.tag.pack(rank as u16);
        let state = &mut hub.ranks[self.rank];
        let time = state.processor.get().max(hub.now).saturating_add(picoseconds(hub.model.send_overhead));
        state.processor.set(time);
        state.sent.messages += 1;
        state.sent.bytes += bytes as u64;
        let copied = hub.with_data.then(|| {
            // SAFETY: readable by the caller's promise; an address of no bytes is not null.
            unsafe { std::slice::from_raw_parts(data.ptr.cast_const(), bytes) }.into()
        });
        let send = if bytes <= hub.model.eager {
            NONE
        } else {
            let (state, words) = (State::Pending, None);
            hub.posted.insert(Posted { rank, state, key, lent: data, words, receives: false })
        };
        let message = hub.messages.insert(Message {
            from: rank,
            to: to.peer as u32,
            bytes,
            key,
            words: to.words,
            data: copied,
            passage: Passage::default(),
            send,
        });
        hub.push(time, Event::Move(message));
        Ok((send != NONE).then_some(Request(send)))
    }

    unsafe fn receive(&self, from: Envelope, lent: Lent) -> Result<Option<Request>> {
        let mut hub = self.hub.borrow_mut();
        let (rank, key) = (self.rank as u32, from.tag.pack(from.peer as u16));
        let posted = Posted { rank, state: State::Pending, key, lent, words: from.words, receives: true };
        let request = hub.posted.insert(posted);
        let Some(message) = hub.queues.meet(rank, key, Waiting::Receives, request) else {
            return Ok(Some(Request(request)));
        };
        let result = hub.hand_over(message, request);
        hub.posted.remove(request);
        result.map(|()| None)
    }

    fn test(&self, request: &mut Request) -> Result<bool> {
        let mut hub = self.hub.borrow_mut();
        if let State::Pending = hub.posted.get_mut(request.0).state {
            return Ok(false);
        }
        match hub.posted.remove(request.0).state {
            State::Failed(error) => Err(error),
            _ => Ok(true),
        }
    }

    /// Nothing moves here: time passes in [`super::Simulation::run`].
    fn progress(&self) -> bool {
        false
    }

    fn cancel(&self, request: &mut Request) {
        let mut hub = self.hub.borrow_mut();
        let posted = hub.posted.get_mut(request.0);
        // A send ends by itself.
        if let (State::Pending, true) = (&posted.state, posted.receives) {
            let (rank, key) = (posted.rank, posted.key);
            hub.queues.withdraw(rank, key, request.0);
            hub.end(request.0, Ok(()));
        }
    }
}
