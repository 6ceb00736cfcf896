//! Every call that the capability table does not offer: refused on each rank before the others have come, in every form of call,
//! with the destination as it was and the communicator usable.

use super::table::{REDUCING, small};
use crate::case::{Case, CaseResult, ensure};
use crate::ctx::Ctx;
use crate::operation::{Buffers, OpaqueElement, Operation, inputs, perform, with_elem};
use bytemuck::Pod;
use rankwise_core::{Call, Communicator, DType, Elem, Error, ErrorKind, OpKind, Part, ReduceOp, Result};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::must("TB-148", "table: every cell that is not offered is refused before anybody else has called", blocking),
    Case::must("TB-154", "table: every cell that is not offered is refused as a started call", started),
    Case::must("TB-155", "table: every cell that is not offered is refused inside a scope", scoped),
    Case::must("TB-156", "table: a batch with a part that is not offered is refused as a whole", batched),
];

/// Calls that one rank makes before the others follow.
const AHEAD: usize = 8;
/// Deadline of the calls: a refusal that waits for it has waited for others.
const PATIENCE: Duration = Duration::from_secs(5);

type Cell = (OpKind, DType, Option<ReduceOp>);

/// Everything that the typed interface can express and the table does not offer.
fn cells(ctx: &Ctx<'_>) -> Vec<Cell> {
    let table = ctx.capabilities();
    let mut cells = Vec::new();
    for kind in OpKind::DATA {
        if kind == OpKind::Barrier || (matches!(kind, OpKind::Send | OpKind::Recv) && ctx.size() == 1) {
            // Alone, a message to oneself is an invalid argument before it is an unsupported kind.
            continue;
        }
        let missing = !table.has_kind(kind);
        if REDUCING.contains(&kind) {
            let all = ReduceOp::ALL.into_iter().flat_map(|op| DType::NUMERIC.into_iter().map(move |dtype| (op, dtype)));
            let declined = all.filter(|(op, dtype)| missing || !table.reduces(*op).contains(*dtype));
            cells.extend(declined.map(|(op, dtype)| (kind, dtype, Some(op))));
        } else {
            let all = DType::NUMERIC.into_iter().chain([DType::Opaque]);
            let declined = all.filter(|dtype| missing || !table.moves().contains(*dtype));
            cells.extend(declined.map(|dtype| (kind, dtype, None)));
        }
    }
    cells
}

/// Makes the calls on one rank while the others wait outside the backend, then on the others, then checks the communicator.
fn refused_by_all(
    ctx: &mut Ctx<'_>,
    cells: &[Cell],
    call: impl Fn(&mut Communicator, &Operation) -> CaseResult<Result<()>>,
) -> CaseResult {
    let mut comm = ctx.communicator()?;
    comm.set_timeout(PATIENCE);
    let has_barrier = ctx.capabilities().has_kind(OpKind::Barrier);
    for (turn, cells) in cells.chunks(AHEAD).enumerate() {
        let first = turn % comm.size();
        if comm.rank() != first {
            ctx.meet(&[])?;
        }
        let refused = cells.iter().try_for_each(|cell| refused_at_once(ctx, &mut comm, cell, &call));
        if comm.rank() == first {
            // With a failure, too: the others are waiting.
            ctx.meet(&[])?;
        }
        refused?;
        ctx.known_answer(&mut comm)?;
    }
    if !has_barrier {
        let result = comm.barrier();
        let refused = result.as_ref().is_err_and(is_unsupported) || (comm.size() == 1 && result.is_ok());
        ensure!(refused, "barrier is not offered, but gave {result:?}");
    }
    ctx.known_answer(&mut comm)
}

fn refused_at_once(
    ctx: &Ctx<'_>,
    comm: &mut Communicator,
    (kind, dtype, op): &Cell,
    call: &impl Fn(&mut Communicator, &Operation) -> CaseResult<Result<()>>,
) -> CaseResult {
    let operation = small(ctx, *kind, *dtype, *op, 4);
    ctx.note(|| operation.describe(comm));
    let start = Instant::now();
    let result = call(comm, &operation).map_err(|f| f.within(&operation.describe(comm)))?;
    let waited = start.elapsed();
    let refused = result.as_ref().is_err_and(is_unsupported);
    ensure!(refused, "{} is not offered, but gave {result:?}", operation.describe(comm));
    ensure!(waited < PATIENCE, "{} was refused only after {waited:?}", operation.describe(comm));
    Ok(())
}

fn is_unsupported(error: &Error) -> bool {
    use ErrorKind::{UnsupportedDtype, UnsupportedMemory, UnsupportedMode, UnsupportedOp};
    matches!(error.kind(), UnsupportedOp | UnsupportedDtype | UnsupportedMemory | UnsupportedMode)
}

fn blocking(ctx: &mut Ctx<'_>) -> CaseResult {
    let cells = cells(ctx);
    refused_by_all(ctx, &cells, |comm, operation| {
        let (me, members) = (comm.rank(), comm.size());
        let next = (me + 1) % members;
        match operation.kind {
            OpKind::Send => return Ok(comm.send(&[1_u8], next)),
            OpKind::Recv => return Ok(comm.recv(&mut [1_u8], next)),
            _ => {}
        }
        let input = &inputs(operation, 1, members)[me];
        let mut buffers = Buffers::new(operation, input, me, members);
        let result = perform(comm, operation, &mut buffers.src, &mut buffers.dst);
        buffers.check_untouched(operation, input, me)?;
        Ok(result)
    })
}

fn started(ctx: &mut Ctx<'_>) -> CaseResult {
    let cells = cells(ctx);
    refused_by_all(ctx, &cells, |comm, o| {
        Ok(match (o.kind.reduces(), o.dtype) {
            (true, dtype) => with_elem!(dtype, T => start_reducing::<T>(comm, o), else Ok(())),
            (false, dtype) => {
                with_elem!(dtype, T => start_moving::<T>(comm, o), else start_moving::<OpaqueElement>(comm, o))
            }
        })
    })
}

fn start_reducing<T: Elem>(comm: &mut Communicator, o: &Operation) -> Result<()> {
    let (src, dst) = vectors::<T>(comm, o);
    let (counts, op) = (&o.counts[..], o.op.unwrap_or_default());
    let at_root = comm.rank() == o.root;
    match o.kind {
        OpKind::AllReduce => comm.start(Call::all_reduce::<T>(src, dst, op)).map(drop),
        OpKind::ReduceScatter => comm.start(Call::reduce_scatter::<T>(src, dst, op)).map(drop),
        OpKind::Reduce => comm.start(Call::reduce::<T>(src, at_root.then_some(dst), op, o.root)).map(drop),
        _ => comm.start(Call::reduce_scatter_v::<T>(src, dst, counts, op)).map(drop),
    }
}

fn start_moving<T: Pod + Send + Sync>(comm: &mut Communicator, o: &Operation) -> Result<()> {
    let (src, dst) = vectors::<T>(comm, o);
    let (me, members, counts) = (comm.rank(), comm.size(), &o.counts[..]);
    let at_root = me == o.root;
    let next = (me + 1) % members;
    match o.kind {
        OpKind::AllGather => comm.start(Call::all_gather::<T>(src, dst)).map(drop),
        OpKind::AllToAll => comm.start(Call::all_to_all::<T>(src, dst)).map(drop),
        OpKind::Broadcast => comm.start(Call::broadcast::<T>(dst, o.root)).map(drop),
        OpKind::Gather => comm.start(Call::gather::<T>(src, at_root.then_some(dst), o.root)).map(drop),
        OpKind::Scatter => comm.start(Call::scatter::<T>(at_root.then_some(src), dst, o.root)).map(drop),
        OpKind::AllGatherV => comm.start(Call::all_gather_v::<T>(src, dst, counts)).map(drop),
        OpKind::GatherV => comm.start(Call::gather_v::<T>(src, at_root.then_some(dst), counts, o.root)).map(drop),
        OpKind::ScatterV => comm.start(Call::scatter_v::<T>(at_root.then_some(src), dst, counts, o.root)).map(drop),
        OpKind::Send => comm.start(Call::send::<T>(vec![T::zeroed()], next)).map(drop),
        OpKind::Recv => comm.start(Call::recv::<T>(vec![T::zeroed()], next)).map(drop),
        _ => {
            let send: Vec<usize> = counts[me * members..(me + 1) * members].to_vec();
            let recv: Vec<usize> = (0..members).map(|from| counts[from * members + me]).collect();
            comm.start(Call::all_to_all_v::<T>(src, &send, dst, &recv)).map(drop)
        }
    }
}

fn vectors<T: Pod>(comm: &Communicator, o: &Operation) -> (Vec<T>, Vec<T>) {
    let (me, members) = (comm.rank(), comm.size());
    (vec![T::zeroed(); o.src_count(me, members)], vec![T::zeroed(); o.dst_count(me, members)])
}

fn scoped(ctx: &mut Ctx<'_>) -> CaseResult {
    let cells: Vec<Cell> = cells(ctx).into_iter().filter(|(kind, ..)| *kind == OpKind::AllReduce).collect();
    refused_by_all(ctx, &cells, |comm, o| {
        let op = o.op.unwrap_or_default();
        Ok(with_elem!(o.dtype, T => {
            let mut sums = [<T as bytemuck::Zeroable>::zeroed(); 4];
            comm.scope(|scope| scope.start(Call::all_reduce_in_place::<T>(&mut sums, op)).map(drop))
        }, else Ok(())))
    })
}

fn batched(ctx: &mut Ctx<'_>) -> CaseResult {
    let cells: Vec<Cell> = cells(ctx).into_iter().filter(|(kind, ..)| *kind == OpKind::AllReduce).collect();
    refused_by_all(ctx, &cells, |comm, o| {
        let op = o.op.unwrap_or_default();
        let mut before = [1_i32, 2, 3];
        let mut after = [4.0_f32, 5.0];
        let result = with_elem!(o.dtype, T => {
            let mut declined = [<T as bytemuck::Zeroable>::zeroed(); 4];
            let mut parts = [
                Part::in_place(&mut before, ReduceOp::Sum),
                Part::in_place(&mut declined, op),
                Part::in_place(&mut after, ReduceOp::Sum),
            ];
            comm.all_reduce_many(&mut parts)
        }, else Ok(()));
        ensure!((before, after) == ([1, 2, 3], [4.0, 5.0]), "another part of a refused batch was changed");
        Ok(result)
    })
}
