//! The one error type of rankwise.

use crate::group::Group;
use crate::op::OpKind;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// `Result` with rankwise's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. [`Error`] adds to whom, where and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument of this call is wrong. Nothing moved; peers of a collective get [`ErrorKind::PeerRejected`].
    InvalidArgument,
    /// The group was not registered on this backend.
    UnknownGroup,
    /// This rank is not a member of the group.
    NotMember,
    /// Another call on this group is running on this rank.
    Busy,
    /// The communicator was finalized or the backend closed.
    Closed,
    /// The handle was made before a `fork`; use it in the parent only.
    ForkedProcess,
    /// The reduction operator has no meaning for the type, or the backend lacks it.
    UnsupportedOp,
    /// The backend cannot do this with the element type.
    UnsupportedDtype,
    /// The backend cannot reach this memory space.
    UnsupportedMemory,
    /// The mode (determinism, deadline, check) is not offered by the backend.
    UnsupportedMode,
    /// A function that this version of the engine does not have.
    Unsupported {
        /// What was asked for.
        function: String,
        /// What it needs.
        needs: String,
        /// What is there.
        have: String,
    },
    /// A count or byte size beyond what the backend can express.
    CountTooLarge,
    /// Configuration or environment is contradictory, incomplete or unreadable.
    Config,
    /// No backend was chosen, or the chosen one is not compiled in or not usable here.
    NoBackend,
    /// A limit of the system stands in the way.
    Limit {
        /// The limit's name, for example `RLIMIT_NOFILE`.
        which: String,
        /// Its current value.
        have: u64,
        /// The value needed.
        need: u64,
    },
    /// Memory could not be reserved.
    NoMemory {
        /// Bytes asked for.
        need: u64,
        /// Bytes available, or 0 when unknown.
        limit: u64,
    },
    /// A fixed address is taken.
    AddrInUse,
    /// The two sides of a connection disagree.
    Refused {
        /// What they disagree about.
        key: String,
        /// Our value.
        ours: String,
        /// Their value.
        theirs: String,
    },
    /// A peer found its own arguments wrong; nothing moved, the communicator stays usable.
    PeerRejected,
    /// Ranks called with different descriptors.
    Mismatch,
    /// The deadline passed.
    Timeout,
    /// A peer died.
    PeerLost,
    /// A peer left: it finalized, dropped its handle or exited.
    PeerLeft,
    /// The survivors went on without this rank.
    Excluded,
    /// Somebody called `abort`.
    Aborted,
    /// An earlier failure made the communicator unusable; `source()` is the first cause.
    Poisoned,
    /// The engine below failed.
    Engine {
        /// Name of the library.
        library: String,
        /// Its result code.
        code: i64,
        /// Its own text for the code.
        text: String,
    },
}

impl ErrorKind {
    /// The kind's name without its fields, as in the contract.
    pub fn name(&self) -> &'static str {
        use ErrorKind::*;
        match self {
            InvalidArgument => "InvalidArgument",
            UnknownGroup => "UnknownGroup",
            NotMember => "NotMember",
            Busy => "Busy",
            Closed => "Closed",
            ForkedProcess => "ForkedProcess",
            UnsupportedOp => "UnsupportedOp",
            UnsupportedDtype => "UnsupportedDtype",
            UnsupportedMemory => "UnsupportedMemory",
            UnsupportedMode => "UnsupportedMode",
            Unsupported { .. } => "Unsupported",
            CountTooLarge => "CountTooLarge",
            Config => "Config",
            NoBackend => "NoBackend",
            Limit { .. } => "Limit",
            NoMemory { .. } => "NoMemory",
            AddrInUse => "AddrInUse",
            Refused { .. } => "Refused",
            PeerRejected => "PeerRejected",
            Mismatch => "Mismatch",
            Timeout => "Timeout",
            PeerLost => "PeerLost",
            PeerLeft => "PeerLeft",
            Excluded => "Excluded",
            Aborted => "Aborted",
            Poisoned => "Poisoned",
            Engine { .. } => "Engine",
        }
    }

    /// Whether an error of this kind makes the communicator unusable.
    pub fn poisons(&self) -> bool {
        matches!(
            self,
            ErrorKind::Mismatch | ErrorKind::Timeout | ErrorKind::PeerLost | ErrorKind::PeerLeft | ErrorKind::Aborted
        )
    }
}

/// An error with its context: operation, group, rank, peers, sequence number, elapsed time and source.
///
/// `Display` says what happened, to whom, and what to do next. Peers are global ranks.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    operation: Option<OpKind>,
    group: Option<Group>,
    rank: Option<usize>,
    peers: Vec<usize>,
    sequence: Option<u64>,
    elapsed: Option<Duration>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind; `message` says what happened and what to do, in lower case, without a full stop.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            operation: None,
            group: None,
            rank: None,
            peers: Vec::new(),
            sequence: None,
            elapsed: None,
            source: None,
        }))
    }

    /// Shorthand for [`ErrorKind::InvalidArgument`].
    #[cold]
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// Shorthand for [`ErrorKind::Config`].
    #[cold]
    pub fn config(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Config, message)
    }

    /// Sets the operation unless one is set.
    #[must_use]
    pub fn with_operation(mut self, operation: OpKind) -> Error {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Replaces the operation: the user called this one, made of others.
    #[must_use]
    pub(crate) fn renamed(mut self, operation: OpKind) -> Error {
        self.0.operation = Some(operation);
        self
    }

    /// Sets the group and this rank's global rank unless set.
    #[must_use]
    pub fn with_group(mut self, group: &Group, rank: usize) -> Error {
        if self.0.group.is_none() {
            self.0.group = Some(group.clone());
            self.0.rank.get_or_insert(rank);
        }
        self
    }

    /// Sets this rank's global rank unless set.
    #[must_use]
    pub fn with_rank(mut self, rank: usize) -> Error {
        self.0.rank.get_or_insert(rank);
        self
    }

    /// Sets the global ranks that caused the error.
    #[must_use]
    pub fn with_peers(mut self, peers: impl IntoIterator<Item = usize>) -> Error {
        self.0.peers = peers.into_iter().collect();
        self
    }

    /// Sets the sequence number of the call on its communicator, counted from 1, unless set.
    #[must_use]
    pub fn with_sequence(mut self, sequence: u64) -> Error {
        self.0.sequence.get_or_insert(sequence);
        self
    }

    /// Removes the sequence number, for passing a failure on to another call.
    #[must_use]
    pub fn without_sequence(mut self) -> Error {
        self.0.sequence = None;
        self
    }

    /// Sets how long the call had been running.
    #[must_use]
    pub fn with_elapsed(mut self, elapsed: Duration) -> Error {
        self.0.elapsed.get_or_insert(elapsed);
        self
    }

    /// Sets the cause below this error.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The text without the context that `Display` puts before it.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operation that failed.
    pub fn operation(&self) -> Option<OpKind> {
        self.0.operation
    }

    /// The group it failed on.
    pub fn group(&self) -> Option<&Group> {
        self.0.group.as_ref()
    }

    /// The global rank that reports the error.
    pub fn rank(&self) -> Option<usize> {
        self.0.rank
    }

    /// The global ranks that caused it: the odd ones, the missing ones, the dead one.
    pub fn peers(&self) -> &[usize] {
        &self.0.peers
    }

    /// Sequence number of the call on its communicator, counted from 1.
    pub fn sequence(&self) -> Option<u64> {
        self.0.sequence
    }

    /// How long the call had been running.
    pub fn elapsed(&self) -> Option<Duration> {
        self.0.elapsed
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        if let Some(operation) = inner.operation {
            write!(f, "{operation}")?;
            if let Some(sequence) = inner.sequence {
                write!(f, " (call {sequence})")?;
            }
            f.write_str(" ")?;
        }
        if let Some(group) = &inner.group {
            write!(f, "on group {group} ")?;
        }
        if let Some(rank) = inner.rank {
            write!(f, "at rank {rank} ")?;
        }
        write!(f, "failed with {}", inner.kind.name())?;
        if let Some(elapsed) = inner.elapsed {
            write!(f, " after {:.3} s", elapsed.as_secs_f64())?;
        }
        write!(f, ": {}", inner.message)?;
        match &inner.kind {
            ErrorKind::Unsupported { function, needs, have } => {
                write!(f, " ({function} needs {needs}, have {have})")
            }
            ErrorKind::Limit { which, have, need } => write!(f, " ({which} is {have}, {need} needed)"),
            ErrorKind::NoMemory { need, limit } => write!(f, " ({need} bytes needed, {limit} available)"),
            ErrorKind::Refused { key, ours, theirs } => write!(f, " ({key}: ours {ours}, theirs {theirs})"),
            ErrorKind::Engine { library, code, text } => write!(f, " ({library} error {code}: {text})"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What `fn main() -> Result<()>` prints: the sentence, then each cause on its own line.
        write!(f, "{self}")?;
        let mut source = self.source();
        while let Some(cause) = source {
            write!(f, "\n  caused by: {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

impl PartialEq for Error {
    /// Equal kind, operation and peers; texts and times do not count.
    fn eq(&self, other: &Error) -> bool {
        self.0.kind == other.0.kind && self.0.operation == other.0.operation && self.0.peers == other.0.peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_everything() {
        let error = Error::new(ErrorKind::Timeout, "rank 2 has not arrived; is it still computing?")
            .with_operation(OpKind::AllReduce)
            .with_sequence(17)
            .with_group(&Group::world(3), 1)
            .with_peers([2])
            .with_elapsed(Duration::from_millis(2500));
        assert_eq!(
            error.to_string(),
            "all_reduce (call 17) on group (0,1,2) at rank 1 failed with Timeout after 2.500 s: \
             rank 2 has not arrived; is it still computing?"
        );
        assert_eq!(error.peers(), [2]);
    }

    #[test]
    fn debug_shows_the_causes() {
        let cause = Error::new(ErrorKind::PeerLost, "rank 1 died").with_peers([1]);
        let error = Error::new(ErrorKind::Poisoned, "an earlier call failed").with_source(cause);
        assert!(format!("{error:?}").contains("caused by: failed with PeerLost: rank 1 died"));
    }
}
