//! `--html` and `--svg` as a user meets them.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rankwise-drawn-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    /// The files of a directory with their contents.
    fn files(&self, name: &str) -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(self.0.join(name)).unwrap();
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap())
        };
        entries.map(read).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(arguments: &[&str]) -> (Option<i32>, String, String) {
    let words = arguments.iter().flat_map(|words| words.split(' ')).filter(|word| !word.is_empty());
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_rankwise")).arg("bench").args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

const SWEEP: &str = "--op barrier,all_reduce --size 64,4K --ranks 2 --iters 40";

#[test]
fn a_sweep_is_drawn() {
    let folder = Folder::new("sweep");
    let (html, svg) = (folder.path("a.html"), folder.path("svg"));
    let (code, json, errors) = bench(&[SWEEP, "--format json --html", &html, "--svg", &svg]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(json.lines().all(|line| line.starts_with('{')), "{json}");
    assert!(errors.contains(&format!("# pictures: {html}, 3 SVG in {svg}")), "{errors}");
    let files = folder.files("svg");
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["busbw-all_reduce-f32-2ranks.svg", "time-all_reduce-f32-2ranks.svg", "time-barrier.svg"]);
    let page = std::fs::read_to_string(&html).unwrap();
    for part in ["<th scope=\"row\">date</th>", "bench --op barrier,all_reduce", "<svg", "4 KiB", "rankwise bench: shm"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("http") && !page.contains("<script"), "{page}");
}

#[test]
fn a_stored_comparison_gives_the_same_pictures() {
    let folder = Folder::new("stored");
    let [results, live, stored] = ["r.jsonl", "live", "stored"].map(|name| folder.path(name));
    let sweep = "compare shm shm --op all_reduce,barrier --size 64,4K --ranks 2 --iters 20 --rounds 6 --output";
    let (code, table, errors) = bench(&[sweep, &results, "--svg", &live]);
    assert_eq!(code, Some(0), "{errors}");
    let (code, again, errors) = bench(&["compare", &results, "--svg", &stored]);
    assert_eq!(code, Some(0), "{errors}");
    let data = |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect::<Vec<_>>();
    assert_eq!(data(&table), data(&again));
    assert_eq!(data(&table).len(), 3, "{table}");
    let (live, stored) = (folder.files("live"), folder.files("stored"));
    assert!(live.contains_key("heat-shm-2.svg") && live.len() == 4, "{:?}", live.keys());
    assert_eq!(live, stored);
    // Files side by side are drawn too.
    let html = folder.path("files.html");
    let other = folder.path("other.jsonl");
    std::fs::copy(&results, &other).unwrap();
    assert_eq!(bench(&["compare", &results, &other, "--html", &html]).0, Some(0));
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("other.jsonl</th>") && page.contains("all_reduce f32 sum, 2 ranks, shm#2"), "{page}");
}

#[test]
fn workloads_are_drawn() {
    let folder = Folder::new("workloads");
    let (html, svg) = (folder.path("w.html"), folder.path("svg"));
    let (code, text, errors) =
        bench(&["--workload llama3-8b-decode --ranks 2 --budget-ms 20 --html", &html, "--svg", &svg]);
    assert_eq!(code, Some(0), "{text}{errors}");
    assert_eq!(folder.files("svg").keys().collect::<Vec<_>>(), ["workloads.svg"]);
    let page = std::fs::read_to_string(&html).unwrap();
    for part in ["llama3-8b-decode", "batch=16, shm, 2 ranks", "communication per token", "up to "] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is_measured() {
    let folder = Folder::new("refused");
    let (file, missing, directory) = (folder.path("file"), folder.path("no/a.html"), folder.path("."));
    std::fs::write(&file, "old").unwrap();
    let results = folder.path("r.jsonl");
    assert_eq!(bench(&[SWEEP, "--output", &results]).0, Some(0));
    for command in [SWEEP, "compare shm shm --op barrier --ranks 2", "--workload bert-base-ddp --ranks 2"] {
        for (option, target, named) in [
            ("--html", &missing, "is no directory; create it or name another file"),
            ("--html", &directory, "is a directory; name a file in it"),
            ("--svg", &file, "is a file; name a directory"),
        ] {
            let (code, out, errors) = bench(&[command, option, target]);
            assert_eq!((code, out.as_str()), (Some(2), ""), "{command} {option} {target}: {errors}");
            assert!(errors.contains(named) && errors.contains(option), "{errors}");
        }
        let (code, out, errors) = bench(&[command, "--html", &results, "--output", &results]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{command}: {errors}");
        assert!(errors.contains("--html would replace"), "{errors}");
    }
    let (code, _, errors) = bench(&["compare", &results, &results, "--html", &results]);
    assert!(code == Some(2) && errors.contains("--html would replace"), "{errors}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    assert!(std::fs::read_to_string(&results).unwrap().starts_with("{\"schema\""));
}

#[test]
fn nothing_measured_is_no_picture() {
    let folder = Folder::new("nothing");
    let html = folder.path("a.html");
    let (code, _, errors) = bench(&["--op all_reduce --size 6 --ranks 2 --html", &html]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("nothing was measured, no picture"), "{errors}");
    assert!(!PathBuf::from(html).exists());
}

#[test]
fn an_interruption_draws_what_was_measured() {
    let folder = Folder::new("interrupted");
    for (name, arguments, waits_for) in [
        // Ends that are out of reach.
        ("sweep", "--op all_reduce --size 64:256M:x2 --ranks 2 --budget-ms 1000", 2),
        ("compare", "compare shm shm --op barrier --ranks 2 --iters 20 --rounds 1000", 4),
    ] {
        let (results, html) = (folder.path(name), folder.path(&format!("{name}.html")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_rankwise"));
        command.arg("bench").args(arguments.split(' ')).args(["--output", &results, "--html", &html]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::read_to_string(&results).map_or(0, |text| text.lines().count()) < 1 + waits_for {
            assert!(Instant::now() < deadline, "{name}: nothing was measured");
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130), "{name}");
        let page = std::fs::read_to_string(&html).unwrap();
        assert!(page.contains("interrupted by signal 2") && page.contains("<circle"), "{name}: {page}");
    }
}
