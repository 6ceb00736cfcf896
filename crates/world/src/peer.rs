//! Who is behind the other end of a Unix socket, from the kernel.

#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its number here; 0 when it has none in this process id namespace.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl Peer {
    /// The process that connected, listened, or made the pair.
    pub(crate) fn of(socket: impl AsFd) -> Result<Peer, Errno> {
        let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // Not rustix's: its process number can't be 0, as that of a peer in another namespace is.
        // SAFETY: getsockopt writes at most `length` bytes, the size of the struct of integers that the pointer is to, which
        // lives through the call; the descriptor is borrowed.
        let code = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &mut length,
            )
        };
        match code {
            0 => Ok(Peer { pid: who.pid.max(0) as u32, uid: who.uid }),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    /// Whether it runs as the user that this process runs as.
    pub(crate) fn is_this_user(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}
