//! `rankwise launch` from outside: output, exit codes, and that nobody is left, whatever ends it.
#![cfg(target_os = "linux")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(60);

/// A launcher under test. Everything it starts carries a tag of its own in the environment.
struct Launcher {
    child: Child,
    tag: String,
}

fn command(args: &[&str]) -> (Command, String) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let tag = format!("{}-{}-tag", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankwise"));
    command.arg("launch").args(args).env("RANKWISE_TEST_TAG", &tag).env_remove("RANKWISE_BACKEND").stdin(Stdio::null());
    (command, tag)
}

fn start(args: &[&str]) -> Launcher {
    let (mut command, tag) = command(args);
    Launcher { child: command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), tag }
}

/// Runs to the end and checks that nobody is left.
fn run(args: &[&str]) -> Output {
    let (mut command, tag) = command(args);
    let output = command.output().unwrap();
    assert_nobody_left(&tag);
    output
}

impl Launcher {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits until the ranks have printed this many lines.
    fn lines(&mut self, n: usize) -> Vec<String> {
        let mut out = BufReader::new(self.child.stdout.take().unwrap());
        let mut lines = Vec::new();
        for _ in 0..n {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0, "output ended after {lines:?}");
            lines.push(line.trim_end().to_string());
        }
        self.child.stdout = Some(out.into_inner());
        lines
    }

    fn end(&mut self) -> (ExitStatus, String) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < WATCHDOG, "the launcher does not end");
            thread::sleep(Duration::from_millis(2));
        };
        assert_nobody_left(&self.tag);
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status, stderr)
    }
}

/// Processes with the tag in their environment: ranks, what they started, the guardian, the launcher.
fn tagged(tag: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let environ = std::fs::read(path.join("environ")).unwrap_or_default();
        if environ.windows(tag.len()).any(|window| window == tag.as_bytes()) {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            found.push(format!("{} {}", path.display(), String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}

fn assert_nobody_left(tag: &str) {
    let started = Instant::now();
    loop {
        let left = tagged(tag);
        if left.is_empty() {
            return;
        }
        assert!(started.elapsed() < WATCHDOG / 4, "left behind: {left:#?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn last_line(bytes: &[u8]) -> String {
    text(bytes).lines().last().unwrap_or_default().to_string()
}

#[test]
fn lines_are_prefixed_and_sorted_by_stream() {
    let script = "echo out $RANKWISE_RANK of $RANKWISE_WORLD_SIZE; echo err $RANKWISE_BACKEND >&2; printf end";
    let output = run(&["-n", "3", "--", "sh", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_string).collect();
    lines.sort();
    let expected =
        ["[0] end", "[0] out 0 of 3", "[1] end", "[1] out 1 of 3", "[2] end", "[2] out 2 of 3"].map(String::from);
    assert_eq!(lines, expected);
    let mut lines: Vec<String> = text(&output.stderr).lines().map(str::to_string).collect();
    lines.sort();
    assert_eq!(lines, ["[0] err shm", "[1] err shm", "[2] err shm"]);
}

#[test]
fn whole_lines_and_raw_bytes() {
    let script = "i=0; while [ $i -lt 200 ]; do printf a; printf 'b\\377c\\n'; i=$((i+1)); done";
    let output = run(&["-n", "4", "--", "sh", "-c", script]);
    let lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 800);
    assert!(lines.iter().all(|line| line[3..] == *b" ab\xffc"), "a line was cut or mixed");
    let plain = run(&["-n", "1", "--no-prefix", "--", "printf", "one\\ntwo"]);
    assert_eq!(text(&plain.stdout), "one\ntwo\n");
}

#[test]
fn variables_can_be_set() {
    let output = run(&["-n", "1", "--backend", "tin", "--env", "A=b=c", "--", "sh", "-c", "echo $A $RANKWISE_BACKEND"]);
    assert_eq!(text(&output.stdout), "[0] b=c tin\n");
}

#[test]
fn the_first_failing_rank_is_named_last_and_gives_its_code() {
    let script = "[ $RANKWISE_RANK = 1 ] && exit 7; sleep 100";
    let output = run(&["-n", "3", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(last_line(&output.stderr), "rankwise: rank 1 failed first: exited with code 7");
    let script = "[ $RANKWISE_RANK = 2 ] && kill -9 $$; sleep 1; echo late >&2; exit 3";
    let output = run(&["-n", "3", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(137));
    assert_eq!(last_line(&output.stderr), "rankwise: rank 2 failed first: killed by SIGKILL (9)");
    assert!(text(&output.stderr).contains("[0] late"), "the others have time to report");
}

#[test]
fn a_timeout_ends_the_job() {
    let started = Instant::now();
    let output = run(&["-n", "2", "--timeout", "0.3", "--", "sh", "-c", "sleep 100"]);
    assert_eq!(output.status.code(), Some(124));
    assert!(last_line(&output.stderr).contains("timed out after 0."), "{}", text(&output.stderr));
    assert!(started.elapsed() < WATCHDOG);
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
    let output = run(&["-n", "2", "--", "no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(last_line(&output.stderr).contains("`no-such-program-anywhere` was not found"));
    let output = run(&["-n", "2", "--", "/dev/null"]);
    assert_eq!(output.status.code(), Some(126));
    assert!(last_line(&output.stderr).contains("`/dev/null` may not be executed"));
    for bad in [&["-n", "2"][..], &["-n", "1", "--timeout", "-1", "--", "true"]] {
        assert_eq!(run(bad).status.code(), Some(2), "{bad:?}");
    }
}

/// Every way of starting descendants that tends to leave some behind.
const FAMILIES: [&str; 4] = [
    "echo up; sleep 1000",
    "echo up; sh -c 'sleep 1000; true'; true",
    "sleep 1000 & sleep 1000 & echo up; wait",
    "setsid sleep 1000 & echo up; wait",
];

#[test]
fn nobody_is_left_after_the_launcher_is_killed() {
    for family in FAMILIES {
        let mut launcher = start(&["-n", "3", "--", "sh", "-c", family]);
        launcher.lines(3);
        launcher.signal(Signal::KILL);
        let (status, _) = launcher.end();
        assert_eq!(status.code(), None, "{family}");
    }
}

/// The guardian among the launcher's children.
fn guardian_of(launcher: u32) -> Option<Pid> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // pid (name) state parent ...
        let (head, rest) = stat.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        let mut fields = rest.split(' ');
        let is_alive = fields.next()? != "Z";
        let is_child = fields.next()? == launcher.to_string();
        (name == "rankwise-guard" && is_alive && is_child).then(|| Pid::from_raw(pid.parse().ok()?))?
    })
}

fn wait_for_guardian(launcher: &Launcher, other_than: Option<Pid>) -> Pid {
    let started = Instant::now();
    loop {
        match guardian_of(launcher.child.id()) {
            Some(pid) if Some(pid) != other_than => return pid,
            _ => assert!(started.elapsed() < WATCHDOG, "no guardian"),
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_killed_guardian_is_replaced() {
    for family in FAMILIES {
        let mut launcher = start(&["-n", "2", "--", "sh", "-c", family]);
        launcher.lines(2);
        let first = wait_for_guardian(&launcher, None);
        kill_process(first, Signal::KILL).unwrap();
        wait_for_guardian(&launcher, Some(first));
        // It is named before it knows the groups, which it reads in any case before the end of its pipe.
        thread::sleep(Duration::from_millis(50));
        launcher.signal(Signal::KILL);
        let (status, _) = launcher.end();
        assert_eq!(status.code(), None, "{family}");
    }
}

#[test]
fn too_few_and_too_many_ranks_are_usage_errors() {
    for ranks in ["0", "4097", "100000"] {
        let output = run(&["-n", ranks, "--", "true"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("1..=4096"), "{output:?}");
    }
}

#[test]
fn nobody_is_left_after_a_signal_to_the_launcher() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        for family in FAMILIES {
            let mut launcher = start(&["-n", "2", "--", "sh", "-c", family]);
            launcher.lines(2);
            launcher.signal(signal);
            let (status, stderr) = launcher.end();
            assert_eq!(status.code(), Some(code), "{family}: {stderr}");
            assert!(stderr.lines().last().unwrap().starts_with("rankwise: ended by SIG"), "{family}: {stderr}");
        }
    }
}

#[test]
fn nobody_is_left_after_a_rank_is_killed() {
    for family in FAMILIES {
        let script = format!("[ $RANKWISE_RANK = 0 ] && {{ {family}; }}; {family}").replace("echo up", "echo $$");
        let mut launcher = start(&["-n", "2", "--", "sh", "-c", &script]);
        let pids = launcher.lines(2);
        let pid: i32 = pids.iter().find_map(|line| line.strip_prefix("[1] ")).unwrap().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        let (status, stderr) = launcher.end();
        assert_eq!(status.code(), Some(137), "{stderr}");
        assert_eq!(stderr.lines().last(), Some("rankwise: rank 1 failed first: killed by SIGKILL (9)"), "{family}");
    }
}

#[test]
fn a_grandchild_that_holds_the_output_does_not_hold_the_job() {
    let started = Instant::now();
    for script in ["sleep 1000 & echo done", "setsid sleep 1000 & echo done"] {
        let output = run(&["-n", "2", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(text(&output.stdout).lines().count(), 2);
    }
    assert!(started.elapsed() < WATCHDOG);
}

#[test]
fn ranks_that_ignore_the_request_are_killed() {
    let mut launcher =
        start(&["-n", "2", "--", "sh", "-c", "trap '' TERM INT HUP; echo up; while :; do sleep 1; done"]);
    launcher.lines(2);
    let started = Instant::now();
    launcher.signal(Signal::INT);
    thread::sleep(Duration::from_millis(100));
    launcher.signal(Signal::INT);
    let (status, _) = launcher.end();
    assert_eq!(status.code(), Some(130));
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "the second Ctrl-C kills at once, took {:?}",
        started.elapsed()
    );
}

#[test]
fn stopped_ranks_are_ended_too() {
    let mut launcher = start(&["-n", "2", "--", "sh", "-c", "echo $$; sleep 1000"]);
    for line in launcher.lines(2) {
        let pid: i32 = line[4..].parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    }
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.end().0.code(), Some(143));
}

#[test]
fn a_closed_output_ends_the_job() {
    let mut launcher = start(&["-n", "2", "--", "sh", "-c", "while :; do echo more; sleep 0.01; done"]);
    launcher.lines(4);
    drop(launcher.child.stdout.take());
    let (status, stderr) = launcher.end();
    assert_eq!(status.code(), Some(141), "{stderr}");
}

#[test]
fn a_reader_that_does_not_read_cannot_keep_the_job_alive() {
    let mut launcher = start(&["-n", "2", "--", "sh", "-c", "echo up; while :; do echo more of this; done"]);
    launcher.lines(2);
    thread::sleep(Duration::from_millis(300));
    launcher.signal(Signal::TERM);
    // Standard output stays open and unread.
    assert_eq!(launcher.end().0.code(), Some(143));
}

#[test]
fn pinning() {
    let cpus = |args: &[&str]| -> Vec<String> {
        let script = "grep Cpus_allowed_list /proc/self/status | cut -f2; echo $RANKWISE_CPUS >&2";
        let all = [args, &["--", "sh", "-c", script]].concat();
        let output = text(&run(&all).stdout);
        output.lines().filter_map(|line| line.split_once("] ")).map(|(_, list)| list.to_string()).collect()
    };
    let free = cpus(&["-n", "1", "--pin", "none"]);
    let bound = cpus(&["-n", "2", "--pin", "cores"]);
    assert!(bound.iter().all(|list| list.parse::<usize>().is_ok()), "{bound:?}");
    // As many ranks as no machine has CPUs: auto leaves them alone.
    assert_eq!(cpus(&["-n", "300", "--pin", "auto"]), vec![free[0].clone(); 300]);
}

#[test]
fn colours_only_on_a_terminal() {
    let bin = env!("CARGO_BIN_EXE_rankwise");
    let on_a_terminal = |variables: &str| {
        let line = format!("{variables} {bin} launch -n 1 -- echo hello");
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
        output.map(|output| text(&output.stdout))
    };
    match on_a_terminal("TERM=xterm") {
        Ok(coloured) => {
            assert!(coloured.contains("\x1b[36m[0]\x1b[0m hello"), "{coloured:?}");
            let plain = on_a_terminal("TERM=xterm NO_COLOR=1").unwrap();
            assert!(plain.contains("[0] hello") && !plain.contains('\x1b'), "{plain:?}");
        }
        Err(error) => println!("not checked on a terminal: the program `script` cannot be run ({error})"),
    }
}
