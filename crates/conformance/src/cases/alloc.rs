//! Buffers from collective allocation.

use crate::case::{Case, CaseResult, Need, ensure};
use crate::clean;
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Memory, Operation, verify};
use rankwise_core::{DType, ErrorKind, OpKind, ReduceOp};

const ALLOC: &[Need] = &[Need::Alloc, Need::Kind(OpKind::AllReduce)];

pub(super) const CASES: &[Case] = &[
    Case::must("AL-1", "alloc: zeroed, aligned, of the length asked for", fresh_memory).offered(ALLOC),
    Case::must("AL-2", "alloc: as source, destination and both, for every kind", every_kind).offered(ALLOC),
    Case::must("AL-3", "alloc: sizes around the thresholds, in place and out of place", sizes).offered(ALLOC),
    Case::must("AL-4", "alloc: mixed with ordinary memory on different ranks", mixed).offered(ALLOC),
    Case::must("AL-5", "alloc: outlives its communicator, and is ordinary memory elsewhere", outlives).offered(ALLOC),
    Case::must("AL-6", "alloc: different lengths are a mismatch", different_lengths).offered(ALLOC).ranks(2, 64),
    Case::must("AL-7", "alloc: many allocated and dropped leave nothing", dropped).offered(ALLOC),
    Case::must("AL-8", "alloc: a length beyond every limit is refused", too_large).offered(ALLOC),
];

fn fresh_memory(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for length in [0, 1, 1000, 70_000] {
        let mut memory = comm.alloc::<f64>(length)?;
        ensure!(memory.len() == length, "asked for {length}, got {}", memory.len());
        ensure!(memory.iter().all(|v| v.to_bits() == 0), "{length} elements are not zeroed");
        ensure!(length == 0 || (memory.as_ptr() as usize).is_multiple_of(64), "not aligned to 64 bytes");
        memory.fill(1.0);
        comm.all_reduce_in_place(&mut memory, ReduceOp::Sum)?;
        let want = comm.size() as f64;
        ensure!(memory.iter().all(|v| *v == want), "{length} elements: {:?} instead of {want}", memory.first());
    }
    Ok(())
}

fn every_kind(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    for kind in OpKind::DATA {
        if !ctx.capabilities().has_kind(kind) || matches!(kind, OpKind::Barrier | OpKind::Send | OpKind::Recv) {
            continue;
        }
        for memory in [Memory::AllocSource, Memory::AllocDestination, Memory::AllocBoth] {
            for count in [3, 3000] {
                let mut operation = Operation { count, memory, ..Operation::new(kind, DType::F32) };
                operation.root = members - 1;
                let v_form =
                    matches!(kind, OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV);
                if v_form {
                    operation.counts = (0..members).map(|rank| count * (rank % 3)).collect();
                } else if kind == OpKind::AllToAllV {
                    operation.counts = (0..members * members).map(|pair| count / 3 * (pair % 3)).collect();
                }
                verify(ctx, &mut comm, &operation)?;
            }
        }
    }
    Ok(())
}

fn sizes(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let sizes = ctx.sizes_per_rank();
    let memories = [Memory::AllocSource, Memory::AllocDestination, Memory::AllocBoth];
    let kinds = [OpKind::AllReduce, OpKind::AllGather, OpKind::ReduceScatter];
    for row in ctx.sample(&[sizes.len(), memories.len(), kinds.len(), 2, 2]) {
        if !ctx.capabilities().has_kind(kinds[row[2]]) {
            continue;
        }
        let mut operation = Operation::new(kinds[row[2]], DType::F32);
        operation.count = sizes[row[0]].elements(DType::F32);
        operation.memory = memories[row[1]];
        operation.in_place = row[3] == 1;
        operation.offset = row[4];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

/// A rank reduces in its allocation while others use ordinary memory, in every combination.
fn mixed(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    for count in [5, 2000, 40_001] {
        let mut memory = comm.alloc::<i32>(count)?;
        let mut plain = vec![0; count];
        for round in 0..6 {
            let fill = |i: usize| (me * 3 + i + round) as i32;
            let want = |i: usize| (0..members).map(|rank| (rank * 3 + i + round) as i32).sum::<i32>();
            let chosen = if (me + round).is_multiple_of(3) { &mut memory[..] } else { &mut plain[..] };
            chosen.iter_mut().enumerate().for_each(|(i, v)| *v = fill(i));
            ctx.pause();
            if round % 2 == 0 {
                comm.all_reduce_in_place(chosen, ReduceOp::Sum)?;
                ensure!(chosen.iter().enumerate().all(|(i, v)| *v == want(i)), "round {round} of {count}, in place");
            } else {
                let mut out = vec![0; count];
                comm.all_reduce(chosen, &mut out, ReduceOp::Sum)?;
                ensure!(out.iter().enumerate().all(|(i, v)| *v == want(i)), "round {round} of {count}");
                ensure!(chosen.iter().enumerate().all(|(i, v)| *v == fill(i)), "the source was changed");
            }
        }
    }
    Ok(())
}

fn outlives(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut first = ctx.communicator()?;
    let mut second = ctx.communicator()?;
    let mut memory = first.alloc::<u32>(5000)?;
    memory.fill(first.rank() as u32 + 1);
    drop(first);
    ensure!(memory.iter().all(|v| *v == ctx.rank() as u32 + 1), "the memory changed with its communicator gone");
    second.all_reduce_in_place(&mut memory, ReduceOp::Sum)?;
    let want = (ctx.size() * (ctx.size() + 1) / 2) as u32;
    ensure!(memory.iter().all(|v| *v == want), "{} instead of {want}", memory[0]);
    Ok(())
}

fn different_lengths(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let odd = comm.size() - 1;
    let length = if comm.rank() == odd { 200 } else { 100 };
    ctx.note(|| format!("alloc of {length}, which differs between ranks"));
    let result = comm.alloc::<u8>(length).map(drop);
    match result {
        Err(error) if error.kind() == &ErrorKind::Poisoned => {}
        result => drop(expect_error(result, &ErrorKind::Mismatch, Some(&[odd]))?),
    }
    ctx.known_answer_elsewhere(&mut comm)
}

fn dropped(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let mut churn = |ctx: &mut Ctx<'_>, rounds: usize| -> CaseResult {
        for round in 0..rounds {
            ctx.note(|| format!("alloc {round}"));
            let mut memory = comm.alloc::<u8>(10_000 + round)?;
            comm.all_reduce_in_place(&mut memory, ReduceOp::Sum)?;
        }
        Ok(())
    };
    churn(ctx, 4)?;
    ctx.meet(&[])?;
    let before = clean::own_holdings();
    ctx.meet(&[])?;
    churn(ctx, if ctx.is_full() { 500 } else { 30 })?;
    ctx.meet(&[])?;
    let after = clean::own_holdings();
    ctx.meet(&[])?;
    // The last few may be kept until the next call.
    let slack = 4 * ctx.size() * ctx.size();
    ensure!(
        after.fds <= before.fds + slack && after.shared_mappings <= before.shared_mappings + slack,
        "before: {before:?}, after: {after:?}"
    );
    Ok(())
}

fn too_large(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let result = comm.alloc::<u64>(usize::MAX / 4).map(drop);
    let kind = result.as_ref().err().map(|e| e.kind().clone());
    ensure!(
        matches!(kind, Some(ErrorKind::CountTooLarge | ErrorKind::NoMemory { .. } | ErrorKind::Limit { .. })),
        "an allocation of 2^64 bytes gave {result:?}"
    );
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}
