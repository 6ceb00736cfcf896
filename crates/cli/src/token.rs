//! `rankwise token`: the secret by which the ranks of a job on several hosts know each other.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a new random token to a file that only this user can read
    New {
        /// The file, which must not exist yet
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl Token {
    pub(crate) fn run(self) -> ExitCode {
        let Command::New { file } = self.command;
        match rankwise_world::Token::random().and_then(|token| token.write_new(&file)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("rankwise: {error}");
                ExitCode::FAILURE
            }
        }
    }
}
