//! All-gather through the typed interface, even and uneven.

use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, verify};
use rankwise_core::{DType, ErrorKind, OpKind};

const ALL_GATHER: &[Need] = &[Need::Kind(OpKind::AllGather)];

pub(super) const CASES: &[Case] = &[
    Case::must("AG-53", "all-gather: every type and size, both forms", every_type).needs(ALL_GATHER),
    Case::must("AG-57", "all-gather: a destination of the wrong length is refused untouched", wrong_length)
        .needs(ALL_GATHER),
    Case::must("AG-60", "all-gather: opaque elements, byte-exact", opaque).needs(ALL_GATHER),
    Case::must("AG-61", "all-gather: NaN payloads and -0 keep their bits", nan_payloads).needs(ALL_GATHER),
    Case::must("AG-63", "all-gather: uneven counts with zeros", uneven).needs(&[Need::Kind(OpKind::AllGatherV)]),
];

/// The types that can be moved.
pub(super) fn moved(ctx: &Ctx<'_>) -> Vec<DType> {
    ctx.capabilities().moves().iter().collect()
}

/// Counts per member: some are zero, one may be all there is.
pub(super) fn uneven_counts(ctx: &mut Ctx<'_>, members: usize, most: usize) -> Vec<usize> {
    let mut random = ctx.shared_random();
    let mut counts: Vec<usize> = (0..members).map(|_| random.below(most + 1) * random.below(2)).collect();
    match random.below(4) {
        0 => counts.fill(0),
        1 => {
            counts.fill(0);
            counts[random.below(members)] = most;
        }
        _ => {}
    }
    counts
}

fn every_type(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types = moved(ctx);
    let sizes = ctx.sizes_per_rank();
    for row in ctx.sample(&[types.len(), sizes.len(), 2, 2]) {
        let dtype = types[row[0]];
        let mut operation = Operation::new(OpKind::AllGather, dtype);
        operation.count = sizes[row[1]].elements(dtype);
        operation.in_place = row[2] == 1;
        operation.offset = row[3];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn wrong_length(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    for length in [0, 4 * members - 1, 4 * members + 1, 4 * members + 4, 4] {
        if length == 4 * members {
            continue;
        }
        let mut out = vec![7_u16; length];
        expect_error(comm.all_gather(&[1_u16, 2, 3, 4], &mut out), &ErrorKind::InvalidArgument, None)?;
        ensure!(out.iter().all(|v| *v == 7), "a refused call wrote its destination");
        let mut indivisible = vec![7_u16; members * 3 + 1];
        if members > 1 {
            expect_error(comm.all_gather_in_place(&mut indivisible), &ErrorKind::InvalidArgument, None)?;
        }
        ctx.known_answer(&mut comm)?;
    }
    Ok(())
}

fn opaque(ctx: &mut Ctx<'_>) -> CaseResult {
    if !ctx.capabilities().moves().contains(DType::Opaque) {
        return Ok(());
    }
    let mut comm = ctx.communicator()?;
    for count in [0, 1, 5, 341, 342, 5461] {
        for in_place in [false, true] {
            let operation = Operation { count, in_place, ..Operation::new(OpKind::AllGather, DType::Opaque) };
            verify(ctx, &mut comm, &operation)?;
        }
    }
    let (me, members) = (comm.rank(), comm.size());
    let mut complex = vec![[0.0_f32; 2]; members];
    comm.all_gather(&[[me as f32, -(me as f32)]], &mut complex)?;
    let want: Vec<[f32; 2]> = (0..members).map(|r| [r as f32, -(r as f32)]).collect();
    ensure!(complex == want, "complex numbers: {complex:?}");
    Ok(())
}

fn nan_payloads(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    let mine = [f32::from_bits(0x7F80_0001 + me as u32), f32::from_bits(0xFFC1_2345), -0.0, f32::from_bits(1)];
    let mut all = vec![0.0_f32; 4 * members];
    comm.all_gather(&mine, &mut all)?;
    for (rank, got) in all.chunks(4).enumerate() {
        let want = [0x7F80_0001 + rank as u32, 0xFFC1_2345, 0x8000_0000, 1];
        let bits: Vec<u32> = got.iter().map(|v| v.to_bits()).collect();
        ensure!(bits == want, "rank {rank}: {bits:x?} instead of {want:x?}");
    }
    Ok(())
}

fn uneven(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types = moved(ctx);
    let most = [1, 3, 200, 5000, 20_000];
    for row in ctx.sample(&[types.len(), most.len(), 3]) {
        let mut operation = Operation::new(OpKind::AllGatherV, types[row[0]]);
        operation.counts = uneven_counts(ctx, comm.size(), most[row[1]]);
        operation.offset = row[2];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}
