//! Liveness of processes: record locks on a memfd that the launcher hands to every rank.
//!
//! Byte `rank` is locked by the rank from joining until the kernel takes the lock away at its death. Byte `size + rank` is
//! locked by the launcher until the rank has joined or ended, so that a rank that has not joined yet is not taken for dead.
//! A POSIX record lock belongs to a process and is lost when that process closes *any* descriptor of the file: whoever
//! holds one keeps the descriptor for ever.

#![allow(unsafe_code)]

use crate::liveness::{Liveness, PeerStatus};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A world's life file as a rank sees it. Never closed.
pub(crate) struct Life {
    file: ManuallyDrop<OwnedFd>,
    rank: usize,
    size: usize,
}

/// The launcher's end of a life file.
pub(crate) struct LifeFile {
    file: OwnedFd,
    size: usize,
}

impl LifeFile {
    /// Makes the file and marks all ranks as not joined.
    pub(crate) fn create(size: usize) -> Result<LifeFile, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match rustix::fs::memfd_create("rankwise-life", flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create("rankwise-life", flags)?,
            other => other?,
        };
        // Locks need no bytes; nobody may store any.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        for rank in 0..size {
            lock(file.as_fd(), libc::F_WRLCK, size + rank)?;
        }
        Ok(LifeFile { file, size })
    }

    /// The rank has joined, or will never join.
    pub(crate) fn settle(&self, rank: usize) {
        let _ = lock(self.file.as_fd(), libc::F_UNLCK, self.size + rank);
    }

    /// A descriptor of its own for a rank within this process.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 3)
    }

    /// Whether the rank holds its lock.
    pub(crate) fn is_held(&self, rank: usize) -> bool {
        holder(self.file.as_fd(), rank).is_some()
    }
}

impl AsFd for LifeFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Life {
    /// Takes this rank's lock. `Err(Some(pid))` when another process holds it, `Err(None)` when the file is no life file.
    pub(crate) fn take(file: OwnedFd, rank: usize, size: usize) -> Result<Life, Option<i32>> {
        // From here on never closed, also on failure: closing would drop locks that an earlier join may hold.
        let file = ManuallyDrop::new(file);
        let seals = rustix::fs::fcntl_get_seals(file.as_fd()).map_err(|_| None)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE) {
            return Err(None);
        }
        match lock(file.as_fd(), libc::F_WRLCK, rank) {
            Ok(()) => Ok(Life { file, rank, size }),
            Err(_) => Err(holder(file.as_fd(), rank)),
        }
    }

    /// Gives this rank's lock back: the process is not this rank after all.
    pub(crate) fn let_go(&self) {
        let _ = lock(self.file.as_fd(), libc::F_UNLCK, self.rank);
    }

    fn held(&self, byte: usize) -> bool {
        holder(self.file.as_fd(), byte).is_some()
    }
}

impl Liveness for Life {
    fn status(&self, rank: usize) -> PeerStatus {
        if rank >= self.size {
            return PeerStatus::Gone;
        }
        // The kernel does not report a process its own lock.
        if rank == self.rank || self.held(rank) || self.held(self.size + rank) {
            return PeerStatus::Alive;
        }
        // It may have joined between the two looks; it took its own lock before the launcher let go of the other.
        if self.held(rank) { PeerStatus::Alive } else { PeerStatus::Gone }
    }
}

impl Liveness for Arc<Life> {
    fn status(&self, rank: usize) -> PeerStatus {
        Life::status(self, rank)
    }
}

fn record(kind: i32, byte: usize) -> libc::flock {
    // SAFETY: flock is a C struct of integers; all zero is a valid value.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = kind as libc::c_short;
    record.l_whence = libc::SEEK_SET as libc::c_short;
    record.l_start = byte as libc::off_t;
    record.l_len = 1;
    record
}

fn lock(file: BorrowedFd<'_>, kind: i32, byte: usize) -> Result<(), Errno> {
    let record = record(kind, byte);
    // SAFETY: F_SETLK reads one flock through the pointer, which is valid for the call; the descriptor is borrowed.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &record) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The process that holds the lock on a byte, if another one than this does.
fn holder(file: BorrowedFd<'_>, byte: usize) -> Option<i32> {
    let mut record = record(libc::F_WRLCK, byte);
    // SAFETY: F_GETLK reads and writes one flock through the pointer, which is valid for the call.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut record) };
    // An error (a foreign descriptor took the number) must not look like a death.
    if code != 0 {
        return Some(0);
    }
    (record.l_type != libc::F_UNLCK as libc::c_short).then_some(record.l_pid)
}
