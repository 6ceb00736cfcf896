//! `rankwise bench --peers DIR`: other libraries measured in turn with the backends, in the same cells.
//!
//! `file` reads DIR/peers.toml, `process` runs one peer and checks what it prints, `grid` prints the ratios. The rounds are
//! those of `bench compare`.

#[cfg(test)]
mod agreement;
mod file;
mod grid;
mod process;

pub(crate) use file::Peer;
pub(crate) use grid::Grid;
pub(crate) use process::{Limits, measure};

use super::args::{BenchArgs, Format};
use super::command::{Files, PeerArgs};
use super::job::refuse;
use super::rounds::{self, Contender, Plan};
use std::process::ExitCode;

/// Runs the rounds and prints the grid.
pub(crate) fn run(dir: &str, args: &BenchArgs, files: &Files, peers: &PeerArgs) -> ExitCode {
    if !matches!(args.format, Format::Text | Format::Json) {
        return refuse("ratios to peers are printed with --format text or --format json");
    }
    let found = match file::read(dir).and_then(|all| file::choose(all, &peers.peer)) {
        Ok(found) => found,
        Err(message) => return refuse(&message),
    };
    let backends = args.backend.iter().cloned().map(Contender::Backend);
    rounds::run(Plan {
        contenders: backends.chain(found.into_iter().map(|peer| Contender::Peer(Box::new(peer)))).collect(),
        sweep: args,
        rounds: peers.rounds,
        silence: peers.peer_timeout,
        output: files.output.as_deref(),
        pictures: &files.pictures,
    })
}
