//! A capability that is not offered must be refused on this rank, before anything moves, and leave the communicator
//! usable: only then does a case count as unsupported (H8).

use crate::case::{CaseResult, Failure, Need};
use crate::ctx::{Ctx, join};
use crate::operation::{Buffers, Operation, inputs, perform};
use rankwise_core::{Call, Communicator, Config, DType, Determinism, Error, OpKind, ReduceOp, Result};

/// Checks the refusal of one need that the table does not offer.
pub(crate) fn check(ctx: &mut Ctx<'_>, need: Need) -> CaseResult {
    let mut comm = ctx.communicator()?;
    ctx.note(|| format!("{need}, which is not offered"));
    let result = attempt(ctx, &mut comm, need)?;
    // A group of one has no engine that could decline.
    let may_work = comm.size() == 1 && matches!(need, Need::Alloc | Need::Nonblocking | Need::Fixed);
    match result {
        Err(error) if error.kind().name().starts_with("Unsupported") => {}
        Ok(()) if may_work => {}
        result => return Err(Failure::wrong(format!("{need} is not offered, but a call gave {result:?}"))),
    }
    ctx.known_answer(&mut comm)
}

fn attempt(ctx: &mut Ctx<'_>, comm: &mut Communicator, need: Need) -> CaseResult<Result<()>> {
    Ok(match need {
        Need::Kind(OpKind::Send | OpKind::Recv) if comm.size() == 1 => Err(unsupported_alone()),
        Need::Kind(OpKind::Send) => comm.send(&[1_u8], (comm.rank() + 1) % comm.size()),
        Need::Kind(OpKind::Recv) => comm.recv(&mut [1_u8], (comm.rank() + 1) % comm.size()),
        Need::Kind(kind) => refused_call(comm, &one_call(kind, comm.size(), DType::F32, ReduceOp::Sum))?,
        Need::Reduce(op, dtype) => refused_call(comm, &one_call(OpKind::AllReduce, comm.size(), dtype, op))?,
        Need::Nonblocking => comm.start(Call::all_reduce_in_place(vec![1_i32; 4], ReduceOp::Sum)).map(drop),
        Need::Alloc => comm.alloc::<u8>(64).map(drop),
        Need::Fixed => join(ctx.world, ctx.driver, Config::new().determinism(Determinism::Fixed))
            .and_then(|backend| backend.world().map(drop)),
    })
}

/// Alone, a message to oneself is an invalid argument before it is an unsupported kind.
fn unsupported_alone() -> Error {
    Error::new(rankwise_core::ErrorKind::UnsupportedOp, "a world of one has nobody to talk to")
}

fn one_call(kind: OpKind, members: usize, dtype: DType, op: ReduceOp) -> Operation {
    let mut operation = match kind.reduces() {
        true => Operation::reducing(kind, dtype, op, 4),
        false => Operation { count: 4, ..Operation::new(kind, dtype) },
    };
    if matches!(kind, OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV) {
        operation.counts = vec![1; members];
    } else if kind == OpKind::AllToAllV {
        operation.counts = vec![1; members * members];
    }
    operation
}

fn refused_call(comm: &mut Communicator, operation: &Operation) -> CaseResult<Result<()>> {
    let (me, members) = (comm.rank(), comm.size());
    let input = &inputs(operation, 1, members)[me];
    let mut buffers = Buffers::new(operation, input, me, members);
    let result = perform(comm, operation, &mut buffers.src, &mut buffers.dst);
    if result.is_err() {
        buffers.check_untouched(operation, input, me)?;
    }
    Ok(result)
}
