//! The command line of `rankwise bench`, and the sweep it describes.

use super::cell::Cell;
use super::op::Op;
use super::size;
use clap::{Args, ValueEnum};
use rankwise::{DType, ReduceOp};

/// The sweep and how to print it.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArgs {
    /// Backends to measure
    #[arg(long, value_delimiter = ',', value_name = "NAME", default_value = "shm")]
    pub(crate) backend: Vec<String>,
    /// Operations, or `all`
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "OP",
        default_value = "barrier,all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,token_all_gather,token_reduce_scatter"
    )]
    pub(crate) op: Vec<String>,
    /// Element types
    #[arg(long, value_delimiter = ',', value_name = "TYPE", default_value = "f32")]
    pub(crate) dtype: Vec<String>,
    /// Sizes in bytes (8, 4K, 1M) and ranges (8:64M:x4, 0:64:+16)
    #[arg(long, value_delimiter = ',', value_name = "SIZE", default_value = "8,256,4K,64K,1M,16M")]
    pub(crate) size: Vec<String>,
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "2,4", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ranks: Vec<u32>,
    /// Operators of the reducing operations
    #[arg(long, value_delimiter = ',', value_name = "OP", default_value = "sum")]
    pub(crate) redop: Vec<String>,
    /// Timed iterations of each cell [default: as many as fit the budget, 5 to 2000]
    #[arg(long, value_name = "N", conflicts_with = "budget_ms", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iters: Option<u32>,
    /// Time to spend on the timed iterations of each cell or workload, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300.0, value_parser = budget)]
    pub(crate) budget_ms: f64,
    /// Skip cells of which a call takes longer than so many milliseconds [default: with --peers 400, or four times each
    /// round's budget if that is more; else none]
    #[arg(long, value_name = "MS", value_parser = budget)]
    pub(crate) slowest_ms: Option<f64>,
    /// Also measure without rewriting the sources, which flatters large caches
    #[arg(long)]
    pub(crate) warm: bool,
    /// Also measure the in-place forms
    #[arg(long)]
    pub(crate) in_place: bool,
    /// Also measure buffers from the communicator's `alloc`
    #[arg(long)]
    pub(crate) alloc: bool,
    /// Bind ranks to CPUs: cores = in turn, as MPI launchers do; auto = only if there is one for each
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PIN", default_value = "cores")]
    pub(crate) pin: Vec<Pin>,
    /// Replay models instead of measuring operations: names of `--list-workloads`, `all`, or TOML files
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME|FILE",
        conflicts_with_all = ["op", "dtype", "size", "redop", "slowest_ms", "warm", "in_place", "alloc"]
    )]
    pub(crate) workload: Vec<String>,
    /// List the workloads that come with the command
    #[arg(
        long,
        conflicts_with_all = ["workload", "backend", "op", "dtype", "size", "ranks", "redop", "iters", "budget_ms", "slowest_ms", "warm",
            "in_place", "alloc", "pin", "format"]
    )]
    pub(crate) list_workloads: bool,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pin {
    Auto,
    Cores,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table with the columns of nccl-tests
    Text,
    /// One object a line
    Json,
    /// One line a cell, with a header
    Csv,
    /// The columns of the OSU micro-benchmarks, one block an operation
    Osu,
}

/// What to measure on each backend and number of ranks.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(crate) cells: Vec<Cell>,
    pub(crate) effort: Effort,
}

/// How long to measure one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) iterations: Option<usize>,
    pub(crate) budget_ms: f64,
    /// A cell of which a call takes longer is skipped.
    pub(crate) slowest_ms: Option<f64>,
}

/// Fewest iterations that a budget buys.
pub(crate) const LEAST_ITERATIONS: usize = 5;
/// Least time for the fewest iterations of a cell in a comparison with peers, in milliseconds.
const PATIENCE_MS: f64 = 2000.0;
/// Most of it, in budgets of a round.
const PATIENCE_BUDGETS: f64 = 20.0;
/// Most iterations that a budget buys.
const MOST_ITERATIONS: usize = 2000;

impl Effort {
    /// Samples to make room for.
    pub(crate) fn most_iterations(&self) -> usize {
        self.iterations.unwrap_or(MOST_ITERATIONS)
    }
}

/// Without repetitions, in the order given.
pub(super) fn once<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    let mut kept = Vec::new();
    for value in values {
        if !kept.contains(&value) {
            kept.push(value);
        }
    }
    kept
}

impl BenchArgs {
    /// The sweep, or what is wrong with the arguments.
    pub(crate) fn sweep(&self) -> Result<Sweep, String> {
        let ops = ops(&self.op)?;
        let known =
            |what: &str, name: &str, all: Vec<&str>| format!("there is no {what} {name:?}; known: {}", all.join(", "));
        let dtype = |name: &String| {
            let numeric = || DType::NUMERIC.iter().map(|dtype| dtype.name()).collect();
            let found = DType::from_name(name).filter(|dtype| dtype.size().is_some());
            found.ok_or_else(|| known("element type", name, numeric()))
        };
        let dtypes = once(self.dtype.iter().map(dtype).collect::<Result<Vec<_>, _>>()?);
        let redop = |name: &String| {
            let all = || ReduceOp::ALL.iter().map(|op| op.name()).collect();
            ReduceOp::from_name(name).ok_or_else(|| known("operator", name, all()))
        };
        let redops = once(self.redop.iter().map(redop).collect::<Result<Vec<_>, _>>()?);
        let sizes = size::list(&self.size)?;
        let mut cells = Vec::new();
        for op in ops {
            if op == Op::Barrier {
                cells.push(Cell { op, dtype: None, redop: None, bytes: 0, in_place: false, alloc: false, fresh: true });
                continue;
            }
            let redops: Vec<_> = if op.reduces() { redops.iter().copied().map(Some).collect() } else { vec![None] };
            for dtype in &dtypes {
                for redop in &redops {
                    self.add_variants(Cell { dtype: Some(*dtype), redop: *redop, ..blank(op) }, &sizes, &mut cells);
                }
            }
        }
        let iterations = self.iters.map(|n| n as usize);
        Ok(Sweep { cells, effort: Effort { iterations, budget_ms: self.budget_ms, slowest_ms: self.slowest_ms } })
    }

    /// How long a call may take beside peers, so that one cell cannot hold up the run: the fewest iterations have 2 s, or 20
    /// times the budget if that is more.
    pub(crate) fn slowest_beside_peers_ms(&self) -> f64 {
        let budgets = if self.iters.is_some() { 0.0 } else { PATIENCE_BUDGETS * self.budget_ms };
        self.slowest_ms.unwrap_or(budgets.max(PATIENCE_MS) / LEAST_ITERATIONS as f64)
    }

    fn add_variants(&self, cell: Cell, sizes: &[u64], cells: &mut Vec<Cell>) {
        let also = |wanted: bool| if wanted { &[false, true][..] } else { &[false][..] };
        for alloc in also(self.alloc) {
            for warm in also(self.warm) {
                for bytes in sizes {
                    for in_place in [false, true] {
                        let only = !cell.op.out_of_place();
                        let offered = if in_place { cell.op.in_place() && (self.in_place || only) } else { !only };
                        if offered {
                            cells.push(Cell { bytes: *bytes, in_place, alloc: *alloc, fresh: !warm, ..cell });
                        }
                    }
                }
            }
        }
    }

    /// The arguments for the ranks of one job.
    pub(crate) fn for_ranks(&self, backend: &str, ranks: u32) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut value = |name: &str, value: String| args.push(format!("--{name}={value}"));
        value("backend", backend.into());
        value("ranks", ranks.to_string());
        value("op", self.op.join(","));
        value("dtype", self.dtype.join(","));
        value("size", self.size.join(","));
        value("redop", self.redop.join(","));
        match self.iters {
            Some(iterations) => value("iters", iterations.to_string()),
            None => value("budget-ms", self.budget_ms.to_string()),
        }
        if let Some(slowest) = self.slowest_ms {
            value("slowest-ms", slowest.to_string());
        }
        for (name, set) in [("--warm", self.warm), ("--in-place", self.in_place), ("--alloc", self.alloc)] {
            args.extend(set.then(|| name.to_string()));
        }
        args
    }
}

fn blank(op: Op) -> Cell {
    Cell { op, dtype: None, redop: None, bytes: 0, in_place: false, alloc: false, fresh: true }
}

fn ops(names: &[String]) -> Result<Vec<Op>, String> {
    let mut ops = Vec::new();
    for name in names {
        match Op::from_name(name) {
            Some(op) => ops.push(op),
            None if name == "all" => ops.extend(Op::ALL),
            None => {
                let all: Vec<_> = Op::ALL.iter().map(|op| op.name()).collect();
                return Err(format!("there is no operation {name:?} to measure; known: all, {}", all.join(", ")));
            }
        }
    }
    let mut distinct = Vec::new();
    ops.retain(|op| {
        !distinct.contains(op) && {
            distinct.push(*op);
            true
        }
    });
    Ok(ops)
}

fn budget(text: &str) -> Result<f64, String> {
    let budget = text.parse::<f64>().ok().filter(|ms| *ms > 0.0 && *ms <= 1e7);
    budget.ok_or_else(|| "not a number of milliseconds above 0 and at most 1e7".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(line: &str) -> BenchArgs {
        Line::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).unwrap().bench
    }

    #[test]
    fn ranks_see_the_same_sweep() {
        for line in [
            "",
            "--op all --dtype bf16,i8 --redop sum,max --size 8:1M:x8 --warm --in-place --alloc --iters 7 --slowest-ms 0.5",
        ] {
            let args = parse(line);
            let ranks = parse(&args.for_ranks("shm", 3).join(" "));
            assert_eq!(ranks.sweep().unwrap().cells, args.sweep().unwrap().cells);
            assert_eq!((ranks.backend, ranks.ranks, ranks.iters), (vec!["shm".to_string()], vec![3], args.iters));
            assert_eq!(ranks.slowest_ms, args.slowest_ms);
        }
    }

    #[test]
    fn the_slowest_call_beside_peers_follows_the_budget() {
        let slowest = |line: &str| parse(line).slowest_beside_peers_ms();
        assert_eq!(["--budget-ms 30", "--budget-ms 200", "--iters 9"].map(slowest), [400.0, 800.0, 400.0]);
        assert_eq!(slowest("--budget-ms 200 --slowest-ms 7"), 7.0);
    }

    #[test]
    fn variants_multiply_where_they_exist() {
        let count = |line: &str| parse(line).sweep().unwrap().cells.len();
        assert_eq!(count("--op barrier,barrier --warm --alloc --dtype f32,f64"), 1);
        assert_eq!(count("--op all_reduce --size 8,16 --redop sum,max"), 4);
        assert_eq!(count("--op all_gather --size 8,16 --redop sum,max --in-place"), 4);
        assert_eq!(count("--op broadcast,gather --size 8 --in-place --warm --alloc"), 8);
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        for (line, known) in [
            ("--op allreduce", "all_reduce"),
            ("--dtype float", "f32"),
            ("--dtype opaque", "f32"),
            ("--redop mean", "avg"),
            ("--size 8Q", "4K"),
        ] {
            assert!(parse(line).sweep().unwrap_err().contains(known), "{line}");
        }
        for line in ["--ranks 0", "--ranks x", "--iters 0", "--budget-ms 0", "--iters 5 --budget-ms 5", "--format xml"]
        {
            let words = ["bench"].into_iter().chain(line.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }
}
