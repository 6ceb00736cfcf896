//! What is expected of a backend, as data apart from its own table: what it has promised, and where it is known to deviate.
//!
//! The files of the backends of this workspace are in `expected/`; other people's come with `--expectations FILE`. One file
//! describes one backend:
//!
//! ```toml
//! backend = "mine"
//! also = ["mine-fast"]            # the same code over another library
//!
//! [promise]                       # everything that is left out is not promised
//! operations = ["all_reduce", "all_gather", "broadcast", "barrier"]
//! moves = "all"                   # "all", "floats", "integers" or a list of types
//! memory = ["host"]
//! determinism = "same topology"   # or "fixed"
//! deadline = "enforced"           # or "watched"
//! agreement = true                # mismatches are found, refusals told
//! start = false
//! alloc = false
//! largest_buffer = 1073741824     # bytes
//! reductions = { sum = "floats", max = ["f32", "i32"] }
//!
//! [[deviation]]                   # a case that fails under these conditions, always
//! case = "MM-38"
//! ranks = "2,4-8"                 # where: numbers of ranks, "3-" for three or more
//! mode = "processes"              # where: threads, processes or outer
//! version = "4.1"                 # where: what the backend's probe reports as "version" begins with it
//! reason = "the engine compares counts only"
//! link = "https://example.org/issues/1"
//!
//! [[deviation]]                   # or calls whose result is wrong, always, whatever the case
//! operation = "reduce"
//! op = "sum"
//! dtype = "bf16"
//! reason = "rounds twice"
//! ```
//!
//! There is no "sometimes": what is listed and passes fails the run, so that the list stays true.

mod deviation;
mod matrix;
mod promise;

pub(crate) use deviation::{CallLog, Settled};
pub use deviation::{Deviation, Known};
pub use matrix::{fill, tables};
pub use promise::Promise;

use crate::case::{Case, Level};
use crate::cases::conditions;
use crate::plan::Mode;
use rankwise_core::{Error, Result};
use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

/// What is expected of one backend.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    /// The backend's name.
    pub backend: String,
    /// Other names of the same code over another library.
    pub also: Vec<String>,
    /// What it has promised, if anything.
    pub promise: Option<Promise>,
    /// Where it is known to deviate.
    pub deviations: Vec<Deviation>,
}

/// A file, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    backend: Spanned<String>,
    #[serde(default)]
    also: Vec<String>,
    promise: Option<promise::Written>,
    #[serde(default)]
    deviation: Vec<Spanned<deviation::Written>>,
}

/// The files of the backends of this workspace, by name.
const BUILT_IN: [(&str, &str); 3] = [
    ("expected/shm.toml", include_str!("../../expected/shm.toml")),
    ("expected/mpi.toml", include_str!("../../expected/mpi.toml")),
    ("expected/ucx.toml", include_str!("../../expected/ucx.toml")),
];

impl Expectations {
    fn is_about(&self, backend: &str) -> bool {
        self.backend == backend || self.also.iter().any(|name| name == backend)
    }

    /// Reads the text of a file; `path` is for messages.
    ///
    /// `Config` with the line for what TOML or this format doesn't allow: unknown keys, cases, operations and types,
    /// conditions that contradict each other, a deviation without a reason.
    pub fn parse(path: &str, text: &str) -> Result<Expectations> {
        let file = File { path, text };
        let written: Written = toml::from_str(text).map_err(|error| {
            let at = error.span().unwrap_or(0..0);
            file.error(&at, error.message())
        })?;
        let backend = written.backend.get_ref();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if backend.is_empty() || !backend.chars().all(is_name) {
            return Err(file.error(&written.backend.span(), "backend is a name, for example \"shm\""));
        }
        let deviations = written.deviation.iter().map(|one| Deviation::read(&file, one)).collect::<Result<Vec<_>>>()?;
        Ok(Expectations {
            backend: backend.clone(),
            also: written.also,
            promise: written.promise.map(|promise| Promise::read(&file, &promise)).transpose()?,
            deviations,
        })
    }

    /// Reads a file. Errors as [`Expectations::parse`], and `Config` when it can't be read.
    pub fn read_file(path: &str) -> Result<Expectations> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::config(format!("{path} can't be read")).with_source(error))?;
        Expectations::parse(path, &text)
    }

    /// What is built in about the backends of this workspace.
    pub fn built_in() -> Result<Vec<Expectations>> {
        BUILT_IN.iter().map(|(path, text)| Expectations::parse(path, text)).collect()
    }

    /// What is known about a backend: built in, and in `files`. Nothing is expected of a backend that none names.
    ///
    /// `Config` when two of them make a promise for it.
    pub fn of(backend: &str, files: &[Expectations]) -> Result<Expectations> {
        let mut all = Expectations { backend: backend.into(), ..Expectations::default() };
        for file in Expectations::built_in()?.iter().chain(files).filter(|file| file.is_about(backend)) {
            if all.promise.is_some() && file.promise.is_some() {
                let text =
                    format!("there are two promises for backend {backend}; keep one, the built-in one if there is one");
                return Err(Error::config(text));
            }
            all.promise = all.promise.or_else(|| file.promise.clone());
            all.deviations.extend(file.deviations.iter().cloned());
        }
        Ok(all)
    }
}

impl Expectations {
    /// Without the deviations of other versions. `Config` when one asks for a version and the backend reports none.
    pub(crate) fn in_version(mut self, version: Option<&str>) -> Result<Expectations> {
        if let (None, Some(asking)) = (version, self.deviations.iter().find(|one| one.version.is_some())) {
            let text = format!("{}: backend {} reports no version; leave the version out", asking.at, self.backend);
            return Err(Error::config(text));
        }
        self.deviations
            .retain(|one| one.version.as_ref().is_none_or(|wanted| is_within(version.unwrap_or(""), wanted)));
        Ok(self)
    }

    /// Why an "unsupported" is a failure, if it is.
    pub(crate) fn broken_promise(&self, case: &Case) -> Option<String> {
        let backend = &self.backend;
        match &self.promise {
            Some(promise) if promise.meets_all(case) => Some(format!("{backend} has promised what this case needs")),
            // Without a promise only the capability level may be lacking at all.
            None if case.level == Level::Must
                && case.needs.is_empty()
                && conditions::lacking(case.id, false, false).is_none() =>
            {
                Some("every backend must offer this".into())
            }
            _ => None,
        }
    }

    /// Why a case makes no sense for this backend.
    pub(crate) fn inapplicable(&self, case: &Case) -> Option<String> {
        (case.about_promise && self.promise.is_none())
            .then(|| "nothing is promised; give a file with --expectations".into())
    }

    /// The deviations of calls that apply in such a world, with their positions.
    pub(crate) fn of_calls(&self, mode: Mode, ranks: usize) -> Vec<(usize, Deviation)> {
        let all = self.deviations.iter().cloned().enumerate();
        all.filter(|(_, one)| matches!(one.known, Known::Calls { .. }) && one.applies(mode, ranks)).collect()
    }
}

/// Whether `version` is `wanted`, or goes on after it with something that isn't part of the same number.
fn is_within(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// A file and how errors in it are said.
struct File<'a> {
    path: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn place(&self, at: &Range<usize>) -> String {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        format!("{}:{}", self.path, before.matches('\n').count() + 1)
    }

    fn error(&self, at: &Range<usize>, what: &str) -> Error {
        Error::config(format!("{}: {what}", self.place(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    fn refused(text: &str) -> String {
        Expectations::parse("mine.toml", text).unwrap_err().message().to_string()
    }

    #[test]
    fn what_is_built_in_can_be_read() {
        for (file, (path, _)) in Expectations::built_in().unwrap().iter().zip(BUILT_IN) {
            assert_eq!(path, format!("expected/{}.toml", file.backend));
            assert!(file.promise.is_some());
        }
        assert!(Expectations::of("shm", &[]).unwrap().promise.is_some());
        assert!(Expectations::of("somebody-elses", &[]).unwrap().promise.is_none());
        let twice = Expectations::parse("mine.toml", "backend = \"shm\"\n[promise]\n").unwrap();
        assert!(Expectations::of("shm", &[twice]).is_err());
    }

    #[test]
    fn versions_select_deviations() {
        let text = "backend = \"x\"\n[[deviation]]\ncase = \"AR-1\"\nreason = \"so\"\nversion = \"4.1\"";
        let all = Expectations::parse("x.toml", text).unwrap();
        let left = |version| all.clone().in_version(version).map(|kept| kept.deviations.len());
        for (version, count) in [("4.1", 1), ("4.1.6", 1), ("4.10", 0), ("5.0", 0), ("14.1", 0)] {
            assert_eq!(left(Some(version)).unwrap(), count, "{version}");
        }
        assert!(left(None).unwrap_err().message().starts_with("x.toml:2: backend x reports no version"));
    }

    #[test]
    fn unsupported_is_a_failure_where_it_was_promised() {
        let case = |id| cases::find(id).unwrap();
        let shm = Expectations::of("shm", &[]).unwrap();
        assert!(cases::all().iter().all(|case| shm.broken_promise(case).is_some()));
        let nobody = Expectations::of("somebody-elses", &[]).unwrap();
        assert!(nobody.broken_promise(&case("AR-1")).is_none());
        assert!(nobody.broken_promise(&case("TB-152")).is_some());
        let little =
            Expectations::parse("x.toml", "backend = \"x\"\n[promise]\noperations = [\"all_gather\"]").unwrap();
        assert!(little.broken_promise(&case("AR-1")).is_none() && little.broken_promise(&case("AG-53")).is_some());
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, wanted) in [
            ("backend = \"a b\"", "mine.toml:1: backend is a name"),
            ("backend = \"x\"\n\nno such = 1", "mine.toml:3: "),
            ("backend = \"x\"\nother = 1", "mine.toml:2: unknown field `other`"),
            ("backend = \"x\"\n[promise]\nstart = 1", "mine.toml:3: invalid type"),
            (
                "backend = \"x\"\n[promise]\noperations = [\n\"all_reduce\",\n\"al_gather\"]",
                "mine.toml:5: there is no operation \"al_gather\"",
            ),
            ("backend = \"x\"\n[promise]\nmoves = \"most\"", "mine.toml:3: types are"),
            ("backend = \"x\"\n[promise]\nreductions = { sum = [\"f31\"] }", "mine.toml:3: there is no type \"f31\""),
            ("backend = \"x\"\n[promise.reductions]\nplus = \"all\"", "mine.toml:3: there is no operator \"plus\""),
            ("backend = \"x\"\n[promise.reductions]\navg = \"all\"", "mine.toml:3: avg has no meaning for i8"),
            ("backend = \"x\"\n[promise]\nmemory = [\"disk\"]", "mine.toml:3: memory is"),
            ("backend = \"x\"\n[promise]\ndeterminism = \"some\"", "mine.toml:3: determinism is"),
            ("backend = \"x\"\n[promise]\ndeadline = \"some\"", "mine.toml:3: deadline is"),
            ("backend = \"x\"\n[[deviation]]\ncase = \"AR-1\"", "mine.toml:2: missing field `reason`"),
            (
                "backend = \"x\"\n[[deviation]]\ncase = \"AR-1\"\nreason = \" \"",
                "mine.toml:4: a deviation has a reason",
            ),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"\ncase = \"XX-1\"",
                "mine.toml:4: there is no case \"XX-1\"",
            ),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"",
                "mine.toml:2: a deviation names a case, or an operation",
            ),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"\ncase = \"AR-1\"\ndtype = \"f32\"",
                "mine.toml:2: a deviation names a case, or an operation",
            ),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"\ncase = \"AR-1\"\nsometimes = true",
                "mine.toml:5: unknown field `sometimes`",
            ),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"\ncase = \"AR-1\"\nranks = \"4-2\"",
                "mine.toml:5: ranks are",
            ),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"\ncase = \"AR-1\"\nmode = \"fibres\"",
                "mine.toml:5: mode is",
            ),
            ("backend = \"x\"\n[[deviation]]\nreason = \"r\"\noperation = \"send\"", "mine.toml:4: results of send"),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"\noperation = \"broadcast\"\nop = \"sum\"",
                "mine.toml:5: broadcast has no operator",
            ),
            (
                "backend = \"x\"\n[[deviation]]\nreason = \"r\"\ndtype = \"i8\"\nop = \"avg\"",
                "mine.toml:5: avg has no meaning for i8",
            ),
        ] {
            let error = refused(text);
            assert!(error.starts_with(wanted), "{text}\ngave {error}\nnot {wanted}");
        }
    }
}
