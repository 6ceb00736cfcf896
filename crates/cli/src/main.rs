//! The `rankwise` command. Each subcommand is a file of its own.

#![forbid(unsafe_code)]

mod info;
#[cfg(target_os = "linux")]
mod launch;

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
    /// Run a program as several ranks on this host
    #[cfg(target_os = "linux")]
    Launch(launch::Launch),
    /// Show version, machine, backends, environment variables and limits
    Info(info::Info),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        #[cfg(target_os = "linux")]
        Command::Launch(command) => command.run(),
        Command::Info(command) => command.run(),
    }
}
