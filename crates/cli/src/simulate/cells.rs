//! What there is to simulate: an operation of a size on a number of ranks by a plan, and what came out.

use rankwise::{DType, Determinism, OpKind, ReduceOp};
use rankwise_core::backend::RawCall;
use rankwise_schedule::plan::Cost;
use rankwise_schedule::sim::{Model, Outcome, simulate};
use rankwise_schedule::{Algorithm, Choice, Plan, Table};
use serde_json::{Value, json};
use std::fmt;

/// Messages under way at once that fit into this process.
const MOST_AT_ONCE: u64 = 1 << 20;

/// Which plans to run.
pub(super) struct Plans {
    table: Table,
    wanted: Vec<Wanted>,
}

#[derive(Clone, Copy)]
enum Wanted {
    /// What the table says.
    Chosen,
    Named(Algorithm, Option<usize>),
    /// If it offers the operation.
    Every(Algorithm),
}

impl Plans {
    pub(super) fn new(table: Table, names: &[String], chunk: Option<usize>) -> Result<Plans, String> {
        let mut wanted = Vec::new();
        for name in names {
            match name.as_str() {
                "table" => wanted.push(Wanted::Chosen),
                "all" => wanted.extend(Algorithm::ALL.map(Wanted::Every)),
                name => wanted.push(Wanted::Named(Algorithm::from_name(name).ok_or_else(|| unknown(name))?, chunk)),
            }
        }
        if chunk.is_some() && !wanted.iter().any(|wanted| matches!(wanted, Wanted::Named(..))) {
            return Err("--chunk is for named plans; name some with --algorithm".into());
        }
        Ok(Plans { table, wanted })
    }
}

fn unknown(name: &str) -> String {
    let names = Algorithm::ALL.map(|algorithm| algorithm.to_string()).join(", ");
    format!("{name:?} is not a plan; choose table, all, or of {names}")
}

/// Something to simulate.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    kind: OpKind,
    dtype: DType,
    bytes: u64,
    pub(super) ranks: usize,
    choice: Choice,
    /// Whether a table chose.
    chosen: bool,
}

/// All cells of a sweep.
pub(super) fn all(
    ops: &[String],
    ranks: &[u64],
    sizes: &[u64],
    dtype: &str,
    plans: &Plans,
) -> Result<Vec<Cell>, String> {
    let dtype = DType::from_name(dtype).ok_or_else(|| format!("{dtype:?} is not a type; choose for example f32"))?;
    let elem_size = dtype.size().ok_or("opaque elements have no size; choose for example u8")? as u64;
    let mut cells = Vec::new();
    for name in ops {
        let kind = OpKind::from_name(name).filter(|kind| SIMULATED.contains(kind)).ok_or_else(|| {
            format!("{name:?} can't be simulated; choose of {}", SIMULATED.map(OpKind::name).join(", "))
        })?;
        let sizes = if kind == OpKind::Barrier { &[0] } else { sizes };
        for bytes in sizes {
            if !bytes.is_multiple_of(elem_size) {
                return Err(format!("{bytes} bytes are no whole number of {dtype}; choose a multiple of {elem_size}"));
            }
            for wanted in &plans.wanted {
                for ranks in ranks {
                    let mut cell = Cell {
                        kind,
                        dtype,
                        bytes: *bytes,
                        ranks: *ranks as usize,
                        choice: Choice::whole(Algorithm::Direct),
                        chosen: false,
                    };
                    match *wanted {
                        Wanted::Chosen => {
                            let selection = plans.table.select(cell.ranks, Determinism::SameTopology);
                            (cell.choice, cell.chosen) = (selection.choose(&cell.call()), true);
                        }
                        Wanted::Every(algorithm) if !algorithm.offers(kind) => continue,
                        Wanted::Every(algorithm) => cell.choice = Choice::whole(algorithm),
                        Wanted::Named(algorithm, _) if !algorithm.offers(kind) => {
                            return Err(format!("the plan {algorithm} does not offer {kind}; choose another"));
                        }
                        Wanted::Named(algorithm, chunk) => {
                            cell.choice = Choice { algorithm, chunk: chunk.filter(|_| algorithm.chunks(kind)) };
                        }
                    }
                    cells.push(cell);
                }
            }
        }
    }
    Ok(cells)
}

const SIMULATED: [OpKind; 9] = [
    OpKind::AllReduce,
    OpKind::AllGather,
    OpKind::ReduceScatter,
    OpKind::AllToAll,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::Barrier,
];

impl Cell {
    fn call(&self) -> RawCall<'static> {
        let elem_size = self.dtype.size().unwrap_or(1) as u64;
        let mut call = RawCall::new(self.kind, self.dtype, (self.bytes / elem_size) as usize);
        call.op = self.kind.reduces().then_some(ReduceOp::Sum);
        call
    }

    /// Over a panel of the picture.
    pub(super) fn title(&self) -> String {
        if self.kind == OpKind::Barrier { "barrier".into() } else { format!("{}, {} bytes", self.kind, self.bytes) }
    }

    /// The name of its line in the picture.
    pub(super) fn series(&self) -> String {
        if self.chosen { "table".into() } else { self.choice.algorithm.to_string() }
    }

    /// Messages in all, at most about, and at once.
    fn messages(&self, chunks: usize) -> (u64, u64) {
        let (n, algorithm) = (self.ranks as u64, self.choice.algorithm);
        let each = Cost::of(algorithm, self.kind, self.ranks, 1).map_or(0, |cost| cost.messages as u64);
        let one_root = self.kind.has_root() && algorithm != Algorithm::TwoShot;
        let all = if one_root { n } else { n * each } * chunks as u64;
        let at_once = match algorithm {
            _ if one_root => n,
            Algorithm::Direct | Algorithm::TwoShot => n * n,
            // Its rounds have as many copies.
            Algorithm::Bruck if self.kind == OpKind::AllToAll => n * n / 16,
            _ => n,
        };
        (all, at_once)
    }

    /// Runs it, unless it takes too many messages.
    pub(super) fn run(self, model: &Model, most: u64) -> Result<Row, String> {
        let call = self.call();
        let plan = Plan::new(&call, 0, self.ranks, self.choice).map_err(|error| error.message().to_string())?;
        let (all, at_once) = self.messages(plan.chunks());
        let cost = Cost::of(self.choice.algorithm, self.kind, self.ranks, call.count).filter(|_| plan.chunks() == 1);
        let formula_us = cost.map(|cost| model.formula(cost, call.elem_size).as_nanos() as f64 / 1e3);
        let run = if at_once > MOST_AT_ONCE {
            Run::LeftOut("too many messages at once for memory".into())
        } else if all > most {
            Run::LeftOut(format!("{all} messages; raise --most-messages"))
        } else {
            Run::Done(simulate(model, self.ranks, &call, self.choice).map_err(|error| error.to_string())?)
        };
        Ok(Row { cell: self, run, formula_us })
    }
}

/// A cell and what came out.
pub(super) struct Row {
    pub(super) cell: Cell,
    pub(super) run: Run,
    formula_us: Option<f64>,
}

pub(super) enum Run {
    Done(Outcome),
    /// Why not.
    LeftOut(String),
}

impl Row {
    pub(super) const HEADER: &'static str = "op              ranks       bytes plan                    chunk  rounds  messages  bytes/rank      time us   formula us";

    pub(super) fn as_json(&self) -> Value {
        let Cell { kind, dtype, bytes, ranks, choice, chosen } = &self.cell;
        let mut row = json!({
            "op": kind.name(), "dtype": dtype.name(), "ranks": ranks, "bytes": bytes,
            "plan": choice.algorithm.to_string(), "chunk": choice.chunk, "from_table": chosen,
            "formula_us": self.formula_us,
        });
        match &self.run {
            Run::Done(outcome) => {
                row["time_us"] = json!(outcome.time.as_nanos() as f64 / 1e3);
                row["rounds"] = json!(outcome.rounds);
                row["chunks"] = json!(outcome.chunks);
                row["messages_per_rank"] = json!(outcome.most.messages);
                row["bytes_per_rank"] = json!(outcome.most.bytes);
                row["messages"] = json!(outcome.all.messages);
                row["bytes_sent"] = json!(outcome.all.bytes);
            }
            Run::LeftOut(why) => row["left_out"] = json!(why),
        }
        row
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { kind, bytes, ranks, choice, .. } = &self.cell;
        let chunk = choice.chunk.map_or("-".into(), |chunk| chunk.to_string());
        let plan = choice.algorithm.to_string();
        write!(f, "{:<14} {ranks:>6} {bytes:>11} {plan:<19} {chunk:>9}", kind.name())?;
        match &self.run {
            Run::Done(outcome) => {
                let formula = self.formula_us.map_or("-".into(), |us| format!("{us:.2}"));
                let (rounds, most) = (outcome.rounds, outcome.most);
                let time = outcome.time.as_nanos() as f64 / 1e3;
                write!(f, " {rounds:>7} {:>9} {:>11} {time:>12.2} {formula:>12}", most.messages, most.bytes)
            }
            Run::LeftOut(why) => write!(f, " left out: {why}"),
        }
    }
}
