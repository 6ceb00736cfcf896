//! Deadlines, poison, abort and goodbye.

use super::every_kind::every_kind;
use super::mismatch::root_cause;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Buffers, Operation, inputs, perform, verify};
use crate::plan::monotonic_nanos;
use rankwise_core::{Call, Communicator, DType, Error, ErrorKind, OpKind, ReduceOp};
use std::time::{Duration, Instant};

const MANY: usize = usize::MAX;
const BARRIER: &[Need] = &[Need::Kind(OpKind::Barrier)];
const SHORT: Duration = Duration::from_millis(600);
/// Beyond this, a deadline is late even on a busy machine.
const LATE: Duration = Duration::from_secs(5);

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
    Case::must("TM-5", "time: a deadline of every kind of call", deadline_of_every_kind).ranks(3, 3),
    Case::must("TM-6", "time: every kind of call on an aborted communicator is Poisoned at once", poisoned)
        .needs(BARRIER)
        .ranks(2, 5),
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
    let mut clock = Clock::new();
    let waited = if comm.rank() == absent { Ok(()) } else { wait_in_vain(ctx, &mut comm, absent, call, &mut clock) };
    clock.check(ctx, SHORT)?;
    waited?;
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

fn wait_in_vain(
    ctx: &Ctx<'_>,
    comm: &mut Communicator,
    absent: usize,
    call: fn(&mut Communicator) -> rankwise_core::Result<()>,
    clock: &mut Clock,
) -> CaseResult {
    comm.set_timeout(SHORT);
    ctx.note(|| format!("a call that rank {absent} does not make"));
    let result = clock.time(|| call(comm));
    let error = match result {
        // Another member's clock ran out a moment earlier.
        Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?.with_operation(OpKind::Barrier),
        result => {
            let error = expect_error(result, &ErrorKind::Timeout, None)?;
            ensure!(error.sequence().is_some(), "the number of the call is not in the error: {error}");
            ensure!(error.group() == Some(comm.group()), "the group is not in the error: {error}");
            error
        }
    };
    ensure!(error.kind() == &ErrorKind::Timeout, "the first cause is {error}");
    ensure!(error.peers() == [absent], "names {:?} instead of [{absent}]: {error}", error.peers());
    ensure!(error.operation().is_some(), "the operation is not in the error: {error}");
    Ok(())
}

/// When this rank was in the call that others wait for in vain.
struct Clock {
    entered: u64,
    left: u64,
}

impl Clock {
    /// Of a rank that does not make the call.
    fn new() -> Clock {
        Clock { entered: u64::MAX, left: u64::MAX }
    }

    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        self.entered = monotonic_nanos();
        let result = call();
        self.left = monotonic_nanos();
        result
    }

    /// Whoever comes first runs out of time first, and the others with him: nobody gives up before that. Meets all ranks.
    fn check(&self, ctx: &mut Ctx<'_>, deadline: Duration) -> CaseResult {
        let all = ctx.meet(&self.entered.to_le_bytes())?;
        let first = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?))).min();
        if self.entered == u64::MAX {
            return Ok(());
        }
        let least = Duration::from_nanos(self.left.saturating_sub(first.unwrap_or(self.entered)));
        ensure!(least + Duration::from_millis(50) >= deadline, "gave up after {least:?} of {deadline:?}");
        let most = Duration::from_nanos(self.left - self.entered);
        ensure!(most < deadline + LATE, "gave up only after {most:?} of {deadline:?}");
        Ok(())
    }
}

/// One rank misses a call of each kind: those that need it learn it at the deadline, of every kind.
fn deadline_of_every_kind(ctx: &mut Ctx<'_>) -> CaseResult {
    let (members, absent) = (ctx.size(), ctx.size() - 1);
    for mut operation in every_kind(ctx, members, 40) {
        // What only the root has, all need; what only the root gets, only it needs.
        let from_root = matches!(operation.kind, OpKind::Broadcast | OpKind::Scatter | OpKind::ScatterV);
        operation.root = if from_root { absent } else { 0 };
        let mut comm = ctx.communicator()?;
        let (kind, me) = (operation.kind, comm.rank());
        ctx.meet(&[])?;
        let mut waited: CaseResult<Option<Error>> = Ok(None);
        if me != absent {
            comm.set_timeout(Duration::from_millis(300));
            ctx.note(|| format!("{kind} that rank {absent} does not make"));
            let input = &inputs(&operation, 9, members)[me];
            let mut buffers = Buffers::new(&operation, input, me, members);
            let result = perform(&mut comm, &operation, &mut buffers.src, &mut buffers.dst);
            let may_be_done = kind.has_root() && !from_root && me != operation.root;
            waited = match result {
                Ok(()) if may_be_done => Ok(None),
                Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error).map(Some),
                result => expect_error(result, &ErrorKind::Timeout, None).map(Some),
            }
            .map_err(|failure| failure.within(&format!("{kind} without rank {absent}")));
        }
        ctx.meet(&[])?;
        if let Some(error) = waited? {
            ensure!(error.kind() == &ErrorKind::Timeout, "{kind}: the first cause is {error}");
            ensure!(error.peers() == [absent], "{kind}: names {:?} instead of [{absent}]", error.peers());
        }
    }
    Ok(())
}

/// After a failure everything but goodbye is `Poisoned` at once, with the first cause.
fn poisoned(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)?;
    ctx.meet(&[])?;
    comm.abort();
    // Every member has its own first cause: its own abort, or another's.
    drop(comm.barrier());
    let members = comm.size();
    let start = Instant::now();
    for operation in every_kind(ctx, members, 40) {
        let input = &inputs(&operation, 9, members)[comm.rank()];
        let mut buffers = Buffers::new(&operation, input, comm.rank(), members);
        ctx.note(|| format!("{} on a poisoned communicator", operation.kind));
        let result = perform(&mut comm, &operation, &mut buffers.src, &mut buffers.dst);
        is_poisoned(operation.kind.name(), result)?;
        buffers.check_untouched(&operation, input, comm.rank())?;
    }
    is_poisoned("split", comm.split(Some(0), 0).map(drop))?;
    if comm.capabilities().alloc() {
        is_poisoned("alloc", comm.alloc::<u8>(64).map(drop))?;
    }
    if comm.capabilities().nonblocking() {
        is_poisoned("a started call", comm.start(Call::barrier()).map(drop))?;
        let scoped = comm.scope(|scope| scope.run(Call::barrier()));
        is_poisoned("a call in a scope", scoped)?;
    }
    if comm.capabilities().has_kind(OpKind::Send) && comm.capabilities().has_kind(OpKind::Recv) {
        let peer = (comm.rank() + 1) % members;
        is_poisoned("send", comm.send(&[1_u8], peer))?;
        is_poisoned("recv", comm.recv(&mut [1_u8], peer))?;
    }
    ensure!(start.elapsed() < LATE, "poisoned calls took {:?}", start.elapsed());
    // Argument errors are found first, and change nothing.
    expect_error(comm.all_gather(&[1_u8], &mut []), &ErrorKind::InvalidArgument, None)?;
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}

fn is_poisoned(what: &str, result: rankwise_core::Result<()>) -> CaseResult {
    let error = expect_error(result, &ErrorKind::Poisoned, None).map_err(|failure| failure.within(what))?;
    let cause = root_cause(&error)?;
    ensure!(cause.kind() == &ErrorKind::Aborted, "{what}: the first cause is {cause}");
    Ok(())
}

fn one_call(ctx: &mut Ctx<'_>) -> CaseResult {
    let absent = 0;
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)?;
    let deadline = Duration::from_millis(300);
    let mut clock = Clock::new();
    if comm.rank() != absent {
        let result = clock.time(|| comm.run(Call::barrier().timeout(deadline)));
        ensure!(result.is_err(), "Ok without rank {absent}");
    }
    clock.check(ctx, deadline)?;
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
    let entered = monotonic_nanos();
    comm.finalize()?;
    let left = monotonic_nanos();
    let last =
        ctx.meet(&entered.to_le_bytes())?.iter().filter_map(|b| Some(u64::from_le_bytes(b[..].try_into().ok()?))).max();
    ensure!(last.is_some_and(|last| last <= left), "finalize returned before the last rank had called it");
    ctx.known_answer(&mut other)?;
    // A rank that is ahead must not abort a call that others are still in.
    ctx.meet(&[])?;
    other.abort();
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}
