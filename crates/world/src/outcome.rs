//! How a job ended, in numbers and in words.

use crate::exit::{Exit, signal_name};
use std::io;
use std::time::Duration;

/// How a job ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The rank that failed first, unless the job was being ended already.
    pub first_failure: Option<(usize, Exit)>,
    /// How each rank of this host ended.
    pub exits: Vec<Exit>,
    /// Global rank of the first of them.
    pub first_rank: usize,
    /// The job's timeout passed.
    pub timed_out: bool,
    /// The signal that ended the job.
    pub interrupted: Option<i32>,
    /// Why the output could not be written any more.
    pub output_error: Option<io::Error>,
    /// Processes found outside their rank's process group, and killed.
    pub leftovers: usize,
    /// Time from the start to the end of the last rank.
    pub elapsed: Duration,
}

impl Outcome {
    /// Whether all ranks exited with success by themselves.
    pub fn success(&self) -> bool {
        self.code() == 0
    }

    /// The launcher's exit code: that of the first failing rank (128 + signal if killed), 124 on timeout, 128 + signal
    /// when interrupted, 141 when the output was closed.
    pub fn code(&self) -> i32 {
        if let Some((_, exit)) = self.first_failure {
            return exit.code();
        }
        if let Some(signal) = self.interrupted {
            return 128 + signal;
        }
        if self.timed_out {
            return 124;
        }
        if self.output_error.is_some() {
            return 128 + libc::SIGPIPE;
        }
        self.exits.iter().map(|exit| exit.code()).find(|code| *code != 0).unwrap_or(0)
    }

    /// One sentence that says why the job failed; `None` on success.
    pub fn failure(&self) -> Option<String> {
        let stuck = self.exits.iter().enumerate().find(|(_, exit)| matches!(exit, Exit::Stuck(_)));
        Some(match (self.first_failure, self.interrupted) {
            (Some((rank, exit)), _) => format!("rank {rank} failed first: {exit}"),
            (None, Some(signal)) => format!("ended by {} ({signal})", signal_name(signal)),
            _ if self.timed_out => format!("timed out after {:.1} s", self.elapsed.as_secs_f64()),
            _ => match (&self.output_error, stuck) {
                (Some(error), _) => format!("the output cannot be written ({error}), so the job was ended"),
                (None, Some((rank, exit))) => format!("rank {}: {exit}", self.first_rank + rank),
                (None, None) => return None,
            },
        })
    }
}
