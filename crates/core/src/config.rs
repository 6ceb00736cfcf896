//! Settings: code first, then environment, then defaults. One table feeds parsing, `rankwise info` and the docs.

use crate::caps::Determinism;
use crate::error::{Error, Result};
use std::time::Duration;

/// How a rank waits for its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Spin when the ranks of this host fit its processors, else hand the processor over; sleep after a while.
    #[default]
    Auto,
    /// Spin for long before sleeping, whatever the number of ranks.
    Spin,
    /// Hand the processor over at once, then sleep.
    Yield,
}

/// What to do when a deadline has passed and the engine still holds the caller's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStuck {
    /// Print the diagnosis and end the process.
    #[default]
    Exit,
    /// Print the diagnosis and go on waiting.
    Wait,
}

/// How a deadline is kept on a backend whose engine can't be stopped (MPI); others always keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadlineMode {
    /// The engine's own blocking call at full speed; a watching thread reports one that is late and does what [`OnStuck`] says.
    #[default]
    Watch,
    /// The engine's nonblocking form over staged buffers, so that the call returns `Timeout`. Costs time on every call.
    Enforce,
}

/// One environment variable that rankwise reads.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The values it takes.
    pub values: &'static str,
    /// What holds when it is unset.
    pub default: &'static str,
    /// What it sets.
    pub meaning: &'static str,
}

/// Every environment variable that changes how rankwise behaves (those that say who a rank is are listed with `World`).
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "RANKWISE_BACKEND",
        values: "a backend's name",
        default: "none: the program or this variable must choose",
        meaning: "backend to join when the program does not name one",
    },
    Variable {
        name: "RANKWISE_TIMEOUT",
        values: "seconds, at most 1e9",
        default: "300",
        meaning: "deadline of a call",
    },
    Variable {
        name: "RANKWISE_JOIN_TIMEOUT",
        values: "seconds, at most 1e9",
        default: "60",
        meaning: "deadline of joining and of registering a group",
    },
    Variable {
        name: "RANKWISE_DETERMINISM",
        values: "topology, fixed",
        default: "topology",
        meaning: "how far results are reproducible",
    },
    Variable {
        name: "RANKWISE_CHECK",
        values: "0, 1",
        default: "0",
        meaning: "compare call descriptors on backends where that costs an exchange (always on for shm)",
    },
    Variable {
        name: "RANKWISE_WAIT",
        values: "auto, spin, yield",
        default: "auto",
        meaning: "how a rank waits for its peers",
    },
    Variable {
        name: "RANKWISE_ON_STUCK",
        values: "exit, wait",
        default: "exit",
        meaning: "what to do when a deadline has passed and the engine can't be stopped",
    },
    Variable {
        name: "RANKWISE_DEADLINE",
        values: "watch, enforce",
        default: "watch",
        meaning: "how the mpi backend keeps deadlines: report a late call, or return Timeout (slower)",
    },
];

/// Settings given in code. What is not set here comes from the environment, then from the defaults.
#[derive(Clone, Debug, Default)]
pub struct Config {
    backend: Option<String>,
    fallback: Option<String>,
    timeout: Option<Duration>,
    join_timeout: Option<Duration>,
    determinism: Option<Determinism>,
    check: Option<bool>,
    wait: Option<Wait>,
    on_stuck: Option<OnStuck>,
    deadline: Option<DeadlineMode>,
}

/// Settings with every source applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The backend to join, if any source names one.
    pub backend: Option<String>,
    /// Deadline of a call.
    pub timeout: Duration,
    /// Deadline of joining and of registering a group.
    pub join_timeout: Duration,
    /// How far results are reproducible.
    pub determinism: Determinism,
    /// Compare call descriptors where that costs an exchange.
    pub check: bool,
    /// How a rank waits for its peers.
    pub wait: Wait,
    /// What to do when a deadline has passed and the engine can't be stopped.
    pub on_stuck: OnStuck,
    /// How a deadline is kept where the engine can't be stopped.
    pub deadline: DeadlineMode,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            backend: None,
            timeout: Duration::from_secs(300),
            join_timeout: Duration::from_secs(60),
            determinism: Determinism::SameTopology,
            check: false,
            wait: Wait::Auto,
            on_stuck: OnStuck::Exit,
            deadline: DeadlineMode::Watch,
        }
    }
}

impl Config {
    /// Nothing set: the environment and the defaults decide.
    pub fn new() -> Config {
        Config::default()
    }

    /// Chooses the backend by name. Wins over `RANKWISE_BACKEND`.
    #[must_use]
    pub fn backend(mut self, name: impl Into<String>) -> Config {
        self.backend = Some(name.into());
        self
    }

    /// The backend to use when neither [`Config::backend`] nor `RANKWISE_BACKEND` names one.
    #[must_use]
    pub fn backend_or(mut self, name: impl Into<String>) -> Config {
        self.fallback = Some(name.into());
        self
    }

    /// Sets the deadline of a call (default 300 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the deadline of joining and of registering a group (default 60 s).
    #[must_use]
    pub fn join_timeout(mut self, timeout: Duration) -> Config {
        self.join_timeout = Some(timeout);
        self
    }

    /// Asks for a level of determinism; a backend that can't offer it refuses when a communicator is created.
    #[must_use]
    pub fn determinism(mut self, determinism: Determinism) -> Config {
        self.determinism = Some(determinism);
        self
    }

    /// Compares call descriptors where that costs an exchange.
    #[must_use]
    pub fn check(mut self, check: bool) -> Config {
        self.check = Some(check);
        self
    }

    /// Sets how a rank waits for its peers.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Config {
        self.wait = Some(wait);
        self
    }

    /// Sets what happens when a deadline has passed and the engine can't be stopped.
    #[must_use]
    pub fn on_stuck(mut self, on_stuck: OnStuck) -> Config {
        self.on_stuck = Some(on_stuck);
        self
    }

    /// Sets how a deadline is kept where the engine can't be stopped (default [`DeadlineMode::Watch`]).
    #[must_use]
    pub fn deadline(mut self, deadline: DeadlineMode) -> Config {
        self.deadline = Some(deadline);
        self
    }

    /// Applies the process environment. `Config` error naming the variable when a value can't be read.
    pub fn resolve(&self) -> Result<Settings> {
        self.resolve_from(|name| match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Error::config(format!("{name} is not valid UTF-8; unset it or give it a plain value")))
            }
        })
    }

    /// [`Config::resolve`] over any source of variables.
    pub fn resolve_from(&self, read: impl Fn(&str) -> Result<Option<String>>) -> Result<Settings> {
        let defaults = Settings::default();
        let word = |name: &str, words: &[&str]| -> Result<Option<usize>> {
            let Some(value) = read(name)? else { return Ok(None) };
            match words.iter().position(|word| *word == value) {
                Some(i) => Ok(Some(i)),
                None => Err(Error::config(format!("{name}={value:?} is not one of {}", words.join(", ")))),
            }
        };
        let seconds = |name: &str| -> Result<Option<Duration>> {
            let Some(value) = read(name)? else { return Ok(None) };
            value
                .parse::<f64>()
                .ok()
                .filter(|seconds| *seconds > 0.0 && *seconds <= 1e9)
                .map(|seconds| Some(Duration::from_secs_f64(seconds)))
                .ok_or_else(|| {
                    Error::config(format!("{name}={value:?} is not a number of seconds above 0 and at most 1e9"))
                })
        };
        let from_env = read("RANKWISE_BACKEND")?.filter(|name| !name.is_empty());
        Ok(Settings {
            backend: self.backend.clone().or(from_env).or_else(|| self.fallback.clone()),
            timeout: self.timeout.or(seconds("RANKWISE_TIMEOUT")?).unwrap_or(defaults.timeout),
            join_timeout: self.join_timeout.or(seconds("RANKWISE_JOIN_TIMEOUT")?).unwrap_or(defaults.join_timeout),
            determinism: match (self.determinism, word("RANKWISE_DETERMINISM", &["topology", "fixed"])?) {
                (Some(level), _) => level,
                (None, Some(1)) => Determinism::Fixed,
                (None, _) => Determinism::SameTopology,
            },
            check: self.check.or(word("RANKWISE_CHECK", &["0", "1"])?.map(|i| i == 1)).unwrap_or(defaults.check),
            wait: match (self.wait, word("RANKWISE_WAIT", &["auto", "spin", "yield"])?) {
                (Some(wait), _) => wait,
                (None, Some(1)) => Wait::Spin,
                (None, Some(2)) => Wait::Yield,
                (None, _) => Wait::Auto,
            },
            on_stuck: match (self.on_stuck, word("RANKWISE_ON_STUCK", &["exit", "wait"])?) {
                (Some(action), _) => action,
                (None, Some(1)) => OnStuck::Wait,
                (None, _) => OnStuck::Exit,
            },
            deadline: match (self.deadline, word("RANKWISE_DEADLINE", &["watch", "enforce"])?) {
                (Some(mode), _) => mode,
                (None, Some(1)) => DeadlineMode::Enforce,
                (None, _) => DeadlineMode::Watch,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn resolve(config: &Config, environment: &[(&str, &str)]) -> Result<Settings> {
        config.resolve_from(|name| Ok(environment.iter().find(|(key, _)| *key == name).map(|(_, v)| v.to_string())))
    }

    #[test]
    fn code_wins_over_environment_wins_over_fallback() {
        let environment = [("RANKWISE_BACKEND", "ucx"), ("RANKWISE_TIMEOUT", "2.5")];
        let settings = resolve(&Config::new().backend_or("shm"), &environment).unwrap();
        assert_eq!(settings.backend.as_deref(), Some("ucx"));
        assert_eq!(settings.timeout, Duration::from_millis(2500));
        let config = Config::new().backend("mpi").timeout(Duration::from_secs(1));
        let settings = resolve(&config, &environment).unwrap();
        assert_eq!(settings.backend.as_deref(), Some("mpi"));
        assert_eq!(settings.timeout, Duration::from_secs(1));
        assert_eq!(resolve(&Config::new().backend_or("shm"), &[]).unwrap().backend.as_deref(), Some("shm"));
        assert_eq!(resolve(&Config::new(), &[]).unwrap(), Settings::default());
    }

    #[test]
    fn unreadable_values_name_the_variable() {
        for (name, value) in [
            ("RANKWISE_TIMEOUT", "soon"),
            ("RANKWISE_TIMEOUT", "-1"),
            ("RANKWISE_TIMEOUT", "inf"),
            ("RANKWISE_JOIN_TIMEOUT", "0"),
            ("RANKWISE_CHECK", "yes"),
            ("RANKWISE_WAIT", "sleep"),
            ("RANKWISE_DETERMINISM", ""),
            ("RANKWISE_ON_STUCK", "abort"),
            ("RANKWISE_DEADLINE", "soft"),
        ] {
            let error = resolve(&Config::new(), &[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Config);
            assert!(error.message().starts_with(name), "{error}");
        }
    }

    #[test]
    fn every_variable_of_the_table_is_read() {
        let read = std::cell::RefCell::new(Vec::new());
        Config::new()
            .resolve_from(|name| {
                read.borrow_mut().push(name.to_string());
                Ok(None)
            })
            .unwrap();
        let mut read = read.into_inner();
        let mut table: Vec<_> = VARIABLES.iter().map(|v| v.name.to_string()).collect();
        read.sort();
        table.sort();
        assert_eq!(read, table);
    }
}
