//! `rankwise info`: what this machine and this build offer.

use clap::{Args, ValueEnum};
use rankwise::{Placement, World, config};
use rankwise_reduce::Isa;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Args)]
pub(crate) struct Info {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Of the backends over an MPI.
const MPI_VARIABLES: [(&str, &str); 2] = [
    ("RANKWISE_MPIRUN", "command that starts the ranks of `rankwise bench` on an MPI, instead of the one found"),
    ("RANKWISE_MPI_LIBRARY", "library with the standard ABI of MPI, instead of the one found (mpi-abi)"),
];

impl Info {
    pub(crate) fn run(self) -> ExitCode {
        let facts = facts();
        let text = match self.format {
            Format::Json => format!("{facts:#}\n"),
            Format::Text => as_text(&facts),
        };
        match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => crate::output_failed(&error),
        }
    }
}

fn facts() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": rankwise_world::PROTOCOL,
        "machine": machine(),
        "backends": backends(),
        "limits": limits(),
        "environment": environment(),
    })
}

fn machine() -> Value {
    let mut facts = Map::new();
    #[cfg(unix)]
    {
        let name = rustix::system::uname();
        facts.insert("host".into(), name.nodename().to_string_lossy().into());
        facts.insert(
            "kernel".into(),
            format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()).into(),
        );
    }
    facts.insert("architecture".into(), std::env::consts::ARCH.into());
    facts.insert("cpus".into(), std::thread::available_parallelism().map_or(1, usize::from).into());
    facts.insert("kernels".into(), Isa::best().name().into());
    facts.insert("kernels_available".into(), Isa::available().map(|isa| isa.name()).collect::<Vec<_>>().into());
    for (key, name) in [("memory_total", "MemTotal:"), ("memory_available", "MemAvailable:")] {
        if let Some(bytes) = memory(name) {
            facts.insert(key.into(), bytes.into());
        }
    }
    Value::Object(facts)
}

/// A row of /proc/meminfo in bytes.
fn memory(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let row = text.lines().find_map(|line| line.strip_prefix(name))?;
    row.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn backends() -> Value {
    let alone = World::solo();
    debug_assert_eq!(alone.placement(), Placement::Solo);
    rankwise::backends()
        .iter()
        .map(|driver| {
            let mut row = json!({"name": driver.name(), "description": driver.description()});
            match driver.probe(&alone) {
                Ok(report) => {
                    row["usable"] = true.into();
                    row["facts"] = report.facts.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
                }
                Err(error) => {
                    row["usable"] = false.into();
                    row["reason"] = error.to_string().into();
                }
            }
            row
        })
        .collect()
}

fn limits() -> Value {
    let mut facts = Map::new();
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit};
        for (name, resource) in [
            ("RLIMIT_NOFILE", Resource::Nofile),
            ("RLIMIT_NPROC", Resource::Nproc),
            ("RLIMIT_MEMLOCK", Resource::Memlock),
            ("RLIMIT_AS", Resource::As),
            ("RLIMIT_FSIZE", Resource::Fsize),
        ] {
            let limit = getrlimit(resource);
            let value = |limit: Option<u64>| limit.map_or(Value::from("unlimited"), Value::from);
            facts.insert(name.into(), json!({"soft": value(limit.current), "hard": value(limit.maximum)}));
        }
    }
    facts.insert("dev_shm".into(), "not used: shared memory is memfd, so its size does not matter".into());
    Value::Object(facts)
}

fn environment() -> Value {
    let value = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let settings = config::VARIABLES.iter().map(|variable| {
        json!({
            "name": variable.name,
            "value": value(variable.name),
            "values": variable.values,
            "default": variable.default,
            "meaning": variable.meaning,
        })
    });
    let launch = rankwise_world::LAUNCH_VARIABLES
        .iter()
        .map(|(name, meaning)| json!({"name": name, "value": value(name), "meaning": format!("{meaning} (set by `rankwise launch`)")}));
    let meeting = rankwise_world::MEETING_VARIABLES.iter().map(
        |(name, meaning)| json!({"name": name, "value": value(name), "meaning": format!("{meaning} (several hosts)")}),
    );
    let mpi =
        MPI_VARIABLES.iter().map(|(name, meaning)| json!({"name": name, "value": value(name), "meaning": meaning}));
    settings.chain(launch).chain(meeting).chain(mpi).collect()
}

fn as_text(facts: &Value) -> String {
    let mut text = format!("rankwise {} (protocol {})\n", plain(&facts["version"]), plain(&facts["protocol"]));
    for section in ["machine", "limits"] {
        text.push_str(&format!("\n{section}\n"));
        for (name, value) in facts[section].as_object().into_iter().flatten() {
            let value = match (name.as_str(), value.as_u64(), &value["soft"]) {
                ("memory_total" | "memory_available", Some(bytes), _) => {
                    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
                }
                (_, _, Value::Null) => plain(value),
                (_, _, soft) => format!("{} (hard limit {})", plain(soft), plain(&value["hard"])),
            };
            text.push_str(&format!(
                "  {:<20} {value}\n",
                name.replace('_', if section == "limits" { "_" } else { " " })
            ));
        }
    }
    text.push_str("\nbackends\n");
    for backend in facts["backends"].as_array().into_iter().flatten() {
        let state = match &backend["reason"] {
            Value::Null => "usable".to_string(),
            reason => format!("not usable: {}", plain(reason)),
        };
        text.push_str(&format!("  {:<20} {}; {state}\n", plain(&backend["name"]), plain(&backend["description"])));
        for (name, value) in backend["facts"].as_object().into_iter().flatten() {
            text.push_str(&format!("    {name:<18} {}\n", plain(value)));
        }
    }
    text.push_str("\nenvironment\n");
    for variable in facts["environment"].as_array().into_iter().flatten() {
        let state = match (&variable["value"], &variable["default"]) {
            (Value::Null, Value::Null) => "unset".to_string(),
            (Value::Null, default) => format!("unset; default {}", plain(default)),
            (value, _) => format!("= {}", plain(value)),
        };
        let values = match &variable["values"] {
            Value::Null => String::new(),
            values => format!(" ({})", plain(values)),
        };
        text.push_str(&format!(
            "  {:<21} {}{values}; {state}\n",
            plain(&variable["name"]),
            plain(&variable["meaning"])
        ));
    }
    text
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_say_the_same() {
        let facts = facts();
        let text = as_text(&facts);
        for backend in facts["backends"].as_array().unwrap() {
            assert!(text.contains(&plain(&backend["name"])));
        }
        for variable in facts["environment"].as_array().unwrap() {
            assert!(text.contains(&plain(&variable["name"])));
        }
        assert!(text.contains("RLIMIT_NOFILE") || !cfg!(unix));
        assert!(!text.contains("null"), "{text}");
    }
}
