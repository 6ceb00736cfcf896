//! The `rankwise` command. Each subcommand is a file of its own.

// Only the benchmark reads the processor's counter and maps a page, in files of their own.
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod bench;
#[cfg(target_os = "linux")]
mod conformance;
mod info;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod mpirun;
#[cfg(target_os = "linux")]
mod simulate;
#[cfg(target_os = "linux")]
mod token;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Collective communication between the ranks of a parallel program.
#[derive(Parser)]
#[command(name = "rankwise", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program as several ranks, on this host or on several
    #[cfg(target_os = "linux")]
    Launch(Box<launch::Launch>),
    /// Make the secret that the ranks of a job on several hosts share
    #[cfg(target_os = "linux")]
    Token(token::Token),
    #[cfg(target_os = "linux")]
    Bench(Box<bench::BenchCommand>),
    /// One rank of `bench`
    #[cfg(target_os = "linux")]
    #[command(name = "__bench-rank", hide = true)]
    BenchRank(Box<bench::BenchArgs>),
    /// What an MPI's launcher starts
    #[cfg(target_os = "linux")]
    #[command(name = mpirun::RANK_COMMAND, hide = true)]
    MpiRank(mpirun::MpiRank),
    /// Test backends against the contract
    #[cfg(target_os = "linux")]
    Conformance(Box<conformance::Conformance>),
    #[cfg(target_os = "linux")]
    Simulate(Box<simulate::Simulate>),
    /// One rank of `conformance`
    #[cfg(target_os = "linux")]
    #[command(name = conformance::RANK_SUBCOMMAND, hide = true)]
    ConformanceRank,
    /// Show version, machine, backends, environment variables and limits
    Info(info::Info),
}

/// The exit code after standard output failed: 141 and silence when its reader has gone, as shells report SIGPIPE; else the reason
/// and 1.
fn output_failed(error: &std::io::Error) -> ExitCode {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        return ExitCode::from(141);
    }
    eprintln!("rankwise: standard output can't be written: {error}");
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    match Cli::parse().command {
        #[cfg(target_os = "linux")]
        Command::Launch(command) => command.run(),
        #[cfg(target_os = "linux")]
        Command::Token(command) => command.run(),
        #[cfg(target_os = "linux")]
        Command::Bench(command) => command.run(),
        #[cfg(target_os = "linux")]
        Command::BenchRank(command) => command.run_rank(),
        #[cfg(target_os = "linux")]
        Command::MpiRank(command) => command.run(),
        #[cfg(target_os = "linux")]
        Command::Conformance(command) => command.run(),
        #[cfg(target_os = "linux")]
        Command::ConformanceRank => conformance::run_rank(),
        #[cfg(target_os = "linux")]
        Command::Simulate(command) => command.run(),
        Command::Info(command) => command.run(),
    }
}
