//! One rank of a replay: joins, replays every workload that fits, and the first rank reports.

use super::file::{Variant, Workload};
use super::plan::Plan;
use super::replay::{MOST_CALLS, replay};
use super::report::{Row, Said};
use super::selected;
use crate::bench::args::{BenchArgs, Effort};
use crate::bench::measured::rounded;
use crate::bench::page::Team;
use crate::bench::rank::{CALL_DEADLINE, meet, say, unsupported};
use crate::bench::report::RankFacts;
use rankwise::{Communicator, Config, Error, Result, World};

/// Runs this rank to its end.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let workloads = selected(args).map_err(Error::invalid)?;
    let world = rankwise::driver(args.backend.first().map_or("", String::as_str))?.world()?;
    let room = Effort { iterations: Some(MOST_CALLS), budget_ms: args.budget_ms, slowest_ms: None };
    let (mut team, ranks) = meet(&world, &room)?;
    let result = replay_all(&world, args, &workloads, &mut team, ranks);
    if result.is_err() {
        team.fail();
    }
    result
}

fn replay_all(
    world: &World,
    args: &BenchArgs,
    workloads: &[Workload],
    team: &mut Team,
    ranks: Vec<RankFacts>,
) -> Result<()> {
    let name = args.backend.first().map_or("", String::as_str);
    let backend = rankwise::join(world, &Config::new().backend(name).timeout(CALL_DEADLINE))?;
    let mut comm = backend.world()?;
    let effort = Effort { iterations: args.iters.map(|n| n as usize), budget_ms: args.budget_ms, slowest_ms: None };
    if team.is_first() {
        say(&Said::Ranks { ranks, clock: team.clock().describe() })?;
    }
    for workload in workloads {
        for variant in &workload.variants {
            let plan = Plan::new(workload, variant, world.size()).map_err(Error::invalid)?;
            // Every rank decides alike: from the workload and the capabilities, which are the same on all.
            let refusal = plan.steps.iter().find_map(|step| {
                unsupported(&comm, &step.cell).map(|reason| format!("{}: {reason}", step.cell.describe()))
            });
            if let Some(reason) = refusal {
                if team.is_first() {
                    let what = [workload.name.as_str(), &variant.label].join(" ").trim_end().to_string();
                    say(&Said::Skipped { what, reason })?;
                }
                continue;
            }
            if let Some(row) = row(workload, variant, &plan, backend.name(), &mut comm, team, effort)? {
                say(&Said::Row(Box::new(row)))?;
            }
        }
    }
    comm.finalize()
}

fn row(
    workload: &Workload,
    variant: &Variant,
    plan: &Plan,
    backend: &str,
    comm: &mut Communicator,
    team: &mut Team,
    effort: Effort,
) -> Result<Option<Row>> {
    let replayed = replay(team, comm, plan, effort)?;
    Ok(replayed.map(|found| Row {
        workload: workload.name.clone(),
        variant: variant.label.clone(),
        backend: backend.to_string(),
        ranks: comm.size(),
        pin: String::new(),
        unit: workload.unit,
        us_per_unit: found.us_per_unit,
        calls_per_unit: plan.calls(),
        passes: found.passes,
        timed_share: rounded(found.timed_share),
        by_op: found.by_op,
        by_size: found.by_size,
        wrong: found.wrong,
    }))
}
