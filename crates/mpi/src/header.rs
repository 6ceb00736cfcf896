//! Check mode: what a sender says before its message, so that the receiver takes only one that fits.
//!
//! Headers of a pair arrive in order. The message itself has a tag of its own, so that receives which wait in another order than they
//! were made still get theirs.

use crate::api::{Api, Named, Request, Status};
use crate::channel::{Channel, HEADER, lock};
use crate::meeting::Message;
use crate::post::Word;
use crate::queue;
use rankwise_core::backend::RawCall;
use rankwise_core::descriptor;
use rankwise_core::{Error, ErrorKind, OpKind, Result};
use std::ffi::c_int;
use std::sync::Arc;

/// Tags of messages begin here, and are used again after so many of a pair.
const FIRST: u64 = 64;
const TAGS: u64 = 16_384;

/// A header that was sent or is waited for.
pub(crate) struct Header<A: Api> {
    /// Leaked when MPI still uses it.
    letter: Option<Box<Message>>,
    request: Request<A>,
    call: RawCall<'static>,
    /// The tag of the message that follows.
    pub(crate) tag: c_int,
}

impl<A: Api> Header<A> {
    /// Sends it, or begins to wait for it.
    pub(crate) fn open(channel: &Arc<Channel<A>>, call: &RawCall<'_>) -> Result<Header<A>> {
        let [kind, count, check] = descriptor::words(call, 0);
        Header::with(channel, call.kind, call.root, [kind, count, check, 0], queue::without_counts(call))
    }

    /// Takes the place of a message or receive that this rank has refused: its receiver learns of it, or the next message of the pair
    /// is for nobody.
    pub(crate) fn refuse(channel: &Arc<Channel<A>>, kind: OpKind, peer: usize, why: &ErrorKind) -> Result<()> {
        let [first, second, third] = descriptor::rejected(kind, why);
        let call = RawCall::new(kind, rankwise_core::DType::U8, 0);
        channel.keep();
        // What arrives, or is still to be sent, is leaked with it.
        drop(Header::with(channel, kind, peer, [first, second, third, 0], call)?);
        Ok(())
    }

    fn with(
        channel: &Arc<Channel<A>>,
        kind: OpKind,
        peer: usize,
        words: Message,
        call: RawCall<'static>,
    ) -> Result<Header<A>> {
        let is_send = kind == OpKind::Send;
        let number = {
            let mut mail = lock(&channel.mail);
            let (sent, received) = &mut mail[peer];
            let counter = if is_send { sent } else { received };
            *counter += 1;
            *counter
        };
        let mut letter = Box::new(words);
        let (api, datatype) = (&channel.library.api, channel.library.named(Named::U64));
        let mut request = api.request_null();
        let (first, n, peer) = (letter.as_mut_ptr(), letter.len() as c_int, peer as c_int);
        // SAFETY: the letter stays where it is until it is sent or has come, or for ever.
        let code = unsafe {
            if is_send {
                api.isend(first.cast_const().cast(), n, datatype, peer, HEADER, channel.comm, &mut request)
            } else {
                api.irecv(first.cast(), n, datatype, peer, HEADER, channel.comm, &mut request)
            }
        };
        let header = Header { letter: Some(letter), request, call, tag: (FIRST + number % TAGS) as c_int };
        if code == 0 { Ok(header) } else { Err(channel.failed(code)) }
    }

    /// Whether it is on its way, so that MPI needs it no more.
    pub(crate) fn is_sent(&mut self, channel: &Channel<A>) -> Result<bool> {
        let (mut flag, mut status) = (0, Status::default());
        // SAFETY: a request of ours that is not finished.
        let code = unsafe { channel.library.api.test(&mut self.request, &mut flag, &mut status) };
        if code != 0 {
            return Err(channel.failed(code));
        }
        if flag != 0 {
            self.letter = None;
        }
        Ok(flag != 0)
    }

    /// The receive and the tag of its message, when the header has come and fits.
    pub(crate) fn poll(&mut self, channel: &Channel<A>) -> Result<Option<(RawCall<'static>, c_int)>> {
        let (mut flag, mut status) = (0, Status::default());
        // SAFETY: a request of ours that is not finished.
        let code = unsafe { channel.library.api.test(&mut self.request, &mut flag, &mut status) };
        if code != 0 {
            return Err(channel.failed(code));
        }
        if flag == 0 {
            return Ok(None);
        }
        let theirs = self.letter.take().map_or([0; 4], |letter| *letter);
        let theirs = [theirs[0], theirs[1], theirs[2]];
        let mut sent = self.call;
        sent.kind = OpKind::Send;
        let ours = descriptor::words(&sent, 0);
        let peer = channel.spec.group.global(self.call.root);
        if let Some(why) = descriptor::refusal(theirs) {
            let text = format!(
                "the sender refused its own arguments with {why}; nothing moved, see its error, then receive again"
            );
            return Err(Error::new(ErrorKind::PeerRejected, text).with_peers(peer));
        }
        if theirs == ours {
            return Ok(Some((self.call, self.tag)));
        }
        let text = format!(
            "the sender calls {}, this rank receives as for {}; both name the same type and length",
            descriptor::describe(theirs),
            descriptor::describe(ours)
        );
        let error = channel.poison(Error::new(ErrorKind::Mismatch, text).with_peers(peer));
        channel.tell(Word::Mismatch);
        Err(error)
    }
}

impl<A: Api> Drop for Header<A> {
    fn drop(&mut self) {
        // 32 bytes that MPI may still read or write.
        std::mem::forget(self.letter.take());
    }
}
