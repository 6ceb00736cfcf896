//! Operations with a root, and the barrier.

use super::all_gather::{moved, uneven_counts};
use super::all_reduce::offered;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Operation, verify};
use crate::plan::monotonic_nanos;
use rankwise_core::{Communicator, ErrorKind, OpKind, ReduceOp};

const BROADCAST: &[Need] = &[Need::Kind(OpKind::Broadcast)];

pub(super) const CASES: &[Case] = &[
    Case::must("RT-98", "rooted: broadcast of every type and size from every root", |ctx| {
        movement(ctx, OpKind::Broadcast)
    })
    .offered(BROADCAST),
    Case::must("RT-981", "rooted: gather to every root", |ctx| movement(ctx, OpKind::Gather))
        .offered(&[Need::Kind(OpKind::Gather)]),
    Case::must("RT-982", "rooted: scatter from every root", |ctx| movement(ctx, OpKind::Scatter))
        .offered(&[Need::Kind(OpKind::Scatter)]),
    Case::must("RT-983", "rooted: reduce with every operator and type to every root", reduce)
        .offered(&[Need::Kind(OpKind::Reduce)]),
    Case::must("RT-984", "rooted: uneven gather and scatter with zeros", uneven)
        .offered(&[Need::Kind(OpKind::GatherV), Need::Kind(OpKind::ScatterV)]),
    Case::must("RT-99", "rooted: a root outside the group, or a buffer at the wrong rank, is refused", bad_root)
        .offered(&[
            Need::Kind(OpKind::Broadcast),
            Need::Kind(OpKind::Reduce),
            Need::Kind(OpKind::Gather),
            Need::Kind(OpKind::Scatter),
        ]),
    Case::must("RT-100", "rooted: broadcast of bytes whose length only the root knows", unknown_length)
        .offered(BROADCAST),
    Case::must("RT-104", "barrier: nobody leaves before the last has entered", barrier)
        .needs(&[Need::Kind(OpKind::Barrier)]),
    Case::must("RT-105", "barrier: a rank that comes late holds everybody", late_barrier)
        .needs(&[Need::Kind(OpKind::Barrier)])
        .ranks(2, usize::MAX),
];

fn movement(ctx: &mut Ctx<'_>, kind: OpKind) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types = moved(ctx);
    let sizes = ctx.sizes_per_rank();
    for row in ctx.sample(&[types.len(), sizes.len(), comm.size(), 2]) {
        let mut operation = Operation::new(kind, types[row[0]]);
        operation.count = sizes[row[1]].elements(types[row[0]]);
        operation.root = row[2];
        operation.offset = row[3];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn reduce(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let pairs = offered(ctx, &ReduceOp::ALL);
    let counts = [0, 1, 17, 1000, 4097, 30_000];
    for row in ctx.sample(&[pairs.len(), counts.len(), comm.size()]) {
        let (op, dtype) = pairs[row[0]];
        let mut operation = Operation::reducing(OpKind::Reduce, dtype, op, counts[row[1]]);
        operation.root = row[2];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn uneven(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types = moved(ctx);
    let most = [1, 50, 5000];
    for row in ctx.sample(&[types.len(), most.len(), comm.size(), 2]) {
        let kind = [OpKind::GatherV, OpKind::ScatterV][row[3]];
        let mut operation = Operation::new(kind, types[row[0]]);
        operation.counts = uneven_counts(ctx, comm.size(), most[row[1]]);
        operation.root = row[2];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn bad_root(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let members = comm.size();
    let invalid = |result| expect_error(result, &ErrorKind::InvalidArgument, None).map(drop);
    let one = [1_i32];
    let many = vec![1_i32; members];
    for root in [members, members + 7, usize::MAX] {
        invalid(comm.broadcast(&mut [1_i32], root))?;
        invalid(comm.reduce(&one, None, ReduceOp::Sum, root))?;
        invalid(comm.gather(&one, None, root))?;
        invalid(comm.scatter(None, &mut [1_i32], root))?;
        invalid(comm.broadcast_bytes(&mut vec![1], root))?;
    }
    // The buffer of the root is missing there, or given elsewhere.
    let root = 0;
    let at_root = comm.rank() == root;
    let mut small = [0_i32];
    let mut large = vec![0_i32; members];
    invalid(comm.reduce(&one, (!at_root).then_some(&mut small[..]), ReduceOp::Sum, root))?;
    invalid(comm.gather(&one, (!at_root).then_some(&mut large[..]), root))?;
    invalid(comm.scatter((!at_root).then_some(&many[..]), &mut small, root))?;
    ensure!(small == [0] && large.iter().all(|v| *v == 0), "a refused call wrote its destination");
    ctx.known_answer(&mut comm)
}

fn unknown_length(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for root in 0..comm.size().min(4) {
        for length in [0, 1, 7, 4096, 100_003] {
            let want: Vec<u8> = (0..length).map(|i| (i * 7 + root * 31) as u8).collect();
            let mut bytes = if comm.rank() == root { want.clone() } else { vec![9; 5 * comm.rank()] };
            ctx.note(|| format!("broadcast_bytes of {length} from {root}"));
            ctx.pause();
            comm.broadcast_bytes(&mut bytes, root)?;
            ensure!(bytes == want, "{length} bytes from {root}: got {} bytes, or other ones", bytes.len());
        }
    }
    Ok(())
}

/// Every rank's time of entry lies before every rank's time of leaving.
fn barrier(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let rounds = if ctx.is_full() { 1000 } else { 100 };
    for round in 0..rounds {
        ctx.note(|| format!("barrier {round}"));
        ctx.pause();
        let entered = monotonic_nanos();
        comm.barrier()?;
        let left = monotonic_nanos();
        if round % 10 == 0 {
            check_times(&mut comm, entered, left).map_err(|f| f.within(&format!("round {round}")))?;
        }
    }
    Ok(())
}

fn check_times(comm: &mut Communicator, entered: u64, left: u64) -> CaseResult {
    let mut all = vec![[0_u64; 2]; comm.size()];
    comm.all_gather(&[[entered, left]], &mut all)?;
    let last_entry = all.iter().map(|times| times[0]).max().unwrap_or(0);
    let first_leave = all.iter().map(|times| times[1]).min().unwrap_or(0);
    ensure!(
        last_entry <= first_leave,
        "a rank left {} ns before the last entered",
        last_entry.saturating_sub(first_leave)
    );
    Ok(())
}

fn late_barrier(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for late in [0, comm.size() - 1] {
        if comm.rank() == late {
            std::thread::sleep(std::time::Duration::from_millis(120));
        }
        let entered = monotonic_nanos();
        comm.barrier()?;
        check_times(&mut comm, entered, monotonic_nanos())?;
    }
    Ok(())
}
