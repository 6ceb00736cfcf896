//! Check mode: before anything moves, every member tells every other what it is about to call.
//!
//! Messages of a pair and tag arrive in order, so the first of one rank meets the first of the other, and so on; what follows on a call has a tag of
//! its own, since other calls may have been told before. Unlike a collective, the
//! exchange knows who has not come, and needs no order among communicators.

use crate::api::{Api, Named, Request, Status};
use crate::channel::{self, Channel, MEET};
use rankwise_core::backend::RawCall;
use rankwise_core::descriptor::{self, Words};
use rankwise_core::{Error, ErrorKind, OpKind, Result};
use std::ffi::c_int;

/// First byte of the first word of what a member says about the counts of its pairs; the second word is 1 when one does not fit.
const PAIRS: u64 = 0xfc;
/// The words of a call, and how many elements it has for the member that it is sent to.
pub(crate) type Message = [u64; 4];

/// What a rank says to one member, and what it expects of it.
fn message(words: Words, pair: u64) -> Message {
    [words[0], words[1], words[2], pair]
}

/// One exchange.
pub(crate) struct Meeting<A: Api> {
    /// What the engine reads and writes; leaked when it is not finished.
    letters: Option<Box<Letters>>,
    sends: Vec<Request<A>>,
    receives: Vec<Request<A>>,
    /// How many elements this rank expects from each member.
    expected: Vec<u64>,
    mine: Words,
}

struct Letters {
    sent: Vec<Message>,
    received: Vec<Message>,
}

// SAFETY: requests are names that any thread may use.
unsafe impl<A: Api> Send for Meeting<A> {}

impl<A: Api> Meeting<A> {
    /// Tells the members about one launch of calls.
    pub(crate) fn of_calls(channel: &Channel<A>, calls: &[RawCall<'_>]) -> Result<Meeting<A>> {
        let Some(first) = calls.first() else {
            return Err(Error::invalid("no call is given"));
        };
        let words = descriptor::words(first, descriptor::launch(calls));
        let pairs = |counts: &[usize]| match first.kind {
            OpKind::AllToAllV => counts.iter().map(|count| *count as u64).collect(),
            _ => vec![0; channel.size()],
        };
        Meeting::open(channel, words, &pairs(first.counts.send), pairs(first.counts.recv))
    }

    /// Tells the members that this rank has refused its call.
    pub(crate) fn of_refusal(channel: &Channel<A>, kind: OpKind, why: &ErrorKind) -> Result<Meeting<A>> {
        let none = vec![0; channel.size()];
        Meeting::open(channel, descriptor::rejected(kind, why), &none, none.clone())
    }

    /// Tells the members whether this rank's pairs fit; the second exchange of an all_to_all_v, whose counts no two ranks share.
    fn of_pairs(channel: &Channel<A>, fit: bool) -> Result<Meeting<A>> {
        let none = vec![0; channel.size()];
        Meeting::open(channel, [PAIRS, u64::from(!fit), 0], &none, none.clone())
    }

    fn open(channel: &Channel<A>, mine: Words, sent: &[u64], expected: Vec<u64>) -> Result<Meeting<A>> {
        let tag = if mine[0] == PAIRS { channel::PAIRS } else { MEET };
        let n = channel.size();
        let null = channel.library.api.request_null();
        let letters = Box::new(Letters {
            sent: sent.iter().map(|pair| message(mine, *pair)).collect(),
            received: vec![message(mine, expected[channel.me]); n],
        });
        let mut meeting =
            Meeting { letters: Some(letters), sends: vec![null; n], receives: vec![null; n], expected, mine };
        let (api, datatype) = (&channel.library.api, channel.library.named(Named::U64));
        let Some(letters) = &mut meeting.letters else { return Ok(meeting) };
        for peer in (0..n).filter(|peer| *peer != channel.me) {
            let (received, sent) = (letters.received[peer].as_mut_ptr(), letters.sent[peer].as_ptr());
            let (words, to) = (size_of::<Message>() / 8, peer as c_int);
            // SAFETY: both letters stay where they are until the exchange is over, or for ever.
            let codes = unsafe {
                let receive = &mut meeting.receives[peer];
                let send = &mut meeting.sends[peer];
                [
                    api.irecv(received.cast(), words as c_int, datatype, to, tag, channel.comm, receive),
                    api.isend(sent.cast(), words as c_int, datatype, to, tag, channel.comm, send),
                ]
            };
            if let Some(code) = codes.into_iter().find(|code| *code != 0) {
                return Err(channel.failed(code));
            }
        }
        Ok(meeting)
    }

    /// Whether all have told.
    pub(crate) fn poll(&mut self, channel: &Channel<A>) -> Result<bool> {
        let api = &channel.library.api;
        let null = api.request_null();
        let mut all = true;
        for request in self.receives.iter_mut().chain(&mut self.sends).filter(|request| **request != null) {
            let (mut flag, mut status) = (0, Status::default());
            // SAFETY: a request of ours that is not finished; MPI makes it null when it is.
            let code = unsafe { api.test(request, &mut flag, &mut status) };
            if code != 0 {
                *request = null;
                return Err(channel.failed(code));
            }
            all &= flag != 0;
        }
        Ok(all)
    }

    /// The members that have not told.
    pub(crate) fn missing(&self, channel: &Channel<A>) -> Vec<usize> {
        let null = channel.library.api.request_null();
        (0..self.receives.len()).filter(|peer| self.receives[*peer] != null).collect()
    }

    /// What all members conclude once everybody has told; or another exchange that has to follow.
    pub(crate) fn verdict(&mut self, channel: &Channel<A>) -> Result<Option<Meeting<A>>> {
        let Some(letters) = self.letters.take() else { return Ok(None) };
        let group = &channel.spec.group;
        let all: Vec<Words> = letters.received.iter().map(|m| [m[0], m[1], m[2]]).collect();
        if self.mine[0] == PAIRS {
            let odd: Vec<usize> = (0..all.len()).filter(|peer| all[*peer][1] != 0).collect();
            return if odd.is_empty() { Ok(None) } else { Err(wrong_pairs(channel, &odd)) };
        }
        if all.iter().any(|words| *words != self.mine) {
            return Err(descriptor::verdict(group, channel.me, &all));
        }
        if self.mine[0] as u8 != OpKind::AllToAllV as u8 {
            return Ok(None);
        }
        let fit = letters.received.iter().zip(&self.expected).all(|(letter, expected)| letter[3] == *expected);
        Meeting::of_pairs(channel, fit).map(Some)
    }

    /// What this rank calls, for people.
    pub(crate) fn mine(&self) -> String {
        descriptor::describe(self.mine)
    }
}

#[cold]
fn wrong_pairs<A: Api>(channel: &Channel<A>, odd: &[usize]) -> Error {
    let ranks: Vec<usize> = odd.iter().filter_map(|peer| channel.spec.group.global(*peer)).collect();
    Error::new(
        ErrorKind::Mismatch,
        format!(
            "the counts of all_to_all_v don't fit together: of the ranks {ranks:?} each expects another count from a peer than \
             that one sends; both name the same count for their pair"
        ),
    )
    .with_peers(ranks)
}

impl<A: Api> Drop for Meeting<A> {
    fn drop(&mut self) {
        // Taken when the exchange was over; else MPI may still use it.
        std::mem::forget(self.letters.take());
    }
}
