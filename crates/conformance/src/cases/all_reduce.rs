//! All-reduce: every operator and type, forms, alignments, several tensors as one call.

use crate::case::{Case, CaseResult, Failure, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::frame::Frame;
use crate::operation::{Operation, inputs, verify, verify_with};
use crate::oracle;
use crate::sizes::sizes;
use crate::values::{Pattern, fill};
use rankwise_core::{Communicator, DType, Elem, ErrorKind, OpKind, Part, ReduceOp};

const ALL_REDUCE: &[Need] = &[Need::Kind(OpKind::AllReduce)];

pub(super) const CASES: &[Case] = &[
    Case::must("AR-1", "all-reduce: sum of every type and size", |ctx| operators(ctx, &[ReduceOp::Sum]))
        .needs(ALL_REDUCE),
    Case::must("AR-2", "all-reduce: product of 1 and 2", |ctx| operators(ctx, &[ReduceOp::Prod])).needs(ALL_REDUCE),
    Case::must("AR-3", "all-reduce: min and max of every type and size", |ctx| {
        operators(ctx, &[ReduceOp::Min, ReduceOp::Max])
    })
    .needs(ALL_REDUCE),
    Case::must("AR-17", "all-reduce: mean of every float type", |ctx| operators(ctx, &[ReduceOp::Avg]))
        .needs(ALL_REDUCE),
    Case::must("AR-22", "all-reduce: scaled sum with several factors", premulsum)
        .offered(&[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::PreMulSum(0.5), DType::F32)]),
    Case::must("AR-23", "all-reduce: bitwise and, or, exclusive or", |ctx| {
        operators(ctx, &[ReduceOp::BAnd, ReduceOp::BOr, ReduceOp::BXor])
    })
    .offered(&[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::BAnd, DType::U32)]),
    Case::must("AR-27", "all-reduce: length 0 of every type", empty).needs(ALL_REDUCE),
    Case::must("AR-28", "all-reduce: in place and out of place give the same bits", in_place).needs(ALL_REDUCE),
    Case::must("AR-30", "all-reduce: bases off every 16-byte boundary", offsets).needs(ALL_REDUCE),
    Case::must("AR-31", "all-reduce: a thousand small calls in a row", many_small_calls).needs(ALL_REDUCE),
    Case::must("AR-34", "all-reduce: a group of one copies and validates", alone),
    Case::must("AR-40", "all-reduce: several tensors as one call, each as alone", several).needs(&[
        Need::Kind(OpKind::AllReduce),
        Need::Reduce(ReduceOp::Max, DType::I64),
        Need::Reduce(ReduceOp::Sum, DType::U8),
    ]),
    Case::must("AR-41", "all-reduce: no tensor at all is refused", no_tensor).needs(ALL_REDUCE),
    Case::must("AR-33", "all-reduce: long messages, and around every threshold", long).needs(ALL_REDUCE).ranks(2, 8),
    Case::must("AR-42", "all-reduce: 2^31 + 8 elements", beyond_i32).needs(ALL_REDUCE).ranks(2, 2).large(),
    Case::must("AR-43", "all-reduce: more than 4 GiB", beyond_4_gib).needs(ALL_REDUCE).ranks(2, 2).large(),
];

/// The pairs of these operators and the types they mean something for that the backend offers.
pub(super) fn offered(ctx: &Ctx<'_>, ops: &[ReduceOp]) -> Vec<(ReduceOp, DType)> {
    let capabilities = ctx.capabilities();
    let pairs = ops.iter().flat_map(|op| op.meaningful().iter().map(|dtype| (*op, dtype)));
    pairs.filter(|(op, dtype)| capabilities.reduces(*op).contains(*dtype)).collect()
}

fn operators(ctx: &mut Ctx<'_>, ops: &[ReduceOp]) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let pairs = offered(ctx, ops);
    let counts = ctx.sizes();
    for row in ctx.sample(&[pairs.len(), counts.len(), 2, 2]) {
        let (op, dtype) = pairs[row[0]];
        let mut operation = Operation::reducing(OpKind::AllReduce, dtype, op, counts[row[1]].elements(dtype));
        operation.in_place = row[2] == 1;
        operation.offset = row[3];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

/// What the samples of the other cases leave out because every operator and type would be too much.
fn long(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let types = offered(ctx, &[ReduceOp::Sum]);
    let most = if ctx.is_full() { usize::MAX } else { 8_000_000 / (comm.size() * comm.size()) };
    let sizes: Vec<_> =
        sizes(ctx.capabilities(), most).into_iter().filter(|s| s.elements(DType::U8) > 20_000).collect();
    for row in ctx.sample(&[sizes.len(), 2]) {
        let (op, dtype) = types[ctx.shared_random().below(types.len())];
        let mut operation = Operation::reducing(OpKind::AllReduce, dtype, op, sizes[row[0]].elements(dtype));
        operation.in_place = row[1] == 1;
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn premulsum(ctx: &mut Ctx<'_>) -> CaseResult {
    let factors = [0.5, -2.0, 0.0, 1.0 / 3.0, 1e-3];
    operators(ctx, &factors.map(ReduceOp::PreMulSum))
}

fn empty(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for (op, dtype) in offered(ctx, &ReduceOp::ALL) {
        verify(ctx, &mut comm, &Operation::reducing(OpKind::AllReduce, dtype, op, 0))?;
    }
    verify(ctx, &mut comm, &Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, 9))
}

fn in_place(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for (op, dtype) in offered(ctx, &[ReduceOp::Sum, ReduceOp::Max]) {
        for count in [1, 129, 5000] {
            let mut operation = Operation::reducing(OpKind::AllReduce, dtype, op, count);
            if op == ReduceOp::Sum {
                operation.pattern = Pattern::Exact;
            }
            let inputs = inputs(&operation, ctx.next_seed(), comm.size());
            let apart = verify_with(ctx, &mut comm, &operation, &inputs)?;
            operation.in_place = true;
            let within = verify_with(ctx, &mut comm, &operation, &inputs)?;
            ensure!(apart == within, "{op} of {count} {dtype}: in place differs from out of place");
        }
    }
    Ok(())
}

fn offsets(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let pairs = offered(ctx, &[ReduceOp::Sum, ReduceOp::Min]);
    let counts = [1, 15, 64, 257, 4099, 40_001];
    for row in ctx.sample(&[pairs.len(), counts.len(), 16]) {
        let (op, dtype) = pairs[row[0]];
        let mut operation = Operation::reducing(OpKind::AllReduce, dtype, op, counts[row[1]]);
        operation.offset = row[2];
        verify(ctx, &mut comm, &operation)?;
    }
    Ok(())
}

fn many_small_calls(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let mut random = ctx.shared_random();
    for _ in 0..if ctx.is_full() { 5000 } else { 300 } {
        let count = random.below(40);
        verify(ctx, &mut comm, &Operation::reducing(OpKind::AllReduce, DType::F32, ReduceOp::Sum, count))?;
    }
    Ok(())
}

fn alone(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.backend.communicator(&rankwise_core::Group::new([ctx.rank()])?)?;
    for (op, dtype) in offered(ctx, &ReduceOp::ALL) {
        for count in [0, 1, 100] {
            let mut operation = Operation::reducing(OpKind::AllReduce, dtype, op, count);
            verify(ctx, &mut comm, &operation)?;
            operation.in_place = true;
            verify(ctx, &mut comm, &operation)?;
        }
    }
    let short = comm.all_reduce(&[1.0_f32, 2.0], &mut [0.0; 3], ReduceOp::Sum);
    expect_error(short, &ErrorKind::InvalidArgument, None)?;
    expect_error(comm.all_reduce_in_place(&mut [1_i32], ReduceOp::Avg), &ErrorKind::UnsupportedOp, None)?;
    ctx.known_answer(&mut comm)
}

fn several(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let lengths: &[[usize; 3]] = &[[1, 2, 3], [0, 1000, 0], [70_001, 5, 4096], [8, 8, 8]];
    for lengths in lengths {
        three_tensors(ctx, &mut comm, *lengths)?;
    }
    Ok(())
}

fn three_tensors(ctx: &mut Ctx<'_>, comm: &mut Communicator, lengths: [usize; 3]) -> CaseResult {
    let seed = ctx.next_seed();
    let (me, members) = (comm.rank(), comm.size());
    let plan = [(DType::F32, ReduceOp::Sum), (DType::I64, ReduceOp::Max), (DType::U8, ReduceOp::Sum)];
    let input = |i: usize, rank| fill(Pattern::exact_for(plan[i].1), plan[i].0, seed, rank, members, lengths[i]);
    let mut frames: Vec<Frame> = (0..3)
        .map(|i| {
            let mut frame = Frame::new(plan[i].0, lengths[i], 1);
            frame.bytes_mut().copy_from_slice(&input(i, me));
            frame
        })
        .collect();
    let mut apart = Frame::new(DType::F32, lengths[0], 0);
    ctx.note(|| format!("all_reduce_many of {lengths:?}"));
    ctx.pause();
    {
        let [first, second, third] = &mut frames[..] else { unreachable!("three frames") };
        comm.all_reduce_many(&mut [
            Part::new(first.elements::<f32>(), apart.elements_mut::<f32>(), ReduceOp::Sum),
            Part::in_place(second.elements_mut::<i64>(), ReduceOp::Max),
            Part::in_place(third.elements_mut::<u8>(), ReduceOp::Sum),
        ])?;
    }
    for i in 0..3 {
        let inputs: Vec<Vec<u8>> = (0..members).map(|rank| input(i, rank)).collect();
        let parts: Vec<&[u8]> = inputs.iter().map(|part| &part[..]).collect();
        let want = oracle::fold(plan[i].0, plan[i].1, &parts);
        let got = if i == 0 { apart.bytes() } else { frames[i].bytes() };
        ensure!(got == want, "tensor {i} of {lengths:?} differs from the call alone");
        for frame in [&frames[i], &apart] {
            if let Some(what) = frame.broken_canary() {
                return Err(Failure::wrong(format!("tensor {i} of {lengths:?}: {what}")));
            }
        }
    }
    ensure!(frames[0].bytes() == input(0, me), "the source of the first tensor was changed");
    Ok(())
}

fn no_tensor(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    expect_error(comm.all_reduce_many(&mut []), &ErrorKind::InvalidArgument, None)?;
    ctx.known_answer(&mut comm)
}

fn beyond_i32(ctx: &mut Ctx<'_>) -> CaseResult {
    ones_and_twos(ctx, (1 << 31) + 8, [1_i8, 2], 3)
}

fn beyond_4_gib(ctx: &mut Ctx<'_>) -> CaseResult {
    ones_and_twos(ctx, (1 << 29) + 8, [1_i64, 2], 3)
}

/// A sum of two ranks that fill a large buffer with a value each.
fn ones_and_twos<T: Elem>(ctx: &mut Ctx<'_>, count: usize, values: [T; 2], want: T) -> CaseResult {
    let need = 2 * (count * size_of::<T>()) as u64;
    let mut comm = ctx.communicator()?;
    // Decided together and before anybody takes memory: a rank that skips alone would be waited for.
    let available = available_memory().unwrap_or(u64::MAX);
    let all = ctx.meet(&available.to_le_bytes())?;
    let least = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?))).min();
    if let Some(available) = least.filter(|available| *available < need + need / 4) {
        ctx.skip_part(&format!("{count} elements need {need} bytes of memory, and {available} are available"));
        return Ok(());
    }
    let mut data = vec![values[comm.rank()]; count];
    ctx.note(|| format!("all_reduce in place of {count} {}", T::DTYPE));
    match comm.all_reduce_in_place(&mut data, ReduceOp::Sum) {
        Ok(()) => {
            let wrong = data.iter().position(|value| *value != want);
            ensure!(wrong.is_none(), "element {wrong:?} is wrong");
            Ok(())
        }
        Err(error) => {
            expect_error::<()>(Err(error), &ErrorKind::CountTooLarge, None)?;
            ctx.known_answer(&mut comm)
        }
    }
}

/// Bytes that the host can still give; `None` when it does not say.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
