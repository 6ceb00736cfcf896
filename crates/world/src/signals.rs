//! Signals to the launcher, turned into bytes on a pipe for the time of a job.

#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

static PIPE: AtomicI32 = AtomicI32::new(-1);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Catches SIGINT, SIGTERM and SIGHUP while it lives; then the old handlers are back.
pub(crate) struct CaughtSignals {
    read: OwnedFd,
    _write: OwnedFd,
    old: Vec<(i32, libc::sigaction)>,
    _guard: MutexGuard<'static, ()>,
}

extern "C" fn note(signal: i32) {
    // SAFETY: errno is a thread-local of this thread; write is async-signal-safe, and the buffer is valid for one byte.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let byte = signal as u8;
        libc::write(PIPE.load(Ordering::Relaxed), std::ptr::from_ref(&byte).cast(), 1);
        *errno = saved;
    }
}

/// Blocks all signals in this thread, so that the program's own threads get them as if this one did not exist.
pub(crate) fn leave_to_other_threads() {
    // SAFETY: the set is a C struct that sigfillset initialises; both calls only concern this thread.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

impl CaughtSignals {
    /// `None` when another job of this process already catches them.
    pub(crate) fn install() -> Result<Option<CaughtSignals>, Errno> {
        let guard = match ONE_AT_A_TIME.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
        let mut old = Vec::new();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: both actions are valid for the call; the handler only does what is async-signal-safe.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note as extern "C" fn(i32) as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigemptyset(&mut action.sa_mask);
                if libc::sigaction(signal, &action, &mut before) != 0 {
                    continue;
                }
                // Whoever started us with the signal ignored (nohup) wants it ignored.
                if before.sa_sigaction == libc::SIG_IGN {
                    libc::sigaction(signal, &before, std::ptr::null_mut());
                } else {
                    old.push((signal, before));
                }
            }
        }
        Ok(Some(CaughtSignals { read, _write: write, old, _guard: guard }))
    }

    /// The next caught signal, without blocking.
    pub(crate) fn next(&self) -> Option<i32> {
        let mut byte = [0_u8];
        match rustix::io::read(&self.read, &mut byte) {
            Ok(1) => Some(i32::from(byte[0])),
            _ => None,
        }
    }
}

/// Makes sure that the kernel keeps the exit status of children: whoever started us may have ignored SIGCHLD.
pub(crate) fn keep_exit_statuses() {
    // SAFETY: both actions are valid for the calls; the default action of SIGCHLD does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGCHLD, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN {
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGCHLD, &action, std::ptr::null_mut());
        }
    }
}

impl AsFd for CaughtSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

impl Drop for CaughtSignals {
    fn drop(&mut self) {
        for (signal, before) in &self.old {
            // SAFETY: restores an action that sigaction itself returned.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
        PIPE.store(-1, Ordering::Relaxed);
    }
}
