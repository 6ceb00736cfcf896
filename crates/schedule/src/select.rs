//! Which plan for which call: a table in text, the same on all members.
//!
//! A line has five columns, and a sixth for the size of chunks where a plan is to run in several: kind, members, bytes, types, plan, `chunk=bytes`. Ranges include
//! both ends: `2-8`, `9-` (no upper end), `7`, or `*` for all. Bytes may end in `K`, `M` or `G`. Types are `*` or a list such as `f32,f64`. `#` begins a comment.
//!
//! The first row counts that fits, and whose plan may run the call: under [`Determinism::Fixed`], and for the operators that scale, plans that fold all contributions
//! at once.

#![forbid(unsafe_code)]

use crate::plan::{Algorithm, Choice};
use rankwise_core::backend::RawCall;
use rankwise_core::{DType, DTypeSet, Determinism, Error, OpKind, ReduceOp, Result};
use std::fmt::{self, Write as _};

/// Rows in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Row>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The kind of operation.
    pub kind: OpKind,
    /// Sizes of group, both included.
    pub members: (usize, usize),
    /// What [`size`] says, both included.
    pub bytes: (usize, usize),
    /// Types of the elements.
    pub types: DTypeSet,
    /// How calls run that fit.
    pub choice: Choice,
}

/// The size of a call that decides how it runs, in bytes, the same on all members: of the data where all members have as much, else of the longest block; 0 for an
/// uneven all-to-all, whose counts no member knows all of.
pub fn size(call: &RawCall<'_>) -> usize {
    let longest = |counts: &[usize]| counts.iter().copied().max().unwrap_or(0);
    let elements = match call.kind {
        OpKind::AllToAllV | OpKind::Barrier => 0,
        OpKind::AllGatherV | OpKind::GatherV => longest(call.counts.recv),
        OpKind::ReduceScatterV | OpKind::ScatterV => longest(call.counts.send),
        _ => call.count,
    };
    elements * call.elem_size
}

impl Default for Table {
    /// The built-in table. It has a row for every call.
    fn default() -> Table {
        let rows = include_str!("default.plans").lines().filter_map(|line| Row::parse(line).ok().flatten());
        Table { rows: rows.collect() }
    }
}

impl Table {
    /// A table of these rows.
    pub fn new(rows: Vec<Row>) -> Table {
        Table { rows }
    }

    /// Reads a table. `Config`, with the number of the line and what is wrong with it.
    pub fn parse(text: &str) -> Result<Table> {
        let mut rows = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let row = Row::parse(line).map_err(|why| {
                Error::config(format!(
                    "line {} of the table of plans: {why}; correct it, or leave the line out",
                    number + 1
                ))
            })?;
            rows.extend(row);
        }
        Ok(Table { rows })
    }

    /// These rows before those of `others`.
    #[must_use]
    pub fn before(mut self, others: Table) -> Table {
        self.rows.extend(others.rows);
        self
    }

    /// The rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// A number that is the same in every process and version for the same rows, and with near certainty for no others: members compare it when they make a
    /// communicator.
    pub fn stable_hash(&self) -> u64 {
        // FNV-1a
        let text = self.to_string();
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// What of the table, and of the built-in one behind it, matters to a communicator.
    pub fn select(&self, members: usize, determinism: Determinism) -> Selection {
        let mut selection = Selection { rows: Vec::new(), starts: Vec::new() };
        let built_in = Table::default();
        for kind in OpKind::DATA {
            selection.starts.push(selection.rows.len());
            let rows = self.rows.iter().chain(&built_in.rows).filter(|row| row.kind == kind);
            let fits = |row: &&Row| row.members.0 <= members && members <= row.members.1;
            let fixed = |row: &&Row| determinism == Determinism::SameTopology || row.is_fixed();
            selection.rows.extend(rows.filter(fits).filter(fixed).cloned());
        }
        selection.starts.push(selection.rows.len());
        selection
    }
}

/// The rows that a communicator needs.
#[derive(Clone, Debug)]
pub struct Selection {
    /// By kind, in the order of [`OpKind::DATA`].
    rows: Vec<Row>,
    starts: Vec<usize>,
}

impl Selection {
    /// How a call runs: the same on all members.
    pub fn choose(&self, call: &RawCall<'_>) -> Choice {
        let place = call.kind as usize - OpKind::AllReduce as usize;
        let rows = match (self.starts.get(place), self.starts.get(place + 1)) {
            (Some(from), Some(to)) => &self.rows[*from..*to],
            _ => &[],
        };
        let bytes = size(call);
        let scales = matches!(call.op, Some(ReduceOp::Avg | ReduceOp::PreMulSum(_)));
        let fits = |row: &&Row| {
            row.bytes.0 <= bytes
                && bytes <= row.bytes.1
                && row.types.contains(call.dtype)
                && (!scales || row.is_fixed())
        };
        // Direct offers everything.
        rows.iter().find(fits).map_or(Choice::whole(Algorithm::Direct), |row| row.choice)
    }

    /// Sizes in bytes at which the choice for a kind may change, the last of the smaller side: for a backend's list of thresholds.
    pub fn thresholds(&self, kind: OpKind) -> Vec<usize> {
        let ends = |row: &Row| [row.bytes.0.checked_sub(1), (row.bytes.1 < usize::MAX).then_some(row.bytes.1)];
        let mut all: Vec<usize> = self.rows.iter().filter(|row| row.kind == kind).flat_map(ends).flatten().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

const ALL_TYPES: DTypeSet = DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits());
const ALL: (usize, usize) = (0, usize::MAX);

impl Row {
    /// A row for all groups, sizes and types.
    pub fn new(kind: OpKind, choice: Choice) -> Row {
        Row { kind, members: ALL, bytes: ALL, types: ALL_TYPES, choice }
    }

    /// Whether results have the bits of `Determinism::Fixed`: kinds that only move always have.
    fn is_fixed(&self) -> bool {
        !self.kind.reduces() || self.choice.algorithm.folds_whole(self.kind)
    }

    /// `None` for a line without a row.
    fn parse(line: &str) -> Result<Option<Row>, String> {
        let line = line.split('#').next().unwrap_or("");
        let words: Vec<&str> = line.split_whitespace().collect();
        let (columns, chunk) = match words[..] {
            [] => return Ok(None),
            [kind, members, bytes, types, plan] => ([kind, members, bytes, types, plan], None),
            [kind, members, bytes, types, plan, chunk] => ([kind, members, bytes, types, plan], Some(chunk)),
            _ => {
                return Err(format!(
                    "has {} columns; kind, members, bytes, types, plan and perhaps chunk=",
                    words.len()
                ));
            }
        };
        let [kind, members, bytes, types, plan] = columns;
        let kind = OpKind::from_name(kind)
            .filter(|kind| !matches!(kind, OpKind::Send | OpKind::Recv))
            .ok_or_else(|| format!("{kind:?} is not a collective"))?;
        let algorithm = Algorithm::from_name(plan).ok_or_else(|| format!("{plan:?} is not a plan"))?;
        if !algorithm.offers(kind) {
            return Err(format!("the plan {plan} does not offer {kind}"));
        }
        let chunk = match chunk.map(|chunk| chunk.strip_prefix("chunk=").and_then(number)) {
            None => None,
            Some(Some(bytes)) if bytes > 0 && algorithm.chunks(kind) => Some(bytes),
            Some(Some(bytes)) if bytes > 0 => return Err(format!("the plan {plan} runs {kind} in one chunk")),
            Some(_) => return Err("the last column is chunk= and a number of bytes above 0".into()),
        };
        let range = |text| range(text).ok_or_else(|| format!("{text:?} is not a range such as 2-8, 9-, 7 or *"));
        let types = match types {
            "*" => ALL_TYPES,
            list => {
                let mut types = Vec::new();
                for name in list.split(',') {
                    types.push(DType::from_name(name).ok_or_else(|| format!("{name:?} is not a type"))?);
                }
                DTypeSet::of(&types)
            }
        };
        Ok(Some(Row {
            kind,
            members: range(members)?,
            bytes: range(bytes)?,
            types,
            choice: Choice { algorithm, chunk },
        }))
    }
}

fn range(text: &str) -> Option<(usize, usize)> {
    let (from, to) = match text.split_once('-') {
        _ if text == "*" => ALL,
        None => (number(text)?, number(text)?),
        Some((from, "")) => (number(from)?, usize::MAX),
        Some((from, to)) => (number(from)?, number(to)?),
    };
    (from <= to).then_some((from, to))
}

const SUFFIXES: [(&str, u32); 3] = [("G", 30), ("M", 20), ("K", 10)];

fn number(text: &str) -> Option<usize> {
    let suffix = SUFFIXES.into_iter().find_map(|(suffix, bits)| Some((text.strip_suffix(suffix)?, bits)));
    let (digits, bits) = suffix.unwrap_or((text, 0));
    // `parse` takes a sign.
    let digits = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits)?;
    digits.parse::<usize>().ok()?.checked_mul(1 << bits)
}

fn show_number(value: usize) -> String {
    let suffix = SUFFIXES.into_iter().find(|(_, bits)| value > 0 && value.is_multiple_of(1 << bits));
    suffix.map_or(value.to_string(), |(suffix, bits)| format!("{}{suffix}", value >> bits))
}

fn show_range(range: (usize, usize)) -> String {
    match range {
        ALL => "*".into(),
        (from, usize::MAX) => format!("{}-", show_number(from)),
        (from, to) if from == to => show_number(from),
        (from, to) => format!("{}-{}", show_number(from), show_number(to)),
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = match self.types {
            ALL_TYPES => "*".to_string(),
            some => some.iter().map(DType::name).collect::<Vec<_>>().join(","),
        };
        let mut line = format!(
            "{:<18} {:<8} {:<10} {:<6} {:<19}",
            self.kind.name(),
            show_range(self.members),
            show_range(self.bytes),
            types,
            self.choice.algorithm.to_string()
        );
        if let Some(chunk) = self.choice.chunk {
            write!(line, " chunk={}", show_number(chunk))?;
        }
        f.write_str(line.trim_end())
    }
}

impl fmt::Display for Table {
    /// In the format that [`Table::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rankwise_core::ErrorKind;

    fn call<'a>(kind: OpKind, op: Option<ReduceOp>, count: usize) -> RawCall<'a> {
        let mut call = RawCall::new(kind, DType::F32, count);
        call.op = op;
        call
    }

    #[test]
    fn the_built_in_table_is_read_whole_and_covers_every_call() {
        let text = include_str!("default.plans");
        let table = Table::parse(text).expect("well formed");
        assert_eq!(table, Table::default());
        assert_eq!(table.rows.len(), text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count());
        for members in (2..=70).chain([1000, 4096]) {
            for determinism in [Determinism::SameTopology, Determinism::Fixed] {
                let selection = Table::new(Vec::new()).select(members, determinism);
                for kind in OpKind::DATA.into_iter().filter(|kind| !matches!(kind, OpKind::Send | OpKind::Recv)) {
                    for op in [ReduceOp::Sum, ReduceOp::Avg] {
                        for count in [0, 1, 64, 300, 5000, 1 << 15, 1 << 18, 1 << 24] {
                            let (each, mut call) =
                                (vec![count; members], call(kind, kind.reduces().then_some(op), count));
                            call.counts = rankwise_core::backend::Counts { send: &each, recv: &each };
                            let covered = selection.rows.iter().any(|row| {
                                row.kind == kind && row.bytes.0 <= size(&call) && size(&call) <= row.bytes.1
                            });
                            assert!(covered, "{kind} of {count} in {members}");
                            let choice = selection.choose(&call);
                            crate::Plan::new(&call, 0, members, choice).expect("the plan offers the call");
                            let whole = determinism == Determinism::Fixed || op == ReduceOp::Avg;
                            assert!(!kind.reduces() || !whole || choice.algorithm.folds_whole(kind));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_first_row_that_fits_counts() {
        let text = "all_reduce 2-4 0-1K f32,f64 ring chunk=64 # ours\n\n  all_reduce 4 1K- * direct";
        let table = Table::parse(text).expect("well formed");
        let ring = Choice { algorithm: Algorithm::Ring, chunk: Some(64) };
        let (sum, avg) = (Some(ReduceOp::Sum), Some(ReduceOp::Avg));
        let selection = table.select(4, Determinism::SameTopology);
        assert_eq!(selection.choose(&call(OpKind::AllReduce, sum, 256)), ring);
        assert_eq!(selection.choose(&call(OpKind::AllReduce, sum, 257)), Choice::whole(Algorithm::Direct));
        // A ring can't scale once, so the built-in table decides.
        assert_eq!(selection.choose(&call(OpKind::AllReduce, avg, 256)), Choice::whole(Algorithm::Direct));
        assert_eq!(selection.thresholds(OpKind::AllReduce)[..3], [1023, 1024, 8192]);
        let mut of_bytes = RawCall::new(OpKind::AllReduce, DType::U8, 256);
        of_bytes.op = sum;
        assert_eq!(selection.choose(&of_bytes).algorithm, Algorithm::Direct);
        let fixed = table.select(4, Determinism::Fixed).choose(&call(OpKind::AllReduce, sum, 256));
        assert!(fixed.algorithm.folds_whole(OpKind::AllReduce));
    }

    #[test]
    fn errors_name_the_line_and_what_is_wrong() {
        for (text, expected) in [
            ("\nall_reduce * *", "line 2 of the table of plans: has 3 columns"),
            ("send * * * direct", "line 1 of the table of plans: \"send\" is not a collective"),
            ("all_reduce * * * circle", "\"circle\" is not a plan"),
            ("all_to_all_v * * * bruck", "the plan bruck does not offer all_to_all_v"),
            ("all_reduce 8-2 * * ring", "\"8-2\" is not a range"),
            ("all_reduce * 1T * ring", "\"1T\" is not a range"),
            ("all_reduce * +1 * ring", "\"+1\" is not a range"),
            ("all_reduce * 99999999999G * ring", "is not a range"),
            ("all_reduce * * f31 ring", "\"f31\" is not a type"),
            ("all_reduce * * * ring chunk=0", "a number of bytes above 0"),
            ("all_reduce * * * ring 5", "a number of bytes above 0"),
            ("all_gather * * * bruck chunk=4", "the plan bruck runs all_gather in one chunk"),
        ] {
            let error = Table::parse(text).expect_err(text);
            assert_eq!(error.kind(), &ErrorKind::Config);
            assert!(error.message().contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_hash_is_of_the_rows_not_of_their_text() {
        let parse = |text| Table::parse(text).expect("well formed");
        let table = parse("all_reduce 2-8 0-1024 * ring");
        assert_eq!(table.stable_hash(), parse("# same\nall_reduce   2-8 0-1K   * ring # again").stable_hash());
        for other in
            ["all_reduce 2-9 0-1K * ring", "all_reduce 2-8 0-1K * ring chunk=1", "all_reduce 2-8 0-1K f32 ring"]
        {
            assert_ne!(table.stable_hash(), parse(other).stable_hash());
        }
        // Members of different builds compare it.
        assert_eq!(Table::new(Vec::new()).stable_hash(), 0xcbf2_9ce4_8422_2325);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            rows in prop::collection::vec((0_usize..14, 0_usize..9, any::<[usize; 2]>(), 0_usize..99, 1_u16..0x7fff, any::<u32>()), 0..8)
        ) {
            let row = |(kind, algorithm, bytes, members, types, chunk): (usize, usize, [usize; 2], usize, u16, u32)| {
                let (kind, algorithm) = (OpKind::DATA[kind], Algorithm::ALL[algorithm]);
                let chunk = algorithm.chunks(kind).then_some(chunk as usize + 1);
                let bytes = (bytes[0].min(bytes[1]), bytes[0].max(bytes[1]));
                let types = DTypeSet::from_bits(types << 1);
                algorithm.offers(kind).then_some(Row {
                    kind, members: (members, 99), bytes, types, choice: Choice { algorithm, chunk },
                })
            };
            let table = Table::new(rows.into_iter().filter_map(row).collect());
            prop_assert_eq!(Table::parse(&table.to_string()).expect("well formed"), table);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,60}", words in "(all_reduce|ring|\\*|[0-9]{1,22}[KMG]?|-| |\n){0,12}") {
            let _ = Table::parse(&text);
            let _ = Table::parse(&words);
        }
    }
}
