//! Connections that a forked child must not keep open: peers would take it for the rank after the rank's death.
//!
//! Close-on-exec does not help where no exec follows. So a handler puts something harmless in the place of each of these
//! descriptors in the child. Forks that bypass the C library's handlers are not noticed.

#![allow(unsafe_code)]

use crate::wire::MAX_RANKS;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// A rank 0 has a connection to every rank, and each has one of its own.
const PLACES: usize = MAX_RANKS + 64;
const FREE: i32 = -1;

static DESCRIPTORS: [AtomicI32; PLACES] = [const { AtomicI32::new(FREE) }; PLACES];
/// What takes the place.
static HARMLESS: AtomicI32 = AtomicI32::new(FREE);

/// Keeps a descriptor out of forked children while it lives. Has to end before the descriptor is closed.
pub(crate) struct NotInherited(Option<&'static AtomicI32>);

impl NotInherited {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> NotInherited {
        install();
        let number = fd.as_raw_fd();
        // Release pairs with the acquire in the child's handler, though a fork orders more than that.
        let take =
            |place: &&AtomicI32| place.compare_exchange(FREE, number, Ordering::Release, Ordering::Relaxed).is_ok();
        NotInherited(DESCRIPTORS.iter().find(take))
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(FREE, Ordering::Release);
        }
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(harmless) = std::fs::File::open("/dev/null") else { return };
        let Ok(harmless) = rustix::io::fcntl_dupfd_cloexec(harmless.as_fd(), 3) else { return };
        HARMLESS.store(harmless.into_raw_fd(), Ordering::Release);
        // SAFETY: the handler is async-signal-safe and lives as long as the code that registers it.
        let code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if code != 0 {
            tracing::warn!(code, "pthread_atfork failed; forked children keep a dead rank's connections open");
        }
    });
}

extern "C" fn in_child() {
    let harmless = HARMLESS.load(Ordering::Acquire);
    for place in &DESCRIPTORS {
        let number = place.load(Ordering::Acquire);
        if number != FREE {
            // SAFETY: both descriptors are this crate's own; the number stays taken, so nothing else can get it. In the child
            // nobody uses the connection: its owner refuses to act after a fork.
            unsafe { libc::dup3(harmless, number, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_forked_child_does_not_keep_a_connection() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let kept_out = NotInherited::new(a.as_fd());
        // SAFETY: the child makes async-signal-safe calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; the process ends here.
            unsafe {
                libc::sleep(60);
                libc::_exit(0)
            }
        }
        drop(kept_out);
        drop(a);
        // The end, although the child lives.
        assert_eq!(rustix::io::read(&b, &mut [0; 8]), Ok(0));
        let mut status = 0;
        // SAFETY: a child of this test that nobody has waited for yet.
        unsafe {
            assert_eq!(libc::waitpid(child, &mut status, libc::WNOHANG), 0, "the child has ended by itself");
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &mut status, 0);
        }
    }
}
