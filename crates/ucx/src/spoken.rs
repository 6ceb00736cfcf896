//! What the members of a communicator tell each other outside every call, as words.

use crate::transport::UcxTransport;
use crate::word::Word;
use rankwise_core::descriptor::Words;
use rankwise_core::{Error, ErrorKind};
use rankwise_schedule::transport::{FIRST, PAIR_LANE};
use rankwise_schedule::{Envelope, Lent, Tag, Transport};

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saying {
    /// The communicator has failed: how, and through whom.
    Failed(Failure, usize),
    /// A call in which somebody has found another descriptor: this is mine.
    Dispute,
    /// I refuse the call, with this descriptor.
    Refused,
    /// I refuse to receive the message.
    RefusedReceive,
    /// How far are you?
    Query,
    /// So far: collective calls begun, and the last of them.
    Seen,
    /// I leave, after so many collective calls.
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Mismatch,
    Timeout,
    Aborted,
    Lost,
    Left,
}

const FAILURES: [Failure; 5] = [Failure::Mismatch, Failure::Timeout, Failure::Aborted, Failure::Lost, Failure::Left];
const SAYINGS: [Saying; 6] =
    [Saying::Dispute, Saying::Refused, Saying::RefusedReceive, Saying::Query, Saying::Seen, Saying::Left];

impl Failure {
    pub(crate) fn of(kind: &ErrorKind) -> Failure {
        match kind {
            ErrorKind::Mismatch => Failure::Mismatch,
            ErrorKind::Timeout => Failure::Timeout,
            ErrorKind::PeerLost => Failure::Lost,
            ErrorKind::PeerLeft => Failure::Left,
            _ => Failure::Aborted,
        }
    }

    /// What it means to rank `me`, who heard it from `reporter`.
    pub(crate) fn error(self, reporter: usize, culprit: usize, me: usize) -> Error {
        let (kind, text) = match self {
            Failure::Lost if culprit != me => return lost(culprit),
            Failure::Left if culprit != me => return left(culprit),
            Failure::Mismatch => (
                ErrorKind::Mismatch,
                format!(
                    "rank {reporter} found that rank {culprit} called something else; see its error for both calls"
                ),
            ),
            Failure::Timeout if culprit == me => (
                ErrorKind::Timeout,
                format!("rank {reporter} gave up waiting for this rank; call in time or raise the deadline"),
            ),
            Failure::Timeout => {
                (ErrorKind::Timeout, format!("rank {reporter} gave up waiting for rank {culprit}; is that rank stuck?"))
            }
            // A peer can't say that this very rank is dead or gone; that counts as its own abort.
            Failure::Aborted | Failure::Lost | Failure::Left => {
                let by = if self == Failure::Aborted { culprit } else { reporter };
                let text = format!("rank {by} aborted this communicator; make a new one to go on");
                return Error::new(ErrorKind::Aborted, text).with_peers([by]);
            }
        };
        Error::new(kind, text).with_peers([culprit])
    }
}

pub(crate) fn lost(rank: usize) -> Error {
    let text = format!(
        "rank {rank} died; look at its output and exit status, then go on with a group of the others or start again"
    );
    Error::new(ErrorKind::PeerLost, text).with_peers([rank])
}

pub(crate) fn left(rank: usize) -> Error {
    let text = format!(
        "rank {rank} finalized, dropped its communicator or exited before this call; make it take part, or stop calling it"
    );
    Error::new(ErrorKind::PeerLeft, text).with_peers([rank])
}

pub(crate) fn word(peer: usize, what: Saying, number: u16, sequence: u64, words: Words) -> Word {
    let head = match what {
        Saying::Failed(how, culprit) => {
            let code = FAILURES.iter().position(|failure| *failure == how).unwrap_or(0) as u64;
            0xff | code << 8 | (culprit as u64) << 16
        }
        other => SAYINGS.iter().position(|saying| *saying == other).unwrap_or(0) as u64,
    };
    Word { peer, fields: [head, number.into(), sequence, words[0], words[1], words[2]] }
}

/// What a word says: about which communicator, what, with which number and descriptor.
pub(crate) fn read(word: &Word) -> Option<(u16, Saying, u64, Words)> {
    let [head, number, sequence, words @ ..] = word.fields;
    let what = match head & 0xff {
        0xff => Saying::Failed(*FAILURES.get((head >> 8 & 0xff) as usize)?, (head >> 16) as usize),
        index => *SAYINGS.get(index as usize)?,
    };
    Some((u16::try_from(number).ok()?, what, sequence, words))
}

/// A send that was refused: its receiver finds that in the descriptor.
pub(crate) fn send_refusal(transport: &UcxTransport, number: u16, sequence: u64, peer: usize, words: Words) {
    let tag = Tag { communicator: number, sequence, lane: PAIR_LANE, round: FIRST };
    let nothing = Lent { ptr: std::ptr::NonNull::dangling().as_ptr(), bytes: 0 };
    // SAFETY: no memory.
    match unsafe { transport.send(Envelope { peer, tag, words: Some(words) }, nothing) } {
        // Its memory is the transport's own and stays.
        Ok(request) => std::mem::forget(request),
        Err(error) => tracing::debug!(peer, %error, "a rank could not be told of a refusal"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_meant() {
        let failures = FAILURES.map(|how| Saying::Failed(how, 0x1_0203));
        for what in failures.into_iter().chain(SAYINGS) {
            let word = word(4, what, 65535, u64::MAX, [1, 2, 3]);
            assert_eq!(read(&word), Some((65535, what, u64::MAX, [1, 2, 3])));
        }
        assert_eq!(read(&Word { peer: 0, fields: [77, 1, 0, 0, 0, 0] }), None);
    }
}
