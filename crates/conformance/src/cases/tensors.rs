//! The seven tensor operations by group, and those beside them.

use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use rankwise_core::{CommBackend, DType, Error, ErrorKind, Group, OpKind, ReduceOp, Tensor, TensorMut, TensorRef};

const GATHER: &[Need] = &[Need::Kind(OpKind::AllGather)];
const REDUCE: &[Need] = &[Need::Kind(OpKind::AllReduce), Need::Reduce(ReduceOp::Sum, DType::F32)];
const SCATTER: &[Need] = &[Need::Kind(OpKind::ReduceScatter)];

pub(super) const CASES: &[Case] = &[
    Case::must("TN-1", "tensors: all_reduce of several shapes, a scalar among them", reduce_shapes).needs(REDUCE),
    Case::must("TN-32", "tensors: strided views are refused", strided),
    Case::must("TN-40", "tensors: a tuple of tensors as one call; an empty tuple is refused", tuple).needs(&[
        Need::Kind(OpKind::AllReduce),
        Need::Reduce(ReduceOp::Max, DType::U8),
        Need::Reduce(ReduceOp::Max, DType::I64),
    ]),
    Case::must("TN-54", "tensors: all_gather along every dimension", every_dimension).needs(GATHER),
    Case::must("TN-55", "tensors: dimensions that do not exist are refused", no_such_dimension).needs(GATHER),
    Case::must("TN-56", "tensors: no rows, no columns", nothing_inside).needs(GATHER),
    Case::must("TN-57", "tensors: all_gather_into_tensor refuses a wrong output untouched", into_wrong_tensor)
        .needs(GATHER),
    Case::must("TN-58", "tensors: all_gather_into_tensor, and its in-place form", into_tensor).needs(GATHER),
    Case::must("TN-65", "tensors: reduce_scatter gives rows in group order", reduce_scatter).needs(SCATTER),
    Case::must("TN-67", "tensors: reduce_scatter refuses rows that n does not divide", indivisible)
        .needs(SCATTER)
        .ranks(2, usize::MAX),
    Case::must("TN-73", "tensors: all_to_all_single of one and two dimensions", all_to_all)
        .needs(&[Need::Kind(OpKind::AllToAll)]),
    Case::must("TN-92", "tensors: token operations of one and three dimensions", tokens)
        .needs(&[Need::Kind(OpKind::AllGatherV), Need::Kind(OpKind::ReduceScatterV)]),
    Case::must("TN-94", "tensors: token operations refuse wrong rows and scalars", bad_tokens)
        .needs(&[Need::Kind(OpKind::AllGatherV), Need::Kind(OpKind::ReduceScatterV)]),
    Case::must("TN-98", "tensors: rooted forms", rooted).offered(&[
        Need::Kind(OpKind::Broadcast),
        Need::Kind(OpKind::Reduce),
        Need::Kind(OpKind::Gather),
        Need::Kind(OpKind::Scatter),
    ]),
    Case::must("TN-99", "tensors: acquired outputs and tensors in collective memory", acquired)
        .offered(&[Need::Alloc, Need::Kind(OpKind::AllReduce)]),
];

/// A tensor whose values say which rank and which place they come from.
fn tensor(rank: usize, shape: &[usize]) -> Result<Tensor, Error> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (rank * 1000 + i) as f32).collect();
    Tensor::from_slice(&values, shape)
}

fn world(ctx: &mut Ctx<'_>) -> CaseResult<(rankwise_core::Backend, Group)> {
    let backend = ctx.fresh_backend()?;
    let group = Group::world(ctx.size());
    backend.register(&group)?;
    Ok((backend, group))
}

fn known_answer(ctx: &mut Ctx<'_>, backend: &rankwise_core::Backend, group: &Group) -> CaseResult {
    let mut comm = backend.communicator(group)?;
    ctx.known_answer(&mut comm)
}

fn expect_tensor(got: &Tensor, shape: &[usize], want: &[f32]) -> CaseResult {
    ensure!(got.shape() == shape, "shape {:?} instead of {shape:?}", got.shape());
    let values = got.as_slice::<f32>()?;
    ensure!(values == want, "shape {shape:?}: {values:?} instead of {want:?}");
    Ok(())
}

fn reduce_shapes(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    for shape in [&[][..], &[1], &[7], &[3, 5], &[2, 3, 4], &[0, 5], &[5, 0]] {
        let mine = tensor(ctx.rank(), shape)?;
        let got = backend.all_reduce(mine.as_ref(), &group, ReduceOp::Sum)?;
        let members = ctx.size();
        let count: usize = shape.iter().product();
        let want: Vec<f32> = (0..count).map(|i| (1000 * members * (members - 1) / 2 + members * i) as f32).collect();
        expect_tensor(&got, shape, &want)?;
        let mut inside = mine.as_ref().bytes().to_vec();
        backend.all_reduce_in_place(TensorMut::new(DType::F32, shape, &mut inside)?, &group, ReduceOp::Sum)?;
        ensure!(inside == got.bytes(), "in place differs for {shape:?}");
        ensure!(mine.as_slice::<f32>()? == tensor(ctx.rank(), shape)?.as_slice::<f32>()?, "the input was changed");
    }
    // Results of earlier calls are not scratch memory of later ones.
    let first = backend.all_reduce(tensor(1, &[9])?.as_ref(), &group, ReduceOp::Sum)?;
    let kept = first.bytes().to_vec();
    backend.all_reduce(tensor(2, &[9])?.as_ref(), &group, ReduceOp::Sum)?;
    ensure!(first.bytes() == kept, "a later call changed an earlier result");
    Ok(())
}

fn strided(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut bytes = [0_u8; 24];
    for (shape, strides) in [(&[2, 3][..], &[1, 2][..]), (&[2, 3], &[4, 1]), (&[6], &[2]), (&[2, 3], &[1])] {
        let refused = TensorRef::with_strides(DType::F32, shape, strides, &bytes).map(drop);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
        let refused = TensorMut::with_strides(DType::F32, shape, strides, &mut bytes).map(drop);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    }
    TensorRef::with_strides(DType::F32, &[2, 3], &[3, 1], &bytes)?;
    expect_error(TensorRef::new(DType::F32, &[2, 4], &bytes).map(drop), &ErrorKind::InvalidArgument, None)?;
    let overflowing = TensorRef::new(DType::F32, &[usize::MAX, 2], &bytes).map(drop);
    ensure!(overflowing.is_err(), "a shape beyond the address space was taken");
    let mut comm = ctx.communicator()?;
    ctx.known_answer(&mut comm)
}

fn tuple(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let (me, members) = (ctx.rank(), ctx.size());
    let floats = tensor(me, &[4, 2])?;
    let bytes = Tensor::from_slice(&[me as u8; 5], &[5])?;
    let large = Tensor::from_slice(&vec![me as i64; 3001], &[3001])?;
    let all = [floats.as_ref(), bytes.as_ref(), large.as_ref()];
    let got = backend.all_reduce_tensors(&all, &group, ReduceOp::Max)?;
    ensure!(got.len() == 3, "{} results", got.len());
    expect_tensor(&got[0], &[4, 2], tensor(members - 1, &[4, 2])?.as_slice()?)?;
    ensure!(got[1].as_slice::<u8>()?.iter().all(|v| usize::from(*v) == members - 1), "bytes: {:?}", got[1].bytes());
    ensure!(got[2].as_slice::<i64>()?.iter().all(|v| *v == members as i64 - 1), "the long one is wrong");
    let none = backend.all_reduce_tensors(&[], &group, ReduceOp::Sum).map(drop);
    expect_error(none, &ErrorKind::InvalidArgument, None)?;
    known_answer(ctx, &backend, &group)
}

/// The concatenation along a dimension, element by element.
fn concatenated(members: usize, shape: &[usize], dim: usize) -> CaseResult<(Vec<usize>, Vec<f32>)> {
    let mut out_shape = shape.to_vec();
    out_shape[dim] *= members;
    let inner: usize = shape[dim + 1..].iter().product();
    let outer: usize = shape[..dim].iter().product();
    let mut values = Vec::new();
    for block in 0..outer {
        for rank in 0..members {
            let own = tensor(rank, shape)?;
            let own = own.as_slice::<f32>()?;
            let length = shape[dim] * inner;
            values.extend(&own[block * length..(block + 1) * length]);
        }
    }
    Ok((out_shape, values))
}

fn every_dimension(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    for shape in [&[5][..], &[2, 3], &[2, 3, 4], &[1, 1, 1, 2]] {
        let dims = shape.len() as isize;
        for dim in -dims..dims {
            let mine = tensor(ctx.rank(), shape)?;
            ctx.note(|| format!("all_gather of {shape:?} along {dim}"));
            let got = backend.all_gather(mine.as_ref(), &group, dim)?;
            let (want_shape, want) = concatenated(ctx.size(), shape, dim.rem_euclid(dims) as usize)?;
            expect_tensor(&got, &want_shape, &want).map_err(|f| f.within(&format!("along {dim}")))?;
        }
    }
    Ok(())
}

fn no_such_dimension(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let cube = tensor(0, &[2, 3, 4])?;
    for dim in [3, -4, isize::MAX, isize::MIN] {
        let refused = backend.all_gather(cube.as_ref(), &group, dim).map(drop);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    }
    let scalar = tensor(0, &[])?;
    for dim in [0, -1, 1] {
        let refused = backend.all_gather(scalar.as_ref(), &group, dim).map(drop);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    }
    known_answer(ctx, &backend, &group)
}

fn nothing_inside(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let members = ctx.size();
    for (shape, dim, want) in
        [([0, 6], 0, [0, 6]), ([0, 6], 1, [0, 6 * members]), ([4, 0], 0, [4 * members, 0]), ([4, 0], -1, [4, 0])]
    {
        let got = backend.all_gather(tensor(0, &shape)?.as_ref(), &group, dim)?;
        ensure!(got.shape() == want, "{shape:?} along {dim} gave {:?}", got.shape());
    }
    if ctx.capabilities().has_kind(OpKind::ReduceScatter) {
        let got = backend.reduce_scatter(tensor(0, &[0, 6])?.as_ref(), &group)?;
        ensure!(got.shape() == [0, 6], "reduce_scatter of no rows gave {:?}", got.shape());
        let got = backend.reduce_scatter(tensor(0, &[2 * members, 0])?.as_ref(), &group)?;
        ensure!(got.shape() == [2, 0], "reduce_scatter of no columns gave {:?}", got.shape());
    }
    known_answer(ctx, &backend, &group)
}

fn into_wrong_tensor(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let mine = tensor(ctx.rank(), &[2, 3])?;
    let right = 6 * ctx.size();
    for count in [right - 1, right + 1, right + 6, 0] {
        let mut out = vec![7.0_f32; count];
        let refused = backend.all_gather_into_tensor(TensorMut::from_slice(&mut out, &[count])?, mine.as_ref(), &group);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
        ensure!(out.iter().all(|v| *v == 7.0), "a refused call wrote its output");
    }
    let mut other = vec![7_i32; right];
    let refused = backend.all_gather_into_tensor(TensorMut::from_slice(&mut other, &[right])?, mine.as_ref(), &group);
    expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    ensure!(other.iter().all(|v| *v == 7), "a refused call wrote its output");
    known_answer(ctx, &backend, &group)
}

fn into_tensor(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let (me, members) = (ctx.rank(), ctx.size());
    for rows in [0, 1, 2, 700] {
        let mine = tensor(me, &[rows, 3])?;
        let (shape, want) = concatenated(members, &[rows, 3], 0)?;
        let mut out = vec![0.0_f32; want.len()];
        backend.all_gather_into_tensor(TensorMut::from_slice(&mut out, &shape)?, mine.as_ref(), &group)?;
        ensure!(out == want, "{rows} rows are wrong");
        let mut inside = vec![0.0_f32; want.len()];
        inside[me * rows * 3..(me + 1) * rows * 3].copy_from_slice(mine.as_slice()?);
        backend.all_gather_in_place(TensorMut::from_slice(&mut inside, &shape)?, &group)?;
        ensure!(inside == want, "{rows} rows in place are wrong");
    }
    Ok(())
}

fn reduce_scatter(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let (me, members) = (ctx.rank(), ctx.size());
    for (k, width) in [(1, 1), (2, 5), (3, 700), (0, 4)] {
        let mine = tensor(me, &[members * k, width])?;
        let part = k * width;
        let sum = |i: usize| (1000 * members * (members - 1) / 2 + members * (me * part + i)) as f32;
        let got = backend.reduce_scatter(mine.as_ref(), &group)?;
        expect_tensor(&got, &[k, width], &(0..part).map(sum).collect::<Vec<_>>())?;
        let most = |i: usize| (1000 * (members - 1) + me * part + i) as f32;
        let got = backend.reduce_scatter_op(mine.as_ref(), &group, ReduceOp::Max)?;
        expect_tensor(&got, &[k, width], &(0..part).map(most).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn indivisible(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    for shape in [vec![ctx.size() + 1, 2], vec![1, ctx.size()], vec![]] {
        let refused = backend.reduce_scatter(tensor(0, &shape)?.as_ref(), &group).map(drop);
        expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    }
    known_answer(ctx, &backend, &group)
}

fn all_to_all(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let (me, members) = (ctx.rank(), ctx.size());
    for (k, width) in [(1, 1), (3, 1), (2, 5), (0, 3)] {
        let shape = [members * k, width];
        let mine = tensor(me, &shape)?;
        let part = k * width;
        let mut out = vec![0.0_f32; members * part];
        backend.all_to_all_single(TensorMut::from_slice(&mut out, &shape)?, mine.as_ref(), &group)?;
        let want: Vec<f32> =
            (0..members).flat_map(|rank| (0..part).map(move |i| (rank * 1000 + me * part + i) as f32)).collect();
        ensure!(out == want, "{shape:?}: {out:?} instead of {want:?}");
    }
    let mut short = vec![0.0_f32; members];
    let wrong = tensor(me, &[members + 1])?;
    let refused = backend.all_to_all_single(TensorMut::from_slice(&mut short, &[members])?, wrong.as_ref(), &group);
    expect_error(refused, &ErrorKind::InvalidArgument, None)?;
    known_answer(ctx, &backend, &group)
}

fn tokens(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let (me, members) = (ctx.rank(), ctx.size());
    let counts: Vec<usize> = (0..members).map(|rank| [3, 0, 1][rank % 3]).collect();
    let total: usize = counts.iter().sum();
    let before: usize = counts[..me].iter().sum();
    for inner in [&[][..], &[4], &[2, 3]] {
        let width: usize = inner.iter().product();
        let shape = |rows: usize| [&[rows][..], inner].concat();
        let got = backend.token_all_gather(tensor(me, &shape(counts[me]))?.as_ref(), &group, &counts)?;
        let mut want = Vec::new();
        for (rank, rows) in counts.iter().enumerate() {
            want.extend(tensor(rank, &shape(*rows))?.as_slice::<f32>()?);
        }
        expect_tensor(&got, &shape(total), &want)?;
        let got = backend.token_reduce_scatter(tensor(me, &shape(total))?.as_ref(), &group, &counts)?;
        let sum = |i: usize| (1000 * members * (members - 1) / 2 + members * (before * width + i)) as f32;
        expect_tensor(&got, &shape(counts[me]), &(0..counts[me] * width).map(sum).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn bad_tokens(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let members = ctx.size();
    let counts = vec![2; members];
    let invalid = |result: Result<Tensor, Error>| expect_error(result.map(drop), &ErrorKind::InvalidArgument, None);
    for rows in [1, 3, 0] {
        invalid(backend.token_all_gather(tensor(0, &[rows, 4])?.as_ref(), &group, &counts))?;
    }
    for rows in [2 * members - 1, 2 * members + 1] {
        invalid(backend.token_reduce_scatter(tensor(0, &[rows, 4])?.as_ref(), &group, &counts))?;
    }
    invalid(backend.token_all_gather(tensor(0, &[])?.as_ref(), &group, &vec![1; members]))?;
    invalid(backend.token_reduce_scatter(tensor(0, &[])?.as_ref(), &group, &vec![1; members]))?;
    invalid(backend.token_all_gather(tensor(0, &[2, 4])?.as_ref(), &group, &vec![2; members + 1]))?;
    known_answer(ctx, &backend, &group)
}

fn rooted(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let (me, members) = (ctx.rank(), ctx.size());
    let root = members - 1;
    let mut data = tensor(me, &[2, 2])?;
    backend.broadcast(data.as_mut(), &group, root)?;
    expect_tensor(&data, &[2, 2], tensor(root, &[2, 2])?.as_slice()?)?;
    let reduced = backend.reduce(tensor(me, &[3])?.as_ref(), &group, ReduceOp::Max, root)?;
    let gathered = backend.gather(tensor(me, &[1, 2])?.as_ref(), &group, root)?;
    ensure!(reduced.is_some() == (me == root) && gathered.is_some() == (me == root), "a result at the wrong rank");
    if let (Some(reduced), Some(gathered)) = (reduced, gathered) {
        expect_tensor(&reduced, &[3], tensor(root, &[3])?.as_slice()?)?;
        let (shape, want) = concatenated(members, &[1, 2], 0)?;
        expect_tensor(&gathered, &shape, &want)?;
    }
    let source = if me == root { Some(tensor(5, &[members, 2])?) } else { None };
    let mut part = Tensor::zeroed(DType::F32, &[1, 2])?;
    backend.scatter(source.as_ref().map(Tensor::as_ref), part.as_mut(), &group, root)?;
    let want = [5000.0 + 2.0 * me as f32, 5001.0 + 2.0 * me as f32];
    expect_tensor(&part, &[1, 2], &want)
}

fn acquired(ctx: &mut Ctx<'_>) -> CaseResult {
    let (backend, group) = world(ctx)?;
    let (me, members) = (ctx.rank(), ctx.size());
    let models = [tensor(me, &[100, 7])?, tensor(me, &[3])?];
    let mut outputs = backend.acquire_all_reduce_outputs(&[models[0].as_ref(), models[1].as_ref()], &group)?;
    ensure!(outputs.len() == 2, "{} outputs", outputs.len());
    for (output, model) in outputs.iter_mut().zip(&models) {
        ensure!(output.shape() == model.shape(), "shape {:?} instead of {:?}", output.shape(), model.shape());
        ensure!(output.bytes().iter().all(|byte| *byte == 0), "not zeroed");
        let shape = model.shape().to_vec();
        backend.all_reduce_into_tensor(output.as_mut(), model.as_ref(), &group, ReduceOp::Max)?;
        expect_tensor(output, &shape, tensor(members - 1, &shape)?.as_slice()?)?;
        output.as_mut_slice::<f32>()?.copy_from_slice(model.as_slice()?);
        backend.all_reduce_in_place(output.as_mut(), &group, ReduceOp::Min)?;
        expect_tensor(output, &shape, tensor(0, &shape)?.as_slice()?)?;
    }
    let mut own = backend.alloc(DType::I32, &[4, 4], &group)?;
    own.as_mut_slice::<i32>()?.fill(1);
    backend.all_reduce_in_place(own.as_mut(), &group, ReduceOp::Sum)?;
    ensure!(own.as_slice::<i32>()?.iter().all(|v| *v == members as i32), "the sum in collective memory is wrong");
    Ok(())
}
