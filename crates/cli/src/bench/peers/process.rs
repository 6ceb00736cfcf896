//! One peer of one round: its command runs as a child, and every line it means for us is checked before it counts.

use super::file::Peer;
use crate::bench::args::{BenchArgs, once};
use crate::bench::cell::Cell;
use crate::bench::interval::sorted;
use crate::bench::job::{Trouble, tell};
use crate::bench::launched::{Job, Placement, Terminal, cpus};
use crate::bench::measured::Measured;
use crate::bench::op::Op;
use crate::bench::report::{MARK, Message, Row};
use crate::bench::results::Key;
use crate::bench::sink::Sink;
use crate::bench::watch::Watch;
use rankwise_world::launch::{Event, Launch, Outcome, Output, Stream};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// Lines that are shown of a peer that failed.
const LAST_LINES: usize = 5;
/// Longest of them that is kept, in characters.
const LONGEST: usize = 400;

/// How long a peer may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Between two messages.
    silence: Duration,
    whole: Duration,
}

impl Limits {
    /// For so many cells; `silence` in seconds if the user chose it.
    pub(crate) fn new(args: &BenchArgs, cells: usize, silence: Option<f64>) -> Limits {
        let calls = args.iters.map_or(20.0, f64::from);
        let timed = calls * args.slowest_beside_peers_ms() / 1e3;
        let silence = Duration::from_secs_f64(silence.unwrap_or(60.0 + timed));
        Limits { silence, whole: silence.saturating_mul(cells as u32 + 2) }
    }
}

/// Runs one peer; whether that went well. What went wrong is told to the user and the sink.
pub(crate) fn measure(
    peer: &Peer,
    args: &BenchArgs,
    job: Job<'_>,
    cells: &[Cell],
    limits: Limits,
    sink: &mut dyn Sink,
    terminal: &Terminal,
) -> Result<bool, Trouble> {
    let bar = &terminal.bar;
    let mut heard = Heard::new(cells, job);
    if args.alloc {
        sink.skipped("alloc buffers", "peers have none")?;
    }
    let failure = match start(peer, args, job, cells, limits).spawn_under(&terminal.interrupts) {
        Err(error) => Some(error.message().to_string()),
        Ok(running) => {
            let watch = Watch::start(running.handle(), limits.silence);
            let handle = running.handle();
            let mut broken = None;
            let outcome = running.run(&mut |event| {
                let Event::Line { stream, text, .. } = event else { return };
                let text = String::from_utf8_lossy(&text);
                let Some(message) = heard.line(stream, &text) else {
                    if heard.problem.is_some() {
                        handle.kill_all();
                    }
                    return;
                };
                watch.heard();
                match bar.suspend(|| tell(sink, job, message)) {
                    Ok(forward) => bar.inc(u64::from(forward)),
                    Err(error) => {
                        broken = Some(error);
                        handle.kill_all();
                    }
                }
            });
            let silent = watch.end();
            if let Some(error) = broken {
                return Err(error);
            }
            if let Some(signal) = outcome.interrupted.or_else(|| terminal.interrupts.next()) {
                return Err(Trouble::Interrupted(signal));
            }
            heard.failure(silent.then_some(limits.silence), &outcome)
        }
    };
    bar.inc(cells.len().saturating_sub(heard.steps) as u64);
    let Some(failure) = failure else { return Ok(true) };
    let text = format!("{} with {} ranks: {failure}", job.backend, job.ranks);
    bar.suspend(|| {
        eprintln!("rankwise: {text}");
        for line in &heard.last {
            eprintln!("  {}: {line}", peer.name);
        }
    });
    sink.failed(&failure)?;
    Ok(false)
}

/// The command with the arguments that say what to measure.
fn start(peer: &Peer, args: &BenchArgs, job: Job<'_>, cells: &[Cell], limits: Limits) -> Launch {
    let word = |word: &String| word.replace("{ranks}", &job.ranks.to_string());
    let crowded = job.ranks as usize > cpus();
    let more = crowded.then_some(&peer.oversubscribed_env).into_iter().flatten();
    let mut launch = Launch::new(1, word(&peer.command[0]))
        .args(peer.command[1..].iter().map(word))
        .args(arguments(&peer.name, args, job, cells, limits))
        .output(Output::Lines)
        .timeout(limits.whole)
        .term_grace(Duration::from_millis(500));
    for (name, value) in peer.env.iter().chain(more) {
        launch = launch.env(name, value);
    }
    launch
}

fn arguments(name: &str, args: &BenchArgs, job: Job<'_>, cells: &[Cell], limits: Limits) -> Vec<String> {
    let list = |of: &dyn Fn(&Cell) -> Option<String>| once(cells.iter().filter_map(of).collect()).join(",");
    let sized = |cell: &Cell| (cell.op != Op::Barrier).then(|| cell.bytes.to_string());
    let mut words = Vec::new();
    for (option, value) in [
        ("name", name.to_string()),
        ("ranks", job.ranks.to_string()),
        ("op", list(&|cell| Some(cell.op.name().into()))),
        ("dtype", list(&|cell| cell.dtype.map(|dtype| dtype.name().into()))),
        ("redop", list(&|cell| cell.redop.map(|redop| redop.name().into()))),
        ("size", list(&sized)),
        ("cpus", allowed_cpus()),
        ("processors", cpus().to_string()),
        // The peer's own watch comes after ours, which knows more.
        ("silence-s", (limits.silence.as_secs() + 10).to_string()),
        ("slowest-ms", args.slowest_beside_peers_ms().to_string()),
        match args.iters {
            Some(iterations) => ("iters", iterations.to_string()),
            None => ("budget-ms", args.budget_ms.to_string()),
        },
    ] {
        if !value.is_empty() {
            words.push(format!("--{option}={value}"));
        }
    }
    let pinned = job.placement == Placement::Cores;
    for (option, set) in [("--warm", args.warm), ("--in-place", args.in_place), ("--pin", pinned)] {
        words.extend(set.then(|| option.to_string()));
    }
    words
}

fn allowed_cpus() -> String {
    let Ok(set) = sched_getaffinity(None) else { return String::new() };
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    cpus.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(",")
}

/// What tells the cells of one run apart: operation, type, operator, size, and the variants.
#[derive(PartialEq, Eq, Hash)]
struct Asked([String; 3], u64, [bool; 3]);

impl Asked {
    fn cell(cell: &Cell) -> Asked {
        let dtype = cell.dtype.map_or("none", |dtype| dtype.name());
        let redop = cell.redop.map_or("none", |redop| redop.name());
        Asked([cell.op.name(), dtype, redop].map(String::from), cell.bytes, [cell.in_place, cell.alloc, cell.fresh])
    }

    fn row(row: &Row) -> Asked {
        let words = [&row.op, &row.dtype, &row.redop].map(String::clone);
        Asked(words, row.bytes, [row.in_place, row.alloc, row.fresh])
    }
}

/// What a peer has said so far.
struct Heard {
    asked: HashSet<Asked>,
    measured: HashSet<Asked>,
    ranks: usize,
    /// Rows and skipped cells.
    steps: usize,
    wrong: u64,
    first_wrong: String,
    problem: Option<String>,
    done: bool,
    /// The last lines that were not for us.
    last: VecDeque<String>,
}

impl Heard {
    fn new(cells: &[Cell], job: Job<'_>) -> Heard {
        Heard {
            asked: cells.iter().map(Asked::cell).collect(),
            measured: HashSet::new(),
            ranks: job.ranks as usize,
            steps: 0,
            wrong: 0,
            first_wrong: String::new(),
            problem: None,
            done: false,
            last: VecDeque::new(),
        }
    }

    /// The message in a line. None for lines that are not for us, and for what is no good: then there is a problem.
    fn line(&mut self, stream: Stream, text: &str) -> Option<Message> {
        if self.problem.is_some() {
            return None;
        }
        let Some(message) = text.strip_prefix(MARK).filter(|_| stream == Stream::Stdout) else {
            if !text.trim().is_empty() {
                self.last.push_back(text.chars().filter(|c| !c.is_control()).take(LONGEST).collect());
            }
            if self.last.len() > LAST_LINES {
                self.last.pop_front();
            }
            return None;
        };
        let checked = match serde_json::from_str::<Message>(message) {
            Ok(message) => self.check(message),
            Err(error) => Err(format!("it printed a message that cannot be read ({error})")),
        };
        checked.map_err(|problem| self.problem = Some(problem)).ok()
    }

    fn check(&mut self, message: Message) -> Result<Message, String> {
        if self.done {
            return Err("it went on after it had said it was done".into());
        }
        match &message {
            Message::Ranks { ranks, .. } if ranks.len() != self.ranks => {
                return Err(format!("it started {} ranks, not {}", ranks.len(), self.ranks));
            }
            Message::Ranks { .. } => {}
            Message::Skipped { .. } => self.steps += 1,
            Message::Slow { call_ms, .. } if !(call_ms.is_finite() && *call_ms > 0.0) => {
                return Err("it said how long a call takes, and that is no time".into());
            }
            Message::Slow { .. } => self.steps += 1,
            Message::Done {} => self.done = true,
            Message::Row(measured) => {
                let (asked, key) = (Asked::row(&measured.row), Key::without(&measured.row, true, true));
                if !self.asked.contains(&asked) || measured.row.ranks != self.ranks {
                    return Err(format!("it measured something else than it was asked: {key}"));
                }
                if !plausible(measured) {
                    return Err(format!("its times of {key} do not fit together"));
                }
                if measured.row.wrong > 0 && self.wrong == 0 {
                    self.first_wrong = key.to_string();
                }
                self.wrong = self.wrong.saturating_add(measured.row.wrong);
                self.steps += 1;
                if !self.measured.insert(asked) {
                    return Err(format!("it measured a cell twice: {key}"));
                }
            }
        }
        Ok(message)
    }

    /// Why the run is no good, if so.
    fn failure(&self, silent: Option<Duration>, outcome: &Outcome) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(problem.clone());
        }
        if let Some(silence) = silent {
            let seconds = silence.as_secs_f64();
            return Some(format!("it said nothing for {seconds:.1} s and was killed (--peer-timeout allows more)"));
        }
        if self.wrong > 0 {
            return Some(format!("{} elements of its results were wrong, first in {}", self.wrong, self.first_wrong));
        }
        match outcome.first_failure {
            Some((_, exit)) => Some(format!("its command {exit}")),
            None if outcome.code() != 0 => outcome.failure().or_else(|| Some("its command failed".into())),
            None if !self.done => Some(format!(
                "it ended before it said it was done, with {} cells measured; run peers/setup again if its program is older \
                 than this one",
                self.measured.len()
            )),
            None if self.steps == 0 => Some("it measured nothing".into()),
            None => None,
        }
    }
}

/// Whether the figures can be those of the samples.
fn plausible(measured: &Measured) -> bool {
    let row = &measured.row;
    let samples = &measured.samples_us;
    let figures = [row.min_us, row.mean_us, row.p50_us, row.p99_us, measured.max_us, row.algbw_gbs, row.busbw_gbs];
    let right = |value: &f64| value.is_finite() && *value >= 0.0;
    row.iters > 0
        && !samples.is_empty()
        && figures.iter().all(right)
        && samples.iter().all(|time| right(time) && *time >= row.min_us && *time <= measured.max_us)
        && row.p50_us > 0.0
        && (row.min_us..=measured.max_us).contains(&row.p50_us)
        && row.iters.div_ceil(measured.sample_step.max(1)) == samples.len()
        // Of thinned samples the median is only nearly that of all.
        && (measured.sample_step > 1 || (median_of(samples) - row.p50_us).abs() <= 1e-3)
}

/// The upper one of two, as `rankwise bench` counts.
fn median_of(samples: &[f64]) -> f64 {
    sorted(samples.to_vec())[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::row;

    fn heard() -> Heard {
        let dtype = Some(rankwise::DType::F32);
        let redop = Some(rankwise::ReduceOp::Sum);
        let cell = Cell { op: Op::AllReduce, dtype, redop, bytes: 8, in_place: false, alloc: false, fresh: true };
        Heard::new(&[cell], Job { backend: "p", ranks: 2, placement: Placement::Free })
    }

    fn measured() -> Measured {
        let row = Row { iters: 3, ..row(8, false) };
        Measured {
            samples_us: vec![row.min_us, row.p50_us, row.p99_us],
            max_us: row.p99_us,
            row,
            round: None,
            sample_step: 1,
        }
    }

    fn problem(message: &Message) -> Option<String> {
        let mut heard = heard();
        heard.line(Stream::Stdout, &format!("{MARK}{}", serde_json::to_string(message).unwrap()));
        heard.problem
    }

    #[test]
    fn only_what_was_asked_and_fits_together_counts() {
        assert_eq!(problem(&Message::Row(Box::new(measured()))), None);
        let with = |change: fn(&mut Measured)| {
            let mut measured = measured();
            change(&mut measured);
            problem(&Message::Row(Box::new(measured))).unwrap()
        };
        assert!(with(|m| m.row.ranks = 3).contains("something else"));
        assert!(with(|m| m.row.bytes = 16).contains("something else"));
        assert!(with(|m| m.row.op = "all_gather".into()).contains("something else"));
        assert!(with(|m| m.samples_us[0] = -1.0).contains("fit together"));
        assert!(with(|m| m.samples_us.clear()).contains("fit together"));
        assert!(with(|m| m.row.p50_us = 1e9).contains("fit together"));
        assert!(with(|m| m.row.p50_us = m.row.min_us).contains("fit together"));
        assert!(
            with(|m| (m.row.min_us, m.row.p50_us, m.samples_us) = (0.0, 0.0, vec![0.0; 3])).contains("fit together")
        );
        assert!(with(|m| m.row.iters = 1000).contains("fit together"));
        assert!(problem(&Message::Ranks { ranks: Vec::new(), clock: "x".into() }).unwrap().contains("0 ranks, not 2"));
    }

    #[test]
    fn nothing_comes_after_the_end_and_a_slow_call_has_a_time() {
        let mut heard = heard();
        for message in [Message::Done {}, Message::Row(Box::new(measured()))] {
            heard.line(Stream::Stdout, &format!("{MARK}{}", serde_json::to_string(&message).unwrap()));
        }
        assert!(heard.problem.unwrap().contains("after it had said"));
        let slow = |call_ms| problem(&Message::Slow { what: "x".into(), call_ms });
        assert_eq!(slow(500.0), None);
        assert!(slow(-1.0).unwrap().contains("no time"));
    }

    #[test]
    fn junk_is_a_problem_only_where_it_claims_to_be_a_message() {
        let mut heard = heard();
        for i in 0..20 {
            assert!(heard.line(Stream::Stdout, &format!("hello {i}\u{7}")).is_none());
            assert!(heard.line(Stream::Stderr, &format!("{MARK}x")).is_none());
        }
        assert!(heard.problem.is_none());
        assert_eq!((heard.last.len(), heard.last[3].as_str()), (LAST_LINES, "hello 19"));
        heard.line(Stream::Stdout, &format!("{MARK}{{}}"));
        assert!(heard.problem.unwrap().contains("cannot be read"));
    }
}
