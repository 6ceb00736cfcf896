//! All-to-all through the typed interface, even and with a count per pair.

use super::all_gather::moved;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, verify};
use rankwise_core::{ErrorKind, OpKind};

const ALL_TO_ALL: &[Need] = &[Need::Kind(OpKind::AllToAll)];
const ALL_TO_ALL_V: &[Need] = &[Need::Kind(OpKind::AllToAllV)];

pub(super) const CASES: &[Case] = &[
    Case::must("AA-73", "all-to-all: every type and size", every_type).needs(ALL_TO_ALL),
    Case::must("AA-74", "all-to-all: lengths that do not fit are refused", wrong_length).needs(ALL_TO_ALL),
    Case::must("AA-78", "all-to-all: applied twice it is the identity", twice).needs(ALL_TO_ALL),
    Case::must("AA-79", "all-to-all: a count per pair, with zeros", per_pair).needs(ALL_TO_ALL_V),
    Case::must("AA-80", "all-to-all: counts that contradict each other", contradiction)
        .offered(ALL_TO_ALL_V)
        .ranks(2, usize::MAX),
    Case::must("AA-81", "all-to-all: wrong lengths of counts and buffers are refused", wrong_counts)
        .needs(ALL_TO_ALL_V),
];

fn every_type(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types = moved(ctx);
    let sizes = ctx.sizes_per_rank();
    for row in ctx.sample(&[types.len(), sizes.len(), 3]) {
        let dtype = types[row[0]];
        let mut operation = Operation::new(OpKind::AllToAll, dtype);
        operation.count = sizes[row[1]].elements(dtype);
        operation.offset = row[2];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn wrong_length(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    let source = vec![1_u8; 2 * members];
    for length in [2 * members + 1, 2 * members - 1, 3 * members] {
        let mut out = vec![7; length];
        expect_error(comm.all_to_all(&source, &mut out), &ErrorKind::InvalidArgument, None)?;
        ensure!(out.iter().all(|v| *v == 7), "a refused call wrote its destination");
    }
    if members > 1 {
        let indivisible = vec![1_u8; members + 1];
        let refused = comm.all_to_all(&indivisible, &mut vec![0; members + 1]);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    }
    ctx.known_answer(&mut comm)
}

fn twice(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank() as u32, comm.size() as u32);
    let start: Vec<u32> = (0..members * 3).map(|i| me * 1000 + i).collect();
    let mut once = vec![0; start.len()];
    let mut back = vec![0; start.len()];
    comm.all_to_all(&start, &mut once)?;
    comm.all_to_all(&once, &mut back)?;
    ensure!(back == start, "twice gave {back:?} from {start:?}");
    ensure!(members == 1 || once != start, "once changed nothing");
    Ok(())
}

fn per_pair(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types = moved(ctx);
    let most = [1, 3, 100, 3000];
    for row in ctx.sample(&[types.len(), most.len(), 3]) {
        let mut operation = Operation::new(OpKind::AllToAllV, types[row[0]]);
        let mut random = ctx.shared_random();
        let pairs = comm.size() * comm.size();
        operation.counts = (0..pairs).map(|_| random.below(most[row[1]] + 1) * random.below(2)).collect();
        operation.offset = row[2];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

/// Rank 0 sends two elements to rank 1, which expects one.
fn contradiction(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    let mut send = vec![1; members];
    let recv = vec![1; members];
    if me == 0 {
        send[1] = 2;
    }
    let source = vec![1_u8; send.iter().sum()];
    let mut out = vec![0_u8; members];
    ctx.note(|| "all_to_all_v with contradicting counts".into());
    let first = comm.all_to_all_v(&source, &send, &mut out, &recv);
    ensure!(me != 1 || first.is_err(), "the rank that was promised more than it takes returned Ok");
    let learned = match first {
        Ok(()) => comm.barrier(),
        first => first,
    };
    match learned {
        Err(error) if error.kind() == &ErrorKind::Poisoned && me > 1 => {}
        learned => drop(expect_error(learned, &ErrorKind::Mismatch, None)?),
    }
    ctx.known_answer_elsewhere(&mut comm)
}

fn wrong_counts(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    let ones = vec![1; members];
    let data = vec![1_u8; members];
    let longer = vec![1; members + 1];
    let huge = vec![usize::MAX; members];
    let mut out = vec![0_u8; members];
    let refused = |kind: ErrorKind, result| expect_error(result, &kind, None).map(drop);
    refused(ErrorKind::InvalidArgument, comm.all_to_all_v(&data, &longer, &mut out, &ones))?;
    refused(ErrorKind::InvalidArgument, comm.all_to_all_v(&data, &ones, &mut out, &[]))?;
    refused(ErrorKind::InvalidArgument, comm.all_to_all_v(&data[1..], &ones, &mut out, &ones))?;
    refused(ErrorKind::InvalidArgument, comm.all_to_all_v(&data, &ones, &mut out[1..], &ones))?;
    let overflowing = comm.all_to_all_v(&data, &huge, &mut out, &ones);
    let kind = overflowing.as_ref().err().map(|e| e.kind().clone());
    ensure!(
        matches!(kind, Some(ErrorKind::InvalidArgument | ErrorKind::CountTooLarge)),
        "counts beyond every buffer gave {overflowing:?}"
    );
    ctx.known_answer(&mut comm)
}
