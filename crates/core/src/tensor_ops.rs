//! [`CommBackend`] for [`Backend`]: shapes become the requests that typed calls become too.

#![allow(unsafe_code)]

use crate::buffer::Side;
use crate::call::{Part, Request, Shape};
use crate::caps::Capabilities;
use crate::check::times;
use crate::comm::Communicator;
use crate::comm_backend::CommBackend;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::member::{Member, Scratch};
use crate::op::{OpKind, ReduceOp};
use crate::registry::Backend;
use crate::tensor::{Format, Tensor, TensorMut, TensorRef, elements};
use std::sync::Arc;

impl CommBackend for Backend {
    fn all_reduce(&self, tensor: TensorRef<'_>, group: &Group, op: ReduceOp) -> Result<Tensor> {
        let on = self.on(group, OpKind::AllReduce)?;
        on.produce(on.shape(tensor.format()).op(op), tensor, tensor.shape().to_vec())
    }

    fn all_gather(&self, tensor: TensorRef<'_>, group: &Group, dim: isize) -> Result<Tensor> {
        let on = self.on(group, OpKind::AllGather)?;
        let (shape, n) = (on.shape(tensor.format()), group.len());
        let (dim, out_shape) = on.refusing(gathered_shape(tensor.shape(), dim, n))?;
        let outer = on.refusing(elements(&tensor.shape()[..dim]))?;
        if outer <= 1 {
            return on.produce(shape, tensor, out_shape);
        }
        let mut out = on.prepared(shape, tensor, out_shape)?;
        let gathered = on.produce(shape, tensor, vec![n, tensor.len()])?;
        interleave(gathered.bytes(), out.bytes_mut(), n, outer);
        Ok(out)
    }

    fn all_gather_into_tensor(&self, output: TensorMut<'_>, input: TensorRef<'_>, group: &Group) -> Result<()> {
        let on = self.on(group, OpKind::AllGather)?;
        on.fill(on.shape(input.format()), Some(input), output)
    }

    fn reduce_scatter(&self, tensor: TensorRef<'_>, group: &Group) -> Result<Tensor> {
        self.reduce_scatter_op(tensor, group, ReduceOp::Sum)
    }

    fn all_to_all_single(&self, output: TensorMut<'_>, input: TensorRef<'_>, group: &Group) -> Result<()> {
        let on = self.on(group, OpKind::AllToAll)?;
        on.fill(on.shape(input.format()), Some(input), output)
    }

    fn token_all_gather(&self, tensor: TensorRef<'_>, group: &Group, scattered_num_tokens: &[usize]) -> Result<Tensor> {
        let on = self.on(group, OpKind::AllGatherV)?;
        let counts = scattered_num_tokens;
        let (rows, width) = on.refusing(rows_and_width(tensor.shape()))?;
        let shape = on.shape(tensor.format()).counts(&[], counts).width(width);
        let own = counts.get(on.member.position()).copied();
        on.refusing(same_rows(rows, own, "counts has for this rank"))?;
        let total = on.refusing(total(counts))?;
        on.produce(shape, tensor, with_rows(tensor.shape(), total))
    }

    fn token_reduce_scatter(
        &self,
        tensor: TensorRef<'_>,
        group: &Group,
        scattered_num_tokens: &[usize],
    ) -> Result<Tensor> {
        let on = self.on(group, OpKind::ReduceScatterV)?;
        let counts = scattered_num_tokens;
        let (rows, width) = on.refusing(rows_and_width(tensor.shape()))?;
        let shape = on.shape(tensor.format()).op(ReduceOp::Sum).counts(counts, &[]).width(width);
        let total = on.refusing(total(counts))?;
        on.refusing(same_rows(rows, (counts.len() == group.len()).then_some(total), "counts has in total"))?;
        let own = counts.get(on.member.position()).copied().unwrap_or(0);
        on.produce(shape, tensor, with_rows(tensor.shape(), own))
    }

    fn all_reduce_tensors(&self, tensors: &[TensorRef<'_>], group: &Group, op: ReduceOp) -> Result<Vec<Tensor>> {
        let on = self.on(group, OpKind::AllReduce)?;
        let request =
            |tensor: &TensorRef<'_>, dst| Request { shape: on.shape(tensor.format()).op(op), src: tensor.side(), dst };
        let prepare = |tensor: &TensorRef<'_>| {
            on.member.check(&request(tensor, expected(tensor.len())))?;
            Tensor::with_format(tensor.format(), tensor.shape().to_vec())
        };
        let outputs = tensors.iter().map(prepare).collect::<Result<Vec<Tensor>>>();
        let mut outputs = outputs.map_err(|error| on.member.enter_and_refuse(on.kind, error, tensors.len()))?;
        let mut parts: Vec<Part<'_>> = tensors
            .iter()
            .zip(&mut outputs)
            // SAFETY: the parts point into `tensors` and `outputs`, which live and are not used until after the call.
            .map(|(tensor, output)| unsafe { Part::of(request(tensor, output.as_mut().side())) })
            .collect();
        on.member.run_many(&mut parts, self.settings().timeout, &mut Scratch::default())?;
        Ok(outputs)
    }

    fn acquire_all_reduce_outputs(&self, like: &[TensorRef<'_>], group: &Group) -> Result<Vec<Tensor>> {
        let on = self.on(group, OpKind::Alloc)?;
        let acquire = |tensor: &TensorRef<'_>| {
            if on.member.capabilities().alloc() {
                on.alloc(tensor.format(), tensor.shape())
            } else {
                Tensor::with_format(tensor.format(), tensor.shape().to_vec())
                    .map_err(|error| on.member.blame(on.kind, error))
            }
        };
        like.iter().map(acquire).collect()
    }

    fn alloc(&self, dtype: DType, shape: &[usize], group: &Group) -> Result<Tensor> {
        let on = self.on(group, OpKind::Alloc)?;
        let format = on.refusing(Format::new(dtype))?;
        on.alloc(format, shape)
    }

    fn all_reduce_into_tensor(
        &self,
        output: TensorMut<'_>,
        input: TensorRef<'_>,
        group: &Group,
        op: ReduceOp,
    ) -> Result<()> {
        let on = self.on(group, OpKind::AllReduce)?;
        on.fill(on.shape(input.format()).op(op), Some(input), output)
    }

    fn all_reduce_in_place(&self, tensor: TensorMut<'_>, group: &Group, op: ReduceOp) -> Result<()> {
        let on = self.on(group, OpKind::AllReduce)?;
        on.fill(on.shape(tensor.format()).op(op).in_place(), None, tensor)
    }

    fn all_gather_in_place(&self, output: TensorMut<'_>, group: &Group) -> Result<()> {
        let on = self.on(group, OpKind::AllGather)?;
        on.fill(on.shape(output.format()).in_place(), None, output)
    }

    fn reduce_scatter_op(&self, tensor: TensorRef<'_>, group: &Group, op: ReduceOp) -> Result<Tensor> {
        let on = self.on(group, OpKind::ReduceScatter)?;
        let (rows, _) = on.refusing(rows_and_width(tensor.shape()))?;
        let n = group.len();
        if !rows.is_multiple_of(n) {
            return on.refusing(Err(Error::invalid(format!(
                "the tensor has {rows} rows, which {n} members can't share evenly; pad it or use token_reduce_scatter"
            ))));
        }
        on.produce(on.shape(tensor.format()).op(op), tensor, with_rows(tensor.shape(), rows / n))
    }

    fn send(&self, tensor: TensorRef<'_>, group: &Group, to: usize) -> Result<()> {
        let on = self.on(group, OpKind::Send)?;
        on.run(on.shape(tensor.format()).root(to), Some(tensor), None)
    }

    fn recv(&self, output: TensorMut<'_>, group: &Group, from: usize) -> Result<()> {
        let on = self.on(group, OpKind::Recv)?;
        on.fill(on.shape(output.format()).root(from), None, output)
    }

    fn broadcast(&self, tensor: TensorMut<'_>, group: &Group, root: usize) -> Result<()> {
        let on = self.on(group, OpKind::Broadcast)?;
        on.fill(on.shape(tensor.format()).root(root).in_place(), None, tensor)
    }

    fn broadcast_bytes(&self, bytes: &mut Vec<u8>, group: &Group, root: usize) -> Result<()> {
        self.on(group, OpKind::Broadcast)?.handle().broadcast_bytes(bytes, root)
    }

    fn reduce(&self, tensor: TensorRef<'_>, group: &Group, op: ReduceOp, root: usize) -> Result<Option<Tensor>> {
        let on = self.on(group, OpKind::Reduce)?;
        let out_shape = tensor.shape().to_vec();
        on.produce_at(root, on.shape(tensor.format()).op(op), tensor, out_shape)
    }

    fn gather(&self, tensor: TensorRef<'_>, group: &Group, root: usize) -> Result<Option<Tensor>> {
        let on = self.on(group, OpKind::Gather)?;
        let (n, shape) = (group.len(), tensor.shape());
        let rows = on.refusing(times(n, shape.first().copied().unwrap_or(1), "members", "rows of each"))?;
        let out_shape = if shape.is_empty() { vec![n] } else { with_rows(shape, rows) };
        on.produce_at(root, on.shape(tensor.format()), tensor, out_shape)
    }

    fn scatter(&self, tensor: Option<TensorRef<'_>>, output: TensorMut<'_>, group: &Group, root: usize) -> Result<()> {
        let on = self.on(group, OpKind::Scatter)?;
        on.fill(on.shape(output.format()).root(root), tensor, output)
    }

    fn barrier(&self, group: &Group) -> Result<()> {
        let on = self.on(group, OpKind::Barrier)?;
        on.run(Shape::of::<u8>(OpKind::Barrier), None, None)
    }

    fn all_to_all_v(
        &self,
        output: TensorMut<'_>,
        input: TensorRef<'_>,
        group: &Group,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<()> {
        let on = self.on(group, OpKind::AllToAllV)?;
        on.fill(on.shape(input.format()).counts(send_counts, recv_counts), Some(input), output)
    }

    fn all_gather_v(&self, tensor: TensorRef<'_>, group: &Group, counts: &[usize]) -> Result<Tensor> {
        let on = self.on(group, OpKind::AllGatherV)?;
        let total = on.refusing(total(counts))?;
        on.produce(on.shape(tensor.format()).counts(&[], counts), tensor, vec![total])
    }

    fn reduce_scatter_v(&self, tensor: TensorRef<'_>, group: &Group, counts: &[usize], op: ReduceOp) -> Result<Tensor> {
        let on = self.on(group, OpKind::ReduceScatterV)?;
        let own = counts.get(on.member.position()).copied().unwrap_or(0);
        on.produce(on.shape(tensor.format()).op(op).counts(counts, &[]), tensor, vec![own])
    }

    fn split(&self, group: &Group, color: Option<u64>, key: i64) -> Result<Option<Communicator>> {
        self.on(group, OpKind::Split)?.handle().split(color, key)
    }

    fn shrink(&self, group: &Group) -> Result<Communicator> {
        self.on(group, OpKind::Shrink)?.handle().shrink()
    }

    fn register(&self, group: &Group) -> Result<()> {
        Backend::register(self, group)
    }

    fn rank(&self) -> usize {
        Backend::rank(self)
    }

    fn world_size(&self) -> usize {
        Backend::world_size(self)
    }

    fn capabilities(&self) -> &Capabilities {
        Backend::capabilities(self)
    }

    fn group_capabilities(&self, group: &Group) -> Result<Capabilities> {
        Ok(self.on(group, OpKind::Register)?.member.capabilities().clone())
    }

    fn abort(&self, group: &Group) -> Result<()> {
        self.on(group, OpKind::Register)?.member.abort();
        Ok(())
    }
}

/// One kind of operation on one registered group.
struct On<'a> {
    backend: &'a Backend,
    member: Arc<Member>,
    kind: OpKind,
}

impl Backend {
    fn on(&self, group: &Group, kind: OpKind) -> Result<On<'_>> {
        Ok(On { backend: self, member: self.lookup(group, kind)?, kind })
    }
}

impl On<'_> {
    fn shape(&self, format: Format) -> Shape<'static> {
        Shape::new(self.kind, format.dtype, format.elem_size)
    }

    fn handle(self) -> Communicator {
        Communicator::new(self.backend.clone(), self.member)
    }

    /// Tells the peers when a check of shapes has failed.
    fn refusing<T>(&self, checked: Result<T>) -> Result<T> {
        checked.map_err(|error| self.member.enter_and_refuse(self.kind, error, 1))
    }

    fn run(&self, shape: Shape<'_>, src: Option<TensorRef<'_>>, dst: Option<TensorMut<'_>>) -> Result<()> {
        let mut dst = dst;
        let request = Request {
            shape,
            src: src.map_or(Side::ABSENT, |tensor| tensor.side()),
            dst: dst.as_mut().map_or(Side::ABSENT, |tensor| tensor.side()),
        };
        // SAFETY: both are borrowed until return.
        unsafe { self.member.run(&request, self.backend.settings().timeout, &mut Scratch::default()) }
    }

    fn fill(&self, shape: Shape<'_>, src: Option<TensorRef<'_>>, dst: TensorMut<'_>) -> Result<()> {
        if let Some(src) = src.filter(|src| src.format() != dst.format()) {
            return self.refusing(Err(Error::invalid(format!(
                "the input's elements are {} but the output's are {}; use tensors of one type",
                src.dtype(),
                dst.dtype()
            ))));
        }
        self.run(shape, src, Some(dst))
    }

    /// The output for a request that passes the checks: nothing is allocated for one that does not.
    fn prepared(&self, shape: Shape<'_>, src: TensorRef<'_>, out_shape: Vec<usize>) -> Result<Tensor> {
        self.refusing(elements(&out_shape).and_then(|len| {
            self.member.check(&Request { shape, src: src.side(), dst: expected(len) })?;
            Tensor::with_format(src.format(), out_shape)
        }))
    }

    fn produce(&self, shape: Shape<'_>, src: TensorRef<'_>, out_shape: Vec<usize>) -> Result<Tensor> {
        let mut out = self.prepared(shape, src, out_shape)?;
        self.run(shape, Some(src), Some(out.as_mut()))?;
        Ok(out)
    }

    fn produce_at(
        &self,
        root: usize,
        shape: Shape<'_>,
        src: TensorRef<'_>,
        out_shape: Vec<usize>,
    ) -> Result<Option<Tensor>> {
        let shape = shape.root(root);
        if root == self.member.position() {
            return self.produce(shape, src, out_shape).map(Some);
        }
        self.run(shape, Some(src), None).map(|()| None)
    }

    fn alloc(&self, format: Format, shape: &[usize]) -> Result<Tensor> {
        let bytes = self.refusing(crate::tensor::bytes_of(format, shape))?;
        let segment = self.member.alloc::<u8>(bytes, self.backend.settings().timeout)?;
        Ok(Tensor::in_segment(format, shape.to_vec(), segment))
    }
}

/// Stands for an output that is not allocated yet; only its length is looked at.
fn expected(len: usize) -> Side {
    Side { len, present: true, ..Side::ABSENT }
}

fn gathered_shape(shape: &[usize], dim: isize, n: usize) -> Result<(usize, Vec<usize>)> {
    let ndim = shape.len();
    let index = if dim < 0 { ndim.checked_sub(dim.unsigned_abs()) } else { usize::try_from(dim).ok() };
    let Some(index) = index.filter(|index| *index < ndim) else {
        return Err(Error::invalid(if ndim == 0 {
            "a scalar has no dimension to gather along; give it the shape [1]".to_string()
        } else {
            format!("dimension {dim} is not in -{ndim}..{ndim}; the tensor has {ndim} dimensions")
        }));
    };
    let mut out = shape.to_vec();
    out[index] = times(n, out[index], "members", "elements of the dimension")?;
    Ok((index, out))
}

fn rows_and_width(shape: &[usize]) -> Result<(usize, usize)> {
    let [rows, rest @ ..] = shape else {
        return Err(Error::invalid("a scalar has no rows; give it at least one dimension"));
    };
    Ok((*rows, elements(rest)?))
}

fn with_rows(shape: &[usize], rows: usize) -> Vec<usize> {
    let mut out = shape.to_vec();
    if let Some(first) = out.first_mut() {
        *first = rows;
    }
    out
}

/// Rows that counts sum up to; the layer below finds a wrong number of counts.
fn total(counts: &[usize]) -> Result<usize> {
    counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)).ok_or_else(|| {
        Error::new(crate::ErrorKind::CountTooLarge, "the counts together exceed the address space; split the call")
    })
}

/// Lengths in elements can't tell rows of zero columns apart.
fn same_rows(rows: usize, expected: Option<usize>, whose: &str) -> Result<()> {
    match expected {
        Some(expected) if expected != rows => Err(Error::invalid(format!(
            "the tensor has {rows} rows, but {whose} {expected}; pass exactly the rows that the counts say"
        ))),
        _ => Ok(()),
    }
}

/// From (n, outer, rest) to (outer, n, rest).
fn interleave(from: &[u8], to: &mut [u8], n: usize, outer: usize) {
    let chunk = from.len() / (n * outer);
    if chunk == 0 {
        return;
    }
    for (i, part) in to.chunks_exact_mut(chunk).enumerate() {
        let (o, r) = (i / n, i % n);
        let start = (r * outer + o) * chunk;
        part.copy_from_slice(&from[start..start + chunk]);
    }
}
