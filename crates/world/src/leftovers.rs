//! Processes of a job that left their rank's process group: found by the job id in their environment.
//!
//! Only async-signal-safe calls and no allocation, because the guardian runs this in a forked child.

#![allow(unsafe_code)]

use std::ffi::CStr;

/// `RANKWISE_JOB_ID=` and the id in hexadecimal.
pub(crate) struct Mark([u8; 48]);

impl Mark {
    pub(crate) fn new(job: u128) -> Mark {
        let mut mark = [0; 48];
        mark.copy_from_slice(format!("{}={job:032x}", crate::environment::JOB_ID).as_bytes());
        Mark(mark)
    }
}

/// Kills every process that carries the mark, except this one. A few rounds, since they may be forking. Returns how many
/// were killed.
pub(crate) fn kill_marked(mark: &Mark) -> usize {
    let mut killed = 0;
    for _ in 0..8 {
        let round = one_round(mark);
        killed += round;
        if round == 0 {
            break;
        }
    }
    killed
}

fn one_round(mark: &Mark) -> usize {
    let mut killed = 0;
    // SAFETY: plain system calls on descriptors opened here, with buffers valid for the lengths passed.
    unsafe {
        let proc = libc::open(c"/proc".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
        if proc < 0 {
            return 0;
        }
        let own = libc::getpid();
        let mut entries = [0_u8; 8192];
        loop {
            let n = libc::syscall(libc::SYS_getdents64, proc, entries.as_mut_ptr(), entries.len());
            if n <= 0 {
                break;
            }
            let mut rest = &entries[..n as usize];
            // struct linux_dirent64: inode 8, offset 8, record length 2, type 1, name.
            while rest.len() > 19 {
                let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
                if length <= 19 || length > rest.len() {
                    break;
                }
                if let Some(pid) = number(&rest[19..length])
                    && pid != own
                    && kill_if_marked(proc, pid, mark)
                {
                    killed += 1;
                }
                rest = &rest[length..];
            }
        }
        libc::close(proc);
    }
    killed
}

fn number(name: &[u8]) -> Option<i32> {
    let mut value = 0_i32;
    let digits = name.iter().position(|byte| *byte == 0)?;
    for byte in &name[..digits] {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(i32::from(byte - b'0'))?;
    }
    (digits > 0).then_some(value)
}

fn kill_if_marked(proc: i32, pid: i32, mark: &Mark) -> bool {
    if !is_marked(proc, pid, mark) {
        return false;
    }
    // SAFETY: system calls on a descriptor opened here. The second look makes sure that the descriptor is of the process
    // that carries the mark, should the number have been reused.
    unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        if pidfd < 0 {
            return false;
        }
        let killed = is_marked(proc, pid, mark)
            && libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, std::ptr::null::<u8>(), 0) == 0;
        if killed {
            // Until it has ended: who returns from here says that nobody is left.
            let mut ended = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
            libc::poll(&mut ended, 1, 500);
        }
        libc::close(pidfd);
        killed
    }
}

fn is_marked(proc: i32, pid: i32, mark: &Mark) -> bool {
    let mut path = [0_u8; 24];
    let mut at = 11;
    let mut rest = pid;
    while rest > 0 && at > 0 {
        at -= 1;
        path[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path[11..20].copy_from_slice(b"/environ\0");
    let Ok(path) = CStr::from_bytes_until_nul(&path[at..]) else { return false };
    // SAFETY: the path ends with a zero; the buffer is valid for the length passed.
    unsafe {
        let file = libc::openat(proc, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let mut buffer = [0_u8; 16 << 10];
        let mut kept = 0;
        let mut found = false;
        loop {
            let n = libc::read(file, buffer[kept..].as_mut_ptr().cast(), buffer.len() - kept);
            if n <= 0 {
                break;
            }
            let have = kept + n as usize;
            if buffer[..have].windows(mark.0.len()).any(|window| window == mark.0) {
                found = true;
                break;
            }
            // The mark may lie across two reads.
            kept = have.min(mark.0.len() - 1);
            buffer.copy_within(have - kept..have, 0);
        }
        libc::close(file);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn finds_the_mark_anywhere_in_a_large_environment() {
        let job = crate::world::random_id();
        let mut child = Command::new("sleep")
            .arg("100")
            .env("RANKWISE_JOB_ID", format!("{job:032x}"))
            .env("AAAA", "x".repeat(40_000))
            .env("ZZZZ", "y".repeat(40_000))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        // A process has no environment yet while its program is being loaded.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::fs::read(format!("/proc/{}/environ", child.id())).unwrap().is_empty() {
            assert!(std::time::Instant::now() < until, "the child does not start");
            std::thread::yield_now();
        }
        assert_eq!(kill_marked(&Mark::new(job ^ 1)), 0);
        assert!(child.try_wait().unwrap().is_none());
        assert_eq!(kill_marked(&Mark::new(job)), 1);
        assert!(!child.wait().unwrap().success());
    }
}
