//! Drills (level D): ranks are killed, stopped, aborted and made to call differently while the others are in an operation.
//!
//! `script` is what the ranks do, `host` injects the fault from outside and judges; this file lists the drills.

mod host;
mod script;

use crate::job::RankCommand;
use crate::report::{CaseReport, Reporter, Verdict};
use crate::runner::Options;
use rankwise_core::{ErrorKind, OpKind, Result};
use std::time::Duration;

pub(crate) use host::run_launcher;
pub(crate) use script::play;

/// Ranks of a drill.
const RANKS: usize = 3;

/// What happens to the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// SIGKILL while everybody is in the operation, again and again.
    Kill,
    /// SIGKILL while the victim computes and the others enter the operation.
    KillOutside,
    /// SIGKILL of all ranks, then a fresh job.
    KillAll,
    /// SIGSTOP past the deadline.
    StopLong,
    /// SIGSTOP for a second, then SIGCONT: everything completes.
    StopShort,
    /// `abort` from another thread of the victim, which is not in the operation.
    Abort,
    /// A panic.
    Panic,
    /// `exit(0)` without a goodbye.
    Exit,
    /// The communicator is dropped, the process lives on.
    Leave,
    /// SIGKILL of the launcher.
    Launcher,
    /// The victim's call differs in the field the drill names.
    Differ(Field),
}

/// A field of the call's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Kind,
    Dtype,
    Op,
    Count,
    Counts,
    Root,
    Sequence,
}

/// One drill.
#[derive(Clone, Copy, Debug)]
struct Drill {
    scenario: Scenario,
    kind: OpKind,
    victim: usize,
}

impl Scenario {
    fn name(self) -> &'static str {
        match self {
            Scenario::Kill => "kill in",
            Scenario::KillOutside => "kill before",
            Scenario::KillAll => "kill all in",
            Scenario::StopLong => "stop past the deadline in",
            Scenario::StopShort => "stop and continue in",
            Scenario::Abort => "abort during",
            Scenario::Panic => "panic before",
            Scenario::Exit => "exit before",
            Scenario::Leave => "leave before",
            Scenario::Launcher => "kill the launcher in",
            Scenario::Differ(Field::Kind) => "other kind than",
            Scenario::Differ(Field::Dtype) => "other dtype in",
            Scenario::Differ(Field::Op) => "other operator in",
            Scenario::Differ(Field::Count) => "other count in",
            Scenario::Differ(Field::Counts) => "other counts in",
            Scenario::Differ(Field::Root) => "other root in",
            Scenario::Differ(Field::Sequence) => "one call fewer of",
        }
    }

    /// The errors of which one must reach every other rank; none when everything must complete.
    fn expected(self) -> &'static [&'static str] {
        match self {
            Scenario::Kill | Scenario::KillOutside => &["PeerLost"],
            Scenario::StopLong => &["Timeout"],
            Scenario::Abort => &["Aborted"],
            // Unwinding drops the communicator before the process ends.
            Scenario::Panic => &["PeerLeft", "PeerLost"],
            Scenario::Exit | Scenario::Leave => &["PeerLeft"],
            Scenario::Differ(_) => &["Mismatch"],
            Scenario::StopShort | Scenario::KillAll | Scenario::Launcher => &[],
        }
    }

    /// How long the others may take to learn it.
    fn limit(self) -> Duration {
        match self {
            Scenario::StopLong => TIMEOUT + Duration::from_millis(700),
            Scenario::Launcher => Duration::from_secs(2),
            _ => Duration::from_millis(250),
        }
    }

    /// Deadline of the calls.
    fn timeout(self) -> Duration {
        if self == Scenario::StopLong { TIMEOUT } else { Duration::from_secs(10) }
    }
}

const TIMEOUT: Duration = Duration::from_secs(1);

impl Drill {
    fn name(&self) -> String {
        match self.scenario {
            Scenario::KillAll | Scenario::Launcher => format!("{} {}", self.scenario.name(), self.kind),
            _ => format!("{} {}, rank {}", self.scenario.name(), self.kind, self.victim),
        }
    }
}

fn all() -> Vec<Drill> {
    let mut drills = Vec::new();
    let mut add = |scenario, kind, victim| drills.push(Drill { scenario, kind, victim });
    for kind in OpKind::DATA {
        (0..RANKS).for_each(|victim| add(Scenario::Kill, kind, victim));
    }
    for victim in 0..RANKS {
        add(Scenario::KillOutside, OpKind::AllReduce, victim);
        add(Scenario::StopLong, OpKind::AllReduce, victim);
        add(Scenario::StopShort, OpKind::AllReduce, victim);
    }
    for kind in [OpKind::Barrier, OpKind::AllToAllV] {
        add(Scenario::StopLong, kind, 1);
        add(Scenario::StopShort, kind, 1);
    }
    for scenario in [Scenario::Abort, Scenario::Panic, Scenario::Exit, Scenario::Leave] {
        add(scenario, OpKind::Barrier, 0);
        add(scenario, OpKind::AllReduce, 2);
    }
    add(Scenario::KillAll, OpKind::AllReduce, 0);
    add(Scenario::Launcher, OpKind::AllReduce, 0);
    add(Scenario::Launcher, OpKind::Barrier, 0);
    for (field, kind) in [
        (Field::Kind, OpKind::AllReduce),
        (Field::Dtype, OpKind::AllReduce),
        (Field::Op, OpKind::AllReduce),
        (Field::Count, OpKind::AllReduce),
        (Field::Counts, OpKind::AllGatherV),
        (Field::Root, OpKind::Broadcast),
        (Field::Sequence, OpKind::AllReduce),
    ] {
        add(Scenario::Differ(field), kind, 0);
        add(Scenario::Differ(field), kind, 2);
    }
    drills
}

fn named(name: &str) -> Option<Drill> {
    all().into_iter().find(|drill| drill.name() == name)
}

/// The names of the drills that contain `pattern`.
pub(crate) fn matching(pattern: &str) -> Vec<String> {
    let pattern = pattern.to_lowercase();
    all().iter().map(Drill::name).filter(|name| name.to_lowercase().contains(&pattern)).collect()
}

/// How a drill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Pass,
    /// Nothing worse than the ones below.
    Fail,
    /// Somebody waited until it was killed from outside.
    Hang,
    /// Something was left behind.
    Leak,
    /// Wrong data was returned as good.
    Wrong,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Pass => "PASS",
            Status::Fail => "FAIL",
            Status::Hang => "HANG",
            Status::Leak => "LEAK",
            Status::Wrong => "WRONG",
        }
    }
}

#[derive(Clone, Debug)]
struct DrillResult {
    status: Status,
    /// From the fault to the last rank that learned it.
    detection: Option<Duration>,
    detail: String,
    /// Whether the only thing wrong is that it took too long.
    only_late: bool,
    notes: Vec<String>,
}

/// Runs the drills on a backend, as processes, and prints their table.
pub(crate) fn run(backend: &str, options: &Options, command: &RankCommand, reporter: &mut Reporter<'_>) -> Result<()> {
    let names = matching(options.pattern.as_deref().unwrap_or(""));
    reporter.say(&format!("{:44} {:6} {:>10}", "drill", "result", "learned"));
    for drill in names.iter().filter_map(|name| named(name)) {
        let mut result = host::run(&drill, backend, options.seed, command)?;
        // A busy machine can delay anybody: only what is late three times is late.
        for _ in 0..2 {
            if result.only_late {
                result = host::run(&drill, backend, options.seed, command)?;
            }
        }
        let learned = result.detection.map_or("-".into(), |d| format!("{:.1} ms", d.as_secs_f64() * 1e3));
        let name = drill.name();
        reporter.say(&format!("{name:44} {:6} {learned:>10} {}", result.status.name(), result.detail));
        result.notes.iter().for_each(|note| reporter.say(&format!("  note: {note}")));
        reporter.add(&CaseReport {
            case: format!("drill {name}"),
            title: "the others learn it in time and nothing is left".into(),
            backend: backend.into(),
            mode: Some(crate::Mode::Processes),
            ranks: RANKS,
            result: if result.status == Status::Pass { Verdict::Pass } else { Verdict::Fail },
            detail: format!("{} {}", result.status.name(), result.detail),
            wrong_result: false,
            millis: result.detection.unwrap_or_default().as_millis() as u64,
        });
        reporter.check()?;
    }
    Ok(())
}

fn poisoned() -> &'static str {
    ErrorKind::Poisoned.name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_cover_every_operation() {
        let names = matching("");
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name} twice");
            assert!(named(name).is_some());
        }
        for kind in OpKind::DATA {
            assert_eq!(matching(&format!("kill in {kind}, rank")).len(), RANKS, "{kind}");
        }
    }
}
