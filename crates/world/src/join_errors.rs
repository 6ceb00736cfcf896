//! What ranks are told when a job does not come together.

use crate::hub::Hub;
use rankwise_core::{Error, ErrorKind};
use std::time::Duration;

/// What a rank knows of itself.
pub(crate) struct Circumstances<'a> {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) source: &'a str,
    pub(crate) key: &'a str,
    /// Where rank 0 is, if that takes more than the key.
    pub(crate) place: &'a str,
    pub(crate) limit: Duration,
}

impl Circumstances<'_> {
    fn in_words(&self) -> String {
        let place = if self.place.is_empty() { String::new() } else { format!(", {}", self.place) };
        format!("this is rank {} of {} by {}, job key `{}`{place}", self.rank, self.size, self.source, self.key)
    }

    /// Adds to an error of the roll call what this rank and, if it is here, the hub know.
    pub(crate) fn explain(&self, error: Error, hub: Option<&Hub>) -> Error {
        if let Some(refusal) = hub.and_then(Hub::refusal) {
            let kind = ErrorKind::Refused {
                key: refusal.key.clone(),
                ours: refusal.here.clone(),
                theirs: refusal.there.clone(),
            };
            let message = format!("rank {} differs; start the same build and number on all ranks", refusal.rank);
            return Error::new(kind, message).with_rank(self.rank).with_peers([refusal.rank]);
        }
        if error.kind() != &ErrorKind::Timeout {
            return error;
        }
        let message = format!(
            "not all ranks came within {} s: {}; all ranks need the same job key and size, and RANKWISE_JOIN_TIMEOUT gives \
             them more time; {}",
            self.limit.as_secs_f64(),
            self.in_words(),
            error.message()
        );
        let mut explained = Error::new(ErrorKind::Timeout, message).with_rank(self.rank);
        if !error.peers().is_empty() {
            explained = explained.with_peers(error.peers().iter().copied());
        }
        explained
    }

    /// Rank 0 was never there.
    pub(crate) fn nobody_there(&self, why: &str) -> Error {
        let message = format!(
            "rank 0 did not answer within {} s: {}; {why}; RANKWISE_JOIN_TIMEOUT gives it more time",
            self.limit.as_secs_f64(),
            self.in_words()
        );
        Error::new(ErrorKind::Timeout, message).with_rank(self.rank).with_peers([crate::hub::HOST])
    }
}

/// Two processes are one rank.
pub(crate) fn taken(rank: usize, first: &str, second: &str) -> Error {
    let kind = ErrorKind::Refused { key: format!("process of rank {rank}"), ours: second.into(), theirs: first.into() };
    let message = format!(
        "{first} and {second} both came as rank {rank} of one job; the first stays. A process that a rank starts is no \
         rank, and two jobs at a time need different values of RANKWISE_JOB_ID, or \
         different tokens under `rankwise launch --nnodes`"
    );
    Error::new(kind, message).with_rank(rank)
}

/// Rank 0 says that this rank is of another kind.
pub(crate) fn refused(key: String, here: String, there: String) -> Error {
    let kind = ErrorKind::Refused { key, ours: there, theirs: here };
    let message = "rank 0 refused this rank, because the two differ; start the same build, with the same number of ranks, on \
                   all ranks";
    Error::new(kind, message).with_peers([crate::hub::HOST])
}
