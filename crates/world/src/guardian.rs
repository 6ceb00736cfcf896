//! A small process that outlives a launcher that is killed, and takes the ranks' process groups with it.
//!
//! The parent-death signal ends a rank's first process; what that process started (a program behind `sh -c`) would live
//! on. The guardian is forked before the ranks, reads from a pipe which groups exist, and on end of file, which is the
//! launcher's end however it came about, kills those that were not taken back. After the fork it does only what is
//! async-signal-safe: the launcher may have threads.

#![allow(unsafe_code)]

use crate::leftovers::{Mark, kill_marked};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

pub(crate) struct Guardian {
    pipe: Option<OwnedFd>,
    pid: libc::pid_t,
    pidfd: Option<OwnedFd>,
}

impl Guardian {
    /// Forks the guardian of a job of at most `ranks` groups.
    pub(crate) fn start(ranks: usize, job: u128) -> Result<Guardian, Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut groups = vec![0; ranks].into_boxed_slice();
        let mark = Mark::new(job);
        // SAFETY: the child calls only async-signal-safe functions (see `watch`) and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN)),
            0 => watch(read.as_raw_fd(), &mut groups, &mark),
            pid => {
                // It is this process's own child and nobody has waited for it, so the number is its own.
                let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                Ok(Guardian { pipe: Some(write), pid, pidfd })
            }
        }
    }

    /// Where a rank, before it becomes its program, announces its group: its process id in four bytes.
    pub(crate) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_ref().map_or_else(|| unreachable!("closed on drop only"), AsFd::as_fd)
    }

    /// Readable once it has ended, as only somebody else's signal makes it; none when the system refused the descriptor.
    pub(crate) fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Nothing can be done about its end; do not look again.
    pub(crate) fn give_up(&mut self) {
        self.pidfd = None;
    }

    /// Announces the group of a rank that runs already.
    pub(crate) fn adopt(&self, group: u32) {
        let _ = rustix::io::write(self.pipe(), &(group as i32).to_ne_bytes());
    }

    /// The group has no members any more. Called while its number cannot have been reused.
    pub(crate) fn release(&self, group: u32) {
        let _ = rustix::io::write(self.pipe(), &(-(group as i32)).to_ne_bytes());
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.pipe = None;
        let patience = Instant::now() + Duration::from_secs(2);
        let mut killed = false;
        loop {
            let mut status = 0;
            let flags = if killed { 0 } else { libc::WNOHANG };
            // SAFETY: waits for a child that this value forked and nobody else waits for.
            let waited = unsafe { libc::waitpid(self.pid, &mut status, flags) };
            if waited != 0 {
                return;
            }
            if Instant::now() > patience {
                // SAFETY: the child has not been waited for, so the number is still its own.
                unsafe { libc::kill(self.pid, libc::SIGKILL) };
                killed = true;
            } else {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    }
}

fn watch(pipe: i32, groups: &mut [libc::pid_t], mark: &Mark) -> ! {
    // SAFETY: async-signal-safe system calls only; buffers are valid for the lengths passed; ends by _exit.
    unsafe {
        // Out of reach of the terminal's signals, and of those meant for the launcher.
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"rankwise-guard".as_ptr());
        // Nothing of the launcher may stay open here: not its output, not the pipes of other jobs.
        if libc::dup2(pipe, 0) == 0 {
            libc::syscall(libc::SYS_close_range, 1_u32, u32::MAX, 0_u32);
        }
        loop {
            let mut frame = [0_u8; 4];
            match libc::read(0, frame.as_mut_ptr().cast(), 4) {
                4 => {
                    let group = i32::from_ne_bytes(frame);
                    let (wanted, new) = if group > 0 { (0, group) } else { (group.wrapping_neg(), 0) };
                    if let Some(place) = groups.iter_mut().find(|place| **place == wanted) {
                        *place = new;
                    }
                }
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => break,
            }
        }
        for group in groups.iter().filter(|group| **group > 1) {
            libc::kill(-*group, libc::SIGKILL);
        }
        kill_marked(mark);
        libc::_exit(0)
    }
}
