//! `--replay`: a script is run again.

use super::attempt::{Patience, Subject, Way, attempt};
use super::script::Script;
use super::text::parse;
use crate::job::RankCommand;
use crate::report::{CaseReport, Reporter, Verdict};
use crate::runner::Options;
use rankwise_core::{Error, Result};
use std::path::Path;

/// The largest script that is read.
const MOST_BYTES: u64 = 64 << 20;

/// Runs the script in every world and mode. `InvalidArgument` when the file can't be read as one, with the line, or is
/// for more ranks than a world has.
pub(crate) fn replay(
    file: &Path,
    (backend, mutant): (&str, Option<&str>),
    options: &Options,
    command: &RankCommand,
    reporter: &mut Reporter<'_>,
) -> Result<()> {
    let script = read(file)?;
    let worlds = if options.ranks.is_empty() { vec![script.ranks] } else { options.ranks.clone() };
    for &mode in &options.modes {
        for &ranks in &worlds {
            let needed = script.ranks;
            if ranks < needed {
                let text = format!("{} is for {needed} ranks, not {ranks}; give --ranks {needed}", file.display());
                return Err(Error::invalid(text));
            }
            let subject = Subject { backend, mutant, mode, ranks, command, seconds: options.case_seconds };
            let outcome = attempt(&subject, &script, None, Patience::Long)?;
            let (way, detail) = outcome.failure.map_or((None, String::new()), |(way, why)| (Some(way), why));
            let (name, calls) = (subject.name(), script.calls());
            let less = match outcome.left_out {
                0 => String::new(),
                less => format!(", of which {less} are not offered"),
            };
            let end = if way.is_none() { "all right" } else { "failed" };
            let seconds = outcome.elapsed.as_secs_f64();
            let place = format!("{name} {} {ranks} ranks", mode.name());
            reporter.say(&format!("{place}: {}: {calls} calls{less}, {end}, in {seconds:.1} s", file.display()));
            reporter.add(&CaseReport {
                case: format!("replay {}", file.file_name().unwrap_or(file.as_os_str()).to_string_lossy()),
                title: format!("replay: a script of {} calls", script.calls()),
                backend: name,
                mode: Some(mode),
                ranks,
                result: if way.is_none() { Verdict::Pass } else { Verdict::Fail },
                detail,
                wrong_result: way == Some(Way::Wrong),
                millis: outcome.elapsed.as_millis() as u64,
            });
            reporter.check()?;
        }
    }
    Ok(())
}

/// Reads a script.
pub(crate) fn read(file: &Path) -> Result<Script> {
    let name = file.display();
    let cannot = |error: std::io::Error| Error::invalid(format!("cannot read the script {name}")).with_source(error);
    let size = std::fs::metadata(file).map_err(cannot)?.len();
    if size > MOST_BYTES {
        return Err(Error::invalid(format!("{name} has {size} bytes; scripts have at most {MOST_BYTES}")));
    }
    let text = std::fs::read_to_string(file).map_err(cannot)?;
    parse(&text).map_err(|why| Error::invalid(format!("{name}, {why}")))
}
