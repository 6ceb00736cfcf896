//! A workload file: read, checked, and every complaint with its line.

use super::quantity::{Quantity, RANKS, is_name};
use crate::bench::op::Op;
use rankwise::{DType, ReduceOp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use toml::Spanned;

/// Largest file that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;
const MOST_VARIANTS: usize = 64;
const MOST_STEPS: usize = 256;

/// What one pass through the steps produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// The next token of each sequence.
    Token,
    /// One forward pass, training step or layer.
    Step,
}

impl Unit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Unit::Token => "token",
            Unit::Step => "step",
        }
    }
}

/// A checked workload, its sizes still open.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) source: String,
    pub(crate) unit: Unit,
    /// Names of the numbers that the ranks must divide.
    pub(crate) ranks_divide: Vec<String>,
    /// One for each combination of the numbers that are lists; at least one.
    pub(crate) variants: Vec<Variant>,
    pub(crate) steps: Vec<StepText>,
}

/// One choice of the numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variant {
    /// The numbers that distinguish it, for example `batch=16`. Empty when there is nothing to choose.
    pub(crate) label: String,
    pub(crate) shape: BTreeMap<String, u64>,
}

/// One step as the file says it.
#[derive(Clone, Debug)]
pub(crate) struct StepText {
    /// File and line, for complaints.
    pub(crate) place: String,
    pub(crate) op: Op,
    pub(crate) dtype: Option<DType>,
    pub(crate) redop: Option<ReduceOp>,
    /// Elements in a row, 1 where the file gives a count.
    pub(crate) width: Quantity,
    pub(crate) rows: Quantity,
    pub(crate) repeat: Quantity,
    pub(crate) in_place: bool,
    pub(crate) skew: Option<Skew>,
    /// Counts of the way back: what a rank received goes to where it came from.
    pub(crate) reverse: bool,
}

/// How unevenly tokens are spread.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Skew {
    /// Exponent of the popularity: the k-th most popular item has 1 / k^zipf.
    pub(crate) zipf: f64,
    /// Items, of which each rank holds equally many.
    #[serde(default = "over_ranks")]
    pub(crate) over: Quantity,
    #[serde(default)]
    pub(crate) seed: u32,
}

fn over_ranks() -> Quantity {
    Quantity::name(RANKS)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorkload {
    name: Spanned<String>,
    description: String,
    source: String,
    unit: Unit,
    #[serde(default)]
    shape: BTreeMap<Spanned<String>, Spanned<Sizes>>,
    #[serde(default)]
    ranks_divide: Vec<Spanned<String>>,
    steps: Vec<Spanned<RawStep>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a whole number or a list of them")]
enum Sizes {
    One(u32),
    Each(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    op: Spanned<String>,
    dtype: Option<Spanned<String>>,
    redop: Option<Spanned<String>>,
    count: Option<Spanned<Quantity>>,
    rows: Option<Spanned<Quantity>>,
    width: Option<Spanned<Quantity>>,
    repeat: Option<Spanned<Quantity>>,
    in_place: Option<Spanned<bool>>,
    skew: Option<Spanned<Skew>>,
    reverse: Option<Spanned<bool>>,
}

/// Reads a file of the user.
pub(crate) fn read(path: &str) -> Result<Workload, String> {
    let cannot = |error: std::io::Error| format!("cannot read the workload {path:?}: {error}");
    // Anything else may never end, or block.
    if !std::fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(format!("the workload {path:?} is no regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes)).map_err(cannot)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("the workload {path:?} has more than {MOST_BYTES} bytes; see docs/workloads.md"));
    }
    let text = String::from_utf8(bytes).map_err(|error| format!("the workload {path:?} is no UTF-8 text: {error}"))?;
    parse(path, &text)
}

/// Checks all that does not depend on the number of ranks. `file` is for complaints.
pub(crate) fn parse(file: &str, text: &str) -> Result<Workload, String> {
    let place = |span: &Range<usize>| {
        let before = text.as_bytes().get(..span.start).unwrap_or(text.as_bytes());
        format!("{file}:{}", 1 + before.iter().filter(|byte| **byte == b'\n').count())
    };
    let raw: RawWorkload = toml::from_str(text).map_err(|error| {
        let end = text.trim_end().len();
        let at = error.span().filter(|span| span.start > 0 || !error.message().starts_with("missing"));
        format!("{}: {}", place(&at.unwrap_or(end..end)), error.message().trim().replace('\n', " "))
    })?;
    let at = |span: Range<usize>, problem: String| Err(format!("{}: {problem}", place(&span)));
    let name = raw.name.get_ref();
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control() || c == ',') {
        return at(raw.name.span(), format!("the name {name:?} is empty or has spaces or commas"));
    }
    if raw.steps.is_empty() || raw.steps.len() > MOST_STEPS {
        return Err(format!("{file}: a workload has 1 to {MOST_STEPS} steps, this one {}", raw.steps.len()));
    }
    for name in raw.shape.keys() {
        if !is_name(name.get_ref()) || name.get_ref() == RANKS {
            let problem = format!("{:?} cannot be the name of a number; use letters, digits and _", name.get_ref());
            return at(name.span(), problem);
        }
    }
    let known = |name: &str| name == RANKS || raw.shape.contains_key(name);
    let unknown = |name: &str| {
        let all: Vec<_> = raw.shape.keys().map(|name| name.get_ref().as_str()).chain([RANKS]).collect();
        format!("there is no number {name:?} in [shape]; known: {}", all.join(", "))
    };
    for name in &raw.ranks_divide {
        if !known(name.get_ref()) {
            return at(name.span(), unknown(name.get_ref()));
        }
    }
    let mut variants = vec![Variant::default()];
    for (name, sizes) in &raw.shape {
        let (choices, several) = match sizes.get_ref() {
            Sizes::One(size) => (std::slice::from_ref(size), false),
            Sizes::Each(sizes) => (&sizes[..], true),
        };
        if choices.is_empty() || choices.len() * variants.len() > MOST_VARIANTS {
            return at(sizes.span(), format!("a workload has 1 to {MOST_VARIANTS} combinations of its numbers"));
        }
        let with = |variant: &Variant, size: u32| {
            let mut next = variant.clone();
            next.shape.insert(name.get_ref().clone(), size.into());
            if several {
                let gap = if next.label.is_empty() { "" } else { "," };
                next.label += &format!("{gap}{}={size}", name.get_ref());
            }
            next
        };
        variants = variants.iter().flat_map(|variant| choices.iter().map(|size| with(variant, *size))).collect();
    }
    let mut steps = Vec::new();
    for step in &raw.steps {
        let step_at = place(&step.span());
        steps.push(checked(step.get_ref(), step_at, &place, &|name| (!known(name)).then(|| unknown(name)))?);
    }
    Ok(Workload {
        name: name.clone(),
        description: raw.description,
        source: raw.source,
        unit: raw.unit,
        ranks_divide: raw.ranks_divide.into_iter().map(Spanned::into_inner).collect(),
        variants,
        steps,
    })
}

fn checked(
    raw: &RawStep,
    step: String,
    place: &dyn Fn(&Range<usize>) -> String,
    unknown: &dyn Fn(&str) -> Option<String>,
) -> Result<StepText, String> {
    let at = |span: Range<usize>, problem: String| format!("{}: {problem}", place(&span));
    let listed = |names: Vec<&str>| names.join(", ");
    let op = Op::from_name(raw.op.get_ref()).ok_or_else(|| {
        let all = listed(Op::ALL.iter().map(|op| op.name()).collect());
        at(raw.op.span(), format!("there is no operation {:?}; known: {all}", raw.op.get_ref()))
    })?;
    let dtype = raw.dtype.as_ref().map(|name| {
        let found = DType::from_name(name.get_ref()).filter(|dtype| dtype.size().is_some());
        let all = || listed(DType::NUMERIC.iter().map(|dtype| dtype.name()).collect());
        let problem = || at(name.span(), format!("there is no element type {:?}; known: {}", name.get_ref(), all()));
        found.ok_or_else(problem)
    });
    let redop = raw.redop.as_ref().map(|name| {
        let all = || listed(ReduceOp::ALL.iter().map(|op| op.name()).collect());
        let problem = || at(name.span(), format!("there is no operator {:?}; known: {}", name.get_ref(), all()));
        ReduceOp::from_name(name.get_ref()).ok_or_else(problem)
    });
    let (dtype, redop) = (dtype.transpose()?, redop.transpose()?);
    let one = || Quantity::number(1);
    let size = |quantity: &Option<Spanned<Quantity>>| -> Result<Option<Quantity>, String> {
        let Some(quantity) = quantity else { return Ok(None) };
        match quantity.get_ref().names().find_map(unknown) {
            Some(problem) => Err(at(quantity.span(), problem)),
            None => Ok(Some(quantity.get_ref().clone())),
        }
    };
    let (rows, width) = match (op, size(&raw.count)?, size(&raw.rows)?, size(&raw.width)?) {
        (Op::Barrier, None, None, None) => (Quantity::number(0), one()),
        (Op::Barrier, ..) => return Err(format!("{step}: a barrier has no count, rows or width")),
        (_, Some(count), None, None) => (count, one()),
        (_, None, Some(rows), Some(width)) => (rows, width),
        _ => return Err(format!("{step}: a step has either a count, or rows and width")),
    };
    match (op, &dtype) {
        (Op::Barrier, Some(_)) => return Err(format!("{step}: a barrier has no dtype")),
        (Op::Barrier, None) | (_, Some(_)) => {}
        (_, None) => return Err(format!("{step}: the step has no dtype, for example dtype = \"bf16\"")),
    }
    if let (false, Some(name)) = (op.reduces(), &raw.redop) {
        return Err(at(name.span(), format!("{} reduces nothing and has no redop", op.name())));
    }
    let in_place = raw.in_place.as_ref().map_or(!op.out_of_place(), |value| *value.get_ref());
    if let Some(value) = raw.in_place.as_ref().filter(|_| if in_place { !op.in_place() } else { !op.out_of_place() }) {
        return Err(at(value.span(), format!("{} has no form with in_place = {in_place}", op.name())));
    }
    if let Some(skew) = &raw.skew {
        if !has_counts(op) {
            return Err(at(skew.span(), format!("{} is even and has no skew; the forms with counts have", op.name())));
        }
        if !(0.0..=4.0).contains(&skew.get_ref().zipf) {
            return Err(at(skew.span(), "zipf is between 0 (even) and 4".into()));
        }
        if let Some(problem) = skew.get_ref().over.names().find_map(unknown) {
            return Err(at(skew.span(), problem));
        }
    }
    if let Some(reverse) = raw.reverse.as_ref().filter(|_| op != Op::AllToAllV) {
        return Err(at(reverse.span(), format!("{} cannot be reversed, only all_to_all_v", op.name())));
    }
    Ok(StepText {
        place: step,
        op,
        dtype,
        redop: op.reduces().then(|| redop.unwrap_or(ReduceOp::Sum)),
        width,
        rows,
        repeat: size(&raw.repeat)?.unwrap_or_else(one),
        in_place,
        skew: raw.skew.as_ref().map(|skew| skew.get_ref().clone()),
        reverse: raw.reverse.as_ref().is_some_and(|reverse| *reverse.get_ref()),
    })
}

/// Whether ranks may have different counts.
pub(crate) const fn has_counts(op: Op) -> bool {
    matches!(op, Op::AllGatherV | Op::ReduceScatterV | Op::AllToAllV | Op::TokenAllGather | Op::TokenReduceScatter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"name = "mine"
description = "two layers"
source = "made up"
unit = "token"
ranks_divide = ["heads"]
[shape]
batch = [1, 16]
depth = [2, 3]
heads = 8
[[steps]]
op = "all_reduce"
dtype = "bf16"
rows = "batch"
width = "64 * heads"
repeat = "depth"
[[steps]]
op = "barrier"
[[steps]]
op = "all_to_all_v"
dtype = "u8"
count = 7
skew = { zipf = 1 }
reverse = true
"#;

    #[test]
    fn a_whole_file_is_understood() {
        let workload = parse("mine.toml", WHOLE).unwrap();
        assert_eq!((workload.name.as_str(), workload.unit), ("mine", Unit::Token));
        let labels: Vec<_> = workload.variants.iter().map(|variant| variant.label.as_str()).collect();
        assert_eq!(labels, ["batch=1,depth=2", "batch=1,depth=3", "batch=16,depth=2", "batch=16,depth=3"]);
        assert!(workload.variants.iter().all(|variant| variant.shape["heads"] == 8));
        let [reduce, barrier, exchange] = &workload.steps[..] else { panic!("{:?}", workload.steps) };
        assert_eq!((reduce.op, reduce.redop, reduce.in_place), (Op::AllReduce, Some(ReduceOp::Sum), false));
        assert_eq!((barrier.op, barrier.dtype, barrier.place.as_str()), (Op::Barrier, None, "mine.toml:16"));
        assert_eq!((exchange.reverse, exchange.redop), (true, None));
        let skew = exchange.skew.as_ref().unwrap();
        assert_eq!((skew.zipf, skew.over.to_string().as_str(), skew.seed), (1.0, RANKS, 0));
    }

    #[test]
    fn every_complaint_has_its_line() {
        for (from, to, line, named) in [
            ("unit = \"token\"", "unit = \"second\"", 4, "second"),
            ("unit = \"token\"", "unit = \"token\"\ncolour = 1", 5, "colour"),
            ("repeat =", "repeats =", 15, "repeats"),
            ("op = \"all_reduce\"", "op = \"allreduce\"", 11, "all_reduce"),
            ("\"bf16\"", "\"float\"", 12, "bf16"),
            ("dtype = \"bf16\"", "dtype = \"bf16\"\nredop = \"mean\"", 13, "avg"),
            ("rows = \"batch\"", "rows = \"batches\"", 13, "known: batch, depth, heads, ranks"),
            ("rows = \"batch\"", "rows = \"batch + 1\"", 13, "is no size"),
            ("rows = \"batch\"", "rows = -1", 13, "at least 0"),
            ("rows = \"batch\"", "rows = 1.5", 13, "whole number"),
            ("rows = \"batch\"", "count = 4", 10, "either a count, or rows and width"),
            ("dtype = \"bf16\"\n", "", 10, "no dtype"),
            ("[\"heads\"]", "[\"tails\"]", 5, "tails"),
            ("heads = 8", "ranks = 8\nheads = 8", 9, "ranks"),
            ("heads = 8", "heads = \"8\"", 9, "whole number or a list"),
            ("[1, 16]", "[]", 7, "combinations"),
            ("op = \"barrier\"", "op = \"barrier\"\ncount = 1", 16, "barrier has no count"),
            ("reverse = true", "in_place = true", 23, "all_to_all_v has no form with in_place = true"),
            ("repeat = \"depth\"", "skew = { zipf = 1 }", 15, "has no skew"),
            ("repeat = \"depth\"", "reverse = true", 15, "only all_to_all_v"),
            ("zipf = 1", "zipf = 9", 22, "between 0"),
            ("zipf = 1", "zipf = 1, over = \"experts\"", 22, "experts"),
            ("zipf = 1", "exponent = 1", 22, "exponent"),
            ("name = \"mine\"", "name = \"my own\"", 1, "my own"),
            ("name = \"mine\"", "name = ", 1, ""),
            ("unit = \"token\"\n", "", 22, "missing field `unit`"),
        ] {
            assert!(WHOLE.contains(from), "{from}");
            let error = parse("mine.toml", &WHOLE.replacen(from, to, 1)).unwrap_err();
            assert!(error.starts_with(&format!("mine.toml:{line}: ")) && error.contains(named), "{to}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let steps = WHOLE.find("[[steps]]").unwrap();
        assert!(
            parse("mine.toml", &format!("steps = []\n{}", &WHOLE[..steps])).unwrap_err().contains("1 to 256 steps")
        );
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for (path, named) in [("/no/such.toml", "/no/such.toml"), ("/dev/zero", "no regular file"), ("/", "regular")] {
            assert!(read(path).unwrap_err().contains(named), "{path}");
        }
    }
}
