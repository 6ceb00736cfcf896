//! Starts a drill's job, injects the fault from outside, and judges what the ranks report.

use super::{Drill, DrillResult, RANKS, Scenario, Status, poisoned};
use crate::clean::{Traces, processes_with};
use crate::job::RankCommand;
use crate::plan::{DrillPart, Mode, PLAN_VARIABLE, Plan, Record, Role, monotonic_nanos};
use crate::random::{Random, label};
use rankwise_core::{Error, Result};
use rankwise_world::launch::{Event, JobHandle, Signal};
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Marks the processes of one drill, so that only its own are looked for afterwards.
const TAG_VARIABLE: &str = "RANKWISE_CONFORMANCE_TAG";
/// After this everything is killed and the drill counts as hung.
const HARD_CAP: Duration = Duration::from_secs(30);
/// How long processes may take to disappear after a job.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn run(drill: &Drill, backend: &str, seed: u64, command: &RankCommand) -> Result<DrillResult> {
    let tag = format!("{TAG_VARIABLE}={:x}-{:x}", std::process::id(), monotonic_nanos());
    let traces = Traces::now(&tag);
    let mut result = match drill.scenario {
        Scenario::Launcher => kill_launcher(drill, backend, seed, command, &tag)?,
        Scenario::KillAll => {
            let mut result = run_job(drill, backend, seed, command, &tag)?;
            if result.status == Status::Pass {
                // The same again, to the end: what the killed job left must not be in the way.
                let after = Drill { scenario: Scenario::StopShort, ..*drill };
                result = run_job(&after, backend, seed, command, &tag)?;
            }
            result
        }
        _ => run_job(drill, backend, seed, command, &tag)?,
    };
    let left = traces.leftovers(PATIENCE);
    result.notes.extend(left.unexplained.iter().map(|name| format!("appeared meanwhile, owner unknown: {name}")));
    if !left.leaks.is_empty() && matches!(result.status, Status::Pass | Status::Fail) {
        result.status = Status::Leak;
        result.only_late = false;
        result.detail = format!("left behind: {}", left.leaks.join(", "));
    }
    Ok(result)
}

fn plan(drill: &Drill, backend: &str, seed: u64) -> Plan {
    Plan {
        role: Role::Drill(DrillPart {
            scenario: drill.name(),
            kind: drill.kind.name().into(),
            victim: drill.victim,
            timeout_ms: drill.scenario.timeout().as_millis() as u64,
        }),
        backend: backend.into(),
        mutant: None,
        mode: Mode::Processes,
        ranks: RANKS,
        worlds: vec![RANKS],
        modes: vec![Mode::Processes],
        seed,
        full: false,
        case_seconds: None,
        promise: None,
        deviations: Vec::new(),
    }
}

/// What has been heard of the ranks, with the time of the fault.
#[derive(Default)]
struct Heard {
    events: Vec<RankEvent>,
    complaints: Vec<String>,
    fault_at: Option<u64>,
    hung: bool,
}

struct RankEvent {
    rank: usize,
    what: String,
    at: u64,
    kind: Option<String>,
    peers: Vec<usize>,
    detail: String,
}

impl Heard {
    fn line(&mut self, text: &str) {
        match Record::parse(text) {
            Some(Record::Event { rank, what, at, kind, peers, detail }) => {
                self.events.push(RankEvent { rank, what, at, kind, peers, detail });
            }
            Some(Record::Broken { why, .. }) => self.complaints.push(why),
            Some(_) => {}
            None if !text.trim().is_empty() => self.complaints.push(text.to_string()),
            None => {}
        }
    }

    fn of<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a RankEvent> {
        self.events.iter().filter(move |event| event.what == what)
    }

    fn heard_from<'a>(&'a self, what: &'a str, rank: usize) -> Option<&'a RankEvent> {
        self.of(what).find(|event| event.rank == rank)
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_job(drill: &Drill, backend: &str, seed: u64, command: &RankCommand, tag: &str) -> Result<DrillResult> {
    let (name, value) = tag.split_once('=').unwrap_or((tag, ""));
    let launch = command.launch(&plan(drill, backend, seed))?.env(name, value).grace(Duration::from_secs(4));
    let job = launch.spawn()?;
    let heard = Mutex::new(Heard::default());
    let over = AtomicBool::new(false);
    let handle = job.handle();
    std::thread::scope(|scope| {
        scope.spawn(|| inject(drill, seed, &handle, &heard, &over));
        job.run(&mut |event| {
            if let Event::Line { text, .. } = event {
                lock(&heard).line(&String::from_utf8_lossy(&text));
            }
        });
        over.store(true, Ordering::Release);
    });
    Ok(judge(drill, &lock(&heard)))
}

/// Waits until all ranks are ready, hurts one, and ends the job when everybody has said what there is to say.
fn inject(drill: &Drill, seed: u64, job: &JobHandle, heard: &Mutex<Heard>, over: &AtomicBool) {
    static DRILLS: AtomicU64 = AtomicU64::new(0);
    let start = Instant::now();
    let wait_until = |enough: &dyn Fn(&Heard) -> bool| -> bool {
        while !over.load(Ordering::Acquire) && start.elapsed() < HARD_CAP {
            if enough(&lock(heard)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    };
    let hung = |heard: &Mutex<Heard>| {
        if !over.load(Ordering::Acquire) {
            lock(heard).hung = true;
            job.kill_all();
        }
    };
    if !wait_until(&|heard| heard.of("ready").count() == RANKS || heard.of("not offered").count() == RANKS) {
        return hung(heard);
    }
    let number = DRILLS.fetch_add(1, Ordering::Relaxed);
    let mut random = Random::labelled(seed, &[label(&drill.name()), number]);
    let send = |signal: Signal| {
        // Fails only when the rank has ended by itself, which its events tell.
        let _ = job.signal(drill.victim, signal);
    };
    let offered = lock(heard).of("not offered").count() == 0;
    if offered {
        match drill.scenario {
            Scenario::Kill | Scenario::KillOutside | Scenario::KillAll => {
                let earliest = if drill.scenario == Scenario::KillOutside { 30 } else { 0 };
                std::thread::sleep(Duration::from_micros(earliest * 1000 + random.below(50_000) as u64));
                lock(heard).fault_at = Some(monotonic_nanos());
                if drill.scenario == Scenario::KillAll { job.kill_all() } else { send(Signal::KILL) }
            }
            Scenario::StopLong | Scenario::StopShort => {
                std::thread::sleep(Duration::from_micros(random.below(30_000) as u64));
                lock(heard).fault_at = Some(monotonic_nanos());
                send(Signal::STOP);
                if drill.scenario == Scenario::StopShort {
                    std::thread::sleep(Duration::from_secs(1));
                    send(Signal::CONT);
                }
            }
            _ => {}
        }
    }
    let spared = drill.scenario == Scenario::StopLong && offered;
    let talkers = if spared { RANKS - 1 } else { RANKS };
    if spared && wait_until(&|heard| heard.of("done").count() >= talkers) {
        send(Signal::KILL);
    }
    while !over.load(Ordering::Acquire) {
        if start.elapsed() > HARD_CAP {
            return hung(heard);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn judge(drill: &Drill, heard: &Heard) -> DrillResult {
    let result = |status, detail: String, detection| DrillResult {
        status,
        detection,
        detail,
        only_late: false,
        notes: Vec::new(),
    };
    let complaints = || heard.complaints.iter().take(4).cloned().collect::<Vec<_>>().join(" | ");
    if let Some(wrong) = heard.of("wrong data").next() {
        return result(Status::Wrong, format!("rank {} got wrong data from {}", wrong.rank, wrong.detail), None);
    }
    if heard.hung {
        return result(Status::Hang, format!("killed from outside; {}", complaints()), None);
    }
    if let Some(failed) = heard.of("setup failed").next() {
        return result(Status::Fail, format!("rank {}: {}", failed.rank, failed.detail), None);
    }
    if heard.of("not offered").count() == RANKS {
        return result(Status::Pass, "not offered".into(), None);
    }
    if let Some(kept) = heard.of("kept").next() {
        return result(Status::Leak, format!("rank {} kept something: {}", kept.rank, kept.detail), None);
    }
    if drill.scenario == Scenario::KillAll {
        let ready = heard.of("ready").count() == RANKS;
        return result(if ready { Status::Pass } else { Status::Fail }, complaints(), None);
    }
    let expected = drill.scenario.expected();
    let differs = matches!(drill.scenario, Scenario::Differ(_));
    let witnesses: Vec<usize> =
        (0..RANKS).filter(|rank| *rank != drill.victim || expected.is_empty() || differs).collect();
    if expected.is_empty() {
        let all = witnesses.iter().all(|rank| heard.heard_from("completed", *rank).is_some());
        let errors: Vec<String> = heard.of("error").map(|e| format!("rank {}: {}", e.rank, e.detail)).collect();
        let detail = if all { String::new() } else { format!("not all completed; {}", errors.join(" | ")) };
        return result(if all { Status::Pass } else { Status::Fail }, detail, None);
    }
    let mut last = 0;
    for rank in witnesses {
        let Some(error) = heard.heard_from("error", rank) else {
            let what = if heard.heard_from("completed", rank).is_some() { "noticed nothing" } else { "said nothing" };
            return result(Status::Fail, format!("rank {rank} {what}; {}", complaints()), None);
        };
        let kind = error.kind.as_deref().unwrap_or("");
        if !expected.contains(&kind) || error.peers != [drill.victim] {
            return result(Status::Fail, format!("rank {rank} learned otherwise: {}", error.detail), None);
        }
        let later = heard.heard_from("later", rank).and_then(|later| later.kind.as_deref());
        if later != Some(poisoned()) {
            return result(Status::Fail, format!("rank {rank}: a later call gave {later:?}, not Poisoned"), None);
        }
        last = last.max(error.at);
    }
    let fault = heard.fault_at.or_else(|| heard.of("fault").map(|event| event.at).max());
    let detection = fault.map(|fault| Duration::from_nanos(last.saturating_sub(fault)));
    let limit = drill.scenario.limit();
    if detection.is_some_and(|detection| detection > limit) {
        let detail = format!("later than {} ms", limit.as_millis());
        return DrillResult { only_late: true, ..result(Status::Fail, detail, detection) };
    }
    result(Status::Pass, String::new(), detection)
}

/// A launcher in a process of its own is killed: its ranks must disappear.
fn kill_launcher(drill: &Drill, backend: &str, seed: u64, command: &RankCommand, tag: &str) -> Result<DrillResult> {
    let inner = Drill { scenario: Scenario::Kill, ..*drill };
    let inner = super::all().into_iter().find(|d| d.name() == inner.name()).unwrap_or(inner);
    let outer = Plan { role: Role::Launcher(Box::new(plan(&inner, backend, seed))), ..plan(&inner, backend, seed) };
    let text = serde_json::to_string(&outer).unwrap_or_default();
    let (name, value) = tag.split_once('=').unwrap_or((tag, ""));
    let failed = |what: &str, error: std::io::Error| Error::config(format!("cannot {what}")).with_source(error);
    let mut launcher = Command::new(&command.program)
        .args(&command.args)
        .env(PLAN_VARIABLE, text)
        .env(name, value)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed("start a launcher", error))?;
    let stdout = launcher.stdout.take();
    let (sender, lines) = std::sync::mpsc::channel();
    // Ends when the last process that holds the pipe has gone.
    let reader = std::thread::spawn(move || {
        let lines = stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()).map_while(|line| line.ok());
        lines.for_each(|line| drop(sender.send(line)));
    });
    let mut heard = Heard::default();
    let start = Instant::now();
    while heard.of("ready").count() < RANKS && start.elapsed() < HARD_CAP {
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => heard.line(&line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(_) => {}
        }
    }
    let ready = heard.of("ready").count() == RANKS;
    let killed = Instant::now();
    launcher.kill().map_err(|error| failed("kill the launcher", error))?;
    launcher.wait().map_err(|error| failed("wait for the launcher", error))?;
    let limit = drill.scenario.limit();
    while !processes_with(tag).is_empty() && killed.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
    let detection = killed.elapsed();
    let left = processes_with(tag);
    if left.is_empty() {
        // Nobody holds the pipe any more.
        let _ = reader.join();
    }
    let status = match (ready, left.is_empty()) {
        (false, _) => Status::Fail,
        (true, false) => Status::Leak,
        (true, true) => Status::Pass,
    };
    let detail = match status {
        Status::Fail => format!("the ranks did not start: {}", heard.complaints.join(" | ")),
        Status::Leak => format!("{} processes are left: {left:?}", left.len()),
        _ => String::new(),
    };
    Ok(DrillResult { status, detection: Some(detection), detail, only_late: false, notes: Vec::new() })
}

/// Launches the ranks of a plan with the output going where ours goes, and waits for them.
pub(crate) fn run_launcher(plan: &Plan) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let job = RankCommand::current(&args)
        .and_then(|command| command.launch(plan))
        .and_then(|launch| launch.output(rankwise_world::launch::Output::Inherit).spawn());
    match job {
        Ok(job) => ExitCode::from(u8::try_from(job.run(&mut |_| ()).code()).unwrap_or(1)),
        Err(error) => {
            Record::Broken { rank: 0, why: error.to_string() }.emit();
            ExitCode::FAILURE
        }
    }
}
