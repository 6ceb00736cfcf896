//! `--differential`: the same calls on every backend, in every mode and made in several ways must give the same bits.
//!
//! Every rank records what each call gave; here the records are compared with each other and with the reference, which is
//! the oracle of the suite. Where all backends offer fixed determinism the values are such that the order of addition
//! shows; elsewhere they are exact, and the mean and the scaled sum may differ by two units in the last place.

use crate::job::RankCommand;
use crate::report::{CaseReport, Reporter, Verdict};
use crate::runner::Options;
use crate::sequences::generate::{Choices, generate};
use crate::sequences::script::{Script, Step};
use crate::sequences::{Digest, Form, Outcome, Patience, Subject, attempt, table_of};
use rankwise_core::Result;
use std::collections::BTreeMap;

/// Calls of a run that names no number.
const DEFAULT_CALLS: usize = 1000;

/// Runs that are named where many gave the same.
const SHOWN_COLUMNS: usize = 4;

/// The results of one backend, in one mode, with the calls made in one way.
struct Column<'a> {
    subject: Subject<'a>,
    form: Form,
    outcome: Outcome,
    /// By rank and call.
    digests: BTreeMap<(usize, u64), Digest>,
}

impl Column<'_> {
    fn name(&self) -> String {
        format!("{} {} {}", self.subject.name(), self.subject.mode.name(), self.form.name())
    }
}

/// Runs and compares in every world.
pub(crate) fn run(
    backends: &[(&str, Option<&str>)],
    options: &Options,
    command: &RankCommand,
    reporter: &mut Reporter<'_>,
) -> Result<()> {
    let mode = options.modes[0];
    let tables = backends.iter().map(|(backend, _)| table_of(backend, mode, command)).collect::<Result<Vec<_>>>()?;
    let fixed = tables.iter().all(|table| table.fixed);
    let mut thresholds: Vec<u64> = tables.iter().flat_map(|table| table.thresholds.iter().copied()).collect();
    thresholds.sort_unstable();
    thresholds.dedup();
    let choices = Choices { thresholds, plain: true, rounding: fixed };
    for &ranks in &options.ranks {
        let script = generate(options.seed, ranks, options.calls.unwrap_or(DEFAULT_CALLS), &choices);
        let mut columns = Vec::new();
        for ((backend, mutant), table) in backends.iter().zip(&tables) {
            for &mode in &options.modes {
                for form in Form::ALL {
                    let offered = match form {
                        Form::Allocated => table.alloc,
                        Form::Started => table.nonblocking,
                        Form::Plain | Form::Pieces => true,
                    };
                    if !offered {
                        reporter.say(&format!("skipped: {backend} {} {}: not offered", mode.name(), form.name()));
                        continue;
                    }
                    let seconds = options.case_seconds;
                    let subject = Subject { backend, mutant: *mutant, mode, ranks, command, seconds };
                    columns.push(column(subject, form, &script)?);
                }
            }
        }
        compare(&script, &columns, fixed, reporter);
        reporter.check()?;
    }
    Ok(())
}

fn column<'a>(subject: Subject<'a>, form: Form, script: &Script) -> Result<Column<'a>> {
    let mut outcome = attempt(&subject, script, Some(form), Patience::Long)?;
    let by_rank = std::mem::take(&mut outcome.digests);
    let digests = by_rank
        .into_iter()
        .flat_map(|(rank, digests)| digests.into_iter().map(move |digest| ((rank, digest.values), digest)));
    Ok(Column { subject, form, outcome, digests: digests.collect() })
}

fn compare(script: &Script, columns: &[Column<'_>], fixed: bool, reporter: &mut Reporter<'_>) {
    for column in columns {
        let how = if fixed { "bit for bit" } else { "within the documented bound" };
        let title = format!("differential: {} calls {}, {how}", script.calls(), column.form.name());
        let (result, detail, wrong_result) = match (&column.outcome.failure, first_difference(script, column, columns))
        {
            (_, Some(difference)) => (Verdict::Fail, difference, true),
            (Some((_, why)), None) => (Verdict::Fail, why.clone(), false),
            (None, None) => (Verdict::Pass, String::new(), false),
        };
        reporter.add(&CaseReport {
            case: format!("differential {}", column.form.name()),
            title,
            backend: column.subject.name(),
            mode: Some(column.subject.mode),
            ranks: column.subject.ranks,
            result,
            detail,
            wrong_result,
            millis: column.outcome.elapsed.as_millis() as u64,
        });
    }
    let alike = columns.iter().filter(|column| first_difference(script, column, columns).is_none()).count();
    let results: usize = columns.iter().map(|column| column.digests.len()).sum();
    let (ranks, left_out) = (script.ranks, columns.iter().map(|column| column.outcome.left_out).max().unwrap_or(0));
    reporter.say(&format!(
        "{ranks} ranks: {results} results of {} calls compared with the reference; {alike} of {} runs agree{}",
        script.calls(),
        columns.len(),
        if left_out > 0 { format!("; up to {left_out} calls a run are not offered") } else { String::new() }
    ));
}

/// The first call, in the order of the script, that gave this column something else than the reference.
fn first_difference(script: &Script, column: &Column<'_>, columns: &[Column<'_>]) -> Option<String> {
    let differs = |digest: &Digest| digest.wrong.is_some() || digest.got != digest.want;
    let different: Vec<(&(usize, u64), &Digest)> =
        column.digests.iter().filter(|(_, digest)| differs(digest)).collect();
    let order = |values: u64| {
        script.steps.iter().position(|step| matches!(step, Step::Call { call, .. } if call.values == values))
    };
    let (key, digest) = different.iter().min_by_key(|((rank, values), _)| (order(*values), *rank))?;
    let step = order(key.1).unwrap_or(0);
    let named = |agrees: &dyn Fn(&Digest) -> bool| -> String {
        let others = columns.iter().filter(|other| other.digests.get(key).is_some_and(agrees));
        let names: Vec<String> = others.map(Column::name).collect();
        let more = names.len().saturating_sub(SHOWN_COLUMNS);
        match names.len() {
            0 => "none".into(),
            _ if more == 0 => names.join(", "),
            _ => format!("{} and {more} more", names[..SHOWN_COLUMNS].join(", ")),
        }
    };
    Some(format!(
        "step {}, {}: rank {}: {}; {} of {} results differ; as the reference: {}; as here: {}",
        step + 1,
        script.steps.get(step).map(ToString::to_string).unwrap_or_default(),
        key.0,
        digest.wrong.as_deref().unwrap_or("other bits than the reference"),
        different.len(),
        column.digests.len(),
        named(&|other| !differs(other)),
        named(&|other| differs(other) && other.got == digest.got),
    ))
}
