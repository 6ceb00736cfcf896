//! A workload for one number of ranks: its calls with all sizes and counts.

use super::file::{Skew, StepText, Variant, Workload, has_counts};
use super::quantity::{Quantity, RANKS};
use super::routes;
use crate::bench::cell::{Cell, Piece, Shares};
use crate::bench::elem::size_of_elem;
use crate::bench::op::Op;

/// Most bytes that a step's buffers may have over all ranks.
const MOST_BYTES: u64 = 1 << 46;
const MOST_REPEATS: u64 = 10_000;

/// The calls of one unit, in order.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    ranks: usize,
}

/// The same call so many times.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) cell: Cell,
    pub(crate) repeat: u64,
    count: usize,
    width: usize,
    counts: Counts,
}

#[derive(Debug)]
enum Counts {
    /// An operation without counts.
    Even,
    /// Rows of each rank.
    Rows(Vec<usize>),
    /// Rows from each rank to each other.
    Pairs(Vec<Vec<usize>>),
}

impl Plan {
    /// What is wrong with this number of ranks, if it does not fit the workload.
    pub(crate) fn new(workload: &Workload, variant: &Variant, ranks: usize) -> Result<Plan, String> {
        let value_of = |name: &str| if name == RANKS { Some(ranks as u64) } else { variant.shape.get(name).copied() };
        for name in &workload.ranks_divide {
            let value = value_of(name).unwrap_or(0);
            if !value.is_multiple_of(ranks as u64) {
                return Err(format!(
                    "{}: {ranks} ranks do not divide {name} = {value}; use a number of ranks that does",
                    workload.name
                ));
            }
        }
        let step = |step: &StepText| {
            let planned = Step::new(step, ranks, &value_of);
            planned.map_err(|problem| format!("{} with {ranks} ranks: {}: {problem}", workload.name, step.place))
        };
        let plan = Plan { steps: workload.steps.iter().map(step).collect::<Result<_, _>>()?, ranks };
        match plan.calls() {
            0 => Err(format!("{} makes no calls: every step is repeated 0 times", workload.name)),
            _ => Ok(plan),
        }
    }

    /// Calls of one unit.
    pub(crate) fn calls(&self) -> u64 {
        self.steps.iter().map(|step| step.repeat).sum()
    }

    /// Bytes of all buffers of all ranks.
    pub(crate) fn memory(&self) -> u64 {
        let of_step = |step: &Step| {
            let elem = step.cell.dtype.map_or(1, size_of_elem);
            let of_rank = |rank| {
                let shares = step.shares(rank, self.ranks);
                let source = if step.cell.in_place { 0 } else { shares.source_len };
                (source + shares.dest_len) as u64 * elem
            };
            (0..self.ranks).map(of_rank).sum::<u64>()
        };
        self.steps.iter().map(of_step).fold(0, u64::saturating_add)
    }
}

impl Step {
    fn new(text: &StepText, ranks: usize, value_of: &dyn Fn(&str) -> Option<u64>) -> Result<Step, String> {
        let value = |quantity: &Quantity| quantity.value(value_of);
        let (rows, width, repeat) = (value(&text.rows)?, value(&text.width)?, value(&text.repeat)?);
        if repeat > MOST_REPEATS {
            return Err(format!("repeat = {repeat} is more than {MOST_REPEATS}"));
        }
        if width == 0 && text.op != Op::Barrier {
            return Err("the width is 0; leave the step out or give it 0 rows".into());
        }
        let bytes = rows.checked_mul(width).and_then(|count| count.checked_mul(text.dtype.map_or(1, size_of_elem)));
        let bytes = bytes.unwrap_or(u64::MAX);
        let (op, dtype, redop, in_place) = (text.op, text.dtype, text.redop, text.in_place);
        let cell = Cell { op, dtype, redop, bytes, in_place, alloc: false, fresh: true };
        // Bounds the sum over ranks of any counts with this mean.
        if cell.memory(ranks).saturating_mul(ranks as u64) > MOST_BYTES {
            return Err(format!("{} of {rows} x {width} elements needs more than 64 TiB", op.name()));
        }
        let counts = match &text.skew {
            _ if !has_counts(op) => Counts::Even,
            None => {
                let skew = Skew { zipf: 0.0, over: Quantity::name(RANKS), seed: 0 };
                uneven(op, rows as usize, ranks, &skew, ranks as u64, text.reverse)
            }
            Some(skew) => {
                let items = value(&skew.over)?;
                if items == 0 || !items.is_multiple_of(ranks as u64) || items > 1 << 20 {
                    return Err(format!("the skew is over {items} items, which is no multiple of {ranks} up to 2^20"));
                }
                uneven(op, rows as usize, ranks, skew, items, text.reverse)
            }
        };
        let count = cell.count()?;
        Ok(Step { cell, repeat, count, width: width as usize, counts })
    }

    /// What rank `me` of `n` gives and gets.
    pub(crate) fn shares(&self, me: usize, n: usize) -> Shares {
        let width = self.width;
        let to_each = |counts: &[usize]| -> Vec<Piece> {
            let piece = |(block, rows): (usize, &usize)| Piece { of: Some(me), block, len: rows * width };
            counts.iter().enumerate().map(piece).collect()
        };
        let from_each = |block: usize, counts: &[usize]| -> Vec<Piece> {
            let piece = |(rank, rows): (usize, &usize)| Piece { of: Some(rank), block, len: rows * width };
            counts.iter().enumerate().map(piece).collect()
        };
        // Rows for the token forms, elements for the others.
        let token = matches!(self.cell.op, Op::TokenAllGather | Op::TokenReduceScatter);
        let given = |counts: &[usize]| counts.iter().map(|rows| if token { *rows } else { rows * width }).collect();
        let (source, result, send_counts, recv_counts) = match &self.counts {
            Counts::Even => return self.cell.shares(me, n, self.count),
            Counts::Rows(rows) if self.cell.op.reduces() => {
                let reduced = vec![Piece { of: None, block: me, len: rows[me] * width }];
                (to_each(rows), reduced, given(rows), Vec::new())
            }
            Counts::Rows(rows) => {
                let own = vec![Piece { of: Some(me), block: 0, len: rows[me] * width }];
                (own, from_each(0, rows), Vec::new(), given(rows))
            }
            Counts::Pairs(pairs) => {
                let received: Vec<usize> = pairs.iter().map(|row| row[me]).collect();
                (to_each(&pairs[me]), from_each(me, &received), given(&pairs[me]), given(&received))
            }
        };
        let total = |pieces: &[Piece]| pieces.iter().map(|piece| piece.len).sum::<usize>();
        let (source_len, dest_len) = (total(&source), total(&result));
        Shares {
            source,
            result,
            source_len,
            dest_len,
            source_in_dest: 0..source_len,
            result_in_dest: 0..dest_len,
            send_counts,
            recv_counts,
            width,
        }
    }
}

fn uneven(op: Op, rows: usize, ranks: usize, skew: &Skew, items: u64, reverse: bool) -> Counts {
    let seed = u64::from(skew.seed);
    let popularity = routes::popularity(ranks, items as usize, skew.zipf, seed);
    if op != Op::AllToAllV {
        return Counts::Rows(routes::split(rows * ranks, &popularity));
    }
    // Without a skew the pairs are even too.
    let there = match skew.zipf {
        0.0 => vec![vec![rows; ranks]; ranks],
        _ => routes::pairs(rows * ranks, &popularity, seed),
    };
    let back = |from: usize| there.iter().map(|row| row[from]).collect();
    Counts::Pairs(if reverse { (0..ranks).map(back).collect() } else { there })
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;
    use super::*;

    fn plan(steps: &str, ranks: usize) -> Result<Plan, String> {
        let head =
            "name = \"x\"\ndescription = \"\"\nsource = \"\"\nunit = \"step\"\n[shape]\ntokens = 12\nwidth = 5\n";
        let workload = parse("x.toml", &format!("{head}{steps}"))?;
        Plan::new(&workload, &workload.variants[0], ranks)
    }

    fn step(op: &str, more: &str) -> String {
        format!("[[steps]]\nop = \"{op}\"\ndtype = \"f32\"\nrows = \"tokens\"\nwidth = \"width\"\n{more}\n")
    }

    #[test]
    fn what_ranks_send_is_what_they_receive() {
        let skew = "skew = { zipf = 1.0, seed = 3 }";
        let reverse = format!("{skew}\nreverse = true");
        for op in Op::ALL.into_iter().filter(|op| *op != Op::Barrier) {
            let variants: &[&str] = match op {
                Op::AllToAllV => &["", skew, &reverse],
                op if has_counts(op) => &["", skew],
                _ => &[""],
            };
            for (more, n) in variants.iter().flat_map(|more| [1, 2, 3, 4].map(|n| (more, n))) {
                let plan = plan(&step(op.name(), more), n).unwrap();
                let shares: Vec<_> = (0..n).map(|me| plan.steps[0].shares(me, n)).collect();
                for share in &shares {
                    assert_eq!(share.source.iter().map(|piece| piece.len).sum::<usize>(), share.source_len);
                    for piece in &share.result {
                        let Some(from) = piece.of else { continue };
                        let sent = shares[from].source.iter().find(|sent| sent.block == piece.block).unwrap();
                        assert_eq!(sent.len, piece.len, "{op:?} {more} {n}");
                    }
                }
                let bytes: usize = shares.iter().map(|share| 4 * (share.source_len + share.dest_len)).sum();
                assert!(op == Op::Broadcast || plan.memory() == bytes as u64, "{op:?}");
            }
        }
    }

    #[test]
    fn the_way_back_returns_what_came() {
        let skew = "skew = { zipf = 1.0, seed = 3 }";
        let both = step("all_to_all_v", skew) + &step("all_to_all_v", &format!("{skew}\nreverse = true"));
        let plan = plan(&both, 4).unwrap();
        for me in 0..4 {
            let (there, back) = (plan.steps[0].shares(me, 4), plan.steps[1].shares(me, 4));
            assert_eq!((there.send_counts, there.recv_counts), (back.recv_counts, back.send_counts));
            assert_eq!(there.source_len, 12 * 4 * 5, "every rank sends its tokens");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let never = plan(&step("all_reduce", "repeat = 0"), 2).unwrap_err();
        assert!(never.contains("makes no calls"), "{never}");
        for (steps, ranks, named) in [
            (
                "[[steps]]\nop = \"all_reduce\"\ndtype = \"f32\"\ncount = \"tokens / ranks\"",
                5,
                "ranks = 5 does not divide 12",
            ),
            ("[[steps]]\nop = \"all_reduce\"\ndtype = \"f32\"\ncount = \"tokens * 10000000000000000\"", 2, "64 TiB"),
            ("[[steps]]\nop = \"all_reduce\"\ndtype = \"f32\"\ncount = 1\nrepeat = 10001", 2, "10001"),
            (
                "[[steps]]\nop = \"all_gather_v\"\ndtype = \"f32\"\ncount = 1\nskew = { zipf = 1, over = \"tokens\" }",
                5,
                "12 items",
            ),
        ] {
            let refusal = plan(steps, ranks).unwrap_err();
            assert!(refusal.contains(named) && refusal.contains("x.toml:8"), "{refusal}");
        }
    }
}
