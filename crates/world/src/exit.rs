//! How a rank's process ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code; 0 is success.
    Code(i32),
    /// A signal of this number ended it.
    Signal(i32),
    /// It did not end even after SIGKILL (frozen, or waiting in the kernel); its process id.
    Stuck(u32),
}

impl Exit {
    /// Whether it exited with code 0.
    pub fn success(self) -> bool {
        self == Exit::Code(0)
    }

    /// The code a shell would show: the exit code, 128 + signal, 1 for a stuck process.
    pub fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
            Exit::Stuck(_) => 1,
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Code(1),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with code {code}"),
            Exit::Signal(signal) => write!(f, "killed by {} ({signal})", signal_name(*signal)),
            Exit::Stuck(pid) => write!(f, "process {pid} does not end even after SIGKILL (frozen?)"),
        }
    }
}

/// The name of a signal, `a signal` where it has none.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => "a signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_codes() {
        assert_eq!(Exit::Signal(9).to_string(), "killed by SIGKILL (9)");
        assert_eq!(Exit::Code(3).to_string(), "exited with code 3");
        assert_eq!([Exit::Code(3).code(), Exit::Signal(15).code(), Exit::Stuck(1).code()], [3, 143, 1]);
        assert!(Exit::Code(0).success() && !Exit::Signal(0).success());
    }
}
