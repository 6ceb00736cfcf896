//! Where and when results were measured, with what: the first line of a result file.

use rankwise::config;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the result files' form.
pub(crate) const SCHEMA: u64 = 1;

/// The first line of a result file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) schema: u64,
    /// For example `rankwise bench 0.1.0`.
    pub(crate) tool: String,
    /// The commit the tool was built from, without changes that were not committed.
    pub(crate) git: Option<String>,
    /// UTC, for example `2026-03-01T12:00:00Z`.
    pub(crate) date: String,
    pub(crate) host: String,
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    /// Processors this process may use.
    pub(crate) cpus: usize,
    /// The command line behind the program's name.
    pub(crate) arguments: Vec<String>,
    /// Variables of the environment that change how backends work, where set.
    pub(crate) settings: BTreeMap<String, String>,
    /// Version of each peer that was measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) libraries: BTreeMap<String, String>,
}

impl Origin {
    /// Here and now.
    pub(crate) fn here() -> Origin {
        let system = rustix::system::uname();
        let setting = |name: &str| Some((name.to_string(), std::env::var_os(name)?.to_string_lossy().into_owned()));
        Origin {
            schema: SCHEMA,
            tool: format!("rankwise bench {}", env!("CARGO_PKG_VERSION")),
            git: option_env!("RANKWISE_GIT_HASH").map(String::from),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
            host: system.nodename().to_string_lossy().into_owned(),
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            cpu: processor(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            arguments: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
            settings: config::VARIABLES.iter().filter_map(|variable| setting(variable.name)).collect(),
            libraries: BTreeMap::new(),
        }
    }

    /// For example `Some CPU 9000, 2 CPUs, Linux 6.1`.
    pub(crate) fn machine(&self) -> String {
        format!("{}, {} CPUs, {}", self.cpu, self.cpus, self.kernel)
    }
}

/// The model's name, or the architecture.
pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    match model {
        Some((_, name)) => name.trim().to_string(),
        None => rustix::system::uname().machine().to_string_lossy().into_owned(),
    }
}

/// The civil date in UTC of seconds since 1970.
fn date(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z", days + 1, rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
