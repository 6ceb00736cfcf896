//! `rankwise simulate`: what collectives cost on thousands of ranks, without them.
//!
//! `cells` are what there is to simulate and its results, `quantity` reads times and speeds.

mod cells;
mod quantity;

use crate::bench::{AgainstRanks, against_ranks};
use cells::{Cell, Plans, Row, Run};
use clap::{Args, ValueEnum};
use rankwise_schedule::Table;
use rankwise_schedule::sim::Model;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Tell what collectives over messages cost on any number of ranks, in virtual time
#[derive(Args)]
pub(crate) struct Simulate {
    /// Operations
    #[arg(long, value_delimiter = ',', value_name = "OP", default_value = "all_reduce")]
    op: Vec<String>,
    /// Numbers of ranks (2,8,64) and ranges (2:4096:x4)
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "2:4096:x2")]
    ranks: Vec<String>,
    /// Sizes in bytes (8, 64K, 64M) and ranges (8:64M:x4), as in `rankwise bench`
    #[arg(long, value_delimiter = ',', value_name = "SIZE", default_value = "8,64K,1M")]
    size: Vec<String>,
    /// Type of the elements
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: String,
    /// Plans: `table` (what a call would use), `all`, or names such as ring,bruck,4-nomial
    #[arg(long, value_delimiter = ',', value_name = "NAME", default_value = "table")]
    algorithm: Vec<String>,
    /// Chunks of so many bytes for named plans that can run in chunks [default: one chunk]
    #[arg(long, value_name = "SIZE")]
    chunk: Option<String>,
    /// A table of plans, before the built-in one
    #[arg(long, value_name = "FILE")]
    plans: Option<PathBuf>,
    #[command(flatten)]
    network: Network,
    /// Leave out what sends more messages: a million take about a second
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    most_messages: u64,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Also draw time against ranks
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What the hosts and their network are like.
#[derive(Args)]
struct Network {
    /// Ranks of each host
    #[arg(long, value_name = "N", default_value_t = 8)]
    ranks_per_host: usize,
    /// Hosts of each rack; 0: one rack
    #[arg(long, value_name = "N", default_value_t = 16)]
    hosts_per_rack: usize,
    /// From host to host in a rack
    #[arg(long, value_name = "TIME", default_value = "2us", value_parser = quantity::time)]
    latency: Duration,
    /// More, from rack to rack
    #[arg(long, value_name = "TIME", default_value = "1us", value_parser = quantity::time)]
    rack_latency: Duration,
    /// Of each host's network card, each way
    #[arg(long, value_name = "SPEED", default_value = "12.5GB/s", value_parser = quantity::speed)]
    bandwidth: f64,
    /// How much more the cards of a rack can send than its uplink
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    oversubscription: f64,
    /// Time of a rank's processor for each message sent, and for each received
    #[arg(long, value_name = "TIME", default_value = "0.5us", value_parser = quantity::time)]
    overhead: Duration,
    /// From rank to rank on a host
    #[arg(long, value_name = "TIME", default_value = "300ns", value_parser = quantity::time)]
    host_latency: Duration,
    /// From rank to rank on a host
    #[arg(long, value_name = "SPEED", default_value = "10GB/s", value_parser = quantity::speed)]
    host_bandwidth: f64,
    /// Of local copies, in bytes copied
    #[arg(long, value_name = "SPEED", default_value = "10GB/s", value_parser = quantity::speed)]
    copy: f64,
    /// Of reductions, in bytes read
    #[arg(long, value_name = "SPEED", default_value = "10GB/s", value_parser = quantity::speed)]
    reduce: f64,
}

impl Network {
    fn model(&self) -> Result<Model, String> {
        // Also false for what is no number.
        let possible = self.oversubscription >= 0.001 && self.oversubscription <= 1e6;
        if !possible {
            return Err("--oversubscription is from 0.001 to 1000000; 1 is a rack whose uplink keeps up".into());
        }
        let hosts = if self.hosts_per_rack == 0 { usize::MAX } else { self.hosts_per_rack };
        Ok(Model {
            ranks_per_host: self.ranks_per_host,
            hosts_per_rack: hosts,
            latency: self.latency,
            rack_latency: self.rack_latency,
            bandwidth: self.bandwidth,
            uplink: self.bandwidth * hosts as f64 / self.oversubscription,
            send_overhead: self.overhead,
            receive_overhead: self.overhead,
            host_latency: self.host_latency,
            host_bandwidth: self.host_bandwidth,
            copy: self.copy,
            reduce: self.reduce,
            ..Model::default()
        })
    }

    fn as_json(&self) -> serde_json::Value {
        let ns = |time: Duration| time.as_nanos() as u64;
        let finite = |speed: f64| speed.is_finite().then_some(speed);
        json!({
            "ranks_per_host": self.ranks_per_host, "hosts_per_rack": self.hosts_per_rack,
            "latency_ns": ns(self.latency), "rack_latency_ns": ns(self.rack_latency), "overhead_ns": ns(self.overhead),
            "bandwidth": finite(self.bandwidth), "oversubscription": self.oversubscription,
            "host_latency_ns": ns(self.host_latency), "host_bandwidth": finite(self.host_bandwidth),
            "copy": finite(self.copy), "reduce": finite(self.reduce),
        })
    }
}

impl Simulate {
    pub(crate) fn run(self) -> ExitCode {
        let (model, cells) = match self.prepared() {
            Ok(prepared) => prepared,
            Err(why) => {
                eprintln!("rankwise simulate: {why}");
                return ExitCode::from(2);
            }
        };
        match self.print(&model, cells) {
            Ok(()) => ExitCode::SUCCESS,
            Err(Failure::Output(error)) => crate::output_failed(&error),
            Err(Failure::Other(why)) => {
                eprintln!("rankwise simulate: {why}");
                ExitCode::FAILURE
            }
        }
    }

    /// What the command line says; all of it is looked at before anything runs.
    fn prepared(&self) -> Result<(Model, Vec<Cell>), String> {
        let model = self.network.model()?;
        let plans = match &self.plans {
            None => Table::new(Vec::new()),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("--plans {}: {error}; name a readable file", path.display()))?;
                Table::parse(&text).map_err(|error| format!("{}: {}", path.display(), error.message()))?
            }
        };
        let chunk = self.chunk.as_ref().map(|size| crate::bench::sizes(std::slice::from_ref(size))).transpose()?;
        let chunk = match chunk.as_deref() {
            None => None,
            Some([bytes]) if *bytes > 0 => Some(*bytes as usize),
            Some(_) => return Err("--chunk is one size above 0".into()),
        };
        let ranks = crate::bench::sizes(&self.ranks)?;
        for n in &ranks {
            model.check(usize::try_from(*n).unwrap_or(usize::MAX)).map_err(|error| error.message().to_string())?;
        }
        let plans = Plans::new(plans, &self.algorithm, chunk)?;
        let cells = cells::all(&self.op, &ranks, &crate::bench::sizes(&self.size)?, &self.dtype, &plans)?;
        Ok((model, cells))
    }

    fn print(&self, model: &Model, cells: Vec<Cell>) -> Result<(), Failure> {
        let mut out = io::stdout();
        let text = self.format == Format::Text;
        if text {
            writeln!(out, "{}", Row::HEADER)?;
        }
        let mut rows = Vec::new();
        for cell in cells {
            let row = cell.run(model, self.most_messages).map_err(Failure::Other)?;
            if text {
                writeln!(out, "{row}")?;
            }
            rows.push(row);
        }
        if !text {
            let rows: Vec<_> = rows.iter().map(Row::as_json).collect();
            writeln!(out, "{:#}", json!({ "network": self.network.as_json(), "rows": rows }))?;
        }
        if let Some(path) = &self.svg {
            std::fs::write(path, picture(&rows)).map_err(|error| {
                Failure::Other(format!("--svg {}: {error}; choose a writable place", path.display()))
            })?;
        }
        Ok(())
    }
}

/// Why nothing more is printed.
enum Failure {
    Output(io::Error),
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

/// A panel for each operation and size, a line for each plan that was asked for.
fn picture(rows: &[Row]) -> String {
    let mut panels: Vec<AgainstRanks> = Vec::new();
    for row in rows {
        let Run::Done(outcome) = &row.run else { continue };
        let title = row.cell.title();
        let panel = match panels.iter_mut().position(|panel| panel.title == title) {
            Some(index) => &mut panels[index],
            None => {
                panels.push(AgainstRanks { title, lines: Vec::new() });
                panels.last_mut().expect("just pushed")
            }
        };
        let name = row.cell.series();
        let point = (row.cell.ranks as u64, outcome.time.as_nanos() as f64 / 1e3);
        match panel.lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => panel.lines.push((name, vec![point])),
        }
    }
    against_ranks("time of collectives against ranks, simulated", &panels)
}
