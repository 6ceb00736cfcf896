//! `rankwise bench --workload`: the communication of real models, replayed from their published shapes.
//!
//! `file` reads a workload (those of `builtin` are files too), whose sizes are the products of `quantity`; `plan` turns it into
//! the calls of one number of ranks, with the uneven counts of `routes`; `job` starts the ranks and prints with `report`;
//! `rank` is what each of them does, and `replay` what it measures.
//!
//! Not here: computation and its overlap with communication. What is measured is the time in the calls alone.

mod builtin;
mod file;
mod job;
mod plan;
mod quantity;
mod rank;
mod replay;
mod report;
mod routes;

pub(crate) use job::{list, run};
pub(crate) use rank::run as run_rank;

use super::args::BenchArgs;
use file::Workload;

/// The workloads named on the command line, or what is wrong with them.
fn selected(args: &BenchArgs) -> Result<Vec<Workload>, String> {
    let mut workloads = Vec::new();
    for name in &args.workload {
        if name == "all" {
            for (file, text) in builtin::FILES {
                workloads.push(file::parse(file, text)?);
            }
        } else if let Some((file, text)) = builtin::find(name) {
            workloads.push(file::parse(file, text)?);
        } else if is_file(name) {
            workloads.push(file::read(name)?);
        } else {
            return Err(format!(
                "there is no workload {name:?}; known: all, {}; a file of your own ends with .toml",
                builtin::names().collect::<Vec<_>>().join(", ")
            ));
        }
    }
    Ok(workloads)
}

/// Whether that means a file of the user's, not a workload that comes with the command.
fn is_file(name: &str) -> bool {
    builtin::find(name).is_none() && (name.contains('/') || name.ends_with(".toml"))
}
