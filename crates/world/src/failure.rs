//! How ranks end and what those who wait for them are told, in a form that travels between processes.

use crate::store::MAX_STORE;
use rankwise_core::{Error, ErrorKind};

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankEnd {
    /// It exited with success: `PeerLeft` for those who wait for it.
    Left,
    /// It died; the text says how, for example `was killed by SIGKILL (9)`. `PeerLost` for those who wait for it.
    Lost(String),
}

/// A failure in a form that travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) peers: Vec<u32>,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    Invalid = 1,
    Timeout = 2,
    Lost = 3,
    Left = 4,
    Full = 5,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    Descriptors = 6,
}

impl Cause {
    #[cfg(target_os = "linux")]
    pub(crate) fn from_code(code: u8) -> Option<Cause> {
        [Cause::Invalid, Cause::Timeout, Cause::Lost, Cause::Left, Cause::Full, Cause::Descriptors]
            .into_iter()
            .find(|c| *c as u8 == code)
    }
}

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure { cause: Cause::Invalid, peers: Vec::new(), text: text.into() }
    }

    pub(crate) fn into_error(self, rank: usize) -> Error {
        let kind = match self.cause {
            Cause::Invalid => ErrorKind::InvalidArgument,
            Cause::Timeout => ErrorKind::Timeout,
            Cause::Lost => ErrorKind::PeerLost,
            Cause::Left => ErrorKind::PeerLeft,
            // The launcher's limit, whose value does not travel; ranks start with the same one.
            Cause::Descriptors => {
                let have = crate::limits::descriptors();
                ErrorKind::Limit { which: "RLIMIT_NOFILE".into(), have, need: have.saturating_add(1) }
            }
            Cause::Full => {
                ErrorKind::Limit { which: "store bytes".into(), have: MAX_STORE as u64, need: MAX_STORE as u64 + 1 }
            }
        };
        Error::new(kind, self.text).with_rank(rank).with_peers(self.peers.into_iter().map(|peer| peer as usize))
    }
}
