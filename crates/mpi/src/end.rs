//! The end of MPI in this process: by the program, or at exit. Afterwards no function of MPI may be called, so all who would are turned away
//! before, and who is in the middle of one is counted.

use crate::watch;
use rankwise_core::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// Turns everybody away from now on. Returns whether no thread is in MPI.
pub(crate) fn close() -> bool {
    CLOSED.store(true, Ordering::SeqCst);
    watch::close_all();
    fence_of_all_threads();
    INSIDE.load(Ordering::SeqCst) == 0 && !watch::is_any_in_a_call()
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
    std::thread::sleep(std::time::Duration::from_millis(1));
}
