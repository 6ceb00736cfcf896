//! Scripts as text: one step a line, written and read.
//!
//! ```text
//! rankwise-sequence 1
//! ranks 4
//! seed 17
//! determinism fixed
//! # a comment
//! split c1 of c0 members 2,0,3
//! group c2 ranks 3,1
//! call c1 all_reduce f32 sum count=1025 in_place offset=1 memory=both values=12
//! start w3 c1 all_gather u8 count=7 values=13
//! scope c2 { all_reduce i8 max count=5 values=14 ; barrier values=15 }
//! message c1 0 to 2 f32 count=100 values=16
//! wait w3
//! refuse c1 by 1
//! mismatch c1 by 2
//! drop c2
//! pause rank 2 us 300
//! ```

use super::script::{Numbered, Script, State, Step};
use crate::operation::{Memory, Operation};
use crate::runner::MOST_RANKS;
use crate::values::Pattern;
use rankwise_core::{DType, OpKind, ReduceOp};
use std::fmt;
use std::str::FromStr;

const FIRST_LINE: &str = "rankwise-sequence 1";
const FIXED_LINE: &str = "determinism fixed";
const PATTERNS: [(Pattern, &str); 5] = [
    (Pattern::Exact, "exact"),
    (Pattern::Powers, "powers"),
    (Pattern::Numbers, "numbers"),
    (Pattern::Bits, "bits"),
    (Pattern::Rounding, "rounding"),
];
const MEMORIES: [(Memory, &str); 4] = [
    (Memory::Heap, "heap"),
    (Memory::AllocSource, "source"),
    (Memory::AllocDestination, "destination"),
    (Memory::AllocBoth, "both"),
];

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}\nranks {}\nseed {}", self.ranks, self.seed)?;
        if self.fixed {
            writeln!(f, "{FIXED_LINE}")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Split { new, of, positions } => write!(f, "split c{new} of c{of} members {}", list("", positions)),
            Step::Group { new, ranks } => write!(f, "group c{new} ranks {}", list("", ranks)),
            Step::Drop { comm } => write!(f, "drop c{comm}"),
            Step::Call { comm, call } => write!(f, "call c{comm} {call}"),
            Step::Start { work, comm, call } => write!(f, "start w{work} c{comm} {call}"),
            Step::Wait { works } => write!(f, "wait {}", list("w", works)),
            Step::Scope { comm, calls } => {
                let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
                write!(f, "scope c{comm} {{ {} }}", calls.join(" ; "))
            }
            Step::Message { comm, from, to, dtype, count, values } => {
                write!(f, "message c{comm} {from} to {to} {dtype} count={count} values={values}")
            }
            Step::Refuse { comm, by } => write!(f, "refuse c{comm} by {by}"),
            Step::Mismatch { comm, by } => write!(f, "mismatch c{comm} by {by}"),
            Step::Pause { rank, micros } => write!(f, "pause rank {rank} us {micros}"),
        }
    }
}

impl fmt::Display for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let o = &self.operation;
        let plain = Operation::new(o.kind, o.dtype);
        write!(f, "{}", o.kind)?;
        if o.kind != OpKind::Barrier {
            write!(f, " {}", o.dtype)?;
        }
        if let Some(op) = o.op {
            write!(f, " {}", op.name())?;
        }
        if !o.counts.is_empty() {
            write!(f, " counts={}", list("", &o.counts))?;
        } else if o.kind != OpKind::Barrier {
            write!(f, " count={}", o.count)?;
        }
        if o.token {
            write!(f, " token width={}", o.width)?;
        }
        if o.in_place {
            write!(f, " in_place")?;
        }
        if o.kind.has_root() {
            write!(f, " root={}", o.root)?;
        }
        if o.offset > 0 {
            write!(f, " offset={}", o.offset)?;
        }
        if o.memory != Memory::Heap {
            write!(f, " memory={}", named(&MEMORIES, o.memory))?;
        }
        if o.pattern != plain.pattern {
            write!(f, " pattern={}", named(&PATTERNS, o.pattern))?;
        }
        write!(f, " values={}", self.values)
    }
}

fn named<T: PartialEq + Copy>(names: &[(T, &'static str)], value: T) -> &'static str {
    names.iter().find(|(known, _)| *known == value).map_or("", |(_, name)| name)
}

fn list(prefix: &str, numbers: &[usize]) -> String {
    numbers.iter().map(|number| format!("{prefix}{number}")).collect::<Vec<_>>().join(",")
}

/// Reads a script; the text of the error begins with the number of the line.
pub(crate) fn parse(text: &str) -> Result<Script, String> {
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.split('#').next().unwrap_or("").trim()));
    let mut lines = lines.filter(|(_, line)| !line.is_empty());
    let mut head = |what: &str| lines.next().ok_or_else(|| format!("line 1: the file ends where {what} should be"));
    let (number, first) = head(FIRST_LINE)?;
    if first != FIRST_LINE {
        return Err(format!("line {number}: a script begins with {FIRST_LINE:?}, not {first:?}"));
    }
    let mut setting = |name: &str| -> Result<u64, String> {
        let (number, line) = head(name)?;
        let value = line.strip_prefix(name).map(str::trim).and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("line {number}: {name:?} and a number should be here, not {line:?}"))
    };
    let (ranks, seed) = (setting("ranks")?, setting("seed")?);
    let ranks = usize::try_from(ranks).ok().filter(|ranks| (1..=MOST_RANKS).contains(ranks));
    let ranks = ranks.ok_or_else(|| format!("line 2: a script is for 1 to {MOST_RANKS} ranks"))?;
    let mut lines = lines.peekable();
    let fixed = lines.next_if(|(_, line)| *line == FIXED_LINE).is_some();
    let mut state = State::new(ranks);
    let mut steps = Vec::new();
    for (number, line) in lines {
        let step = step(line).and_then(|step| state.admit(&step).map(|()| step));
        steps.push(step.map_err(|why| format!("line {number}: {why}"))?);
    }
    Ok(Script { ranks, seed, fixed, steps })
}

fn step(line: &str) -> Result<Step, String> {
    let mut words = Words(line);
    let step = match words.next("a step")? {
        "split" => {
            let new = words.id('c')?;
            words.expect("of")?;
            let of = words.id('c')?;
            words.expect("members")?;
            Step::Split { new, of, positions: numbers("", words.next("positions, such as 1,0")?)? }
        }
        "group" => {
            let new = words.id('c')?;
            words.expect("ranks")?;
            Step::Group { new, ranks: numbers("", words.next("ranks, such as 1,0")?)? }
        }
        "drop" => Step::Drop { comm: words.id('c')? },
        "call" => Step::Call { comm: words.id('c')?, call: numbered(words.rest())? },
        "start" => Step::Start { work: words.id('w')?, comm: words.id('c')?, call: numbered(words.rest())? },
        "wait" => Step::Wait { works: numbers("w", words.next("works, such as w1,w2")?)? },
        "scope" => {
            let comm = words.id('c')?;
            let rest = words.rest().trim();
            let inner = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            let inner = inner.ok_or("the calls of a scope stand in { and }")?;
            Step::Scope { comm, calls: inner.split(';').map(numbered).collect::<Result<_, _>>()? }
        }
        "message" => {
            let comm = words.id('c')?;
            let from = number(words.next("a position")?)?;
            words.expect("to")?;
            let to = number(words.next("a position")?)?;
            let mut options = Options::of(words.rest(), true)?;
            let dtype = options.dtype;
            let (count, values) = (options.number("count")?.unwrap_or(0), options.values()?);
            options.finish()?;
            Step::Message { comm, from, to, dtype, count, values }
        }
        "refuse" | "mismatch" => {
            let comm = words.id('c')?;
            words.expect("by")?;
            let by = number(words.next("a position")?)?;
            if line.starts_with("refuse") { Step::Refuse { comm, by } } else { Step::Mismatch { comm, by } }
        }
        "pause" => {
            words.expect("rank")?;
            let rank = number(words.next("a rank")?)?;
            words.expect("us")?;
            Step::Pause { rank, micros: number(words.next("microseconds")?)? }
        }
        other => {
            let known = "split, group, drop, call, start, wait, scope, message, refuse, mismatch, pause";
            return Err(format!("there is no step {other:?}; there are {known}"));
        }
    };
    match words.rest().trim() {
        "" => Ok(step),
        more => Err(format!("{more:?} is too much")),
    }
}

struct Words<'t>(&'t str);

impl<'t> Words<'t> {
    fn next(&mut self, what: &str) -> Result<&'t str, String> {
        let text = self.0.trim_start();
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        if word.is_empty() { Err(format!("the line ends where {what} should be")) } else { Ok(word) }
    }

    fn rest(&mut self) -> &'t str {
        std::mem::take(&mut self.0)
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        let found = self.next(word)?;
        if found == word { Ok(()) } else { Err(format!("{word:?} should be where {found:?} is")) }
    }

    fn id(&mut self, letter: char) -> Result<usize, String> {
        let word = self.next(&format!("{letter} and a number"))?;
        let found = word.strip_prefix(letter).and_then(|number| number.parse().ok());
        found.ok_or_else(|| format!("{word:?} should be {letter} and a number, such as {letter}1"))
    }
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is not a number that fits here"))
}

fn numbers(prefix: &str, word: &str) -> Result<Vec<usize>, String> {
    let one = |item: &str| number(item.strip_prefix(prefix).ok_or_else(|| format!("{item:?} has no {prefix:?}"))?);
    word.split(',').map(one).collect()
}

fn numbered(text: &str) -> Result<Numbered, String> {
    let mut words = Words(text);
    let name = words.next("an operation")?;
    let kind = OpKind::from_name(name).filter(|kind| !matches!(kind, OpKind::Send | OpKind::Recv));
    let kind = kind.ok_or_else(|| format!("there is no operation {name:?} here"))?;
    let mut options = Options::of(words.rest(), kind != OpKind::Barrier)?;
    let mut o = Operation::new(kind, options.dtype);
    if kind.reduces() {
        let word = options.words.first().copied().unwrap_or("nothing");
        o.op = Some(ReduceOp::from_name(word).ok_or_else(|| format!("there is no operator {word:?}"))?);
        options.words.remove(0);
    }
    o.count = options.number("count")?.unwrap_or(0);
    o.root = options.number("root")?.unwrap_or(0);
    o.offset = options.number("offset")?.unwrap_or(0);
    o.width = options.number("width")?.unwrap_or(1);
    o.token = options.flag("token");
    o.in_place = options.flag("in_place");
    if let Some(word) = options.text("counts") {
        o.counts = numbers("", word)?;
    }
    o.memory = options.choice("memory", &MEMORIES)?.unwrap_or(o.memory);
    o.pattern = options.choice("pattern", &PATTERNS)?.unwrap_or(o.pattern);
    let values = options.values()?;
    options.finish()?;
    Ok(Numbered { operation: o, values })
}

/// The words after an operation's name.
struct Options<'t> {
    dtype: DType,
    words: Vec<&'t str>,
}

impl<'t> Options<'t> {
    fn of(text: &'t str, typed: bool) -> Result<Options<'t>, String> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        if !typed {
            return Ok(Options { dtype: DType::U8, words });
        }
        let word = if words.is_empty() { "nothing" } else { words.remove(0) };
        let dtype = DType::from_name(word).ok_or_else(|| format!("there is no type {word:?}"))?;
        Ok(Options { dtype, words })
    }

    fn text(&mut self, name: &str) -> Option<&'t str> {
        let value = |word: &&'t str| word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
        let at = self.words.iter().position(|word| value(word).is_some())?;
        value(&self.words.remove(at))
    }

    fn number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        self.text(name).map(number).transpose().map_err(|why| format!("{name}: {why}"))
    }

    fn values(&mut self) -> Result<u64, String> {
        Ok(self.number("values")?.unwrap_or(0))
    }

    fn flag(&mut self, name: &str) -> bool {
        let at = self.words.iter().position(|word| *word == name);
        at.map(|at| self.words.remove(at)).is_some()
    }

    fn choice<T: Copy>(&mut self, name: &str, choices: &[(T, &'static str)]) -> Result<Option<T>, String> {
        let Some(word) = self.text(name) else { return Ok(None) };
        let found = choices.iter().find(|(_, known)| *known == word);
        found.map(|(value, _)| Some(*value)).ok_or_else(|| {
            let known: Vec<&str> = choices.iter().map(|(_, name)| *name).collect();
            format!("{name} is one of {}, not {word:?}", known.join(", "))
        })
    }

    fn finish(self) -> Result<(), String> {
        match self.words.first() {
            None => Ok(()),
            Some(word) => Err(format!("{word:?} has no meaning here, or comes twice")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequences::generate::{Choices, generate};

    #[test]
    fn what_is_written_is_read_again() {
        for seed in 0..20 {
            let choices = Choices { rounding: seed % 2 == 1, ..Choices::default() };
            let script = generate(seed, 1 + seed as usize % 5, 300, &choices);
            let text = script.to_string();
            assert_eq!(parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}")), script);
        }
    }

    #[test]
    fn bad_input_is_refused_with_its_line() {
        let refused = |text: &str| parse(&format!("rankwise-sequence 1\nranks 3\n\n# so\nseed 9\n{text}")).unwrap_err();
        let cases = [
            ("call c0 barrier\nhop c0", "line 7: there is no step \"hop\""),
            ("call c1 barrier", "line 6: there is no communicator c1"),
            ("call c0 all_reduce f32 sum cuont=7", "line 6: \"cuont=7\" has no meaning"),
            ("call c0 all_reduce f32 sum count=7 count=8", "comes twice"),
            ("call c0 all_reduce f32 count=7", "there is no operator"),
            ("call c0 all_reduce f32 bxor count=7", "has a meaning for f32"),
            ("call c0 all_reduce f99 sum", "there is no type \"f99\""),
            ("call c0 broadcast u8 count=-1", "count: \"-1\" is not a number"),
            ("call c0 broadcast u8 count=999999999999", "bytes"),
            ("call c0 broadcast u8 root=3", "root 3 of 3"),
            ("call c0 send u8 count=1", "no operation \"send\""),
            ("call c0 all_gather_v u8 counts=1,2", "takes 3 counts, not 2"),
            ("split c1 of c0 members 0,0", "different"),
            ("group c1 ranks 0,3", "below 3"),
            ("wait w1", "no work w1"),
            ("start w1 c0 barrier\nstart w1 c0 barrier", "line 7: there was a work w1 before"),
            ("scope c0 barrier", "{ and }"),
            ("message c0 1 to 1 u8 count=1", "himself"),
            ("mismatch c0 by 1", "split"),
            ("drop c0", "to the end"),
            ("pause rank 3 us 1", "below 3"),
            ("drop", "the line ends where"),
            ("drop c0 c1", "too much"),
        ];
        for (text, why) in cases {
            assert!(refused(text).contains(why), "{text}: {}", refused(text));
        }
        assert!(parse("ranks 3").unwrap_err().contains("line 1: a script begins with"));
        assert!(parse("").unwrap_err().contains("line 1"));
        assert!(parse("rankwise-sequence 1\nranks 0\nseed 1").unwrap_err().contains("1 to 256 ranks"));
        assert!(parse("rankwise-sequence 1\nranks 3\nsede 1").unwrap_err().contains("line 3: \"seed\""));
    }
}
