//! The end of MPI in this process: by the program, or at exit. Afterwards no function of MPI may be called, so all who would are turned away
//! before, and who is in the middle of one is counted.

use crate::watch;
use rankwise_core::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long it may take to look for messages.
const A_LOOK: Duration = Duration::from_millis(100);

static CLOSED: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// A thread that may call MPI.
pub(crate) struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// From here on this thread may call MPI. `Closed` when MPI is at its end.
///
/// Blocking calls don't come through here: they note themselves for the watching thread before they look whether their communicator is
/// usable, which it is not after [`close`].
pub(crate) fn enter() -> Result<Inside> {
    // SeqCst, here and in `close`: who comes in after the count was read sees that it is closed.
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let inside = Inside(());
    if CLOSED.load(Ordering::SeqCst) { Err(closed()) } else { Ok(inside) }
}

#[cold]
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "MPI has been finalized in this process, or is about to be; call before MPI_Finalize")
}

/// Turns everybody away from now on.
pub(crate) fn close() {
    CLOSED.store(true, Ordering::SeqCst);
    watch::close_all();
    fence_of_all_threads();
}

/// After [`close`]: whether no thread is in MPI, once those that only looked for messages have come back.
pub(crate) fn is_deserted() -> bool {
    let begun = Instant::now();
    loop {
        if INSIDE.load(Ordering::SeqCst) == 0 && !watch::is_any_in_a_call() {
            return true;
        }
        if begun.elapsed() >= A_LOOK {
            return false;
        }
        std::thread::yield_now();
    }
}

/// After [`close`], with nobody in MPI: tells the members of all communicators that this rank has left, as dropping them would.
pub(crate) fn leave_all() {
    watch::all().into_iter().for_each(|channel| channel.leave());
}

/// After this each thread has either noted its call where others see it, or will see what was stored before. Blocking calls so need no fence
/// of their own.
fn fence_of_all_threads() {
    #[cfg(target_os = "linux")]
    {
        const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
        // SAFETY: takes no memory.
        if unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } == 0 {
            return;
        }
    }
    // Longer than a store stays in a processor's buffer.
    std::thread::sleep(Duration::from_millis(1));
}
