//! Operations in flight.

use crate::case::{Case, CaseResult, Failure, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use rankwise_core::{Call, Communicator, DType, Error, ErrorKind, OpKind, ReduceOp};

const NONBLOCKING: &[Need] = &[
    Need::Nonblocking,
    Need::Kind(OpKind::AllReduce),
    Need::Kind(OpKind::AllGather),
    Need::Reduce(ReduceOp::Sum, DType::I64),
];

pub(super) const CASES: &[Case] = &[
    Case::must("NB-125", "nonblocking: many in flight, waited in reverse", reverse).offered(NONBLOCKING),
    Case::must("NB-126", "nonblocking: works dropped without a wait do not disturb", dropped).offered(NONBLOCKING),
    Case::must("NB-127", "nonblocking: a test stays true, and wait still gives the buffer", test_stays)
        .offered(NONBLOCKING),
    Case::must("NB-128", "nonblocking: two communicators waited for in different orders", different_orders)
        .offered(NONBLOCKING),
    Case::must("NB-129", "nonblocking: computing while in flight", compute).offered(NONBLOCKING),
    Case::must("NB-130", "nonblocking: borrowed buffers in a scope", scope).offered(NONBLOCKING),
    Case::must("NB-131", "nonblocking: a blocking call while works are in flight", blocking_between)
        .offered(NONBLOCKING),
    Case::must("NB-132", "nonblocking: kinds and large messages mixed", mixed).offered(NONBLOCKING),
    Case::must("NB-133", "nonblocking: a refused start leaves the communicator usable", refused).offered(NONBLOCKING),
    Case::must("NB-135", "nonblocking: a start refused on one rank reaches the works of its peers", refused_on_one)
        .offered(NONBLOCKING)
        .ranks(2, usize::MAX),
    Case::must("NB-136", "nonblocking: the deadline of a work is its own", deadline).offered(NONBLOCKING).ranks(2, 4),
    Case::must("NB-134", "nonblocking: works waited for on another thread", other_thread).offered(NONBLOCKING),
];

fn triangle(comm: &Communicator) -> i64 {
    (comm.size() * (comm.size() + 1) / 2) as i64
}

fn start_sum(comm: &mut Communicator, i: usize) -> CaseResult<rankwise_core::Work<rankwise_core::InPlace, Vec<i64>>> {
    let mine = (comm.rank() as i64 + 1) * (i as i64 + 1);
    let length = 1 + i % 5 * 40;
    Ok(comm.start(Call::all_reduce_in_place(vec![mine; length], ReduceOp::Sum))?)
}

fn check_sum(comm: &Communicator, i: usize, got: &[i64]) -> CaseResult {
    let want = triangle(comm) * (i as i64 + 1);
    ensure!(got.len() == 1 + i % 5 * 40, "work {i} gave {} elements", got.len());
    ensure!(got.iter().all(|v| *v == want), "work {i} gave {} instead of {want}", got[0]);
    Ok(())
}

fn reverse(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let works = if ctx.is_full() { 1000 } else { 60 };
    let started = (0..works).map(|i| start_sum(&mut comm, i)).collect::<CaseResult<Vec<_>>>()?;
    for (i, work) in started.into_iter().enumerate().rev() {
        ctx.note(|| format!("wait for work {i}"));
        check_sum(&comm, i, &work.wait()?)?;
    }
    ctx.known_answer(&mut comm)
}

fn dropped(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for i in 0..20 {
        let work = start_sum(&mut comm, i)?;
        // Different ranks drop different works.
        if (i + ctx.rank()).is_multiple_of(2) {
            drop(work);
        } else {
            check_sum(&comm, i, &work.wait()?)?;
        }
    }
    ctx.known_answer(&mut comm)
}

fn test_stays(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for i in 0..5 {
        ctx.pause();
        let mut work = start_sum(&mut comm, i)?;
        let start = std::time::Instant::now();
        ctx.note(|| format!("test of work {i}"));
        while !work.test()? {
            ensure!(start.elapsed() < crate::ctx::CALL_TIMEOUT, "the test never became true");
            std::thread::yield_now();
        }
        ensure!(work.test()? && work.test()?, "the test became false again");
        check_sum(&comm, i, &work.wait()?)?;
    }
    ctx.known_answer(&mut comm)
}

fn different_orders(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut first = ctx.communicator()?;
    let mut second = ctx.communicator()?;
    for i in 0..10 {
        let a = start_sum(&mut first, i)?;
        let b = start_sum(&mut second, i + 1)?;
        ctx.note(|| format!("waiting for two works, round {i}"));
        if ctx.rank().is_multiple_of(2) {
            check_sum(&first, i, &a.wait()?)?;
            check_sum(&second, i + 1, &b.wait()?)?;
        } else {
            check_sum(&second, i + 1, &b.wait()?)?;
            check_sum(&first, i, &a.wait()?)?;
        }
    }
    Ok(())
}

fn compute(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let count = 50_000 / comm.size();
    let work = comm.start(Call::all_reduce_in_place(vec![comm.rank() as f32 + 1.0; count], ReduceOp::Sum))?;
    let busy: u64 = (0..200_000_u64).map(|i| i ^ (i >> 3)).fold(0, u64::wrapping_add);
    ctx.note(|| format!("wait after computing {busy}"));
    let got = work.wait()?;
    let want = triangle(&comm) as f32;
    ensure!(got.len() == count && got.iter().all(|v| *v == want), "got {:?} instead of {want}", got.first());
    Ok(())
}

fn scope(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members, total) = (comm.rank(), comm.size(), triangle(&comm));
    let source = vec![me as i64 + 1; 3000];
    let (mut sums, mut seconds) = (vec![0_i64; 3000], vec![me as u8; 9]);
    let mut all = vec![0_u16; members];
    let own = [me as u16];
    ctx.note(|| "scope".into());
    comm.scope(|s| {
        let sum = s.start(Call::all_reduce(&source[..], &mut sums[..], ReduceOp::Sum))?;
        // Not waited for: the scope does.
        s.start(Call::all_reduce_in_place(&mut seconds[..], ReduceOp::Max))?;
        let gather = s.start(Call::all_gather(&own[..], &mut all[..]))?;
        gather.wait()?;
        sum.wait()?[0] += 1;
        Ok(())
    })?;
    ensure!(sums[0] == total + 1 && sums[1..].iter().all(|v| *v == total), "sums: {:?}", &sums[..2]);
    ensure!(seconds.iter().all(|v| usize::from(*v) == members - 1), "max: {seconds:?}");
    ensure!(all.iter().enumerate().all(|(rank, v)| rank == usize::from(*v)), "all_gather: {all:?}");
    ctx.known_answer(&mut comm)
}

fn blocking_between(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for i in 0..5 {
        let before = start_sum(&mut comm, i)?;
        let after = start_sum(&mut comm, i + 3)?;
        ctx.known_answer(&mut comm)?;
        comm.barrier()?;
        check_sum(&comm, i + 3, &after.wait()?)?;
        check_sum(&comm, i, &before.wait()?)?;
    }
    Ok(())
}

fn mixed(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    let large = 100_003 / members;
    ctx.note(|| "a large sum, a gather and a barrier in flight".into());
    let sum = comm.start(Call::all_reduce(vec![me as f64; large], vec![0.0; large], ReduceOp::Sum))?;
    let gather = comm.start(Call::all_gather(vec![me as u32; 7], vec![0_u32; 7 * members]))?;
    let barrier = comm.start(Call::barrier())?;
    let tail = start_sum(&mut comm, 2)?;
    check_sum(&comm, 2, &tail.wait()?)?;
    barrier.wait()?;
    let all = gather.wait()?;
    ensure!(all.chunks(7).enumerate().all(|(r, part)| part.iter().all(|v| *v as usize == r)), "gather: {all:?}");
    let want = (members * (members - 1) / 2) as f64;
    let (source, sums) = sum.wait_both()?;
    ensure!(sums.iter().all(|v| *v == want), "sum: {} instead of {want}", sums[0]);
    ensure!(source.iter().all(|v| *v == me as f64), "the source was changed");
    Ok(())
}

fn refused(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let before = start_sum(&mut comm, 1)?;
    let short = comm.start(Call::all_reduce(vec![1_i32; 3], vec![0_i32; 4], ReduceOp::Sum));
    expect_error(short.map(drop), &ErrorKind::InvalidArgument, None)?;
    let average = comm.start(Call::all_reduce_in_place(vec![1_i32; 3], ReduceOp::Avg));
    expect_error(average.map(drop), &ErrorKind::UnsupportedOp, None)?;
    check_sum(&comm, 1, &before.wait()?)?;
    ctx.known_answer(&mut comm)
}

fn refused_on_one(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for odd in [0, comm.size() - 1] {
        let before = start_sum(&mut comm, 2)?;
        let length = if comm.rank() == odd { 4 } else { 3 };
        let started = comm.start(Call::all_reduce(vec![1_i64; 3], vec![0_i64; length], ReduceOp::Sum));
        let after = start_sum(&mut comm, 3)?;
        match started {
            Ok(work) if comm.rank() != odd => {
                let result = work.wait().map_err(rankwise_core::WorkError::into_error);
                expect_error(result, &ErrorKind::PeerRejected, Some(&[odd]))?;
            }
            started => drop(expect_error(started.map(drop), &ErrorKind::InvalidArgument, None)?),
        }
        check_sum(&comm, 3, &after.wait()?)?;
        check_sum(&comm, 2, &before.wait()?)?;
        ctx.known_answer(&mut comm)?;
    }
    Ok(())
}

fn deadline(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)?;
    ctx.meet(&[])?;
    let absent = comm.size() - 1;
    let start = |comm: &mut Communicator| -> CaseResult<Error> {
        let short = std::time::Duration::from_millis(300);
        let work = comm.start(Call::all_reduce_in_place(vec![1_i64; 5], ReduceOp::Sum).timeout(short));
        match work.and_then(|work| work.wait().map_err(rankwise_core::WorkError::into_error)) {
            Err(error) if error.kind() == &ErrorKind::Poisoned => super::root_cause(&error),
            result => expect_error(result, &ErrorKind::Timeout, None),
        }
    };
    ctx.note(|| format!("a work that rank {absent} has not started"));
    let mut learned = if comm.rank() == absent { None } else { Some(start(&mut comm)) };
    ctx.meet(&[])?;
    let error = learned.take().unwrap_or_else(|| start(&mut comm))?;
    ensure!(error.kind() == &ErrorKind::Timeout, "the first cause is {error}");
    let named = error.peers() == [absent] || comm.rank() == absent;
    ensure!(named, "names {:?} instead of [{absent}]: {error}", error.peers());
    ctx.known_answer_elsewhere(&mut comm)
}

fn other_thread(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let first = start_sum(&mut comm, 3)?;
    let second = start_sum(&mut comm, 4)?;
    let elsewhere = std::thread::spawn(move || first.wait().map_err(|error| error.to_string()));
    check_sum(&comm, 4, &second.wait()?)?;
    let got =
        elsewhere.join().map_err(|_| Failure::error("the waiting thread panicked".into()))?.map_err(Failure::error)?;
    check_sum(&comm, 3, &got)
}
