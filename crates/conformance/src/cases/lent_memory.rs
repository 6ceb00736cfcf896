//! Memory that was lent to a call: whose it is when the call has returned.

use super::every_kind::every_kind;
use crate::case::{Case, CaseResult, Failure, Need, ensure};
use crate::ctx::Ctx;
use crate::operation::{Buffers, Memory, Operation, check_result, inputs, perform};
use rankwise_core::{Communicator, DType, ErrorKind, OpKind, ReduceOp};
use std::time::Duration;

const MANY: usize = usize::MAX;

pub(super) const CASES: &[Case] = &[
    Case::must("LM-1", "lent memory: buffers rewritten right after a call do not reach its peers", rewritten)
        .ranks(2, MANY),
    Case::must("LM-2", "lent memory: results stay as they are under later calls", kept).ranks(2, MANY),
    Case::must("LM-3", "lent memory: nobody touches the buffers of a call that has failed", untouched_after_failure)
        .needs(&[Need::Kind(OpKind::AllReduce), Need::Kind(OpKind::Barrier)])
        .ranks(2, 4),
];

/// Where buffers can lie here.
fn memories(ctx: &Ctx<'_>) -> Vec<Memory> {
    if ctx.capabilities().alloc() { vec![Memory::Heap, Memory::AllocBoth] } else { vec![Memory::Heap] }
}

/// One rank comes first and reuses its buffers as soon as it may; the others come later.
fn rewritten(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    for memory in memories(ctx) {
        for count in [12, 3000, 20_000 / members] {
            for mut operation in every_kind(ctx, members, count) {
                // Of a reduction or a gather to a root, another rank is the one that may leave early.
                let early = usize::from(matches!(operation.kind, OpKind::Reduce | OpKind::Gather | OpKind::GatherV));
                operation.memory = memory;
                let inputs = inputs(&operation, ctx.next_seed(), members);
                ctx.note(|| operation.describe(&comm));
                let mut buffers = Buffers::placed(&mut comm, &operation, &inputs[me])?;
                if me != early {
                    std::thread::sleep(Duration::from_micros(600));
                }
                perform(&mut comm, &operation, &mut buffers.src, &mut buffers.dst)?;
                let within = |f: Failure| f.within(&format!("rank {early} early: {}", operation.describe(&comm)));
                let judged = check_result(ctx, &comm, &operation, &inputs, &buffers).map_err(within);
                if me == early {
                    buffers.src.bytes_mut().fill(0x5A);
                    buffers.dst.bytes_mut().fill(0x5B);
                }
                // What the early rank has written stays until the others have their results.
                ctx.meet(&[])?;
                judged?;
            }
        }
    }
    ctx.known_answer(&mut comm)
}

fn kept(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    for memory in memories(ctx) {
        let mut earlier = Vec::new();
        for count in [8, 8, 2000] {
            for mut operation in every_kind(ctx, members, count) {
                operation.root = members - 1;
                operation.memory = memory;
                let inputs = inputs(&operation, ctx.next_seed(), members);
                ctx.note(|| operation.describe(&comm));
                let mut buffers = Buffers::placed(&mut comm, &operation, &inputs[me])?;
                perform(&mut comm, &operation, &mut buffers.src, &mut buffers.dst)?;
                check_result(ctx, &comm, &operation, &inputs, &buffers)?;
                earlier.push((operation, inputs, buffers));
            }
        }
        for (operation, inputs, buffers) in &earlier {
            let within = |f: Failure| f.within(&format!("after later calls: {}", operation.describe(&comm)));
            check_result(ctx, &comm, operation, inputs, buffers).map_err(within)?;
        }
    }
    ctx.known_answer(&mut comm)
}

fn untouched_after_failure(ctx: &mut Ctx<'_>) -> CaseResult {
    for memory in memories(ctx) {
        for count in [16, 50_000] {
            let operation =
                Operation { memory, ..Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, count) };
            let mut comm = ctx.communicator()?;
            failed(ctx, &mut comm, &operation)?;
            ctx.known_answer_elsewhere(&mut comm)?;
        }
    }
    Ok(())
}

fn failed(ctx: &mut Ctx<'_>, comm: &mut Communicator, operation: &Operation) -> CaseResult {
    let (me, absent) = (comm.rank(), comm.size() - 1);
    let inputs = inputs(operation, ctx.next_seed(), comm.size());
    let mut buffers = Buffers::placed(comm, operation, &inputs[me])?;
    let reuse = |buffers: &mut Buffers| {
        buffers.src.bytes_mut().fill(0x11);
        buffers.dst.bytes_mut().fill(0x22);
    };
    ctx.meet(&[])?;
    if me != absent {
        comm.set_timeout(Duration::from_millis(200));
        ctx.note(|| "a call that one rank makes too late".into());
        let result = perform(comm, operation, &mut buffers.src, &mut buffers.dst);
        ensure!(result.is_err(), "Ok without rank {absent}");
        reuse(&mut buffers);
    }
    ctx.meet(&[])?;
    if me == absent {
        // The others have given up, and use their memory for something else.
        let result = perform(comm, operation, &mut buffers.src, &mut buffers.dst);
        let kind = result.as_ref().err().map(|error| error.kind().clone());
        ensure!(matches!(kind, Some(ErrorKind::Poisoned | ErrorKind::Timeout)), "the late rank got {result:?}");
        reuse(&mut buffers);
    }
    ctx.meet(&[])?;
    let later = comm.barrier();
    ensure!(later.is_err(), "a barrier on a communicator that timed out is Ok");
    std::thread::sleep(Duration::from_millis(5));
    let (src, dst) = (buffers.src.bytes(), buffers.dst.bytes());
    ensure!(src.iter().all(|byte| *byte == 0x11), "the source of a failed call was touched after it");
    ensure!(dst.iter().all(|byte| *byte == 0x22), "the destination of a failed call was touched after it");
    ctx.meet(&[])?;
    Ok(())
}
