//! Words between ranks outside every call: abort and failure.
//!
//! They travel on the communicator of all ranks (`base`), which is never freed, and name the one that they are about: a message that arrives on a
//! freed communicator would be given to the next one that MPI makes (Open MPI does so).

use crate::api::{Api, Named, Request, Status};
use crate::base::Base;
use crate::channel::{Channel, lock};
use rankwise_core::{Error, ErrorKind};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, Weak};

/// Tag of the messages.
const POST: c_int = 3;

/// What a rank tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Word {
    /// It called abort.
    Aborted = 1,
    /// It found a message that does not fit.
    Mismatch = 2,
    /// It gave up a call at its deadline.
    Late = 3,
}

impl Word {
    fn from(number: u64) -> Option<Word> {
        [Word::Aborted, Word::Mismatch, Word::Late].into_iter().find(|word| *word as u64 == number)
    }

    /// What the word means for whoever gets it.
    pub(crate) fn error(self, by: usize) -> Error {
        let (kind, text) = match self {
            Word::Aborted => (ErrorKind::Aborted, "called abort; make another communicator to go on"),
            Word::Mismatch => (ErrorKind::Mismatch, "found a message that does not fit its receive; see its error"),
            Word::Late => (ErrorKind::Timeout, "gave up a call at its deadline; see its error"),
        };
        Error::new(kind, format!("rank {by} {text}")).with_peers([by])
    }
}

/// Word, communicator, rank.
type Letter = [u64; 3];

/// What is on its way, and whom it is for.
pub(crate) struct Post<A: Api> {
    sent: Mutex<Vec<(Request<A>, Box<Letter>)>>,
    /// Communicators by their ids.
    live: Mutex<HashMap<u64, Weak<Channel<A>>>>,
    /// Words about communicators that are being made.
    early: Mutex<Vec<Letter>>,
}

impl<A: Api> Default for Post<A> {
    fn default() -> Post<A> {
        Post { sent: Mutex::default(), live: Mutex::default(), early: Mutex::default() }
    }
}

impl<A: Api> Base<A> {
    /// From now on words about this communicator are kept.
    pub(crate) fn expect_post(&self, id: u64) {
        lock(&self.post.live).insert(id, Weak::new());
    }

    /// They go to this one.
    pub(crate) fn deliver_post(&self, id: u64, channel: Weak<Channel<A>>) {
        lock(&self.post.live).insert(id, channel);
        let early = std::mem::take(&mut *lock(&self.post.early));
        early.into_iter().for_each(|letter| self.hand_over(letter));
    }

    /// Nobody wants them any more.
    pub(crate) fn refuse_post(&self, id: u64) {
        lock(&self.post.live).remove(&id);
        lock(&self.post.early).retain(|letter| letter[1] != id);
    }

    /// Tells a rank, without waiting.
    pub(crate) fn tell(&self, rank: usize, word: Word, id: u64) {
        let letter = Box::new([word as u64, id, self.rank as u64]);
        let api = &self.library.api;
        let mut request = api.request_null();
        let datatype = self.library.named(Named::U64);
        // SAFETY: the letter is kept until it is sent.
        let code =
            unsafe { api.isend(letter.as_ptr().cast(), 3, datatype, rank as c_int, POST, self.comm, &mut request) };
        let mut sent = lock(&self.post.sent);
        if code == 0 {
            sent.push((request, letter));
        }
        sent.retain_mut(|(request, _)| {
            let (mut flag, mut status) = (0, Status::default());
            // SAFETY: a request of ours that is not finished.
            unsafe { api.test(request, &mut flag, &mut status) == 0 && flag == 0 }
        });
    }

    /// Takes in what has come.
    pub(crate) fn collect(&self) {
        self.sweep();
        self.free_retired();
        let (api, any) = (&self.library.api, self.library.constants.any_source);
        loop {
            let (mut flag, mut message, mut status) = (0, std::mem::MaybeUninit::uninit(), Status::default());
            let mut letter: Letter = [0; 3];
            // SAFETY: a message that was found is received into a place of its length.
            unsafe {
                let code = api.improbe(any, POST, self.comm, &mut flag, message.as_mut_ptr(), &mut status);
                if code != 0 || flag == 0 {
                    return;
                }
                let (place, datatype) = (letter.as_mut_ptr().cast(), self.library.named(Named::U64));
                api.mrecv(place, 3, datatype, message.as_mut_ptr(), &mut status);
            }
            self.hand_over(letter);
        }
    }

    fn hand_over(&self, letter: Letter) {
        let [number, id, by] = letter;
        let Some(word) = Word::from(number) else { return };
        let live = lock(&self.post.live);
        let channel = match live.get(&id) {
            None => return,
            Some(channel) => channel.upgrade(),
        };
        match channel {
            Some(channel) => {
                drop(live);
                channel.hear(word, by as usize);
            }
            // Under the lock: who delivers what is early has it after this, or before.
            None => lock(&self.post.early).push(letter),
        }
    }
}
