//! Around each size at which the backend changes its way of working: one element less, exact, one more, for every kind.

use super::all_gather::moved;
use super::all_reduce::offered;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::Ctx;
use crate::number::elem_size;
use crate::operation::{Operation, verify};
use crate::values::{Pattern, fill};
use rankwise_core::{Communicator, DType, OpKind, ReduceOp};

const MANY: usize = usize::MAX;

pub(super) const CASES: &[Case] = &[
    Case::must("TH-1", "thresholds: reducing kinds", |ctx| {
        around(ctx, &[OpKind::AllReduce, OpKind::ReduceScatter, OpKind::Reduce])
    })
    .ranks(2, MANY),
    Case::must("TH-2", "thresholds: moving kinds", |ctx| {
        around(ctx, &[OpKind::AllGather, OpKind::AllToAll, OpKind::Broadcast, OpKind::Gather, OpKind::Scatter])
    })
    .ranks(2, MANY),
    Case::must("TH-3", "thresholds: kinds with counts", |ctx| {
        around(ctx, &[OpKind::ReduceScatterV, OpKind::AllGatherV, OpKind::AllToAllV, OpKind::GatherV, OpKind::ScatterV])
    })
    .ranks(2, MANY),
    Case::must("TH-4", "thresholds: messages between two ranks", messages)
        .offered(&[Need::Kind(OpKind::Send), Need::Kind(OpKind::Recv)])
        .ranks(2, MANY),
];

/// Worlds up to this size run every combination; the others a sample.
const SMALL_WORLD: usize = 3;
/// Bytes of all contributions to one call, above which only full runs try.
const MOST_BYTES: u64 = 4 << 20;

/// Thresholds that this run can afford, in bytes.
fn thresholds(ctx: &Ctx<'_>) -> Vec<u64> {
    let mut all: Vec<u64> = ctx.capabilities().thresholds().iter().map(|threshold| threshold.bytes).collect();
    all.sort_unstable();
    all.dedup();
    if all.is_empty() {
        ctx.skip_part("sizes around thresholds: the backend's table names none");
    }
    if !ctx.is_full() {
        let affordable = |bytes: &u64| bytes.saturating_mul(ctx.size() as u64) <= MOST_BYTES;
        if let Some(bytes) = all.iter().find(|bytes| !affordable(bytes)) {
            ctx.skip_part(&format!("thresholds of {bytes} bytes and more with {} ranks run with --full", ctx.size()));
        }
        all.retain(affordable);
    }
    all
}

/// The type of these with the largest, or the smallest, elements.
fn by_size(types: &[DType], largest: bool) -> Option<DType> {
    let numeric = types.iter().copied().filter(|dtype| *dtype != DType::Opaque);
    if largest { numeric.max_by_key(|dtype| elem_size(*dtype)) } else { numeric.min_by_key(|dtype| elem_size(*dtype)) }
}

fn around(ctx: &mut Ctx<'_>, kinds: &[OpKind]) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let thresholds = thresholds(ctx);
    let reduced: Vec<DType> = offered(ctx, &[ReduceOp::Sum]).into_iter().map(|(_, dtype)| dtype).collect();
    let moved = moved(ctx);
    let lengths = [kinds.len(), thresholds.len(), 3, 2];
    let mut rows = if comm.size() <= SMALL_WORLD { crate::sample::product(&lengths) } else { ctx.sample(&lengths) };
    rows.iter_mut().for_each(|row| row.push(1));
    // Odd bytes, too: elements of one byte are many, so only in a sample.
    let small = ctx.sample(&lengths);
    rows.extend(small.into_iter().map(|mut row| {
        row.push(0);
        row
    }));
    for (i, row) in rows.into_iter().enumerate() {
        let kind = kinds[row[0]];
        let types = if kind.reduces() { &reduced } else { &moved };
        let Some(dtype) = by_size(types, row[4] == 1).filter(|_| ctx.capabilities().has_kind(kind)) else { continue };
        let elements = (thresholds[row[1]] / elem_size(dtype) as u64) as usize;
        let elements = (elements + row[2]).saturating_sub(1);
        let mut operation = shaped(Operation::new(kind, dtype), elements, comm.size(), row[3] == 1);
        operation.root = i % comm.size();
        operation.in_place = i % 3 == 0 && operation.counts.is_empty();
        operation.offset = i % 2;
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

/// A call in which `elements` are the whole contribution of a rank, or else each part of it.
fn shaped(mut operation: Operation, elements: usize, members: usize, whole: bool) -> Operation {
    let spread = |total: usize| (0..members).map(move |p| total / members + usize::from(p < total % members));
    match operation.kind {
        OpKind::ReduceScatter | OpKind::AllToAll | OpKind::Scatter if whole => {
            // The parts are equal: the last multiple below, or the first above.
            operation.count = elements.div_ceil(members);
        }
        OpKind::AllGatherV | OpKind::GatherV => {
            operation.counts = (0..members).map(|p| (elements + p % 3).saturating_sub(usize::from(whole))).collect();
        }
        OpKind::ReduceScatterV | OpKind::ScatterV => {
            operation.counts = spread(if whole { elements } else { elements * members }).collect();
        }
        OpKind::AllToAllV => {
            let row: Vec<usize> = spread(if whole { elements } else { elements * members }).collect();
            operation.counts = (0..members).flat_map(|_| row.clone()).collect();
        }
        _ => operation.count = elements,
    }
    operation
}

fn messages(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for threshold in thresholds(ctx) {
        for bytes in [threshold.saturating_sub(1), threshold, threshold + 1] {
            message(ctx, &mut comm, bytes as usize)?;
        }
    }
    ctx.known_answer(&mut comm)
}

/// From the first to the last rank and back.
fn message(ctx: &mut Ctx<'_>, comm: &mut Communicator, bytes: usize) -> CaseResult {
    let (seed, last) = (ctx.next_seed(), comm.size() - 1);
    let data = |rank| fill(Pattern::Bits, DType::U8, seed, rank, last + 1, bytes);
    let mut got = vec![0xA5_u8; bytes];
    ctx.note(|| format!("messages of {bytes} bytes"));
    ctx.pause();
    let peer = if comm.rank() == 0 {
        comm.send(&data(0), last)?;
        comm.recv(&mut got, last)?;
        last
    } else if comm.rank() == last {
        comm.recv(&mut got, 0)?;
        comm.send(&data(last), 0)?;
        0
    } else {
        return Ok(());
    };
    ensure!(got == data(peer), "{bytes} bytes from {peer} are wrong");
    Ok(())
}
