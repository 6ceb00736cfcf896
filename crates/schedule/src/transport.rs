//! What a plan runs on: nonblocking messages between ranks.

#![allow(unsafe_code)]

use rankwise_core::descriptor::Words;
use rankwise_core::{Error, Result};
use std::time::Duration;

/// Lanes of a call, at most: chunks that are under way at once.
pub const MAX_LANES: usize = 8;

/// The lane of [`OpKind::Send`](rankwise_core::OpKind::Send) and `Recv`, whose sequence numbers count for each pair of ranks.
pub const PAIR_LANE: u8 = 15;

/// The round of the first message between two ranks in a call and direction. Whatever plans the two follow, their first messages meet, so that different
/// calls are found.
pub const FIRST: u32 = u32::MAX;

/// Which message of which call. A receive takes the message of its sender that was sent with the same tag.
///
/// Equal tags are met again only after the fields wrapped around, and messages of a pair with equal tags match in the order in which
/// they were sent and the receives posted. So a transport may cut the fields as [`Tag::pack`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The communicator, agreed by its members when it was made.
    pub communicator: u16,
    /// The call's number on its communicator.
    pub sequence: u64,
    /// The lane: below [`MAX_LANES`], or [`PAIR_LANE`].
    pub lane: u8,
    /// The round of the plan, or [`FIRST`].
    pub round: u32,
}

impl Tag {
    /// The tag and the sender's global rank in 64 bits, for tag matching that does not know senders: from the top 16 bits each of sender,
    /// communicator and sequence, 4 of lane, 12 of round.
    pub fn pack(self, sender: u16) -> u64 {
        u64::from(sender) << 48
            | u64::from(self.communicator) << 32
            | (self.sequence & 0xffff) << 16
            | u64::from(self.lane & 0xf) << 12
            | u64::from(if self.round == FIRST { 0xfff } else { self.round % 0xfff })
    }
}

/// Where a message goes or comes from.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// Global rank of the other side.
    pub peer: usize,
    /// Which message.
    pub tag: Tag,
    /// The call's descriptor, on the first message between two ranks in a call and direction, whose round is [`FIRST`]. A receive
    /// fails with `Mismatch` when what arrives differs from this ([`crate::mismatch`] makes the error).
    pub words: Option<Words>,
}

/// Memory lent to a transport: address and length in bytes. A simulation without data has dangling addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// First byte; not necessarily aligned.
    pub ptr: *mut u8,
    /// Length in bytes; may be 0.
    pub bytes: usize,
}

// SAFETY: an address and a length; who may use the memory is the business of the unsafe functions that take it.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

/// Nonblocking messages between the ranks of a world, as seen by one rank.
///
/// Fits tag-matching engines (`ucp_tag_send_nbx`, `ucp_tag_recv_nbx`, `ucp_worker_progress`), mailboxes in one process, and a network in
/// virtual time. All methods return at once.
///
/// # Safety
///
/// Implementors promise to touch lent memory only between the call that lent it and the request's end: from the start if `send` or
/// `receive` returned `None` or an error, else when [`Transport::test`] has returned `Ok(true)` or an error. They write only
/// what was lent to `receive`, and never beyond its length.
pub unsafe trait Transport {
    /// A message under way. Dropping it before its end leaves the memory lent.
    type Request;

    /// Whether the peer is close by (the same host): a plan may prefer such peers, never depend on it.
    fn near(&self, peer: usize) -> bool {
        let _ = peer;
        false
    }

    /// Time since some fixed moment; of the simulation, where time is virtual.
    fn now(&self) -> Duration;

    /// Sends. `None`: the data was taken along, the memory is free again (short messages).
    ///
    /// # Safety
    ///
    /// The memory is readable, and nobody writes it, until the message's end.
    unsafe fn send(&self, to: Envelope, data: Lent) -> Result<Option<Self::Request>>;

    /// Receives into memory. `None`: the message was there and has been taken. A message of another length than the memory fails with
    /// `Mismatch`, at the latest when the request is tested.
    ///
    /// # Safety
    ///
    /// The memory is writable, and nobody else touches it, until the message's end.
    unsafe fn receive(&self, from: Envelope, data: Lent) -> Result<Option<Self::Request>>;

    /// Whether the message has ended; does not progress. After `Ok(true)` or an error the request is spent and is not tested again.
    fn test(&self, request: &mut Self::Request) -> Result<bool>;

    /// Moves what can move, for all requests. True when something did.
    fn progress(&self) -> bool;

    /// A first message with this tag, of any sender, that has arrived, is waited for by no receive, and carries another descriptor: the sender is in another call.
    /// Asked now and then by calls that wait long. A transport that can't look says `None`; then ranks whose different plans let none of them receive from another
    /// end with `Timeout` instead of `Mismatch`.
    fn stray(&self, tag: Tag, ours: Words) -> Option<(usize, Words)> {
        let _ = (tag, ours);
        None
    }

    /// Asks for an early end. The request is still to be tested until it has ended; it may never, then its memory is stuck.
    fn cancel(&self, request: &mut Self::Request);
}

/// What a member concludes from a message that belongs to another call than its own. For transports.
#[cold]
pub fn mismatch(peer: usize, theirs: Words, ours: Words) -> Error {
    use rankwise_core::descriptor::{describe, refusal};
    use rankwise_core::{ErrorKind, OpKind};
    if let Some(why) = refusal(theirs) {
        let kind = OpKind::from_tag((theirs[0] >> 8) as u8).map_or("the call", OpKind::name);
        return Error::new(
            ErrorKind::PeerRejected,
            format!(
                "rank {peer} refused its own arguments of {kind} with {why}; see that rank's error, then call again"
            ),
        )
        .with_peers([peer]);
    }
    let (theirs, ours) = (describe(theirs), describe(ours));
    let detail = if theirs == ours {
        format!("both called {ours}, but with different counts per rank, element sizes, factors or numbers of tensors")
    } else {
        format!("rank {peer} called {theirs}, this rank {ours}")
    };
    Error::new(ErrorKind::Mismatch, format!("{detail}; make every member call the same operations in the same order"))
        .with_peers([peer])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_packed_tag_do_not_overlap() {
        let zero = Tag { communicator: 0, sequence: 0, lane: 0, round: 0 };
        let full = [
            zero.pack(u16::MAX),
            Tag { communicator: u16::MAX, ..zero }.pack(0),
            Tag { sequence: u64::MAX, ..zero }.pack(0),
            Tag { lane: PAIR_LANE, ..zero }.pack(0),
            Tag { round: FIRST, ..zero }.pack(0),
        ];
        assert_eq!(full.iter().fold(0, |all, field| all ^ field), u64::MAX);
        assert_eq!(full.iter().map(|field| field.count_ones()).sum::<u32>(), 64);
        assert!((0..10_000).all(|round| Tag { round, ..zero }.pack(0) != Tag { round: FIRST, ..zero }.pack(0)));
    }
}
