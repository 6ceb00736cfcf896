//! The small store through which the ranks of a world meet.

use rankwise_core::{Error, ErrorKind, Group, Result};
use std::any::Any;
use std::fmt;
#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Longest key in bytes.
pub const MAX_KEY: usize = 512;
/// Longest value of [`Store::set`] in bytes.
pub const MAX_VALUE: usize = 32 << 10;
/// Longest payload of [`Store::exchange`] in bytes.
pub const MAX_PAYLOAD: usize = 4 << 10;
/// Most bytes that the keys and values of one store may hold together.
pub const MAX_STORE: usize = 64 << 20;

/// Something that travels with a payload and cannot be expressed in bytes.
#[derive(Default)]
pub enum Attachment {
    /// Nothing.
    #[default]
    None,
    /// A file descriptor; every receiver gets its own duplicate, close-on-exec.
    #[cfg(unix)]
    Fd(OwnedFd),
    /// A shared object of this process: only where the ranks are threads, or alone.
    Local(Arc<dyn Any + Send + Sync>),
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attachment::None => f.write_str("None"),
            #[cfg(unix)]
            Attachment::Fd(fd) => f.debug_tuple("Fd").field(fd).finish(),
            Attachment::Local(_) => f.write_str("Local(..)"),
        }
    }
}

/// A key-value store shared by the ranks of a world, and the collective exchange built into it.
///
/// It is for joining, not for data: values are small and every call is a message to the launcher where ranks are
/// processes. All calls are bounded in time: those without a `deadline` fail with `Timeout` after ten seconds
/// without an answer. Any thread of a rank may call at any time.
pub trait Store: Send + Sync {
    /// Sets a key, at most [`MAX_VALUE`] bytes, and wakes those who wait for it.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value of a key, or `None`.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// The value of a key as soon as somebody has set it; blocks up to `deadline`.
    ///
    /// `PeerLost` when every other rank is gone, so that nobody is left to set it.
    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>>;

    /// Adds to a counter that starts at zero and returns the sum, which wraps. Its value is eight bytes, little-endian.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Removes a key; whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;

    /// Collective over `members`, which are global ranks with the caller among them: every member gives bytes, at most
    /// [`MAX_PAYLOAD`], and an attachment, and receives those of all members in group order, its own included.
    ///
    /// `what` says in words what is being met for; it appears in the errors of others. Blocks up to `deadline`. The key
    /// may be used again as soon as the exchange has completed.
    ///
    /// `Timeout` names the missing ranks and says what they were waiting for at that moment. `PeerLost` or `PeerLeft` names
    /// a member that has died or exited, at once.
    fn exchange(
        &self,
        key: &str,
        what: &str,
        members: &Group,
        payload: &[u8],
        attachment: Attachment,
        deadline: Duration,
    ) -> Result<Vec<(Vec<u8>, Attachment)>>;
}

pub(crate) fn check_key(key: &str) -> Result<()> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Error::invalid(format!("a store key has 1 to {MAX_KEY} bytes, this one has {}", key.len())));
    }
    Ok(())
}

pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE {
        return Err(Error::invalid(format!(
            "a store value has at most {MAX_VALUE} bytes, this one has {}; the store is for joining, send data through a communicator",
            value.len()
        )));
    }
    Ok(())
}

/// Checks what can be known without asking anybody.
pub(crate) fn check_exchange(key: &str, members: &Group, payload: &[u8], rank: usize, size: usize) -> Result<()> {
    check_key(key)?;
    if payload.len() > MAX_PAYLOAD {
        return Err(Error::invalid(format!(
            "an exchange carries at most {MAX_PAYLOAD} bytes a member, this payload has {}",
            payload.len()
        )));
    }
    if let Some(foreign) = members.ranks().find(|member| *member >= size) {
        return Err(Error::invalid(format!("rank {foreign} is outside this world of {size}")).with_group(members, rank));
    }
    if !members.contains(rank) {
        return Err(Error::new(
            ErrorKind::NotMember,
            "an exchange is called by its members only; leave this rank out or put it into the group",
        )
        .with_group(members, rank));
    }
    Ok(())
}

/// The error of a store that a forked child inherited.
pub(crate) fn forked() -> Error {
    Error::new(ErrorKind::ForkedProcess, "this world was joined before a fork; use it in the parent only")
}
