//! Limits of the system that joining can run into.

use rankwise_core::{Error, ErrorKind};

/// How many descriptors this process may have open.
pub(crate) fn descriptors() -> u64 {
    #[cfg(unix)]
    {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
    }
    #[cfg(not(unix))]
    {
        u64::MAX
    }
}

/// How many a launcher of this many ranks needs: socket, pidfd and two pipes each, and some for itself.
#[cfg(target_os = "linux")]
pub(crate) fn descriptors_needed(ranks: usize) -> u64 {
    5 * ranks as u64 + 32
}

/// A received descriptor could not be taken.
pub(crate) fn out_of_descriptors() -> Error {
    let have = descriptors();
    let kind = ErrorKind::Limit { which: "RLIMIT_NOFILE".into(), have, need: have.saturating_add(1) };
    Error::new(kind, "no descriptor is free for what a peer sent; raise the limit (ulimit -n) or close unused files")
}
