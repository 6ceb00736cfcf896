//! Saying goodbye at exit, so that peers can tell an orderly end from a death where no launcher of ours sees how a rank
//! ended.

#![allow(unsafe_code)]

use crate::packet_socket;
use crate::wire::{self, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// How long the thread that serves the store may take to tell everybody that its process ends.
const LAST_WORDS: Duration = Duration::from_millis(200);

struct Departure {
    /// Never closed.
    socket: OwnedFd,
    process: u32,
    is_host: bool,
}

static DEPARTURE: OnceLock<Departure> = OnceLock::new();

/// From now on an orderly end of this process is told on this socket. A process is one rank, so only the first call
/// counts.
pub(crate) fn announce_at_exit(socket: BorrowedFd<'_>, is_host: bool) {
    let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(socket, 3) else { return };
    if DEPARTURE.set(Departure { socket, process: std::process::id(), is_host }).is_ok() {
        // SAFETY: the handler neither panics nor unwinds, uses only a static that is never dropped, and is unregistered by
        // the C library if the code that holds it is unloaded.
        unsafe { libc::atexit(say_goodbye) };
    }
}

extern "C" fn say_goodbye() {
    // A forked child that exits runs this too, and is no rank.
    let Some(departure) = DEPARTURE.get().filter(|departure| departure.process == std::process::id()) else { return };
    let frame = wire::encode_request(0, &Frame::Goodbye);
    if packet_socket::send(&departure.socket, &[&frame], &[]).is_ok() && departure.is_host {
        // The hub closes this connection when it has told the others. Nothing else may be read here: that belongs to
        // the threads of the program.
        let limit = Timespec { tv_sec: 0, tv_nsec: LAST_WORDS.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::from_borrowed_fd(departure.socket.as_fd(), PollFlags::empty())], Some(&limit));
    }
}
