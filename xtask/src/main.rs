//! The tasks of this workspace, run as `cargo xtask COMMAND`.
//!
//! Each command drives cargo, the scripts in `ci/` or the `rankwise` binary; none links a crate of this workspace, so
//! that a task still runs while the code it looks at does not compile.

#![forbid(unsafe_code)]

mod bench;
mod conformance;
mod machine;
mod metadata;
mod mpi;
mod readme;
mod scan;
mod steps;
mod test;
mod tidy;

use std::process::ExitCode;

/// What a command ends with: the exit code of the process, or what went wrong and what to do.
type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;

struct Command {
    name: &'static str,
    arguments: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Outcome,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "test",
        arguments: "[--list] [--only STEP,..] [--skip STEP,..]",
        help: "every check of the project; ends with `N passed, N failed, N skipped`",
        run: test::test,
    },
    Command {
        name: "conformance",
        arguments: "[--release] ARGS of `rankwise conformance`",
        help: "build with the features this machine can serve, then run the conformance suite",
        run: conformance::conformance,
    },
    Command {
        name: "bench",
        arguments: "[--quick] ARGS of `rankwise bench`",
        help: "build for release, check quickly, then measure",
        run: bench::bench,
    },
    Command {
        name: "tidy",
        arguments: "",
        help: "layering, file length, unsafe, names, paths, licences, documentation commands",
        run: tidy::tidy,
    },
    Command {
        name: "readme",
        arguments: "[FILE..]",
        help: "run the fenced `sh` commands of README.md and docs/ (or of FILE)",
        run: readme::readme,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        eprint!("{}", usage());
        return ExitCode::from(2);
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        eprint!("xtask: there is no command `{name}`\n\n{}", usage());
        return ExitCode::from(2);
    };
    match (command.run)(rest) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from("cargo xtask COMMAND\n\n");
    for command in COMMANDS {
        text.push_str(&format!("  {} {}\n      {}\n", command.name, command.arguments, command.help));
    }
    text
}
