//! Backends and peers measured in turn, round by round, so that what disturbs the machine disturbs all of them alike.

use super::args::{BenchArgs, Format};
use super::cell::Cell;
use super::command::CompareArgs;
use super::comparison::{Compared, Comparison};
use super::contenders::Contenders;
use super::interval::{Ratio, Times, median, resolution, sorted};
use super::job::{Trouble, measure_job, refuse, sweep_of};
use super::launched::{Job, Placement, Terminal};
use super::measured::Measured;
use super::origin::Origin;
use super::peers::{self, Grid, Limits, Peer};
use super::pictures::{Figures, PictureFiles};
use super::report::{RankFacts, Report, Row};
use super::results::{Key, Writer};
use super::sink::{Sink, slow_reason};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::process::ExitCode;

/// Rounds when nothing is said: the interval is that from the second smallest ratio to the second largest.
const ROUNDS: u32 = 9;

/// Somebody who takes turns.
#[derive(Clone, Debug)]
pub(crate) enum Contender {
    /// Started with our launcher.
    Backend(String),
    /// Started with a command of its own.
    Peer(Box<Peer>),
}

impl Contender {
    fn name(&self) -> &str {
        match self {
            Contender::Backend(name) => name,
            Contender::Peer(peer) => &peer.name,
        }
    }
}

/// What to measure, and where the results go.
pub(crate) struct Plan<'a> {
    /// At least two; the first is what the others are compared with.
    pub(crate) contenders: Vec<Contender>,
    /// Its backends are those of the contenders.
    pub(crate) sweep: &'a BenchArgs,
    pub(crate) rounds: Option<u32>,
    /// Seconds a peer may say nothing, if the user chose it.
    pub(crate) silence: Option<f64>,
    pub(crate) output: Option<&'a str>,
    pub(crate) pictures: &'a PictureFiles,
}

/// Compares backends.
pub(crate) fn compare(args: &CompareArgs) -> ExitCode {
    run(Plan {
        contenders: args.what.iter().cloned().map(Contender::Backend).collect(),
        sweep: &BenchArgs { backend: args.what.clone(), ..args.sweep.clone() },
        rounds: args.rounds,
        silence: None,
        output: args.output.as_deref(),
        pictures: &args.pictures,
    })
}

/// Runs the rounds and prints the comparison.
pub(crate) fn run(plan: Plan<'_>) -> ExitCode {
    let rounds = plan.rounds.unwrap_or(ROUNDS) as usize;
    let mut args = plan.sweep.clone();
    args.budget_ms /= rounds as f64;
    if plan.contenders.iter().any(|contender| matches!(contender, Contender::Peer(_))) {
        args.slowest_ms = Some(args.slowest_beside_peers_ms());
    }
    let cells = match sweep_of(&args) {
        Ok(sweep) => sweep.cells,
        Err(Trouble::Usage(message)) => return refuse(&message),
        Err(_) => return ExitCode::FAILURE,
    };
    if let Err(message) = plan.pictures.check(&plan.output.into_iter().collect::<Vec<_>>()) {
        return refuse(&message);
    }
    let mut origin = Origin::here();
    for contender in &plan.contenders {
        if let Contender::Peer(peer) = contender {
            origin.libraries.insert(peer.name.clone(), peer.version.clone());
        }
    }
    let output = match plan.output.map(|path| Writer::create(path, &origin)).transpose() {
        Ok(output) => output,
        Err(message) => return refuse(&message),
    };
    let names = labels(&plan.contenders.iter().map(|contender| contender.name().to_string()).collect::<Vec<_>>());
    let first_peer = plan.contenders.iter().position(|contender| matches!(contender, Contender::Peer(_)));
    let printed = match first_peer {
        Some(first) if args.format != Format::Json => Printed::Grid(Grid::new(io::stdout(), names.clone(), first)),
        _ => Printed::Columns(Comparison::new(io::stdout(), args.format == Format::Json, names.clone())),
    };
    let mut all = Rounds {
        limits: Limits::new(&args, cells.len(), plan.silence),
        report: Report::new(io::stdout(), args.format, false),
        drawn: Contenders { names: names.clone(), paired: true, ..Contenders::default() },
        contenders: plan.contenders,
        names,
        args,
        cells,
        rounds,
        printed,
        output,
        at: (0, 0),
        table: Table::default(),
        wrong: 0,
        failures: 0,
        remarks: Vec::new(),
        slow: HashSet::new(),
    };
    let result = all.measure(&origin);
    all.end(result, origin, plan.pictures)
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
    /// Cells in which that contender computed something wrong.
    spoilt: HashSet<(Key, usize)>,
}

impl Table {
    /// A wrong result leaves the contender without a time in that cell, also from the rounds in which it was right.
    fn spoil(&mut self, contender: usize, row: &Row) {
        let key = Key::without(row, true, true);
        if let Some(position) = self.positions.get(&key) {
            self.cells[*position].times[contender].clear();
        }
        self.spoilt.insert((key, contender));
    }

    fn add(&mut self, contenders: usize, contender: usize, round: usize, measured: &Measured) {
        let row = &measured.row;
        if self.spoilt.contains(&(Key::without(row, true, true), contender)) {
            return;
        }
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

/// The form on standard output.
enum Printed {
    /// Time, ratio and interval of each contender.
    Columns(Comparison<io::Stdout>),
    /// A ratio for each.
    Grid(Grid<io::Stdout>),
}

impl Printed {
    fn comment(&mut self, text: &str) -> io::Result<()> {
        match self {
            Printed::Columns(columns) => columns.comment(text),
            Printed::Grid(grid) => grid.comment(text),
        }
    }

    fn legend(&mut self, how: &str) -> io::Result<()> {
        match self {
            Printed::Columns(columns) => columns.legend(how),
            Printed::Grid(grid) => grid.legend(how),
        }
    }

    fn cell(&mut self, compared: &Compared) -> io::Result<()> {
        match self {
            Printed::Columns(columns) => columns.cell(compared),
            Printed::Grid(grid) => grid.cell(compared),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self {
            Printed::Columns(columns) => columns.finish(),
            Printed::Grid(grid) => grid.finish(),
        }
    }
}

struct Rounds {
    contenders: Vec<Contender>,
    /// Of the contenders, all different.
    names: Vec<String>,
    /// With the budget of one round.
    args: BenchArgs,
    cells: Vec<Cell>,
    rounds: usize,
    limits: Limits,
    printed: Printed,
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
    /// Where a call takes too long, which is told once.
    slow: HashSet<String>,
}

impl Rounds {
    fn measure(&mut self, here: &Origin) -> Result<(), Trouble> {
        for line in [&here.tool, &format!("machine: {}", here.machine())] {
            self.printed.comment(line)?;
        }
        for (name, version) in &here.libraries {
            self.printed.comment(&format!("peer {name}: {version}"))?;
        }
        let (rounds, worlds) = (self.rounds, self.args.ranks.clone());
        self.printed
            .legend(&format!("median over {rounds} rounds of the ratio in each, the contenders taking turns"))?;
        let placements = |ranks: u32| Placement::of(&self.args.pin, ranks);
        let tables: Vec<_> =
            worlds.iter().flat_map(|n| placements(*n).into_iter().map(|placed| (*n, placed))).collect();
        let terminal = Terminal::open(self.cells.len() * rounds * self.contenders.len() * tables.len(), "cells")?;
        for (ranks, placement) in tables {
            self.measure_placed(ranks, placement, &terminal)?;
            terminal.bar.suspend(|| self.print())?;
        }
        terminal.bar.finish_and_clear();
        Ok(())
    }

    /// All rounds of one number of ranks in one placement.
    fn measure_placed(&mut self, ranks: u32, placement: Placement, terminal: &Terminal) -> Result<(), Trouble> {
        let bar = &terminal.bar;
        let (contenders, cells) = (self.contenders.len(), self.cells.len());
        // What failed once would fail again, after its deadline each time.
        let mut failed = HashSet::new();
        for round in 0..self.rounds {
            // Nothing is left to compare.
            if failed.contains(&0) || failed.len() + 1 >= contenders {
                bar.inc((cells * contenders) as u64);
                continue;
            }
            for turn in 0..contenders {
                let contender = (turn + round) % contenders;
                if failed.contains(&contender) {
                    bar.inc(cells as u64);
                    continue;
                }
                self.at = (contender, round);
                bar.set_message(format!("{}, {ranks} ranks, round {}", self.names[contender], round + 1));
                if !self.measure_one(contender, ranks, placement, terminal)? {
                    self.failures += 1;
                    failed.insert(contender);
                }
            }
        }
        Ok(())
    }

    /// One turn of one contender; whether it went well.
    fn measure_one(
        &mut self,
        contender: usize,
        ranks: u32,
        placement: Placement,
        terminal: &Terminal,
    ) -> Result<bool, Trouble> {
        let one = self.contenders[contender].clone();
        let job = Job { backend: one.name(), ranks, placement };
        match &one {
            Contender::Backend(name) => {
                let args = BenchArgs { backend: vec![name.clone()], ..self.args.clone() };
                measure_job(&args, job, self, terminal)
            }
            Contender::Peer(peer) => {
                let (args, cells, limits) = (self.args.clone(), self.cells.clone(), self.limits);
                peers::measure(peer, &args, job, &cells, limits, self, terminal)
            }
        }
    }

    /// Prints what the table holds and empties it.
    fn print(&mut self) -> Result<(), Trouble> {
        let table = std::mem::take(&mut self.table);
        let mut all: Vec<_> = table.compared().collect();
        if let Printed::Grid(_) = self.printed {
            all.sort_by_key(|compared| Grid::<io::Stdout>::block(&compared.cell));
        }
        for compared in all {
            self.printed.cell(&compared)?;
            self.drawn.cells.push(compared);
        }
        Ok(())
    }

    fn end(mut self, result: Result<(), Trouble>, origin: Origin, pictures: &PictureFiles) -> ExitCode {
        if let Err(Trouble::Output(_)) = result {
            return ExitCode::from(141);
        }
        if self.print().is_err() || self.printed.finish().is_err() {
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
                let _ = self.printed.comment(&text);
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
        let (contender, round) = self.at;
        if round > 0 {
            return Ok(());
        }
        let text = job.describe(clock);
        let text = match &self.contenders[contender] {
            Contender::Backend(_) => text,
            Contender::Peer(_) => text.replacen("backend", "peer", 1),
        };
        self.printed.comment(&text).map_err(Trouble::Output)
    }

    fn row(&mut self, mut measured: Measured) -> Result<(), Trouble> {
        let (contender, round) = self.at;
        measured.row.backend = self.names[contender].clone();
        measured.round = Some(round);
        // Also what is wrong: its reader leaves out all rounds of that cell.
        if let Some(output) = &mut self.output {
            output.write(&measured).map_err(Trouble::File)?;
        }
        if measured.row.wrong > 0 {
            self.table.spoil(contender, &measured.row);
            self.wrong = self.wrong.saturating_add(measured.row.wrong);
            return Ok(());
        }
        self.table.add(self.names.len(), contender, round, &measured);
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

    fn slow(&mut self, job: Job<'_>, what: &str, call_ms: f64) -> Result<(), Trouble> {
        let what = format!("{what}, {} ranks", job.ranks);
        // Another round and another size take another time.
        match self.slow.insert(format!("{}: {what}", self.names[self.at.0])) {
            true => self.skipped(&what, &slow_reason(call_ms)),
            false => Ok(()),
        }
    }

    fn failed(&mut self, text: &str) -> Result<(), Trouble> {
        let (contender, round) = self.at;
        let text = format!("{} failed in round {}: {text}", self.names[contender], round + 1);
        self.remarks.push(text.clone());
        self.printed.comment(&text).map_err(Trouble::Output)
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
    fn one_wrong_result_takes_all_times_of_its_cell() {
        let mut table = Table::default();
        for round in 0..8 {
            for contender in [0, 1] {
                for bytes in [8, 16] {
                    let measured = super::super::results::tests::measured(bytes, vec![1.0]);
                    match (contender, bytes, round) {
                        (1, 16, 5) => table.spoil(contender, &measured.row),
                        _ => table.add(2, contender, round, &measured),
                    }
                }
            }
        }
        let times: Vec<_> = table.compared().map(|compared| compared.times_us).collect();
        assert_eq!(times, [vec![Some(1.0), Some(1.0)], vec![Some(1.0), None]]);
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
