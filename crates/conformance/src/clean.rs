//! What a job holds while it runs and must have let go of afterwards: descriptors, mappings, processes, names, sockets.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// What one process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub fds: usize,
    /// Open memfds among them.
    pub memfds: usize,
    /// Mappings of shared memory.
    pub shared_mappings: usize,
}

/// What this process holds at the moment; zeros where there is no `/proc`.
pub fn own_holdings() -> Holdings {
    holdings(Path::new("/proc/self"))
}

/// What another process holds; `None` when it is gone.
pub fn holdings_of(pid: u32) -> Option<Holdings> {
    let path = format!("/proc/{pid}");
    Path::new(&path).exists().then(|| holdings(Path::new(&path)))
}

fn holdings(process: &Path) -> Holdings {
    let links: Vec<String> = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        // The directory being listed is itself a descriptor.
        .filter(|target| !target.contains("/proc/"))
        .collect();
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    let shared = maps.lines().filter(|line| {
        let mut words = line.split_whitespace();
        let is_shared = words.nth(1).is_some_and(|mode| mode.ends_with('s'));
        is_shared && (line.contains("/memfd:") || line.contains("/dev/shm") || line.contains("/dev/zero"))
    });
    Holdings {
        fds: links.len(),
        memfds: links.iter().filter(|target| target.starts_with("/memfd:")).count(),
        shared_mappings: shared.count(),
    }
}

/// What outlives a process: taken before and after a job.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    names: BTreeSet<String>,
    sockets: BTreeSet<String>,
    tagged: BTreeSet<u32>,
    tag: String,
}

/// What a job has left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Of the job: processes that carry its tag, names with the library's prefix.
    pub leaks: Vec<String>,
    /// New since the job began, of whom is not known: other programs use these directories too.
    pub unexplained: Vec<String>,
}

impl Traces {
    /// The state of the host now. `tag` is an environment entry, `NAME=value`, that the processes of the job carry.
    pub fn now(tag: &str) -> Traces {
        let mut names = BTreeSet::new();
        let runtime = std::env::var("XDG_RUNTIME_DIR").ok();
        for directory in ["/dev/shm", "/tmp"].into_iter().chain(runtime.as_deref()) {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            names.extend(entries.map(|entry| entry.path().to_string_lossy().into_owned()));
        }
        let mut sockets = BTreeSet::new();
        if let Ok(table) = fs::read_to_string("/proc/net/unix") {
            let named = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7));
            sockets.extend(named.map(|name| format!("unix {name}")));
        }
        for table in ["tcp", "tcp6"] {
            let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            // State 0A is LISTEN.
            let words = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
            let listening = words.filter(|words| words.get(3) == Some(&"0A"));
            sockets.extend(listening.filter_map(|words| words.get(1).map(|address| format!("{table} {address}"))));
        }
        Traces { names, sockets, tagged: processes_with(tag), tag: tag.into() }
    }

    /// What is there now and was not then. Waits up to `patience` for processes that are about to end.
    pub fn leftovers(&self, patience: Duration) -> Leftovers {
        let start = Instant::now();
        loop {
            let now = Traces::now(&self.tag);
            let left = self.compare(&now);
            if left.leaks.is_empty() || start.elapsed() > patience {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn compare(&self, now: &Traces) -> Leftovers {
        let mut left = Leftovers::default();
        for pid in now.tagged.difference(&self.tagged) {
            left.leaks.push(format!("process {pid} ({})", command_of(*pid)));
        }
        let names = now.names.difference(&self.names).chain(now.sockets.difference(&self.sockets));
        for name in names {
            let ours = name.to_lowercase().contains("rankwise");
            if ours { &mut left.leaks } else { &mut left.unexplained }.push(name.clone());
        }
        left
    }
}

/// The processes, other than this one, with the entry `text`, `NAME=value`, in their environment.
pub fn processes_with(text: &str) -> BTreeSet<u32> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|entry| entry == text.as_bytes()))
        })
        .collect()
}

fn command_of(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").chars().take(80).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_and_a_process_are_noticed() {
        let before = own_holdings();
        let file = fs::File::open("/dev/null").unwrap();
        assert!(own_holdings().fds > before.fds);
        drop(file);

        let tag = format!("RANKWISE_CLEAN_TEST={}", std::process::id());
        let traces = Traces::now(&tag);
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .env("RANKWISE_CLEAN_TEST", std::process::id().to_string())
            .spawn()
            .unwrap();
        let left = traces.leftovers(Duration::from_millis(50));
        assert!(left.leaks.iter().any(|leak| leak.contains(&child.id().to_string())), "{left:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let left = traces.leftovers(Duration::from_secs(5));
        assert!(!left.leaks.iter().any(|leak| leak.contains(&child.id().to_string())), "{left:?}");
    }
}
