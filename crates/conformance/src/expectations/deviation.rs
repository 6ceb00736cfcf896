//! Where a backend is known to deviate, under which conditions, and why.

use super::{Expectations, File, promise};
use crate::cases;
use crate::operation::Operation;
use crate::plan::Mode;
use crate::report::{CaseReport, Reporter, Verdict};
use rankwise_core::{DType, OpKind, ReduceOp, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use toml::Spanned;

/// One known deviation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deviation {
    /// Where it is listed, as `FILE:LINE`.
    pub at: String,
    /// What deviates.
    pub known: Known,
    /// Numbers of ranks, as ranges with both ends in them; empty for any.
    pub ranks: Vec<(usize, usize)>,
    /// How ranks are placed, if that matters.
    pub mode: Option<Mode>,
    /// What the version that the backend's probe reports begins with, if that matters.
    pub version: Option<String>,
    /// Why.
    pub reason: String,
    /// Where to read more.
    pub link: Option<String>,
}

/// What deviates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Known {
    /// A case fails.
    Case(String),
    /// Calls give a wrong result or an error, in whichever case they are made; no name: any.
    Calls {
        /// Of this operation.
        operation: Option<String>,
        /// With this operator.
        op: Option<String>,
        /// On this type.
        dtype: Option<String>,
    },
}

/// A deviation, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    case: Option<Spanned<String>>,
    operation: Option<Spanned<String>>,
    op: Option<Spanned<String>>,
    dtype: Option<Spanned<String>>,
    ranks: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    version: Option<String>,
    reason: Spanned<String>,
    link: Option<String>,
}

impl Deviation {
    pub(super) fn read(file: &File<'_>, spanned: &Spanned<Written>) -> Result<Deviation> {
        let written = spanned.get_ref();
        if written.reason.get_ref().trim().is_empty() {
            return Err(file.error(&written.reason.span(), "a deviation has a reason"));
        }
        let about_calls = written.operation.is_some() || written.op.is_some() || written.dtype.is_some();
        let known = match &written.case {
            Some(case) if !about_calls => {
                if cases::find(case.get_ref()).is_none() {
                    let text = format!("there is no case {:?}; `--list` prints them", case.get_ref());
                    return Err(file.error(&case.span(), &text));
                }
                Known::Case(case.get_ref().clone())
            }
            None if about_calls => read_calls(file, written)?,
            _ => {
                let text = "a deviation names a case, or an operation, op or dtype, and not both";
                return Err(file.error(&spanned.span(), text));
            }
        };
        let ranks = match &written.ranks {
            None => Vec::new(),
            Some(text) => parse_ranks(text.get_ref()).ok_or_else(|| {
                file.error(&text.span(), "ranks are numbers and ranges, for example \"2,4-8\" or \"3-\"")
            })?,
        };
        let mode = match &written.mode {
            None => None,
            Some(word) => {
                let known = Mode::ALL.into_iter().find(|mode| mode.name() == word.get_ref());
                Some(known.ok_or_else(|| file.error(&word.span(), "mode is \"threads\", \"processes\" or \"outer\""))?)
            }
        };
        let (version, reason, link) = (written.version.clone(), written.reason.get_ref().clone(), written.link.clone());
        Ok(Deviation { at: file.place(&spanned.span()), known, ranks, mode, version, reason, link })
    }

    /// Whether the conditions on the world hold.
    pub(crate) fn applies(&self, mode: Mode, ranks: usize) -> bool {
        self.mode.is_none_or(|wanted| wanted == mode)
            && (self.ranks.is_empty() || self.ranks.iter().any(|(least, most)| (*least..=*most).contains(&ranks)))
    }

    fn is_about(&self, o: &Operation) -> bool {
        let Known::Calls { operation, op, dtype } = &self.known else { return false };
        operation.as_ref().is_none_or(|name| name == o.kind.name())
            && op.as_ref().is_none_or(|name| o.op.is_some_and(|op| name == op.name()))
            && dtype.as_ref().is_none_or(|name| name == o.dtype.name())
    }

    /// For people: what fails, where, and why.
    pub(super) fn describe(&self) -> String {
        let mut text = match &self.known {
            Known::Case(case) => format!("{case} fails"),
            Known::Calls { operation, op, dtype } => {
                let words = [operation, op, dtype].map(|name| name.clone()).into_iter().flatten();
                format!("{} is wrong", words.collect::<Vec<_>>().join(" "))
            }
        };
        if !self.ranks.is_empty() {
            let range = |(least, most): &(usize, usize)| match (least, most) {
                (least, &usize::MAX) => format!("{least} or more"),
                (least, most) if least == most => least.to_string(),
                (least, most) => format!("{least} to {most}"),
            };
            let ranges: Vec<String> = self.ranks.iter().map(range).collect();
            text += &format!(" with {} ranks", ranges.join(", "));
        }
        if let Some(mode) = self.mode {
            text += &format!(", mode {}", mode.name());
        }
        if let Some(version) = &self.version {
            text += &format!(", version {version}");
        }
        let link = self.link.as_ref().map(|link| format!(" (<{link}>)")).unwrap_or_default();
        format!("{text}: {}{link}", self.reason)
    }

    /// The reason, with the link, and where it is listed.
    pub(crate) fn why(&self) -> String {
        let link = self.link.as_ref().map(|link| format!(", see {link}")).unwrap_or_default();
        format!("{}{link} [{}]", self.reason, self.at)
    }
}

fn read_calls(file: &File<'_>, written: &Written) -> Result<Known> {
    let checked = |name: &Option<Spanned<String>>, known: fn(&str) -> bool, error: fn(&str) -> String| match name {
        Some(name) if !known(name.get_ref()) => Err(file.error(&name.span(), &error(name.get_ref()))),
        name => Ok(name.as_ref().map(|name| name.get_ref().clone())),
    };
    let operation = checked(&written.operation, |name| OpKind::from_name(name).is_some(), promise::no_operation)?;
    // Only cases of their own make these calls.
    if let Some(name) =
        written.operation.as_ref().filter(|n| matches!(n.get_ref().as_str(), "send" | "recv" | "barrier"))
    {
        let text = format!("results of {} are not compared call by call; name the case instead", name.get_ref());
        return Err(file.error(&name.span(), &text));
    }
    let is_operator = |name: &str| ReduceOp::ALL.iter().any(|op| op.name() == name);
    let op = checked(&written.op, is_operator, promise::no_operator)?;
    let dtype = checked(&written.dtype, |name| DType::from_name(name).is_some(), promise::no_type)?;
    // No call falls under these, so that nobody would ever learn that the entry is stale.
    if let Some(op) = &written.op {
        let kind = operation.as_deref().and_then(OpKind::from_name);
        if let Some(kind) = kind.filter(|kind| !kind.reduces()) {
            return Err(file.error(&op.span(), &format!("{kind} has no operator")));
        }
        let known = ReduceOp::ALL.into_iter().find(|known| known.name() == op.get_ref());
        let dtype = dtype.as_deref().and_then(DType::from_name);
        if let Some((known, dtype)) = known.zip(dtype).filter(|(known, dtype)| !known.is_meaningful_for(*dtype)) {
            return Err(file.error(&op.span(), &format!("{} has no meaning for {dtype}", known.name())));
        }
    }
    Ok(Known::Calls { operation, op, dtype })
}

fn parse_ranks(text: &str) -> Option<Vec<(usize, usize)>> {
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n > 0);
    let range = |part: &str| match part.split_once('-') {
        None => number(part).map(|n| (n, n)),
        Some((least, "")) => number(least).map(|least| (least, usize::MAX)),
        Some((least, most)) => Some((number(least)?, number(most)?)).filter(|(least, most)| least <= most),
    };
    text.split(',').map(range).collect()
}

/// Which deviations of calls a rank has met: by position in [`Expectations::deviations`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallLog {
    /// Such calls were made.
    pub(crate) tried: BTreeSet<usize>,
    /// One of them went wrong.
    pub(crate) went_wrong: BTreeSet<usize>,
}

impl CallLog {
    /// The deviation, by position, that a call falls under.
    pub(crate) fn find(deviations: &[(usize, Deviation)], o: &Operation) -> Option<usize> {
        deviations.iter().find(|(_, deviation)| deviation.is_about(o)).map(|(index, _)| *index)
    }

    /// Takes in what another rank or case has met.
    pub(crate) fn extend(&mut self, other: &CallLog) {
        self.tried.extend(&other.tried);
        self.went_wrong.extend(&other.went_wrong);
    }
}

/// Results in the light of what is expected.
pub(crate) struct Settled<'a> {
    expected: &'a Expectations,
    /// Of the whole run.
    calls: CallLog,
    /// Parts of cases that were not run since they were last asked for, and why.
    pub(crate) skipped: BTreeSet<String>,
}

impl<'a> Settled<'a> {
    pub(crate) fn new(expected: &'a Expectations) -> Settled<'a> {
        Settled { expected, calls: CallLog::default(), skipped: BTreeSet::new() }
    }

    pub(crate) fn expected(&self) -> &'a Expectations {
        self.expected
    }

    /// A failure that is known does not count, and what is listed but does not fail is a failure. `calls` are those of this
    /// case.
    pub(crate) fn settle(&mut self, mode: Mode, report: &mut CaseReport, calls: &BTreeMap<String, CallLog>) {
        let met = calls.get(&report.case);
        if let Some(met) = met {
            self.calls.extend(met);
        }
        let listed = self.expected.deviations.iter().find(|deviation| {
            deviation.known == Known::Case(report.case.clone()) && deviation.applies(mode, report.ranks)
        });
        let whys = |indices: &BTreeSet<usize>| -> Vec<String> {
            indices.iter().filter_map(|index| self.expected.deviations.get(*index)).map(Deviation::why).collect()
        };
        match (report.result, listed) {
            (Verdict::Fail, Some(known)) => {
                report.result = Verdict::Known;
                report.wrong_result = false;
                report.detail = format!("known deviation: {}: {}", known.why(), report.detail);
            }
            (Verdict::Pass | Verdict::Unsupported, Some(known)) => {
                let how = if report.result == Verdict::Pass { "passes" } else { "is unsupported" };
                report.result = Verdict::Fail;
                report.detail = format!(
                    "{how}, but {} lists it as a known deviation ({}): remove the entry or narrow its conditions",
                    known.at, known.reason
                );
            }
            (Verdict::Pass, None) => {
                let why = met.map(|met| whys(&met.went_wrong)).unwrap_or_default();
                if !why.is_empty() {
                    report.result = Verdict::Known;
                    report.detail = format!("known deviation: {}", why.join("; "));
                }
            }
            _ => {}
        }
    }

    /// At the end of the run of a backend: a failure for each entry that nothing deviated under.
    pub(crate) fn report_stale(&self, backend: &str, reporter: &mut Reporter<'_>) {
        for stale in self.never_went_wrong() {
            reporter.add(&CaseReport {
                case: stale.at.clone(),
                title: "known deviations deviate".into(),
                backend: backend.into(),
                mode: None,
                ranks: 0,
                result: Verdict::Fail,
                detail: format!(
                    "all such calls were right, but they are listed as a known deviation ({}): remove the entry or narrow \
                     its conditions",
                    stale.reason
                ),
                wrong_result: false,
                millis: 0,
            });
        }
    }

    /// Deviations of calls none of which went wrong.
    fn never_went_wrong(&self) -> Vec<&'a Deviation> {
        let stale = self.calls.tried.difference(&self.calls.went_wrong);
        stale.filter_map(|index| self.expected.deviations.get(*index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(text: &str) -> Expectations {
        Expectations::parse("x.toml", &format!("backend = \"x\"\n[[deviation]]\nreason = \"so\"\n{text}")).unwrap()
    }

    fn report(result: Verdict) -> CaseReport {
        CaseReport {
            case: "AR-1".into(),
            title: String::new(),
            backend: "x".into(),
            mode: Some(Mode::Threads),
            ranks: 3,
            result,
            detail: "wrong".into(),
            wrong_result: true,
            millis: 0,
        }
    }

    fn settled(text: &str, result: Verdict) -> (Verdict, String) {
        let mut report = report(result);
        Settled::new(&expected(text)).settle(Mode::Threads, &mut report, &BTreeMap::new());
        (report.result, report.detail)
    }

    #[test]
    fn conditions_select() {
        let applies = |text: &str, mode, ranks| expected(text).deviations[0].applies(mode, ranks);
        assert!(applies("case = \"AR-1\"", Mode::Outer, 7));
        let text = "case = \"AR-1\"\nranks = \"2,4-5,8-\"\nmode = \"threads\"";
        for (ranks, wanted) in [(1, false), (2, true), (3, false), (4, true), (5, true), (6, false), (9, true)] {
            assert_eq!(applies(text, Mode::Threads, ranks), wanted, "{ranks}");
        }
        assert!(!applies(text, Mode::Processes, 2));
        for bad in ["", "0", "x", "1-2-3", "-", "-3", "3,,4"] {
            assert_eq!(parse_ranks(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_known_failure_does_not_count_and_a_pass_that_is_listed_does() {
        let (result, detail) = settled("case = \"AR-1\"\nlink = \"L\"", Verdict::Fail);
        assert_eq!((result, &*detail), (Verdict::Known, "known deviation: so, see L [x.toml:2]: wrong"));
        let (result, detail) = settled("case = \"AR-1\"", Verdict::Pass);
        assert_eq!(result, Verdict::Fail);
        assert!(detail.starts_with("passes, but x.toml:2 lists it") && detail.contains("remove"), "{detail}");
        assert_eq!(settled("case = \"AR-1\"", Verdict::Unsupported).0, Verdict::Fail);
        assert_eq!(settled("case = \"AR-1\"", Verdict::Inapplicable).0, Verdict::Inapplicable);
        assert_eq!(settled("case = \"AR-1\"\nranks = \"2\"", Verdict::Fail).0, Verdict::Fail);
        assert_eq!(settled("case = \"AR-2\"", Verdict::Fail).0, Verdict::Fail);
    }

    #[test]
    fn deviations_of_calls_are_known_where_they_go_wrong_and_stale_where_they_never_do() {
        let expected = expected("operation = \"reduce\"\ndtype = \"f32\"");
        let mut settled = Settled::new(&expected);
        let listed: Vec<_> = expected.deviations.iter().cloned().enumerate().collect();
        let o = |kind, dtype| Operation::reducing(kind, dtype, ReduceOp::Sum, 1);
        assert_eq!(CallLog::find(&listed, &o(OpKind::Reduce, DType::F32)), Some(0));
        assert_eq!(CallLog::find(&listed, &o(OpKind::Reduce, DType::F64)), None);
        assert_eq!(CallLog::find(&listed, &o(OpKind::AllReduce, DType::F32)), None);
        let log = |wrong: &[usize]| {
            let went_wrong = wrong.iter().copied().collect();
            BTreeMap::from([("AR-1".to_string(), CallLog { tried: BTreeSet::from([0]), went_wrong })])
        };
        let mut fine = report(Verdict::Pass);
        settled.settle(Mode::Threads, &mut fine, &log(&[]));
        assert_eq!((fine.result, settled.never_went_wrong().len()), (Verdict::Pass, 1));
        let mut wrong = report(Verdict::Pass);
        settled.settle(Mode::Threads, &mut wrong, &log(&[0]));
        assert_eq!((wrong.result, settled.never_went_wrong().len()), (Verdict::Known, 0));
    }
}
