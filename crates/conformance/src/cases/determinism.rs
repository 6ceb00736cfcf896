//! Which bits: the same on all ranks, the same again, and under fixed determinism those of the left fold.

use super::FLOATS;
use super::all_reduce::offered;
use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error, join};
use crate::number::elem_size;
use crate::operation::{Operation, inputs, verify, verify_with};
use crate::random::label;
use crate::values::{Pattern, float};
use rankwise_core::{Communicator, Config, DType, Determinism, ErrorKind, Group, OpKind, ReduceOp};

const SUM_F32: &[Need] = &[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F32)];
const FIXED: &[Need] = &[Need::Fixed, Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F32)];

pub(super) const CASES: &[Case] = &[
    Case::must("DT-44", "determinism: rounded sums are bit-equal on all ranks", equal_on_all_ranks).needs(SUM_F32),
    Case::must("DT-45", "determinism: the same input gives the same bits again", equal_again).needs(SUM_F32),
    Case::must("DT-46", "determinism: an element alone and inside a long message", alone_or_inside).offered(FIXED),
    Case::must("DT-49", "determinism: random arrival changes no bit", arrival).offered(FIXED),
    Case::must("DT-50", "determinism: the left fold in group order, bit for bit", left_fold).offered(FIXED),
    Case::must("DT-51", "determinism: 1e8, 1, -1e8, 1 in every order", non_associative).needs(SUM_F32).ranks(4, 4),
    Case::must("DT-52", "determinism: a mode that is not offered is refused at setup", mode_refused),
    Case::must("DT-53", "determinism: NaN results are the canonical quiet NaN", canonical_nan).offered(FIXED),
    Case::must("DT-54", "determinism: alignment, place and memory change no bit", alignment).offered(FIXED),
];

fn rounding(kind: OpKind, dtype: DType, op: ReduceOp, count: usize) -> Operation {
    Operation { pattern: Pattern::Rounding, ..Operation::reducing(kind, dtype, op, count) }
}

/// The result without judging its bits: the engine may combine in any order here.
fn unjudged(ctx: &mut Ctx<'_>, comm: &mut Communicator, count: usize, seed: u64) -> CaseResult<Vec<u8>> {
    let operation = rounding(OpKind::AllReduce, DType::F32, ReduceOp::Sum, count);
    let inputs = inputs(&operation, seed, comm.size());
    let mut out = vec![0.0_f32; count];
    ctx.note(|| operation.describe(comm));
    ctx.pause();
    let element = |bytes: &[u8], i: usize| f32::from_ne_bytes(bytes[i * 4..][..4].try_into().expect("four bytes"));
    let mine: Vec<f32> = (0..count).map(|i| element(&inputs[comm.rank()], i)).collect();
    comm.all_reduce(&mine, &mut out, ReduceOp::Sum)?;
    for (i, got) in out.iter().enumerate() {
        let parts = inputs.iter().map(|bytes| element(bytes, i));
        let exact: f64 = parts.clone().map(f64::from).sum();
        let magnitude: f64 = parts.map(|v| f64::from(v).abs()).sum();
        let bound = magnitude * f64::from(f32::EPSILON) * comm.size() as f64;
        ensure!((f64::from(*got) - exact).abs() <= bound, "element {i}: {got} instead of about {exact}");
    }
    Ok(bytemuck::cast_slice(&out).to_vec())
}

fn equal_on_all_ranks(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let mut random = ctx.shared_random();
    let mut digest = 0;
    for round in 0..if ctx.is_full() { 1000 } else { 60 } {
        let count = [1, 2, 100, 1025, 20_000][random.below(if round % 10 == 0 { 5 } else { 4 })];
        let seed = ctx.next_seed();
        digest ^= fnv(&unjudged(ctx, &mut comm, count, seed)?).rotate_left(round % 64);
    }
    let all = ctx.meet(&digest.to_le_bytes())?;
    ensure!(all.iter().all(|other| *other == digest.to_le_bytes()), "ranks hold different bits");
    Ok(())
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(label("result"), |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}

fn equal_again(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    for count in [3, 1024, 30_000] {
        let seed = ctx.next_seed();
        let first = unjudged(ctx, &mut comm, count, seed)?;
        for round in 0..if ctx.is_full() { 100 } else { 10 } {
            let again = unjudged(ctx, &mut comm, count, seed)?;
            ensure!(first == again, "round {round} of {count} elements gave other bits");
        }
    }
    Ok(())
}

fn alone_or_inside(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fixed_backend()?;
    let mut comm = backend.world()?;
    let counts = if ctx.is_full() { vec![1 << 20] } else { vec![30_011] };
    let sums = ctx.capabilities().reduces(ReduceOp::Sum);
    for dtype in FLOATS.into_iter().filter(|dtype| sums.contains(*dtype)) {
        for &count in &counts {
            let whole = rounding(OpKind::AllReduce, dtype, ReduceOp::Sum, count);
            let size = elem_size(dtype);
            let inputs = inputs(&whole, ctx.next_seed(), comm.size());
            let result = verify_with(ctx, &mut comm, &whole, &inputs)?;
            for index in [0, 1, 7, 8191, count / 2, count - 1] {
                let piece: Vec<Vec<u8>> = inputs.iter().map(|input| input[index * size..][..size].to_vec()).collect();
                let one = Operation { count: 1, ..whole.clone() };
                let alone = verify_with(ctx, &mut comm, &one, &piece)?;
                ensure!(alone == result[index * size..][..size], "{dtype} element {index} of {count} differs alone");
            }
        }
    }
    Ok(())
}

fn arrival(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fixed_backend()?;
    let mut comm = backend.world()?;
    let operation = rounding(OpKind::AllReduce, DType::F32, ReduceOp::Sum, 777);
    let inputs = inputs(&operation, ctx.next_seed(), comm.size());
    let mut random = ctx.shared_random();
    let first = verify_with(ctx, &mut comm, &operation, &inputs)?;
    for _ in 0..20 {
        let late = random.below(comm.size());
        if late == comm.rank() {
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
        ensure!(verify_with(ctx, &mut comm, &operation, &inputs)? == first, "rank {late} came late: other bits");
    }
    Ok(())
}

fn left_fold(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fixed_backend()?;
    let mut comm = backend.world()?;
    let all = offered(ctx, &[ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg, ReduceOp::PreMulSum(0.3)]);
    let pairs: Vec<_> = all.into_iter().filter(|(_, dtype)| dtype.is_float()).collect();
    let kinds: Vec<_> = [OpKind::AllReduce, OpKind::ReduceScatter, OpKind::Reduce]
        .into_iter()
        .filter(|kind| ctx.capabilities().has_kind(*kind))
        .collect();
    let sizes = ctx.sizes_per_rank();
    for row in ctx.sample(&[pairs.len(), sizes.len(), kinds.len(), 2]) {
        let (op, dtype) = pairs[row[0]];
        let mut operation = rounding(kinds[row[2]], dtype, op, sizes[row[1]].elements(dtype));
        operation.root = comm.size() - 1;
        operation.offset = row[3];
        verify(ctx, &mut comm, &operation)?;
    }
    // The sample leaves pairs of operator and type to other worlds.
    for (op, dtype) in pairs {
        verify(ctx, &mut comm, &rounding(OpKind::AllReduce, dtype, op, 301))?;
    }
    // In the order of the tuple, not of the ranks.
    let reversed = Group::new((0..ctx.size()).rev())?;
    let mut comm = backend.communicator(&reversed)?;
    for dtype in FLOATS {
        if ctx.capabilities().reduces(ReduceOp::Sum).contains(dtype) {
            verify(ctx, &mut comm, &rounding(OpKind::AllReduce, dtype, ReduceOp::Sum, 3001))?;
        }
    }
    Ok(())
}

fn non_associative(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let mut order = [1e8_f32, 1.0, -1e8, 1.0];
    let mut seen = Vec::new();
    permute(&mut order, 0, &mut |values| {
        let mut out = [0.0];
        comm.all_reduce(&[values[comm.rank()]], &mut out, ReduceOp::Sum)?;
        ensure!([0.0, 1.0, 2.0].contains(&out[0]), "{values:?} gave {}", out[0]);
        seen.push(out[0].to_bits());
        Ok(())
    })?;
    let mine: Vec<u8> = seen.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    ensure!(ctx.meet(&mine)?.iter().all(|other| *other == mine), "ranks hold different bits");
    Ok(())
}

fn permute(values: &mut [f32; 4], from: usize, visit: &mut dyn FnMut(&[f32; 4]) -> CaseResult) -> CaseResult {
    if from == values.len() {
        return visit(values);
    }
    for i in from..values.len() {
        values.swap(from, i);
        permute(values, from + 1, visit)?;
        values.swap(from, i);
    }
    Ok(())
}

fn mode_refused(ctx: &mut Ctx<'_>) -> CaseResult {
    ctx.note(|| "join with fixed determinism".into());
    let joined = join(ctx.world, ctx.driver, Config::new().determinism(Determinism::Fixed));
    if ctx.capabilities().determinism() >= Determinism::Fixed {
        let mut comm = joined?.world()?;
        return ctx.known_answer(&mut comm);
    }
    if ctx.size() > 1 {
        expect_error(joined.and_then(|backend| backend.world()).map(drop), &ErrorKind::UnsupportedMode, None)?;
    }
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)
}

fn canonical_nan(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fixed_backend()?;
    let mut comm = backend.world()?;
    if comm.size() == 1 {
        return Ok(()); // A group of one copies: there is no result to make canonical.
    }
    for dtype in FLOATS {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max] {
            if !ctx.capabilities().reduces(op).contains(dtype) {
                continue;
            }
            let operation =
                Operation { pattern: Pattern::Bits, ..Operation::reducing(OpKind::AllReduce, dtype, op, 999) };
            verify(ctx, &mut comm, &operation)?;
            let size = elem_size(dtype);
            let mut payload = float(dtype, f64::NAN);
            payload[0] |= 1;
            payload[size - 1] |= 0x80;
            let inputs = vec![payload[..size].to_vec(); comm.size()];
            verify_with(ctx, &mut comm, &Operation { count: 1, ..operation }, &inputs)?;
        }
    }
    Ok(())
}

fn alignment(ctx: &mut Ctx<'_>) -> CaseResult {
    let backend = ctx.fixed_backend()?;
    let mut comm = backend.world()?;
    let sums = ctx.capabilities().reduces(ReduceOp::Sum);
    for dtype in [DType::F32, DType::BF16].into_iter().filter(|dtype| sums.contains(*dtype)) {
        for count in [5, 600, 20_001] {
            let mut operation = rounding(OpKind::AllReduce, dtype, ReduceOp::Sum, count);
            let inputs = inputs(&operation, ctx.next_seed(), comm.size());
            let first = verify_with(ctx, &mut comm, &operation, &inputs)?;
            for (offset, in_place) in [(1, false), (3, true), (0, true)] {
                // Every rank differently aligned.
                operation.offset = offset + comm.rank() % 3;
                operation.in_place = in_place;
                let again = verify_with(ctx, &mut comm, &operation, &inputs)?;
                ensure!(again == first, "{dtype} {count}: other bits at offset {offset}, in place {in_place}");
            }
        }
    }
    Ok(())
}
