//! The launcher as a library: outcomes, signals, and what happens to a job that is dropped or cannot start.
#![cfg(target_os = "linux")]

use rankwise_core::ErrorKind;
use rankwise_world::launch::{Event, Exit, Interrupts, Job, Launch, Output, Pin, Signal, StopReason, Stream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(60);

fn shell(ranks: usize, script: &str) -> Launch {
    Launch::new(ranks, "sh").args(["-c", script]).timeout(WATCHDOG).output(Output::Lines)
}

fn alive(id: u128) -> usize {
    let mark = format!("RANKWISE_JOB_ID={id:032x}");
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("environ")).ok())
        .filter(|environ| environ.windows(mark.len()).any(|window| window == mark.as_bytes()))
        .count()
}

fn wait_for(job: &Job, n: usize) {
    let started = Instant::now();
    while alive(job.id()) != n {
        assert!(started.elapsed() < WATCHDOG, "{} processes instead of {n}", alive(job.id()));
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn lines_and_exits_are_events() {
    let mut lines = Vec::new();
    let mut exits = Vec::new();
    let job = shell(2, "echo out; echo err >&2; exit $RANKWISE_RANK").grace(WATCHDOG).spawn().unwrap();
    assert_eq!(job.pid(2), None);
    let id = job.id();
    let outcome = job.run(&mut |event| match event {
        Event::Line { rank, stream, text } => lines.push((rank, stream == Stream::Stderr, text)),
        Event::Exited { rank, exit } => exits.push((rank, exit)),
        other => panic!("{other:?}"),
    });
    lines.sort();
    exits.sort_by_key(|(rank, _)| *rank);
    let text = |text: &str| text.as_bytes().to_vec();
    assert_eq!(
        lines,
        [(0, false, text("out")), (0, true, text("err")), (1, false, text("out")), (1, true, text("err"))]
    );
    assert_eq!(exits, [(0, Exit::Code(0)), (1, Exit::Code(1))]);
    assert_eq!(outcome.first_failure, Some((1, Exit::Code(1))));
    assert_eq!((outcome.code(), outcome.success(), alive(id)), (1, false, 0));
}

#[test]
fn a_sink_takes_the_lines_elsewhere() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let copy = seen.clone();
    let sink = Output::Sink(Box::new(move |line| {
        copy.lock().unwrap().push(line.text.clone());
        Ok(())
    }));
    let outcome = shell(1, "echo a; echo b").output(sink).spawn().unwrap().run(&mut |_| ());
    assert!(outcome.success());
    assert_eq!(*seen.lock().unwrap(), [b"a", b"b"]);
}

#[test]
fn ranks_can_be_signalled_from_another_thread() {
    let job = shell(3, "sleep 1000; true").grace(Duration::ZERO).spawn().unwrap();
    wait_for(&job, 6);
    let handle = job.handle();
    let killer = thread::spawn(move || {
        handle.signal(2, Signal::KILL).unwrap();
        assert_eq!(handle.signal(3, Signal::KILL).unwrap_err().kind(), &ErrorKind::InvalidArgument);
        handle
    });
    let id = job.id();
    let mut reasons = Vec::new();
    let outcome = job.run(&mut |event| {
        if let Event::Stopping { reason } = event {
            reasons.push(reason);
        }
    });
    assert_eq!(outcome.first_failure, Some((2, Exit::Signal(9))));
    assert_eq!(outcome.exits[0], Exit::Signal(15));
    assert_eq!(reasons, [StopReason::RankFailed]);
    assert_eq!(alive(id), 0);
    let handle = killer.join().unwrap();
    assert_eq!(handle.signal(0, Signal::KILL).unwrap_err().kind(), &ErrorKind::Closed);
    handle.kill_all();
}

#[test]
fn a_dropped_job_leaves_nobody() {
    let job = shell(3, "setsid sleep 1000 & sleep 1000; true").spawn().unwrap();
    wait_for(&job, 9);
    let id = job.id();
    drop(job);
    assert_eq!(alive(id), 0);
}

#[test]
fn a_panic_while_watching_leaves_nobody() {
    let job = shell(2, "echo up; sleep 1000").spawn().unwrap();
    let id = job.id();
    let watching = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run(&mut |_| panic!("on purpose"))));
    assert!(watching.is_err());
    assert_eq!(alive(id), 0);
}

#[test]
fn ranks_die_with_the_thread_that_started_them() {
    // Forgotten, so that only the kernel is left to end them.
    let id = thread::spawn(|| {
        let job = shell(2, "exec sleep 1000").spawn().unwrap();
        wait_for(&job, 2);
        let id = job.id();
        std::mem::forget(job);
        id
    })
    .join()
    .unwrap();
    let started = Instant::now();
    while alive(id) > 0 {
        assert!(started.elapsed() < WATCHDOG, "ranks outlive their thread");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn jobs_that_cannot_start_say_why() {
    for (launch, kind, text) in [
        (shell(0, "true"), ErrorKind::InvalidArgument, "1 to 4096"),
        (shell(5000, "true"), ErrorKind::InvalidArgument, "not 5000"),
        (Launch::new(2, "/no/such/program"), ErrorKind::Config, "rank 0: program `/no/such/program` was not found"),
        (Launch::new(2, "/"), ErrorKind::Config, "`/` may not be executed"),
        (Launch::new(2, ""), ErrorKind::Config, "was not found"),
    ] {
        let error = launch.spawn().err().unwrap();
        assert_eq!(error.kind(), &kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
}

fn stdout_of(launch: Launch) -> Vec<String> {
    let mut lines = Vec::new();
    let outcome = launch.timeout(WATCHDOG).output(Output::Lines).spawn().unwrap().run(&mut |event| {
        if let Event::Line { text, .. } = event {
            lines.push(String::from_utf8(text).unwrap());
        }
    });
    assert!(outcome.success(), "{outcome:?} {lines:?}");
    lines
}

#[test]
fn ranks_start_clean() {
    let lines = stdout_of(shell(1, "ulimit -n; read line || echo nothing to read").pin(Pin::Cores));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap().to_string();
    assert_eq!(lines, [&limit, "nothing to read"]);
    // Two descriptors more than any child has.
    let plain = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap();
    let plain = String::from_utf8(plain.stdout).unwrap().lines().count();
    assert_eq!(stdout_of(Launch::new(1, "ls").arg("/proc/self/fd")).len(), plain + 2);
}

#[test]
fn two_jobs_of_one_process_do_not_disturb_each_other() {
    let first = shell(2, "exec sleep 1000").spawn().unwrap();
    let second = shell(2, "true").spawn().unwrap();
    assert!(second.run(&mut |_| ()).success());
    wait_for(&first, 2);
    assert_eq!(alive(first.id()), 2);
    first.kill_all();
    assert_eq!(first.run(&mut |_| ()).exits, [Exit::Signal(9), Exit::Signal(9)]);
}

#[test]
fn interrupts_between_jobs_are_not_lost() {
    use rustix::process::{getpid, kill_process};
    let interrupts = Interrupts::catch().unwrap();
    for _ in 0..2 {
        kill_process(getpid(), Signal::HUP).unwrap();
        let started = Instant::now();
        let found = loop {
            if let Some(signal) = interrupts.next() {
                break signal;
            }
            assert!(started.elapsed() < WATCHDOG, "the signal is lost");
        };
        assert_eq!(found, Signal::HUP.as_raw());
        let job = shell(2, "exec sleep 1000").spawn_under(&interrupts).unwrap();
        wait_for(&job, 2);
        kill_process(getpid(), Signal::TERM).unwrap();
        assert_eq!(job.run(&mut |_| ()).interrupted, Some(Signal::TERM.as_raw()));
    }
    assert_eq!(interrupts.next(), None);
}
