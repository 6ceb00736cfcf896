//! The suite inside a job that something else has started: one report, equal exit codes, and an end to whatever hangs.

#![cfg(target_os = "linux")]

use rankwise_conformance::{Mode, Options, run_in_job};
use rankwise_core::backend::RawBackend;
use rankwise_core::{Config, Result};
use rankwise_shm::driver as shm;
use rankwise_world::launch::{Event, Exit, Launch, Output, Stream};
use rankwise_world::{Driver, ProbeReport, World};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const FAULT: &str = "RANKWISE_TEST_FAULT";
/// A case that joins the backend once more.
const CASE: &str = "GR-113";

/// Shared memory, but for what rank 1 does when it joins for the second time, which is in the case.
struct Faulty {
    fault: String,
    joins: AtomicUsize,
}

impl Driver for Faulty {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn description(&self) -> &'static str {
        "goes wrong in the middle"
    }

    fn probe(&self, world: &World) -> Result<ProbeReport> {
        match &*self.fault {
            "cannot-start" if world.rank() == 1 => Err(rankwise_core::Error::config("no library on this rank")),
            _ => shm().probe(world),
        }
    }

    fn join(&self, world: &World, config: &Config) -> Result<Arc<dyn RawBackend>> {
        let is_first = self.joins.fetch_add(1, Ordering::Relaxed) == 0;
        match &*self.fault {
            "hang" if !is_first && world.rank() == 1 => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            "die" if !is_first && world.rank() == 1 => std::process::exit(7),
            _ => shm().join(world, config),
        }
    }
}

/// Not a test: the ranks of the jobs below are this program with this function selected.
#[test]
fn rank_entry() {
    let Ok(fault) = std::env::var(FAULT) else { return };
    let rank = std::env::var("RANKWISE_RANK").unwrap_or_default();
    let pattern = if fault == "differ" && rank == "1" { "TB-152" } else { CASE };
    let options = Options {
        backends: vec!["shm".into()],
        modes: vec![Mode::Outer],
        pattern: Some(pattern.into()),
        // Every rank another one: that of rank 0 counts.
        seed: 10 + rank.len() as u64 + rank.parse::<u64>().unwrap_or(0),
        case_seconds: Some(5),
        ..Options::default()
    };
    let driver = Faulty { fault, joins: AtomicUsize::new(0) };
    let code = match run_in_job(&[&driver], &options, &mut std::io::stdout()) {
        Ok(summary) => i32::from(summary.failed > 0),
        Err(error) => {
            eprintln!("{error}");
            2
        }
    };
    std::process::exit(code);
}

/// How the ranks ended, and what each printed.
fn job(fault: &str) -> (Vec<Exit>, Vec<(usize, Stream, String)>) {
    let mut lines = Vec::new();
    let outcome = Launch::new(3, std::env::current_exe().unwrap())
        .args(["rank_entry", "--exact", "--nocapture", "--test-threads=1"])
        .env(FAULT, fault)
        .output(Output::Lines)
        .timeout(Duration::from_secs(120))
        // The first rank that ends must not take the others with it before they have said what they found.
        .grace(Duration::from_secs(30))
        .spawn()
        .unwrap()
        .run(&mut |event| {
            if let Event::Line { rank, stream, text } = event {
                lines.push((rank, stream, String::from_utf8_lossy(&text).trim_end().to_string()));
            }
        });
    (outcome.exits, lines)
}

fn said(lines: &[(usize, Stream, String)], rank: usize, part: &str) -> usize {
    lines.iter().filter(|(who, _, text)| *who == rank && text.contains(part)).count()
}

#[test]
fn one_report_for_all_ranks() {
    let (exits, lines) = job("none");
    assert_eq!(exits, vec![Exit::Code(0); 3], "{lines:#?}");
    assert_eq!(said(&lines, 0, "1 passed, 0 failed, 0 skipped"), 1, "{lines:#?}");
    assert_eq!(said(&lines, 0, "seed 11; repeat with --seed 11; 3 ranks, started by: RANKWISE_*"), 1, "{lines:#?}");
    assert_eq!(said(&lines, 1, "passed") + said(&lines, 2, "passed"), 0, "{lines:#?}");
}

#[test]
fn a_hang_ends_on_all_ranks_and_says_what_each_called_last() {
    let (exits, lines) = job("hang");
    assert_eq!(exits, vec![Exit::Code(1); 3], "{lines:#?}");
    assert_eq!(said(&lines, 0, "FAIL GR-113 shm outer 3 ranks"), 1, "{lines:#?}");
    for part in ["hung for 5 s", "rank 0 in GR-113: join", "rank 1 in GR-113: join", "rank 2 in GR-113: join"] {
        assert_eq!(said(&lines, 0, part), 1, "{part}: {lines:#?}");
    }
    assert_eq!(said(&lines, 0, "0 passed, 1 failed, 0 skipped"), 1, "{lines:#?}");
}

#[test]
fn a_rank_that_dies_fails_its_case_and_ends_the_run() {
    let (exits, lines) = job("die");
    assert_eq!(exits, [Exit::Code(1), Exit::Code(7), Exit::Code(1)], "{lines:#?}");
    assert_eq!(said(&lines, 0, "FAIL GR-113 shm outer 3 ranks"), 1, "{lines:#?}");
    assert_eq!(said(&lines, 0, "rank 1"), 1, "{lines:#?}");
}

#[test]
fn ranks_that_differ_or_cannot_start_are_refused_everywhere() {
    let (exits, lines) = job("differ");
    assert_eq!(exits, vec![Exit::Code(2); 3], "{lines:#?}");
    assert!((0..3).all(|rank| said(&lines, rank, "rank 1 has other arguments than rank 0") == 1), "{lines:#?}");
    let (exits, lines) = job("cannot-start");
    assert_eq!(exits, vec![Exit::Code(2); 3], "{lines:#?}");
    assert!((0..3).all(|rank| said(&lines, rank, "no library on this rank") == 1), "{lines:#?}");
}
