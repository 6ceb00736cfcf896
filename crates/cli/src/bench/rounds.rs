//! Backends measured in turn, round by round, so that what disturbs the machine disturbs all of them alike.

use super::args::{BenchArgs, Format};
use super::command::CompareArgs;
use super::comparison::{Compared, Comparison};
use super::contenders::Contenders;
use super::interval::{Ratio, Times, median, resolution, sorted};
use super::job::{Trouble, measure_job, refuse, sweep_of};
use super::launched::{Job, Placement, Terminal};
use super::measured::Measured;
use super::origin::Origin;
use super::pictures::{Figures, PictureFiles};
use super::report::{RankFacts, Report, Row};
use super::results::{Key, Writer};
use super::sink::Sink;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::process::ExitCode;

/// Rounds when nothing is said: the interval is that from the second smallest ratio to the second largest.
const ROUNDS: u32 = 9;

/// Runs the rounds and prints the comparison.
pub(crate) fn run(args: &CompareArgs) -> ExitCode {
    let rounds = args.rounds.unwrap_or(ROUNDS) as usize;
    let mut sweep = BenchArgs { backend: args.what.clone(), ..args.sweep.clone() };
    sweep.budget_ms /= rounds as f64;
    let cells = match sweep_of(&sweep) {
        Ok(sweep) => sweep.cells.len(),
        Err(Trouble::Usage(message)) => return refuse(&message),
        Err(_) => return ExitCode::FAILURE,
    };
    if let Err(message) = args.pictures.check(&args.output.as_deref().into_iter().collect::<Vec<_>>()) {
        return refuse(&message);
    }
    let output = match args.output.as_deref().map(|path| Writer::create(path, &Origin::here())).transpose() {
        Ok(output) => output,
        Err(message) => return refuse(&message),
    };
    let names = labels(&args.what);
    let comparison = Comparison::new(io::stdout(), sweep.format == Format::Json, names.clone());
    let report = Report::new(io::stdout(), sweep.format, false);
    let table = Table::default();
    let (drawn, at) = (Contenders { names: names.clone(), paired: true, ..Contenders::default() }, (0, 0));
    let mut all =
        Rounds { names, comparison, report, output, at, table, wrong: 0, failures: 0, drawn, remarks: Vec::new() };
    let origin = Origin::here();
    let result = all.measure(&sweep, &args.what, rounds, cells);
    all.end(result, origin, &args.pictures)
}

/// The backends' names; a repeated one gets a number.
fn labels(names: &[String]) -> Vec<String> {
    let label = |(i, name): (usize, &String)| match names[..i].iter().filter(|other| *other == name).count() {
        0 => name.clone(),
        before => format!("{name}#{}", before + 1),
    };
    names.iter().enumerate().map(label).collect()
}

/// One cell.
struct Taken {
    row: Row,
    /// For each contender its median in microseconds by round.
    times: Vec<BTreeMap<usize, f64>>,
    /// Steps of the clock.
    resolution_us: Option<f64>,
}

/// The times of the contenders in the rounds, cell by cell.
#[derive(Default)]
struct Table {
    cells: Vec<Taken>,
    positions: HashMap<Key, usize>,
}

impl Table {
    fn add(&mut self, contenders: usize, contender: usize, round: usize, measured: &Measured) {
        let row = &measured.row;
        let position = *self.positions.entry(Key::without(row, true, true)).or_insert_with(|| {
            let times = vec![BTreeMap::new(); contenders];
            self.cells.push(Taken { row: row.clone(), times, resolution_us: None });
            self.cells.len() - 1
        });
        let cell = &mut self.cells[position];
        cell.times[contender].insert(round, row.p50_us);
        let found = Some(resolution(&measured.samples_us)).filter(|step| *step > 0.0);
        cell.resolution_us = cell.resolution_us.into_iter().chain(found).reduce(f64::min);
    }

    fn compared(&self) -> impl Iterator<Item = Compared> {
        self.cells.iter().map(|Taken { row, times, resolution_us }| {
            let middle = |times: &BTreeMap<usize, f64>| median(&sorted(times.values().copied().collect()));
            let interval = |times: &BTreeMap<usize, f64>| {
                let medians_us = times.values().copied().collect();
                Times { medians_us, resolution_us: resolution_us.unwrap_or(0.0) }.interval()
            };
            let ratio = |other: &BTreeMap<usize, f64>| {
                let pair = |(round, base): (&usize, &f64)| Some((*base, *other.get(round)?));
                Ratio::paired(&times[0].iter().filter_map(pair).collect::<Vec<_>>(), resolution_us.unwrap_or(0.0))
            };
            Compared {
                cell: row.clone(),
                times_us: times.iter().map(middle).collect(),
                intervals_us: times.iter().map(interval).collect(),
                ratios: times[1..].iter().map(ratio).collect(),
            }
        })
    }
}

struct Rounds {
    names: Vec<String>,
    comparison: Comparison<io::Stdout>,
    /// For what cannot be measured.
    report: Report<io::Stdout>,
    output: Option<Writer>,
    /// Contender and round that are being measured.
    at: (usize, usize),
    table: Table,
    wrong: u64,
    failures: usize,
    /// What was printed, for pictures.
    drawn: Contenders,
    /// What failed or was skipped, likewise.
    remarks: Vec<String>,
}

impl Rounds {
    fn measure(&mut self, args: &BenchArgs, backends: &[String], rounds: usize, cells: usize) -> Result<(), Trouble> {
        let here = Origin::here();
        for line in [&here.tool, &format!("machine: {}", here.machine())] {
            self.comparison.comment(line).map_err(Trouble::Output)?;
        }
        let how = format!("ratio: median over {rounds} rounds of the ratio in each, the backends taking turns");
        self.comparison.legend(&how).map_err(Trouble::Output)?;
        let tables: usize = args.ranks.iter().map(|ranks| Placement::of(&args.pin, *ranks).len()).sum();
        let terminal = Terminal::open(cells * rounds * backends.len() * tables, "cells")?;
        for &ranks in &args.ranks {
            for placement in Placement::of(&args.pin, ranks) {
                self.measure_placed(args, backends, (rounds, cells), (ranks, placement), &terminal)?;
                terminal.bar.suspend(|| self.print())?;
            }
        }
        terminal.bar.finish_and_clear();
        Ok(())
    }

    /// All rounds of one number of ranks in one placement.
    fn measure_placed(
        &mut self,
        args: &BenchArgs,
        backends: &[String],
        (rounds, cells): (usize, usize),
        (ranks, placement): (u32, Placement),
        terminal: &Terminal,
    ) -> Result<(), Trouble> {
        let bar = &terminal.bar;
        // What failed once would fail again, after its deadline each time.
        let mut failed = HashSet::new();
        for round in 0..rounds {
            // Nothing is left to compare.
            if failed.contains(&0) || failed.len() + 1 >= backends.len() {
                bar.inc((cells * backends.len()) as u64);
                continue;
            }
            for turn in 0..backends.len() {
                let contender = (turn + round) % backends.len();
                if failed.contains(&contender) {
                    bar.inc(cells as u64);
                    continue;
                }
                self.at = (contender, round);
                bar.set_message(format!("{}, {ranks} ranks, round {}", self.names[contender], round + 1));
                let job = Job { backend: &backends[contender], ranks, placement };
                let one = BenchArgs { backend: vec![backends[contender].clone()], ..args.clone() };
                if !measure_job(&one, job, self, terminal)? {
                    self.failures += 1;
                    failed.insert(contender);
                }
            }
        }
        Ok(())
    }

    /// Prints what the table holds and empties it.
    fn print(&mut self) -> Result<(), Trouble> {
        let table = std::mem::take(&mut self.table);
        for compared in table.compared() {
            self.comparison.cell(&compared)?;
            self.drawn.cells.push(compared);
        }
        Ok(())
    }

    fn end(mut self, result: Result<(), Trouble>, origin: Origin, pictures: &PictureFiles) -> ExitCode {
        if let Err(Trouble::Output(_)) = result {
            return ExitCode::from(141);
        }
        if self.print().is_err() || self.comparison.finish().is_err() {
            return ExitCode::from(141);
        }
        if let Err(Trouble::Interrupted(signal)) = result {
            self.remarks.push(format!("interrupted by signal {signal}"));
        }
        if self.wrong > 0 {
            self.remarks.push(format!("{} elements of results were wrong; those cells are left out", self.wrong));
        }
        let drawn =
            matches!(result, Err(Trouble::Usage(_))) || pictures.draw(|| Figures::of(self.drawn, origin, self.remarks));
        match result {
            Err(Trouble::Usage(message)) => return refuse(&message),
            Err(Trouble::Interrupted(signal)) => {
                let text = format!("interrupted by signal {signal}; what was measured so far is above");
                let _ = self.comparison.comment(&text);
                return ExitCode::from(128_u8.wrapping_add(signal as u8));
            }
            Err(Trouble::File(message)) => eprintln!("rankwise: {message}"),
            Err(Trouble::Output(_)) => return ExitCode::from(141),
            Ok(()) if self.wrong == 0 && self.failures == 0 && drawn => return ExitCode::SUCCESS,
            Ok(()) => {}
        }
        if self.wrong > 0 {
            eprintln!("rankwise: {} elements of results were wrong; those cells are left out", self.wrong);
        }
        ExitCode::FAILURE
    }
}

impl Sink for Rounds {
    fn ranks(&mut self, job: Job<'_>, _ranks: &[RankFacts], clock: &str) -> Result<(), Trouble> {
        match self.at.1 {
            0 => self.comparison.comment(&job.describe(clock)).map_err(Trouble::Output),
            _ => Ok(()),
        }
    }

    fn row(&mut self, mut measured: Measured) -> Result<(), Trouble> {
        let (contender, round) = self.at;
        measured.row.backend = self.names[contender].clone();
        measured.round = Some(round);
        if let Some(output) = &mut self.output {
            output.write(&measured).map_err(Trouble::File)?;
        }
        self.wrong += measured.row.wrong;
        if measured.row.wrong == 0 {
            self.table.add(self.names.len(), contender, round, &measured);
        }
        Ok(())
    }

    fn skipped(&mut self, what: &str, reason: &str) -> Result<(), Trouble> {
        let what = format!("{}: {what}", self.names[self.at.0]);
        let text = format!("skipped: {what}: {reason}");
        if !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
        self.report.skipped(&what, reason).map_err(Trouble::Output)
    }

    fn failed(&mut self, text: &str) -> Result<(), Trouble> {
        let (contender, round) = self.at;
        let text = format!("{} failed in round {}: {text}", self.names[contender], round + 1);
        self.remarks.push(text.clone());
        self.comparison.comment(&text).map_err(Trouble::Output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_names_get_numbers() {
        let names = ["shm", "mpi", "shm", "shm"].map(String::from);
        assert_eq!(labels(&names), ["shm", "mpi", "shm#2", "shm#3"]);
    }

    #[test]
    fn only_rounds_of_both_make_a_pair() {
        let mut table = Table::default();
        for round in 0..8 {
            for (contender, factor) in [(0, 1.0), (1, 3.0)] {
                // The second contender lost round 3, and all drift.
                if (contender, round) != (1, 3) {
                    let measured = super::super::results::tests::measured(8, vec![factor * (1.0 + round as f64)]);
                    table.add(2, contender, round, &measured);
                }
            }
        }
        let compared: Vec<_> = table.compared().collect();
        assert_eq!(compared.len(), 1);
        let ratio = compared[0].ratios[0].unwrap();
        assert!((ratio.value - 3.0).abs() < 1e-9, "{ratio:?}");
        let (low, high) = ratio.interval.unwrap();
        assert!((low - 3.0).abs() < 1e-9 && (high - 3.0).abs() < 1e-9, "{ratio:?}");
        assert_eq!(compared[0].times_us[0], Some(4.5));
    }
}
