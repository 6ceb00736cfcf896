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

/// The system did not let a launcher of this many ranks do something.
#[cfg(target_os = "linux")]
pub(crate) fn refused_by_system(what: &str, ranks: usize, error: std::io::Error) -> Error {
    use rustix::io::Errno;
    use rustix::process::{Resource, getrlimit};
    let limited = |which: &str, resource: Resource, need: u64, how: &str| {
        let have = getrlimit(resource).current.unwrap_or(u64::MAX);
        Error::new(ErrorKind::Limit { which: which.into(), have, need }, format!("cannot {what}; {how}"))
    };
    let limited = match Errno::from_io_error(&error) {
        // The ranks, the guardian, and the launcher with its two threads; what else the user runs counts too.
        Some(Errno::AGAIN) => limited(
            "RLIMIT_NPROC",
            Resource::Nproc,
            ranks as u64 + 4,
            "the user's processes and threads all count: raise the limit (ulimit -u, or pids.max of the control group) or \
             use fewer ranks",
        ),
        Some(Errno::MFILE | Errno::NFILE) => limited(
            "RLIMIT_NOFILE",
            Resource::Nofile,
            descriptors_needed(ranks),
            "raise the limit (ulimit -n) or use fewer ranks",
        ),
        Some(Errno::NOMEM) => {
            Error::new(ErrorKind::NoMemory { need: 0, limit: 0 }, format!("cannot {what}: out of memory"))
        }
        _ => Error::config(format!("cannot {what}: {error}")),
    };
    limited.with_source(error)
}
