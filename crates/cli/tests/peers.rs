//! `bench --peers` with peers that behave in every way: they are shell scripts, no MPI is needed.

#![cfg(target_os = "linux")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Prints rows as a peer of two ranks does; `$1` says what it does wrong.
const SCRIPT: &str = r#"
how=$1
row() { # op dtype redop bytes count ranks wrong time
    printf '@rankwise-bench {"Row":{"backend":"x","op":"%s","dtype":"%s","redop":"%s","bytes":%s,"count":%s,"ranks":%s,' "$1" "$2" "$3" "$4" "$5" "$6"
    printf '"wrong":%s,"min_us":%s,"mean_us":%s,"p50_us":%s,"p99_us":%s,"max_us":%s,"samples_us":[%s,%s],' "$7" "$8" "$8" "$8" "$8" "$8" "$8" "$8"
    printf '"root":-1,"in_place":false,"alloc":false,"fresh":true,"pin":"","iters":2,"algbw_gbs":0.0,"busbw_gbs":0.0,"sample_step":1}}\n'
}
echo "a line that is for nobody"
echo '@rankwise-bench {"Ranks":{"ranks":[{"rank":0,"pid":1,"host":"h","cpus":"0"},{"rank":1,"pid":2,"host":"h","cpus":"1"}],"clock":"none"}}'
[ "$how" = absent ] && { echo "this library is broken" >&2; exit 7; }
row barrier none none 0 0 2 0 1000000
case $how in
    dies) echo "giving up now" >&2; exit 3 ;;
    junk) echo '@rankwise-bench {"Row":{"backend":'; sleep 100 ;;
    hangs) trap '' TERM INT; (trap '' TERM INT; setsid sleep "$2") & sleep "$2" ;;
    wrong) row all_reduce f32 sum 8 2 2 5 3.5 ;;
    other) row all_reduce f32 sum 16 4 2 0 3.5; sleep 100 ;;
    ranks) row all_reduce f32 sum 8 2 3 0 3.5; sleep 100 ;;
    skips) echo '@rankwise-bench {"Skipped":{"what":"all_reduce f32 sum","reason":"no such thing here"}}' ;;
    early) exit 0 ;;
    slow) printf '@rankwise-bench {"Slow":{"what":"all_reduce f32 sum","call_ms":%s}}\n' "$$.25" ;;
    later) # the second round is wrong
        wrong=0
        [ -e "$2" ] && wrong=3
        touch "$2"
        row all_reduce f32 sum 8 2 2 "$wrong" 3.5 ;;
    *) row all_reduce f32 sum 8 2 2 0 2000000.5 ;;
esac
echo '@rankwise-bench {"Done":{}}'
exit 0
"#;

/// A directory with peers that goes away.
struct Peers(PathBuf);

impl Peers {
    fn new(name: &str, peers: &[(&str, &str)]) -> Peers {
        let path = std::env::temp_dir().join(format!("rankwise-{}-peers-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("peer.sh"), SCRIPT).unwrap();
        let table = |(name, how): &(&str, &str)| {
            let words = how.split(' ').map(|word| format!("{word:?}, ")).collect::<String>();
            format!(
                "[[peer]]\nname = {name:?}\nversion = \"9.{name}\"\ncommand = [\"sh\", \"{{dir}}/peer.sh\", {words}]\n"
            )
        };
        std::fs::write(path.join("peers.toml"), peers.iter().map(table).collect::<String>()).unwrap();
        Peers(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn bench(&self, arguments: &str) -> (Option<i32>, String, String) {
        bench(self.path(), arguments)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SWEEP: &str = "--op barrier,all_reduce --size 8 --ranks 2 --iters 5 --rounds 6";

fn bench(dir: &str, arguments: &str) -> (Option<i32>, String, String) {
    let words = arguments.split(' ').filter(|word| !word.is_empty());
    let output =
        Command::new(env!("CARGO_BIN_EXE_rankwise")).args(["bench", "--peers", dir]).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The data lines, in words.
fn data(table: &str) -> Vec<Vec<&str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect()
}

fn running(mark: &str) -> bool {
    let line = format!("sleep\0{mark}\0");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .into_iter()
        .any(|process| std::fs::read_to_string(process.path().join("cmdline")).is_ok_and(|text| text == line))
}

#[test]
fn good_peers_fill_the_grid_and_the_file() {
    let peers = Peers::new("good", &[("one", "good"), ("two", "skips"), ("three", "good")]);
    let file = peers.0.join("out.jsonl");
    let (code, table, errors) = peers.bench(&format!("{SWEEP} --peer two,one --output {}", file.display()));
    assert_eq!(code, Some(0), "{table}{errors}");
    let rows = data(&table);
    assert_eq!(rows.len(), 2, "{table}");
    // Each fake time is a second or two, ours microseconds.
    for (row, two) in [(&rows[0], true), (&rows[1], false)] {
        assert_eq!(row.len(), 9, "{table}");
        assert!(row[6].parse::<f64>().unwrap() > 10.0, "{table}");
        assert_eq!(row[5] != "-", two, "{table}");
    }
    assert!(rows[1][8] == "one", "{table}");
    assert!(table.contains("# skipped: two: all_reduce f32 sum: no such thing here"), "{table}");
    assert!(table.contains("# one: geometric mean ") && table.contains("shm is faster in 2"), "{table}");
    assert!(!table.contains("three"), "{table}");
    let lines: Vec<Value> =
        std::fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["libraries"], serde_json::json!({"one": "9.one", "two": "9.two"}));
    let of = |name: &str| lines.iter().filter(|line| line["backend"] == name).count();
    assert_eq!((of("shm"), of("one"), of("two"), of("three")), (12, 12, 6, 0));
    let (code, json, _) = peers.bench(&format!("{SWEEP} --peer one --format json"));
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(
        (code, &first["base"], &first["other"], &first["verdict"]),
        (Some(0), &"shm".into(), &"one".into(), &"slower".into())
    );
}

#[test]
fn each_bad_peer_is_named_and_the_rest_stays() {
    let bad = [
        ("absent", "its command exited with code 7"),
        ("dies", "its command exited with code 3"),
        ("early", "it ended before it said it was done, with 1 cells measured"),
        ("junk", "a message that cannot be read"),
        ("wrong", "5 elements of its results were wrong, first in all_reduce f32 sum 8 bytes, 2 ranks"),
        ("other", "something else than it was asked: all_reduce f32 sum 16 bytes"),
        ("ranks", "something else than it was asked: all_reduce f32 sum 8 bytes, 3 ranks"),
    ];
    let all: Vec<_> = [("fine", "good")].into_iter().chain(bad.iter().map(|(name, _)| (*name, *name))).collect();
    let peers = Peers::new("bad", &all);
    let (code, table, errors) = peers.bench(SWEEP);
    assert_eq!(code, Some(1), "{table}{errors}");
    for (name, why) in bad {
        let told = |text: &str, line: String| assert!(text.contains(&line), "{line}: {table}{errors}");
        told(&table, format!("# {name} failed in round 1: "));
        told(&table, why.to_string());
        told(&errors, format!("rankwise: {name} with 2 ranks: "));
        assert_eq!(table.matches(&format!("# {name} failed")).count(), 1, "once is enough: {table}");
    }
    assert!(
        errors.contains("  dies: giving up now") && errors.contains("  absent: this library is broken"),
        "{errors}"
    );
    let rows = data(&table);
    assert_eq!(rows.len(), 2, "{table}");
    for row in rows {
        let ratio = row[5].parse::<f64>().unwrap_or_else(|_| panic!("{table}"));
        assert!(ratio > 10.0 && row.last() == Some(&"fine"), "{table}");
    }
}

#[test]
fn a_slow_cell_is_named_once_and_the_peer_goes_on() {
    let peers = Peers::new("slow", &[("slow", "slow"), ("fine", "good")]);
    let (code, table, errors) = peers.bench(SWEEP);
    assert_eq!(code, Some(0), "{table}{errors}");
    assert_eq!(
        table.matches("# skipped: slow: all_reduce f32 sum, 2 ranks: a call takes about ").count(),
        1,
        "{table}"
    );
    let rows = data(&table);
    assert_eq!((rows[0][5] != "-", rows[1][5], rows[1].last()), (true, "-", Some(&"fine")), "{table}");
}

#[test]
fn our_own_slow_calls_are_skipped_too() {
    let peers = Peers::new("own", &[("fine", "good")]);
    let (code, table, errors) = peers.bench(&format!("{SWEEP} --slowest-ms 0.000001"));
    assert_eq!(code, Some(0), "{table}{errors}");
    assert_eq!(table.matches("# skipped: shm: barrier, 2 ranks: a call takes about 0 ms").count(), 1, "{table}");
    assert!(data(&table).iter().all(|row| row[4] == "-" && row[5] == "-"), "{table}");
}

#[test]
fn a_wrong_round_is_left_out_of_the_file_as_well() {
    let peers = Peers::new("later", &[]);
    let mark = peers.0.join("mark").display().to_string();
    let peers = Peers::new("later", &[("later", &format!("later {mark}")), ("fine", "good")]);
    let file = peers.0.join("out.jsonl").display().to_string();
    let (code, table, errors) = peers.bench(&format!("{SWEEP} --output {file}"));
    assert_eq!(code, Some(1), "{table}{errors}");
    assert!(table.contains("# later failed in round 2: 3 elements of its results were wrong"), "{table}");
    let text = std::fs::read_to_string(&file).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let wrong: Vec<_> = rows
        .iter()
        .filter(|row| row["backend"] == "later" && row["op"] == "all_reduce")
        .map(|row| &row["wrong"])
        .collect();
    assert_eq!(wrong, [0, 3], "both rounds are written as they came");
    let output = Command::new(env!("CARGO_BIN_EXE_rankwise")).args(["bench", "compare", &file]).output().unwrap();
    let compared = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && compared.contains("cells left out because of wrong results: 1"), "{compared}");
    let line = data(&compared).into_iter().find(|words| words[0] == "8").unwrap_or_else(|| panic!("{compared}"));
    let later = compared.lines().find(|line| line.ends_with(": later")).unwrap_or_else(|| panic!("{compared}"));
    // Size, count, type, operator, A; then time, ratio, interval and verdict of B and of C.
    let place = if later.starts_with("# B") { 5 } else { 9 };
    assert_eq!(line[place], "-", "{compared}");
    assert_eq!(line.iter().filter(|word| **word == "-").count(), 4, "{compared}");
}

#[test]
fn a_failed_setup_keeps_the_peers_there_are() {
    let setup = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers/setup"));
    if !setup.exists() {
        println!("skipped: setting up peers: peers/setup is not part of this package");
        return;
    }
    let peers = Peers::new("kept", &[("one", "good")]);
    let list = peers.0.join("peers.toml");
    let before = std::fs::read_to_string(&list).unwrap();
    // Offline and without wheels there is no Intel MPI.
    let run = |dir: &Path| {
        let output =
            Command::new(setup).arg(dir).env("PEERS", "impi").env("PEERS_OFFLINE", "1").output().expect("bash runs it");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, errors) = run(&peers.0);
    assert!(
        code == Some(1) && errors.contains("no peer could be set up") && errors.contains("is as it was"),
        "{errors}"
    );
    assert_eq!(std::fs::read_to_string(&list).unwrap(), before);
    std::fs::remove_file(&list).unwrap();
    let (code, errors) = run(&peers.0);
    assert!(code == Some(1) && errors.ends_with("no peer could be set up\n") && !list.exists(), "{errors}");
    assert!(!peers.0.join("peers.toml.part").exists());
}

#[test]
fn a_hanging_peer_is_killed_with_all_it_started() {
    let mark = format!("97{}", std::process::id());
    let peers = Peers::new("hangs", &[("hangs", &format!("hangs {mark}")), ("fine", "good")]);
    let (code, table, errors) = peers.bench(&format!("{SWEEP} --peer-timeout 6"));
    assert_eq!(code, Some(1), "{table}{errors}");
    assert!(table.contains("# hangs failed in round 1: it said nothing for 6.0 s"), "{table}{errors}");
    assert!(!running(&mark), "a process was left behind");
    assert_eq!(data(&table).len(), 2, "{table}");
}

fn interrupts_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 0b10 != 0))
}

#[test]
fn an_interruption_ends_the_peer_and_keeps_what_was_measured() {
    let mark = format!("98{}", std::process::id());
    let peers = Peers::new("interrupted", &[("hangs", &format!("hangs {mark}"))]);
    let child = Command::new(env!("CARGO_BIN_EXE_rankwise"))
        .args(["bench", "--peers", peers.path()])
        .args(SWEEP.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !running(&mark) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Under a shell's background job Ctrl-C is ignored, here and by what is started from here.
    let (signal, number) = if interrupts_are_ignored() {
        println!("SIGINT is ignored in this session; SIGTERM stands in for it");
        (rustix::process::Signal::TERM, 15)
    } else {
        (rustix::process::Signal::INT, 2)
    };
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(128 + number), "{table}");
    assert!(!running(&mark), "a process was left behind");
    assert_eq!(data(&table).len(), 2, "{table}");
    assert!(table.contains(&format!("interrupted by signal {number}")), "{table}");
}

#[test]
fn what_cannot_work_is_refused_before_measuring() {
    let peers = Peers::new("refused", &[("one", "good")]);
    let gone = peers.0.join("gone");
    for (dir, arguments, named) in [
        (gone.as_path(), "", "run peers/setup"),
        (Path::new("/dev/null"), "", "run peers/setup"),
        (&peers.0, "--peer four", "there is no peer \"four\"; known: one"),
        (&peers.0, "--format csv", "--format text or --format json"),
        (&peers.0, "--op no_such", "no_such"),
        (&peers.0, "--backend no_such", "no_such"),
        (&peers.0, "--rounds 3", "3"),
        (&peers.0, "--peer-timeout 0", "seconds"),
        (&peers.0, "--workload all", "cannot be used with"),
        (&peers.0, "--baseline x", "cannot be used with"),
        (&peers.0, "--tolerance 2", "cannot be used with"),
        (&peers.0, &format!("--output {}", peers.0.join("peers.toml").display()), "would replace"),
    ] {
        let (code, table, errors) = bench(dir.to_str().unwrap(), arguments);
        assert_eq!((code, table.as_str()), (Some(2), ""), "{arguments}: {errors}");
        assert!(errors.contains(named), "{arguments}: {errors}");
    }
    let file = peers.0.join("peers.toml");
    for (text, named) in [
        (
            "[[peer]]\nname = \"a\"\ncommand = [\"/no/such/program\"]\n",
            "\"/no/such/program\" of the peer a was not found",
        ),
        ("[[peer]]\nname = \"shm\"\ncommand = [\"sh\"]\n", "peers.toml:2: \"shm\" is a backend"),
        ("[[peer]]\nname = \"a\"\n\ncolour = 3\n", "peers.toml:4: unknown field `colour`"),
        ("[[peer\n", "peers.toml:1: "),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, _, errors) = peers.bench("");
        assert!(code == Some(2) && errors.contains(named), "{errors}");
    }
}
