//! The program of somebody else's backend: one call from its `main`.

use crate::expectations::Expectations;
use crate::foreign_job::run_in_job;
use crate::job::RankCommand;
use crate::plan::Mode;
use crate::rank::run_planned;
use crate::report::{Format, Summary};
use crate::runner::{Options, list, run};
use rankwise_core::{Error, Result};
use rankwise_world::{Driver, Placement};
use std::io;
use std::process::ExitCode;

const USAGE: &str = "\
tests a backend against rankwise's contract

  --ranks N,N        world sizes [default: 1,2,3,4,5,7,8,13; sequences and comparisons 4, replays what the script says]
  --mode MODE        threads, processes, or outer: inside the job that this process is a rank of
                     [default: outer in a job, else threads and processes]
  --case PATTERN     only cases whose id or title contains this
  --expectations FILE  what the backend has promised, and its known deviations (may be repeated)
  --full             whole products instead of samples, and the large cases
  --self-test        run deliberately broken versions of the backend instead
  --drills           kill, stop and confuse ranks instead, and look for what is left
  --sequences N      run N random sequences of mixed calls instead; one that fails is made small and written to a file
  --calls N          calls of a sequence or a comparison
  --replay FILE      run the script in this file instead
  --differential     compare the modes, and ways to make calls, instead
  --junit FILE       write the results to this file too, as JUnit XML
  --seed N           seed of samples, values and delays
  --json             print JSON lines
  --list             print the cases
";

/// The whole `main` of a program that tests one backend; the exit code is 0 when it keeps the contract, 1 when it does not, 2 when
/// nothing could be run.
///
/// Alone, the program starts its ranks itself: threads, and processes of the same program. Started as a rank of a job, by
/// mpirun, torchrun or `rankwise launch`, it runs inside that job, on all its ranks; rank 0 reports. Its arguments are
/// those that `--help` prints.
///
/// ```no_run
/// # fn driver() -> &'static dyn rankwise_world::Driver { loop {} }
/// fn main() -> std::process::ExitCode {
///     rankwise_conformance::rank_main(driver())
/// }
/// ```
pub fn rank_main(driver: &dyn Driver) -> ExitCode {
    rank_main_expecting(driver, Vec::new())
}

/// [`rank_main`] with what the backend has promised, and its known deviations, built into the program.
pub fn rank_main_expecting(driver: &dyn Driver, expectations: Vec<Expectations>) -> ExitCode {
    if let Some(code) = run_planned(&[driver]) {
        return code;
    }
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect();
    if arguments.iter().any(|text| text == "--help" || text == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|text| text == "--list") {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    let parsed = parse(driver.name(), &arguments).map(|mut options| {
        options.expectations.extend(expectations);
        options
    });
    match parsed.and_then(|options| run_where_we_are(driver, options)) {
        Ok(summary) if summary.failed == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::from(2)
        }
    }
}

fn run_where_we_are(driver: &dyn Driver, mut options: Options) -> Result<Summary> {
    if options.modes.is_empty() {
        options.modes = match driver.world()?.placement() {
            Placement::Solo => vec![Mode::Threads, Mode::Processes],
            _ => vec![Mode::Outer],
        };
    }
    if options.modes == [Mode::Outer] {
        return run_in_job(&[driver], &options, &mut io::stdout());
    }
    run(&[driver], &options, &RankCommand::current(&[])?, &mut io::stdout())
}

/// No modes when none are named.
fn parse(backend: &str, arguments: &[String]) -> Result<Options> {
    let mut options = Options { backends: vec![backend.into()], modes: Vec::new(), ..Options::default() };
    let mut ranks = None;
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| Error::invalid(format!("{flag} needs a value; see --help")));
        match flag.as_str() {
            "--full" => options.full = true,
            "--self-test" => options.self_test = true,
            "--drills" => options.drills = true,
            "--differential" => options.differential = true,
            "--sequences" => options.sequences = Some(number(value()?)?),
            "--calls" => options.calls = Some(number(value()?)?),
            "--replay" => options.replay = Some(value()?.into()),
            "--junit" => options.junit = Some(value()?.into()),
            "--json" => options.format = Format::Json,
            "--case" => options.pattern = Some(value()?.clone()),
            "--seed" => options.seed = number(value()?)?,
            "--ranks" => ranks = Some(value()?.split(',').map(number).collect::<Result<_>>()?),
            "--expectations" => options.expectations.push(Expectations::read_file(value()?)?),
            "--mode" => {
                let name = value()?;
                let mode = Mode::ALL.into_iter().find(|mode| mode.name() == name);
                let unknown = || Error::invalid(format!("there is no mode {name:?}; see --help"));
                options.modes.push(mode.ok_or_else(unknown)?);
            }
            _ => return Err(Error::invalid(format!("there is no argument {flag:?}; see --help"))),
        }
    }
    options.ranks = match ranks {
        Some(ranks) => ranks,
        None if options.replay.is_some() => Vec::new(),
        None if options.sequences.is_some() || options.differential => vec![4],
        None => options.ranks,
    };
    Ok(options)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| Error::invalid(format!("{text:?} is not a number that fits here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options> {
        parse("mine", &line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read_and_mistakes_refused() {
        let options = parsed("--sequences 2 --calls 50 --junit x.xml").unwrap();
        assert_eq!((options.sequences, options.calls), (Some(2), Some(50)));
        let options = parsed("--ranks 2,3 --mode threads --case AR-1 --full --seed 7 --json").unwrap();
        assert_eq!((options.backends, options.ranks), (vec!["mine".to_string()], vec![2, 3]));
        assert_eq!((options.modes, options.seed, options.full), (vec![Mode::Threads], 7, true));
        assert!(parsed("").unwrap().modes.is_empty());
        for wrong in ["--ranks", "--ranks two", "--mode fibres", "--no-such", "case", "--expectations /no/such/file"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        for word in ["--sequences", "--calls", "--replay", "--differential", "--junit"] {
            assert!(USAGE.contains(word));
        }
        for word in
            ["--ranks", "--mode", "--case", "--expectations", "--full", "--self-test", "--drills", "--seed", "--json"]
        {
            assert!(USAGE.contains(word));
        }
    }
}
