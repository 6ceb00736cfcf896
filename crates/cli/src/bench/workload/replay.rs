//! The timed passes through a workload.
//!
//! Every call is timed on its own, all ranks released together, and counts with its slowest rank; the time of a unit is the
//! sum over its calls. When the budget does not hold five passes, a pass times a part of each step's repetitions and their
//! mean stands for all of them.

use super::plan::{Plan, Step};
use super::report::{OpShare, SizeShare};
use super::report::{Spread, op_shares, size_shares};
use crate::bench::args::Effort;
use crate::bench::calls::Calls;
use crate::bench::cell::Shares;
use crate::bench::elem::{BenchElem, with_elem};
use crate::bench::measure::Work;
use crate::bench::page::Team;
use crate::bench::rank::AlignedWords;
use rankwise::{Communicator, DType, Error, Result};

/// Room for the calls of a pass.
pub(crate) const MOST_CALLS: usize = 4096;
/// A pass times `n` of so many parts of each step's repetitions.
const PARTS: u64 = 4096;
const LEAST_PASSES: usize = 5;
const MOST_PASSES: usize = 2000;

/// What was found, on the first rank.
pub(crate) struct Replay {
    pub(crate) passes: usize,
    /// Of the calls of a unit, how many a pass timed.
    pub(crate) timed_share: f64,
    pub(crate) us_per_unit: Spread,
    pub(crate) by_op: Vec<OpShare>,
    pub(crate) by_size: Vec<SizeShare>,
    pub(crate) wrong: u64,
}

/// A step with this rank's buffers.
struct Prepared<'a> {
    step: &'a Step,
    shares: Shares,
    source: AlignedWords,
    dest: AlignedWords,
}

impl<'a> Prepared<'a> {
    fn new(step: &'a Step, comm: &Communicator) -> Result<Prepared<'a>> {
        let shares = step.shares(comm.rank(), comm.size());
        let elem = step.cell.dtype.and_then(DType::size).unwrap_or(1);
        let words = |elements: usize| AlignedWords::new((elements * elem).div_ceil(size_of::<u64>()));
        let source = words(if step.cell.in_place { 0 } else { shares.source_len })?;
        let dest = words(shares.dest_len)?;
        Ok(Prepared { step, shares, source, dest })
    }

    /// Acts on the call in its element type.
    fn with<R>(&mut self, comm: &mut Communicator, act: impl FnOnce(&mut dyn Work) -> Result<R>) -> Result<R> {
        let dtype = self.step.cell.dtype.unwrap_or(DType::U8);
        let mut result = Err(Error::invalid(format!("{dtype} has no values to measure with")));
        let mut act = Some(act);
        let mut once = |work: &mut dyn Work| {
            if let Some(act) = act.take() {
                result = act(work);
            }
        };
        with_elem!(dtype, typed(self, comm, &mut once), {});
        result
    }
}

fn typed<T: BenchElem>(prepared: &mut Prepared<'_>, comm: &mut Communicator, act: &mut dyn FnMut(&mut dyn Work)) {
    let (cell, shares) = (&prepared.step.cell, &prepared.shares);
    let source_len = if cell.in_place { 0 } else { shares.source_len };
    let source = &mut bytemuck::cast_slice_mut::<u64, T>(&mut prepared.source)[..source_len];
    let dest = &mut bytemuck::cast_slice_mut::<u64, T>(&mut prepared.dest)[..shares.dest_len];
    act(&mut Calls::new(comm, cell, shares, source, dest));
}

/// Replays the plan; collective over the team. The result is for the first rank alone.
pub(crate) fn replay(team: &mut Team, comm: &mut Communicator, plan: &Plan, effort: Effort) -> Result<Option<Replay>> {
    // A rank without memory must not leave the others waiting: its error ends them through the team.
    let mut steps = plan.steps.iter().map(|step| Prepared::new(step, comm)).collect::<Result<Vec<_>>>()?;
    let mut nanoseconds = Vec::new();
    for step in &mut steps {
        nanoseconds.push(step.with(comm, |work| warmed_up(team, work))?);
    }
    let (parts, most_passes) = agreed(team, plan, &nanoseconds, effort)?;
    let began = team.clock().now();
    let timed: Vec<u64> = plan.steps.iter().map(|step| step.timed(parts)).collect();
    let mut totals = Vec::new();
    let mut of_steps = vec![Vec::new(); steps.len()];
    let mut passes = 0;
    loop {
        let mut place = 0;
        for (step, calls) in steps.iter_mut().zip(&timed) {
            let places = place..place + *calls as usize;
            place = places.end;
            step.with(comm, |work| places.into_iter().try_for_each(|place| timed_call(team, work, place)))?;
        }
        team.barrier()?;
        if team.is_first() {
            let slowest = team.slowest(place);
            let mut rest = &slowest[..];
            let mut total = 0.0;
            for ((step, calls), sums) in plan.steps.iter().zip(&timed).zip(&mut of_steps) {
                let (own, tail) = rest.split_at(*calls as usize);
                let all = own.iter().sum::<f64>() * step.repeat as f64 / (*calls).max(1) as f64;
                sums.push(all);
                total += all;
                rest = tail;
            }
            totals.push(total);
            // A busy machine may be slower than it was while warming up.
            let spent_ms = team.clock().nanoseconds(team.clock().now() - began) / 1e6;
            let spent = effort.iterations.is_none() && spent_ms > effort.budget_ms && totals.len() >= LEAST_PASSES;
            team.set_iterations(usize::from(!spent && totals.len() < most_passes));
        }
        team.barrier()?;
        passes += 1;
        if team.iterations() == 0 {
            break;
        }
    }
    for step in &mut steps {
        step.with(comm, |work| checked_after(team, work))?;
    }
    team.barrier()?;
    let result = team.is_first().then(|| Replay {
        passes,
        timed_share: timed.iter().sum::<u64>() as f64 / plan.calls().max(1) as f64,
        us_per_unit: Spread::of(totals),
        by_op: op_shares(plan, &of_steps),
        by_size: size_shares(plan),
        wrong: team.take_wrong(),
    });
    team.barrier()?;
    Ok(result)
}

impl Step {
    /// Calls that a pass times: at least one of any.
    fn timed(&self, parts: u64) -> u64 {
        (self.repeat * parts).div_ceil(PARTS)
    }
}

/// Checks the first result, warms up, and returns what one call with all around it takes here, in nanoseconds.
fn warmed_up(team: &mut Team, work: &mut dyn Work) -> Result<f64> {
    work.fill();
    team.barrier()?;
    work.call()?;
    team.add_wrong(work.wrong());
    team.barrier()?;
    let began = team.clock().now();
    let mut calls = 0_u32;
    // Every rank stops after the same number: the first one says so.
    for round in [2, 18] {
        for _ in 0..round {
            work.refresh();
            team.barrier()?;
            work.call()?;
        }
        calls += round;
        team.barrier()?;
        let short = team.clock().nanoseconds(team.clock().now() - began) < 2e6;
        if team.is_first() {
            team.set_iterations(usize::from(short));
        }
        team.barrier()?;
        if team.iterations() == 0 {
            break;
        }
    }
    Ok(team.clock().nanoseconds(team.clock().now() - began) / f64::from(calls))
}

/// The parts that the first rank chooses from its times, on all ranks, and its passes, which only the first rank goes by.
fn agreed(team: &mut Team, plan: &Plan, nanoseconds: &[f64], effort: Effort) -> Result<(u64, usize)> {
    let of_unit: f64 = plan.steps.iter().zip(nanoseconds).map(|(step, took)| step.repeat as f64 * took / 1e6).sum();
    let (parts, passes) = parts_and_passes(of_unit, plan, effort);
    team.barrier()?;
    if team.is_first() {
        team.set_iterations(parts as usize);
    }
    team.barrier()?;
    let parts = team.iterations() as u64;
    team.barrier()?;
    Ok((parts, passes))
}

fn parts_and_passes(unit_ms: f64, plan: &Plan, effort: Effort) -> (u64, usize) {
    let most_calls = (MOST_CALLS - plan.steps.len().min(MOST_CALLS - 1)) as u64;
    let room = (PARTS * most_calls / plan.calls().max(1)).clamp(1, PARTS);
    if let Some(passes) = effort.iterations {
        return (room, passes);
    }
    let affordable = effort.budget_ms / unit_ms.max(1e-6) / LEAST_PASSES as f64;
    if affordable < 1.0 {
        return (((PARTS as f64 * affordable) as u64).clamp(1, room), LEAST_PASSES);
    }
    // A saturating conversion.
    (room, ((affordable * LEAST_PASSES as f64) as usize).min(MOST_PASSES))
}

fn timed_call(team: &mut Team, work: &mut dyn Work, place: usize) -> Result<()> {
    work.refresh();
    team.barrier()?;
    let start = team.clock().now();
    work.call()?;
    let end = team.clock().after();
    team.record(place, end.wrapping_sub(start));
    Ok(())
}

fn checked_after(team: &mut Team, work: &mut dyn Work) -> Result<()> {
    if work.spoils_source() {
        work.fill();
        team.barrier()?;
        work.call()?;
    }
    team.add_wrong(work.wrong());
    team.barrier()
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;
    use super::*;
    use crate::bench::clock::Clock;
    use crate::bench::page::Page;
    use rankwise::{Backend, Config, World};
    use rankwise_conformance::mutants::mutate;
    use std::os::fd::AsFd;

    const RANKS: usize = 3;

    fn plan(steps: &str) -> Plan {
        let head = "name = \"x\"\ndescription = \"\"\nsource = \"\"\nunit = \"step\"\n";
        let workload = parse("x.toml", &format!("{head}{steps}")).unwrap();
        Plan::new(&workload, &workload.variants[0], RANKS).unwrap()
    }

    const MIXED: &str = r#"
        steps = [
            { op = "all_reduce", dtype = "bf16", count = 1000, repeat = 4 },
            { op = "all_reduce", dtype = "f32", count = 70, in_place = true },
            { op = "barrier" },
            { op = "token_all_gather", dtype = "f16", rows = 5, width = 8, skew = { zipf = 1.5, seed = 2 } },
            { op = "token_reduce_scatter", dtype = "bf16", rows = 5, width = 8, skew = { zipf = 1.5, seed = 2 } },
            { op = "all_gather_v", dtype = "i32", rows = 5, width = 8, skew = { zipf = 1.5 } },
            { op = "reduce_scatter_v", dtype = "f64", rows = 5, width = 8, repeat = 0 },
            { op = "all_to_all_v", dtype = "fp8e4m3", rows = 9, width = 3, skew = { zipf = 0.5, over = 12 } },
            { op = "all_to_all_v", dtype = "bf16", rows = 9, width = 3, skew = { zipf = 0.5, over = 12 }, reverse = true },
        ]"#;

    /// The first rank's figures over the shared-memory backend or a mutant of it.
    fn replayed(steps: &str, mutant: Option<&str>, effort: Effort) -> Replay {
        let plan = plan(steps);
        let page = Page::create(RANKS, MOST_CALLS).unwrap();
        let clock = Clock::calibrated();
        let shm = rankwise::driver("shm").unwrap();
        let run = |world: World| -> Result<Option<Replay>> {
            let config = Config::new();
            let raw = match mutant {
                Some(name) => mutate(shm, name).unwrap().join(&world, &config)?,
                None => shm.join(&world, &config)?,
            };
            let mut comm = Backend::new(raw, config.resolve()?).world()?;
            let page = Page::map(page.as_fd(), RANKS, MOST_CALLS)?;
            let mut team = Team::new(page, clock.clone(), world.rank(), true);
            replay(&mut team, &mut comm, &plan, effort)
        };
        let mut found = World::threads(RANKS, run).unwrap().into_iter().map(Result::unwrap);
        let first = found.next().flatten().unwrap();
        assert!(found.all(|other| other.is_none()));
        first
    }

    #[test]
    fn all_forms_come_out_right_and_add_up() {
        let found = replayed(MIXED, None, Effort { iterations: Some(7), budget_ms: 1.0, slowest_ms: None });
        assert_eq!((found.wrong, found.passes, found.timed_share), (0, 7, 1.0));
        assert!(found.us_per_unit.p50 > 0.0 && found.us_per_unit.p99 >= found.us_per_unit.p50);
        let calls: Vec<_> = found.by_op.iter().map(|share| (share.op.as_str(), share.calls)).collect();
        let wanted = [
            ("all_reduce", 5),
            ("barrier", 1),
            ("token_all_gather", 1),
            ("token_reduce_scatter", 1),
            ("all_gather_v", 1),
            ("reduce_scatter_v", 0),
            ("all_to_all_v", 2),
        ];
        assert_eq!(calls, wanted);
        let shares: f64 = found.by_op.iter().map(|share| share.time_share).sum();
        assert!((shares - 1.0).abs() < 1e-3, "{shares}");
        assert_eq!(found.by_size.iter().map(|class| class.calls).sum::<u64>(), 11);
    }

    #[test]
    fn a_broken_backend_has_wrong_elements() {
        let steps = "steps = [{ op = \"all_reduce\", dtype = \"f32\", count = 100, repeat = 3 }]";
        let found =
            replayed(steps, Some("dropped-tail"), Effort { iterations: Some(2), budget_ms: 1.0, slowest_ms: None });
        // One element on each rank, before and after.
        assert_eq!(found.wrong, 2 * RANKS as u64);
    }

    #[test]
    fn a_small_budget_times_a_part_of_the_calls() {
        let plan =
            plan("steps = [{ op = \"all_reduce\", dtype = \"f32\", count = 1, repeat = 160 }, { op = \"barrier\" }]");
        let chosen = |unit_ms, iterations| {
            let (parts, passes) =
                parts_and_passes(unit_ms, &plan, Effort { iterations, budget_ms: 100.0, slowest_ms: None });
            (plan.steps.iter().map(|step| step.timed(parts)).collect::<Vec<_>>(), passes)
        };
        assert_eq!(chosen(1.0, None), (vec![160, 1], 100));
        assert_eq!(chosen(0.001, None), (vec![160, 1], 2000));
        assert_eq!(chosen(200.0, None), (vec![16, 1], 5));
        assert_eq!(chosen(1e9, None), (vec![1, 1], 5));
        assert_eq!(chosen(1e9, Some(9)), (vec![160, 1], 9));
        let found = replayed(MIXED, None, Effort { iterations: None, budget_ms: 0.001, slowest_ms: None });
        assert_eq!((found.wrong, found.passes), (0, 5));
        assert!((found.timed_share - 8.0 / 11.0).abs() < 1e-9, "{}", found.timed_share);
    }

    #[test]
    fn a_pass_never_has_more_calls_than_the_page_has_room() {
        let step = "{ op = \"barrier\", repeat = 10000 },";
        let plan = plan(&format!("steps = [{}]", step.repeat(200)));
        let (parts, _) =
            parts_and_passes(1e-9, &plan, Effort { iterations: Some(1), budget_ms: 1.0, slowest_ms: None });
        assert!(plan.steps.iter().map(|step| step.timed(parts)).sum::<u64>() <= MOST_CALLS as u64);
    }
}
