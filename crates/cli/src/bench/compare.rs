//! `rankwise bench compare`: result files as they are, or backends measured in turn.

use super::args::Format;
use super::command::CompareArgs;
use super::comparison::{Compared, Comparison};
use super::contenders::Contenders;
use super::interval::Ratio;
use super::job::refuse;
use super::pictures::{Figures, title};
use super::results::{Cells, Key, Results};
use super::rounds;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Backend,
    File,
}

/// Runs the comparison.
pub(crate) fn run(args: &CompareArgs) -> ExitCode {
    if !matches!(args.sweep.format, Format::Text | Format::Json) {
        return refuse("a comparison is printed with --format text or --format json");
    }
    match kind(&args.what) {
        Err(message) => refuse(&message),
        Ok(Kind::Backend) if args.what.len() == 1 => {
            refuse(&format!("name a second backend to compare {} with, {0} again for example", args.what[0]))
        }
        Ok(Kind::Backend) => rounds::compare(args),
        Ok(Kind::File) if args.output.is_some() => refuse("--output is for backends; files are results already"),
        Ok(Kind::File) if args.rounds.is_some() => refuse("--rounds is for backends; files were measured already"),
        Ok(Kind::File) => files(args).unwrap_or_else(|message| refuse(&message)),
    }
}

fn kind(what: &[String]) -> Result<Kind, String> {
    let one = |name: &String| match rankwise::driver(name) {
        Ok(_) => Ok(Kind::Backend),
        Err(_) if Path::new(name).exists() => Ok(Kind::File),
        Err(error) => Err(format!("{name:?} is no file, and {}", error.message())),
    };
    let kinds = what.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    match kinds.iter().position(|kind| *kind != kinds[0]) {
        None => Ok(kinds[0]),
        Some(other) => Err(format!(
            "{:?} and {:?} are a backend and a file; measure the backend with --output first, then compare files",
            what[0], what[other]
        )),
    }
}

fn files(args: &CompareArgs) -> Result<ExitCode, String> {
    args.pictures.check(&args.what.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut results = args.what.iter().map(|path| Results::read(path)).collect::<Result<Vec<_>, _>>()?;
    if results.len() == 1 {
        return one_file(args, results.remove(0));
    }
    let (cells, rest) = side_by_side(&results);
    if cells.iter().all(|cell| cell.ratios.iter().all(Option::is_none)) {
        return Err(format!("{} has no cell in common with the others", args.what[0]));
    }
    let json = args.sweep.format == Format::Json;
    if print_files(&mut Comparison::new(io::stdout(), json, args.what.clone()), &results, &cells, &rest).is_err() {
        return Ok(ExitCode::from(141));
    }
    let more =
        |(results, alone): (&Results, &usize)| format!("{} has {alone} more cells, which are not shown", results.path);
    let figures = || Figures {
        title: title(&args.what),
        names: args.what.clone(),
        remarks: results.iter().skip(1).zip(&rest).filter(|(_, alone)| **alone > 0).map(more).collect(),
        origins: results.iter().map(|results| (results.path.clone(), results.origin.clone())).collect(),
        cells,
        ..Figures::default()
    };
    Ok(if args.pictures.draw(figures) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The comparison that one file holds.
fn one_file(args: &CompareArgs, results: Results) -> Result<ExitCode, String> {
    let contenders = Contenders::of(&results.cells);
    if contenders.names.len() < 2 {
        return Err(format!(
            "{} holds nothing to compare; name a second file, or write one with `rankwise bench compare A B --output`",
            results.path
        ));
    }
    let json = args.sweep.format == Format::Json;
    let mut comparison = Comparison::new(io::stdout(), json, contenders.names.clone());
    let how = match contenders.paired {
        true => "ratio: median over the rounds of the ratio in each, the backends taking turns",
        false => FILES,
    };
    let printed = comparison
        .legend(how)
        .and_then(|()| comparison.comment(&described(&results)))
        .and_then(|()| contenders.cells.iter().try_for_each(|cell| comparison.cell(cell)))
        .and_then(|()| comparison.finish());
    if printed.is_err() {
        return Ok(ExitCode::from(141));
    }
    let remarks = left_out(&results).into_iter().collect();
    let figures = || Figures::of(contenders, results.origin, remarks);
    Ok(if args.pictures.draw(figures) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const FILES: &str = "ratio: of the medians; the interval joins those of both, within the runs but not from run to run";

fn described(results: &Results) -> String {
    let origin = &results.origin;
    let commit = origin.git.as_deref().unwrap_or("commit unknown");
    let text = format!("{}: {}, {commit}, {}: {}", results.path, origin.date, origin.host, origin.machine());
    left_out(results).into_iter().fold(text, |text, wrong| format!("{text}; {wrong}"))
}

fn left_out(results: &Results) -> Option<String> {
    let wrong = results.cells.left_out();
    (wrong > 0).then(|| format!("cells left out because of wrong results: {wrong}"))
}

fn print_files(
    comparison: &mut Comparison<io::Stdout>,
    results: &[Results],
    cells: &[Compared],
    rest: &[usize],
) -> io::Result<()> {
    comparison.legend(FILES)?;
    for results in results {
        comparison.comment(&described(results))?;
    }
    for cell in cells {
        comparison.cell(cell)?;
    }
    comparison.finish()?;
    for (results, alone) in results.iter().skip(1).zip(rest) {
        if *alone > 0 {
            comparison.comment(&format!("{} has {alone} more cells, which A lacks", results.path))?;
        }
    }
    Ok(())
}

/// The cells of the first file, and how many each other file has beyond them.
fn side_by_side(results: &[Results]) -> (Vec<Compared>, Vec<usize>) {
    // A backend or a pinning that is the only one in each file is what is compared, not what tells cells apart.
    let one_each = |of: fn(&super::report::Row) -> &str| {
        let few =
            |results: &Results| results.cells.cells.iter().map(|cell| of(&cell.row)).collect::<HashSet<_>>().len() <= 1;
        results.iter().all(few)
    };
    let (backend, pin) = (one_each(|row| &row.backend), one_each(|row| &row.pin));
    let contenders: Vec<Cells> = results.iter().map(|results| results.cells.without(backend, pin)).collect();
    let compare = |base: &super::results::Cell| {
        let key = Key::without(&base.row, backend, pin);
        let found: Vec<_> = contenders.iter().map(|cells| cells.get(&key)).collect();
        Compared {
            cell: base.row.clone(),
            times_us: found.iter().map(|cell| (*cell)?.times.median()).collect(),
            intervals_us: found.iter().map(|cell| (*cell)?.times.interval()).collect(),
            ratios: found[1..].iter().map(|cell| Ratio::independent(&base.times, &(*cell)?.times)).collect(),
        }
    };
    let alone = |cells: &Cells| {
        let lacks = |cell: &&super::results::Cell| contenders[0].get(&Key::without(&cell.row, backend, pin)).is_none();
        cells.cells.iter().filter(lacks).count()
    };
    (contenders[0].cells.iter().map(compare).collect(), contenders[1..].iter().map(alone).collect())
}

#[cfg(test)]
mod tests {
    use super::super::origin::Origin;
    use super::super::results::tests::measured;
    use super::*;

    fn results(path: &str, backend: &str, rows: &[(u64, f64)]) -> Results {
        let mut cells = Cells::default();
        for (bytes, time) in rows {
            let mut measured = measured(*bytes, (0..10).map(|i| time + f64::from(i) / 100.0).collect());
            measured.row.backend = backend.into();
            cells.add(measured, 1).unwrap();
        }
        Results { path: path.into(), origin: Origin::here(), cells }
    }

    #[test]
    fn files_of_different_backends_meet_cell_by_cell() {
        let one = results("one", "shm", &[(8, 10.0), (16, 20.0)]);
        let two = results("two", "mpi", &[(16, 40.0), (32, 1.0)]);
        let (cells, alone) = side_by_side(&[one, two]);
        assert_eq!((cells.len(), alone), (2, vec![1]));
        assert_eq!((cells[0].ratios[0], cells[0].times_us[1]), (None, None));
        let ratio = cells[1].ratios[0].unwrap();
        assert!((ratio.value - 2.0).abs() < 0.01 && ratio.verdict() == super::super::interval::Verdict::Slower);
    }

    #[test]
    fn a_file_of_several_backends_keeps_them_apart() {
        let mut both = results("both", "shm", &[(8, 10.0)]);
        let mpi = results("both", "mpi", &[(8, 30.0)]);
        let row = measured(8, vec![30.0; 10]);
        let row = super::super::measured::Measured { row: mpi.cells.cells[0].row.clone(), ..row };
        both.cells.add(row, 2).unwrap();
        let (cells, alone) = side_by_side(&[both.clone(), mpi]);
        assert_eq!((cells.len(), alone), (2, vec![0]));
        assert_eq!((cells[0].ratios[0], cells[1].ratios[0].is_some()), (None, true));
    }

    #[test]
    fn backends_and_files_do_not_mix() {
        let name = |names: &[&str]| kind(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
        let backend = rankwise::backends()[0].name();
        assert_eq!(name(&[backend, backend]), Ok(Kind::Backend));
        assert_eq!(name(&["/", "/dev/null"]), Ok(Kind::File));
        assert!(name(&[backend, "/dev/null"]).unwrap_err().contains("measure the backend with --output first"));
        assert!(name(&["/no/such", backend]).unwrap_err().contains("is no file"));
    }
}
