//! Deadlines, poison, abort and goodbye.

use super::mismatch::root_cause;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, verify};
use rankwise_core::{Call, Communicator, DType, ErrorKind, OpKind, ReduceOp};
use std::time::{Duration, Instant};

const MANY: usize = usize::MAX;
const BARRIER: &[Need] = &[Need::Kind(OpKind::Barrier)];
const SHORT: Duration = Duration::from_millis(600);

pub(super) const CASES: &[Case] = &[
    Case::must("TM-1", "time: a deadline names the operation and the rank that is missing", |ctx| {
        missing(ctx, |comm| comm.barrier())
    })
    .needs(BARRIER)
    .ranks(2, MANY),
    Case::must("TM-2", "time: a deadline inside a large all-reduce", |ctx| {
        missing(ctx, |comm| comm.all_reduce_in_place(&mut vec![1.0_f32; 200_000], ReduceOp::Sum))
    })
    .needs(&[Need::Kind(OpKind::AllReduce)])
    .ranks(2, 4),
    Case::must("TM-3", "time: a deadline of one call only", one_call).needs(BARRIER).ranks(2, MANY),
    Case::must("TM-4", "time: a late rank within the deadline is waited for", late).needs(BARRIER).ranks(2, MANY),
    Case::must("TM-136", "time: abort from another thread unblocks the peers", abort).needs(BARRIER).ranks(2, MANY),
    Case::must("TM-137", "time: abort twice, and by everybody at once", abort_twice).needs(BARRIER),
    Case::must("TM-135", "time: a communicator dropped by one rank is PeerLeft for the others", dropped)
        .needs(BARRIER)
        .ranks(2, MANY),
    Case::must(
        "TM-139",
        "time: a rank that leaves right after its call does not disturb it, for every kind",
        leaves_at_once,
    )
    .ranks(2, MANY),
    Case::must("TM-138", "time: finalize is waited for, and poison stays with its communicator", goodbye)
        .needs(BARRIER),
];

fn missing(ctx: &mut Ctx<'_>, call: fn(&mut Communicator) -> rankwise_core::Result<()>) -> CaseResult {
    let absent = ctx.size() - 1;
    let mut comm = ctx.communicator()?;
    // A good call first, so that everybody is known to be there.
    ctx.known_answer(&mut comm)?;
    ctx.meet(&[])?;
    if comm.rank() != absent {
        comm.set_timeout(SHORT);
        let start = Instant::now();
        ctx.note(|| format!("a call that rank {absent} does not make"));
        let result = call(&mut comm);
        let elapsed = start.elapsed();
        let error = match result {
            // Another member's clock ran out a moment earlier.
            Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?.with_operation(OpKind::Barrier),
            result => expect_error(result, &ErrorKind::Timeout, None)?,
        };
        ensure!(error.kind() == &ErrorKind::Timeout, "the first cause is {error}");
        ensure!(error.peers() == [absent], "names {:?} instead of [{absent}]: {error}", error.peers());
        ensure!(error.operation().is_some(), "the operation is not in the error: {error}");
        ensure!(elapsed + Duration::from_millis(50) >= SHORT, "gave up after {elapsed:?} of {SHORT:?}");
    }
    ctx.meet(&[])?;
    if comm.rank() == absent {
        // The others have given up: this is the first the late rank hears of it.
        let error = call(&mut comm).err();
        let kind = error.as_ref().map(|error| error.kind().clone());
        ensure!(
            matches!(kind, Some(ErrorKind::Poisoned | ErrorKind::Timeout)),
            "the late rank got {error:?} from a communicator that timed out"
        );
    }
    ctx.known_answer_elsewhere(&mut comm)
}

fn one_call(ctx: &mut Ctx<'_>) -> CaseResult {
    let absent = 0;
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)?;
    if comm.rank() != absent {
        let start = Instant::now();
        let result = comm.run(Call::barrier().timeout(Duration::from_millis(300)));
        ensure!(result.is_err(), "Ok without rank {absent}");
        ensure!(start.elapsed() < Duration::from_secs(15), "waited for {:?} instead of 0.3 s", start.elapsed());
    }
    ctx.meet(&[])?;
    if comm.rank() == absent {
        ensure!(comm.barrier().is_err(), "Ok after the others have given up");
    }
    ctx.known_answer_elsewhere(&mut comm)
}

fn late(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for late in [0, comm.size() - 1] {
        if comm.rank() == late {
            std::thread::sleep(Duration::from_millis(250));
        }
        ctx.known_answer(&mut comm)?;
    }
    Ok(())
}

fn abort(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)?;
    ctx.meet(&[])?;
    let by = comm.size() - 1;
    if comm.rank() == by {
        let handle = comm.abort_handle();
        let aborter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            handle.abort();
        });
        let joined = aborter.join();
        ensure!(joined.is_ok(), "abort panicked");
        let result = comm.barrier();
        let kind = result.as_ref().err().map(|error| error.kind().clone());
        ensure!(
            matches!(kind, Some(ErrorKind::Aborted | ErrorKind::Poisoned)),
            "after its own abort the rank got {result:?}"
        );
    } else {
        ctx.note(|| format!("a barrier that rank {by} aborts"));
        let start = Instant::now();
        let error = match comm.barrier() {
            Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?,
            result => expect_error(result, &ErrorKind::Aborted, None)?,
        };
        ensure!(error.kind() == &ErrorKind::Aborted && error.peers() == [by], "not aborted by {by}: {error}");
        ensure!(start.elapsed() < Duration::from_secs(10), "unblocked only after {:?}", start.elapsed());
    }
    ctx.known_answer_elsewhere(&mut comm)
}

fn abort_twice(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    comm.abort();
    comm.abort();
    let handle = comm.abort_handle();
    handle.abort();
    if comm.size() > 1 {
        let result = comm.barrier();
        let kind = result.as_ref().err().map(|error| error.kind().clone());
        ensure!(matches!(kind, Some(ErrorKind::Aborted | ErrorKind::Poisoned)), "after abort: {result:?}");
    }
    drop(comm);
    handle.abort();
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}

fn dropped(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)?;
    let gone = 0;
    if comm.rank() == gone {
        drop(comm);
        ctx.meet(&[])?;
        let mut fresh = ctx.communicator()?;
        return ctx.known_answer(&mut fresh);
    }
    ctx.note(|| format!("a barrier on a communicator that rank {gone} has dropped"));
    let error = match comm.barrier() {
        Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?,
        result => expect_error(result, &ErrorKind::PeerLeft, None)?,
    };
    ensure!(error.kind() == &ErrorKind::PeerLeft && error.peers() == [gone], "not PeerLeft of {gone}: {error}");
    ctx.meet(&[])?;
    ctx.known_answer_elsewhere(&mut comm)
}

/// The leaver returns first: it has come first and, where counts allow, receives nothing. What it contributed must still
/// reach the others, who come a little later.
fn leaves_at_once(ctx: &mut Ctx<'_>) -> CaseResult {
    let members = ctx.size();
    for kind in OpKind::DATA {
        if !ctx.capabilities().has_kind(kind) || matches!(kind, OpKind::Barrier | OpKind::Send | OpKind::Recv) {
            continue;
        }
        for leaver in [0, members - 1] {
            let mut operation =
                Operation { count: 40, root: (leaver + 1) % members, ..Operation::new(kind, DType::F32) };
            match kind {
                OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV => {
                    operation.counts = (0..members).map(|rank| if rank == leaver { 0 } else { 3000 + rank }).collect();
                }
                // It sends to everybody and receives nothing.
                OpKind::AllToAllV => {
                    operation.counts =
                        (0..members * members).map(|pair| if pair % members == leaver { 0 } else { 900 }).collect();
                }
                _ => {}
            }
            let mut comm = ctx.communicator()?;
            if comm.rank() != leaver {
                std::thread::sleep(Duration::from_millis(3));
            }
            verify(ctx, &mut comm, &operation).map_err(|failure| failure.within(&format!("rank {leaver} leaves")))?;
        }
    }
    Ok(())
}

fn goodbye(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut other = ctx.communicator()?;
    let comm = ctx.communicator()?;
    if comm.rank() == comm.size() - 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    ctx.note(|| "finalize with one late rank".into());
    comm.finalize()?;
    ctx.known_answer(&mut other)?;
    // A rank that is ahead must not abort a call that others are still in.
    ctx.meet(&[])?;
    other.abort();
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}
