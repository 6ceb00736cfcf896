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
    *) row all_reduce f32 sum 8 2 2 0 2000000.5 ;;
esac
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
fn a_hanging_peer_is_killed_with_all_it_started() {
    let mark = format!("97{}", std::process::id());
    let peers = Peers::new("hangs", &[("hangs", &format!("hangs {mark}")), ("fine", "good")]);
    let (code, table, errors) = peers.bench(&format!("{SWEEP} --peer-timeout 6"));
    assert_eq!(code, Some(1), "{table}{errors}");
    assert!(table.contains("# hangs failed in round 1: it said nothing for 6.0 s"), "{table}{errors}");
    assert!(!running(&mark), "a process was left behind");
    assert_eq!(data(&table).len(), 2, "{table}");
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
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{table}");
    assert!(!running(&mark), "a process was left behind");
    assert_eq!(data(&table).len(), 2, "{table}");
    assert!(table.contains("interrupted by signal 2"), "{table}");
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
