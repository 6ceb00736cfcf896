//! Groups and communicators: subsets, orders, overlaps, splits, threads.

use super::every_kind::every_kind;
use crate::case::{Case, CaseResult, Failure, Need, ensure};
use crate::clean;
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, verify};
use rankwise_core::{Backend, CommBackend, Communicator, Config, DType, ErrorKind, Group, OpKind, ReduceOp};
use std::time::Duration;

const MANY: usize = usize::MAX;
const BASIC: &[Need] =
    &[Need::Kind(OpKind::AllReduce), Need::Kind(OpKind::AllGather), Need::Reduce(ReduceOp::Sum, DType::F32)];

pub(super) const CASES: &[Case] = &[
    Case::must("GR-106", "groups: every subset of four ranks", every_subset).ranks(4, 4),
    Case::must("GR-107", "groups: random subsets in random orders", random_subsets).ranks(2, MANY),
    Case::must("GR-108", "groups: (0,1) and (1,0) are two groups with their own order", both_orders)
        .needs(BASIC)
        .ranks(2, MANY),
    Case::must("GR-109", "groups: twice the same rank, none, and ranks outside the world are refused", bad_groups),
    Case::must("GR-110", "groups: registering twice gives the same group without communication", registered_twice)
        .ranks(2, MANY),
    Case::must("GR-111", "groups: a call on a group that is unknown or foreign is refused locally", unknown_group)
        .ranks(2, MANY),
    Case::must("GR-113", "groups: overlapping groups used alternately", overlapping).needs(BASIC).ranks(3, MANY),
    Case::must("GR-114", "groups: two communicators with equal members, interleaved", equal_members).needs(BASIC),
    Case::must("GR-115", "groups: disjoint groups with different operations at once", disjoint)
        .needs(BASIC)
        .ranks(4, MANY),
    Case::must("GR-116", "groups: a group of itself for every rank", self_groups),
    Case::must("GR-117", "groups: many created and dropped leave nothing", created_and_dropped),
    Case::must("GR-118", "groups: split with key = -rank reverses the order", split_reversed).needs(BASIC),
    Case::must("GR-119", "groups: split without a colour gives no communicator", split_without_colour).ranks(2, MANY),
    Case::must("GR-120", "groups: different tuples never meet, and the error says who registered what", never_meet)
        .ranks(2, 8),
    Case::must("GR-121", "groups: split by parity, then split again", split_twice).needs(BASIC),
    Case::must("GR-122", "groups: two communicators from two threads of each rank", two_threads).needs(BASIC),
    Case::must("GR-123", "groups: a second call on a busy group is Busy", busy)
        .needs(&[Need::Kind(OpKind::Barrier)])
        .ranks(2, MANY),
];

/// Registers and tries the groups this rank is a member of, in the given order.
fn try_groups(ctx: &mut Ctx<'_>, backend: &Backend, groups: &[Group]) -> CaseResult {
    let me = ctx.rank();
    for group in groups.iter().filter(|group| group.contains(me)) {
        ctx.note(|| format!("registering {group}"));
        let mut comm = backend.communicator(group)?;
        ensure!(comm.group() == group, "asked for {group}, got {}", comm.group());
        ensure!(group.global(comm.rank()) == Some(ctx.rank()), "position {} in {group} is wrong", comm.rank());
        in_order(ctx, &mut comm)?;
        ctx.known_answer(&mut comm)?;
    }
    Ok(())
}

/// All-gather must follow the order of the tuple.
fn in_order(ctx: &Ctx<'_>, comm: &mut Communicator) -> CaseResult {
    if !comm.capabilities().has_kind(OpKind::AllGather) {
        return Ok(());
    }
    let mut all = vec![0_u64; comm.size()];
    ctx.note(|| format!("all_gather on {}", comm.group()));
    comm.all_gather(&[ctx.rank() as u64], &mut all)?;
    let want: Vec<u64> = comm.group().ranks().map(|rank| rank as u64).collect();
    ensure!(all == want, "all_gather on {} gave {all:?}", comm.group());
    Ok(())
}

fn every_subset(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let subset = |mask: usize| Group::new((0..4).filter(move |rank| mask & (1 << rank) != 0));
    let groups = (1..16).map(subset).collect::<Result<Vec<Group>, _>>()?;
    try_groups(ctx, &backend, &groups)
}

fn random_subsets(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let mut random = ctx.shared_random();
    let mut groups = Vec::new();
    for _ in 0..8 {
        let mut ranks: Vec<usize> = (0..ctx.size()).collect();
        random.shuffle(&mut ranks);
        ranks.truncate(1 + random.below(ctx.size()));
        groups.push(Group::new(ranks)?);
    }
    try_groups(ctx, &backend, &groups)
}

fn both_orders(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let groups = [Group::new([0, 1])?, Group::new([1, 0])?];
    try_groups(ctx, &backend, &groups)?;
    if ctx.rank() < 2 {
        let mut comms = [backend.communicator(&groups[0])?, backend.communicator(&groups[1])?];
        for _ in 0..5 {
            for comm in &mut comms {
                in_order(ctx, comm)?;
            }
        }
    }
    let error = backend.communicator(&Group::new([ctx.size() - 1, 0])?);
    if ![0, ctx.size() - 1].contains(&ctx.rank()) {
        expect_error(error.map(drop), &ErrorKind::NotMember, None)?;
    }
    Ok(())
}

fn bad_groups(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    for ranks in [vec![0, 0], vec![], vec![usize::MAX]] {
        expect_error(Group::new(ranks), &ErrorKind::InvalidArgument, None)?;
    }
    for ranks in [vec![ctx.rank(), ctx.size()], vec![ctx.rank(), ctx.size() + 100], vec![ctx.size()]] {
        let group = Group::new(ranks)?;
        expect_error(backend.register(&group), &ErrorKind::InvalidArgument, None)?;
        expect_error(backend.communicator(&group).map(drop), &ErrorKind::InvalidArgument, None)?;
        ensure!(!backend.is_registered(&group), "{group} counts as registered");
    }
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)
}

fn registered_twice(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let group = Group::world(ctx.size());
    ensure!(!backend.is_registered(&group), "the group counts as registered before");
    backend.register(&group)?;
    if ctx.rank() == 0 {
        // Nobody else takes part in these.
        for _ in 0..3 {
            backend.register(&group)?;
            drop(backend.communicator(&group)?);
        }
    }
    ensure!(backend.is_registered(&group), "the group is not registered");
    let mut comm = backend.communicator(&group)?;
    ctx.known_answer(&mut comm)
}

fn unknown_group(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let all = Group::world(ctx.size());
    expect_error(backend.barrier(&all), &ErrorKind::UnknownGroup, None)?;
    let others = Group::new((0..ctx.size()).filter(|rank| *rank != ctx.rank()))?;
    expect_error(backend.register(&others), &ErrorKind::NotMember, None)?;
    expect_error(backend.barrier(&others), &ErrorKind::NotMember, None)?;
    backend.register(&all)?;
    Ok(backend.barrier(&all)?)
}

fn overlapping(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let pairs = (0..ctx.size() - 1).map(|rank| Group::new([rank, rank + 1])).collect::<Result<Vec<_>, _>>()?;
    let mine = pairs.iter().filter(|pair| pair.contains(ctx.rank()));
    let mut comms = mine.map(|pair| backend.communicator(pair)).collect::<Result<Vec<_>, _>>()?;
    for round in 0..20 {
        for comm in &mut comms {
            let operation = Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, 1 + round * 13);
            let seed_holder = comm.group().stable_hash() ^ round as u64;
            let inputs = crate::operation::inputs(&operation, seed_holder, comm.size());
            crate::operation::verify_with(ctx, comm, &operation, &inputs)?;
            in_order(ctx, comm)?;
        }
    }
    Ok(())
}

fn equal_members(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut first = ctx.communicator()?;
    let mut second = ctx.communicator()?;
    for round in 0..20 {
        let (a, b) = if round % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        verify(ctx, a, &Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, round * 37))?;
        verify(ctx, b, &Operation { count: round * 5, ..Operation::new(OpKind::AllGather, DType::U16) })?;
    }
    // Equal calls: nothing but the communicator tells them apart.
    for _ in 0..5 {
        for comm in [&mut first, &mut second] {
            verify(ctx, comm, &Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, 24))?;
            verify(ctx, comm, &Operation { count: 3, ..Operation::new(OpKind::AllGather, DType::U16) })?;
        }
    }
    Ok(())
}

fn disjoint(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let half = ctx.size() / 2;
    let in_first = ctx.rank() < half;
    let group = if in_first { Group::new(0..half)? } else { Group::new((half..ctx.size()).rev())? };
    let mut comm = backend.communicator(&group)?;
    let rounds = if in_first { 5 } else { 40 };
    for round in 0..rounds {
        let operation = if in_first {
            Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, round * 4001)
        } else {
            Operation { count: round, ..Operation::new(OpKind::AllGather, DType::I8) }
        };
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn self_groups(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let group = Group::new([ctx.rank()])?;
    let mut comm = backend.communicator(&group)?;
    in_order(ctx, &mut comm)?;
    comm.barrier()?;
    if ctx.rank() == ctx.size() - 1 {
        // Nobody else is in any call.
        comm.all_reduce_in_place(&mut [1.0_f32; 3], ReduceOp::Sum)?;
        comm.barrier()?;
        for operation in every_kind(ctx, 1, 5) {
            verify(ctx, &mut comm, &operation)?;
        }
        let short = comm.all_gather(&[1_u8, 2], &mut [0; 3]);
        expect_error(short, &ErrorKind::InvalidArgument, None)?;
        let own = backend.communicator(&group)?.split(Some(1), 0)?;
        ensure!(own.is_some_and(|own| own.size() == 1), "a split of a group of one gave no group of one");
    }
    ctx.meet(&[])?;
    ctx.known_answer(&mut comm)?;
    let mut alone = ctx.communicator()?.split(Some(ctx.rank() as u64), 0)?.ok_or(Failure::error("no part".into()))?;
    ensure!(alone.size() == 1 && alone.global_rank() == ctx.rank(), "a colour of my own gave {}", alone.group());
    ctx.known_answer(&mut alone)
}

fn created_and_dropped(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut parent = ctx.communicator()?;
    let mut churn = |ctx: &mut Ctx<'_>, rounds: usize| -> CaseResult {
        for round in 0..rounds {
            ctx.note(|| format!("split {round}"));
            let mut comm = parent.split(Some(1), 0)?.ok_or(Failure::error("no part".into()))?;
            if round % 8 == 0 {
                ctx.known_answer(&mut comm)?;
            }
        }
        Ok(())
    };
    churn(ctx, 5)?;
    // Between two meetings nobody creates or drops anything: with threads all ranks share the counts.
    ctx.meet(&[])?;
    let before = clean::own_holdings();
    ctx.meet(&[])?;
    churn(ctx, if ctx.is_full() { 1000 } else { 40 })?;
    ctx.meet(&[])?;
    let after = clean::own_holdings();
    ctx.meet(&[])?;
    let slack = 2;
    ensure!(
        after.fds <= before.fds + slack && after.shared_mappings <= before.shared_mappings + slack,
        "before: {before:?}, after: {after:?}"
    );
    Ok(())
}

fn split_reversed(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut parent = ctx.communicator()?;
    let mut comm = parent.split(Some(7), -(ctx.rank() as i64))?.ok_or(Failure::error("no part".into()))?;
    ensure!(comm.rank() == ctx.size() - 1 - ctx.rank(), "position {} of {}", comm.rank(), comm.group());
    in_order(ctx, &mut comm)?;
    // Equal keys keep the old order.
    let mut comm = comm.split(Some(u64::MAX), 5)?.ok_or(Failure::error("no part".into()))?;
    ensure!(comm.rank() == ctx.size() - 1 - ctx.rank(), "equal keys changed the order: {}", comm.group());
    ctx.known_answer(&mut comm)
}

fn split_without_colour(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut parent = ctx.communicator()?;
    let takes_part = !ctx.rank().is_multiple_of(2);
    match parent.split(takes_part.then_some(3), 0)? {
        Some(mut comm) if takes_part => {
            ensure!(comm.size() == ctx.size() / 2, "{} has the wrong members", comm.group());
            ctx.known_answer(&mut comm)?;
        }
        None if !takes_part => {}
        other => {
            return Err(Failure::wrong(format!(
                "takes part: {takes_part}, got {:?}",
                other.map(|c| c.group().clone())
            )));
        }
    }
    ctx.known_answer(&mut parent)
}

fn never_meet(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut settings = Config::new().resolve()?;
    settings.join_timeout = Duration::from_millis(700);
    let backend = Backend::new(ctx.driver.join(ctx.world, &Config::new())?, settings);
    let mut ranks: Vec<usize> = (0..ctx.size()).collect();
    if ctx.rank() == 0 {
        ranks.reverse();
    }
    let group = Group::new(ranks)?;
    ctx.meet(&[])?;
    ctx.note(|| format!("registering {group}, which others register in another order"));
    let error = expect_error(backend.register(&group), &ErrorKind::Timeout, None)?;
    let theirs = if ctx.rank() == 0 { Group::world(ctx.size()) } else { Group::new((0..ctx.size()).rev())? };
    ensure!(
        error.to_string().contains(&theirs.to_string()),
        "the error does not say that others registered {theirs}: {error}"
    );
    ctx.meet(&[])?;
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)
}

fn split_twice(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut parent = ctx.communicator()?;
    let parity = (ctx.rank() % 2) as u64;
    let mut half = parent.split(Some(parity), 0)?.ok_or(Failure::error("no part".into()))?;
    ensure!(half.group().ranks().all(|rank| rank as u64 % 2 == parity), "{} mixes parities", half.group());
    in_order(ctx, &mut half)?;
    let mut quarter =
        half.split(Some((half.rank() % 2) as u64), -(half.rank() as i64))?.ok_or(Failure::error("no part".into()))?;
    in_order(ctx, &mut quarter)?;
    ctx.known_answer(&mut quarter)?;
    ctx.known_answer(&mut half)?;
    ctx.known_answer(&mut parent)
}

fn two_threads(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut first = ctx.communicator()?;
    let mut second = ctx.communicator()?;
    let work = |comm: &mut Communicator, rounds: usize| -> CaseResult {
        for round in 0..rounds {
            let mut data = vec![comm.rank() as f32 + 1.0; 1 + round * 29];
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
            let want = (comm.size() * (comm.size() + 1) / 2) as f32;
            ensure!(data.iter().all(|v| *v == want), "round {round}: {:?} instead of {want}", data[0]);
        }
        Ok(())
    };
    ctx.note(|| "two communicators on two threads".into());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(&mut second, 60));
        let mine = work(&mut first, 60);
        mine.and(other.join().unwrap_or_else(|_| Err(Failure::error("the second thread panicked".into()))))
    })
}

fn busy(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fresh_backend()?;
    let group = Group::world(ctx.size());
    backend.register(&group)?;
    backend.barrier(&group)?;
    if ctx.rank() != 0 {
        ctx.meet(&[])?;
        return Ok(backend.barrier(&group)?);
    }
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| backend.barrier(&group));
        std::thread::sleep(Duration::from_millis(150));
        let second = backend.barrier(&group);
        // The others come in any case, or the first thread would wait for its deadline.
        ctx.meet(&[])?;
        let first = blocked.join().map_err(|_| Failure::error("the blocked thread panicked".into()))?;
        expect_error(second, &ErrorKind::Busy, None)?;
        Ok(first?)
    })
}
