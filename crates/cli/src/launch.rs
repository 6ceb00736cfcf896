//! `rankwise launch`: a program as several ranks, on this host or on several.

use clap::{Args, ValueEnum};
use rankwise_world::launch::{Across, Exit, Launch as Job, Line, MAX_RANKS, Output, Stream};
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code: that of the rank that failed first (128 + signal if it was killed), 124 on timeout, 128 + signal when
/// interrupted, 127 when the program was not found, 126 when it could not be executed, 141 when nobody read the output.
#[derive(Args)]
#[command(after_help = "Example: rankwise launch -n 4 --timeout 60 -- ./hello --verbose")]
pub(crate) struct Launch {
    /// Number of ranks on this host
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS as i64))]
    ranks: u32,
    /// Number of hosts; on each of them this command is given, with as many ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS as i64))]
    nnodes: u32,
    /// Which of the hosts this is, counted from 0; rank 0 is on the first
    #[arg(long, value_name = "K", default_value_t = 0)]
    node_rank: u32,
    /// Address or name of the first host, the same on all
    #[arg(long, value_name = "HOST")]
    master_addr: Option<String>,
    /// TCP port there; 0 on the first host chooses a free one and says which
    #[arg(long, value_name = "PORT", default_value_t = 29450)]
    master_port: u16,
    /// File of mode 0600 with the token that all hosts share, from `rankwise token new`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// End the job after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Bind ranks to CPUs: auto = one each if there are enough, cores = one each in turn
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pin: Pin,
    /// Backend of programs that do not choose one themselves: sets RANKWISE_BACKEND [default: what is set, else shm]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Print the ranks' lines as they are, without `[rank] ` before them
    #[arg(long)]
    no_prefix: bool,
    /// Set an environment variable of the ranks; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    envs: Vec<(String, String)>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pin {
    Auto,
    Cores,
    None,
}

const BACKEND: &str = "RANKWISE_BACKEND";

impl Launch {
    pub(crate) fn run(self) -> ExitCode {
        let mut command = self.command.into_iter();
        let program = command.next().unwrap_or_default();
        let mut job = Job::new(self.ranks as usize, program)
            .args(command)
            .pin(match self.pin {
                Pin::Auto => rankwise_world::launch::Pin::Auto,
                Pin::Cores => rankwise_world::launch::Pin::Cores,
                Pin::None => rankwise_world::launch::Pin::None,
            })
            .output(Output::Sink(printer(!self.no_prefix)))
            .handle_signals(true);
        if let Some(timeout) = self.timeout {
            job = job.timeout(timeout);
        }
        let several = self.nnodes > 1;
        match (several, self.master_addr, self.token_file) {
            (false, None, None) if self.node_rank == 0 => {}
            (false, ..) => return misused("--node-rank, --master-addr and --token-file are for --nnodes 2 and more"),
            (true, Some(address), Some(token_file)) => {
                let (nodes, node) = (self.nnodes as usize, self.node_rank as usize);
                job = job.across(Across::new(nodes, node, address, self.master_port, token_file));
            }
            (true, ..) => {
                return misused("--nnodes needs --master-addr and --token-file (made by `rankwise token new FILE`)");
            }
        }
        let chosen = std::env::var_os(BACKEND).is_some_and(|name| !name.is_empty());
        match self.backend {
            Some(name) => job = job.env(BACKEND, name),
            // Shared memory does not reach other hosts.
            None if !chosen && !several => job = job.env(BACKEND, "shm"),
            None => {}
        }
        for (name, value) in self.envs {
            job = job.env(name, value);
        }
        let outcome = match job.spawn() {
            Ok(job) => {
                if let Some(address) = job.listens_on().filter(|_| self.master_port == 0) {
                    say(&format!(
                        "rank 0 listens on {address}: give --master-port {} to the other hosts",
                        address.port()
                    ));
                }
                job.run(&mut |_| ())
            }
            Err(error) => {
                say(&error.to_string());
                return ExitCode::from(code_of(&error));
            }
        };
        if outcome.leftovers > 0 {
            say(&format!("killed what had left the process groups of the ranks: {} process(es)", outcome.leftovers));
        }
        for (rank, exit) in outcome.exits.iter().enumerate().filter(|(_, exit)| matches!(exit, Exit::Stuck(_))) {
            say(&format!("rank {}: {exit}", outcome.first_rank + rank));
        }
        if let Some(failure) = outcome.failure() {
            say(&failure);
        }
        ExitCode::from(u8::try_from(outcome.code()).unwrap_or(1))
    }
}

/// Prints whole lines; runs on one thread.
fn printer(prefix: bool) -> rankwise_world::launch::Sink {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let colour_out = !plain && io::stdout().is_terminal();
    let colour_err = !plain && io::stderr().is_terminal();
    let mut buffer = Vec::new();
    Box::new(move |line: &Line| {
        let colour = match line.stream {
            Stream::Stdout => colour_out,
            Stream::Stderr => colour_err,
        };
        buffer.clear();
        if prefix {
            put_prefix(&mut buffer, line.rank, colour);
        }
        buffer.extend_from_slice(&line.text);
        buffer.push(b'\n');
        match line.stream {
            Stream::Stdout => io::stdout().write_all(&buffer).and_then(|()| io::stdout().flush()),
            Stream::Stderr => io::stderr().write_all(&buffer),
        }
    })
}

fn put_prefix(buffer: &mut Vec<u8>, rank: usize, colour: bool) {
    const COLOURS: [&str; 12] = ["36", "32", "33", "35", "34", "31", "96", "92", "93", "95", "94", "91"];
    let text = match colour {
        true => format!("\x1b[{}m[{rank}]\x1b[0m ", COLOURS[rank % COLOURS.len()]),
        false => format!("[{rank}] "),
    };
    buffer.extend_from_slice(text.as_bytes());
}

fn say(text: &str) {
    // Nobody may be listening any more.
    let _ = writeln!(io::stderr(), "rankwise: {text}");
}

fn misused(text: &str) -> ExitCode {
    say(text);
    ExitCode::from(2)
}

/// As a shell would say it.
fn code_of(error: &rankwise::Error) -> u8 {
    match error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind) {
        Some(io::ErrorKind::NotFound) => 127,
        Some(io::ErrorKind::PermissionDenied) => 126,
        _ => 1,
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds above 0 and at most 1e9 is needed".into()),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !text.contains('\0') => Ok((name.into(), value.into())),
        _ => Err("NAME=VALUE is needed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "", "1s", "1e10"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("=x").is_err() && variable("x").is_err());
    }

    #[test]
    fn prefixes() {
        let mut buffer = Vec::new();
        put_prefix(&mut buffer, 13, false);
        put_prefix(&mut buffer, 1, true);
        assert_eq!(buffer, b"[13] \x1b[32m[1]\x1b[0m ");
    }
}
