//! [`CommBackend`]: collectives on tensors, addressed to a group.

#![forbid(unsafe_code)]

use crate::caps::Capabilities;
use crate::comm::Communicator;
use crate::dtype::DType;
use crate::error::Result;
use crate::group::Group;
use crate::op::ReduceOp;
use crate::tensor::{Tensor, TensorMut, TensorRef};

/// One joined engine on this rank, used by group. Object safe; [`Backend`](crate::Backend) implements it.
///
/// Groups are registered by their members ([`CommBackend::register`]) and looked up by tuple: `UnknownGroup` on a group
/// that is not registered, `NotMember` at a rank that is not in it, both locally. A second call on one group at a
/// time is `Busy`; it never waits. Every call blocks until it is finished, at most for
/// [`Settings::timeout`](crate::Settings::timeout). Errors are listed at [`Communicator`].
///
/// Tensors are contiguous; results are new tensors that no later call overwrites. Roots, sources and destinations are
/// positions in the group.
///
/// ```
/// use rankwise_core::{CommBackend, Group, ReduceOp, Result, TensorRef};
///
/// fn row_parallel(backend: &dyn CommBackend, group: &Group, partial: &[f32]) -> Result<Vec<f32>> {
///     let shape = [partial.len()];
///     backend.all_reduce(TensorRef::from_slice(partial, &shape)?, group, ReduceOp::Sum)?.into_vec()
/// }
/// ```
pub trait CommBackend: Send + Sync {
    /// The reduction of every member's tensor, of equal shape.
    fn all_reduce(&self, tensor: TensorRef<'_>, group: &Group, op: ReduceOp) -> Result<Tensor>;

    /// Every member's tensor, of equal shape, concatenated along `dim` (usually 0) in group order.
    ///
    /// `dim` ranges over `-ndim..ndim`, negative ones counted from the end; a scalar has no dimension to gather along:
    /// both `InvalidArgument`.
    fn all_gather(&self, tensor: TensorRef<'_>, group: &Group, dim: isize) -> Result<Tensor>;

    /// Every member's `input` concatenated along dimension 0 into `output`, which has `n` times its elements.
    fn all_gather_into_tensor(&self, output: TensorMut<'_>, input: TensorRef<'_>, group: &Group) -> Result<()>;

    /// The rows of this rank out of the sum of every member's tensor: `rows / n` each, in group order.
    fn reduce_scatter(&self, tensor: TensorRef<'_>, group: &Group) -> Result<Tensor>;

    /// Part r of `output` becomes this rank's part of the `input` of the member at position r. Even split: equal
    /// element counts, divisible by `n`.
    fn all_to_all_single(&self, output: TensorMut<'_>, input: TensorRef<'_>, group: &Group) -> Result<()>;

    /// Every member's tokens in group order: `(counts[r], ...) -> (sum(counts), ...)`, where the counts are
    /// `scattered_num_tokens` and a token is all dimensions after the first.
    fn token_all_gather(&self, tensor: TensorRef<'_>, group: &Group, scattered_num_tokens: &[usize]) -> Result<Tensor>;

    /// This rank's tokens out of the sum of every member's: `(sum(counts), ...) -> (counts[r], ...)`.
    fn token_reduce_scatter(
        &self,
        tensor: TensorRef<'_>,
        group: &Group,
        scattered_num_tokens: &[usize],
    ) -> Result<Tensor>;

    /// [`CommBackend::all_reduce`] of several tensors, of any shapes and types, as one call. `InvalidArgument` when
    /// there are none.
    fn all_reduce_tensors(&self, tensors: &[TensorRef<'_>], group: &Group, op: ReduceOp) -> Result<Vec<Tensor>>;

    /// Zeroed tensors of these types and shapes that a reduction on the group can use without copies, where the
    /// backend can; ordinary ones where it can't. Collective, equal shapes on all members.
    fn acquire_all_reduce_outputs(&self, like: &[TensorRef<'_>], group: &Group) -> Result<Vec<Tensor>>;

    /// A zeroed tensor in collective memory; `Unsupported` where the backend has none. Collective, equal shapes.
    fn alloc(&self, dtype: DType, shape: &[usize], group: &Group) -> Result<Tensor>;

    /// The reduction of every member's `input` into `output`, of equal element counts.
    fn all_reduce_into_tensor(
        &self,
        output: TensorMut<'_>,
        input: TensorRef<'_>,
        group: &Group,
        op: ReduceOp,
    ) -> Result<()>;

    /// The reduction of every member's tensor, in place.
    fn all_reduce_in_place(&self, tensor: TensorMut<'_>, group: &Group, op: ReduceOp) -> Result<()>;

    /// [`CommBackend::all_gather_into_tensor`] whose input is this rank's own part of `output`.
    fn all_gather_in_place(&self, output: TensorMut<'_>, group: &Group) -> Result<()>;

    /// [`CommBackend::reduce_scatter`] with any operator.
    fn reduce_scatter_op(&self, tensor: TensorRef<'_>, group: &Group, op: ReduceOp) -> Result<Tensor>;

    /// Sends to another member, which receives as many elements of the same type.
    fn send(&self, tensor: TensorRef<'_>, group: &Group, to: usize) -> Result<()>;

    /// Receives from another member.
    fn recv(&self, output: TensorMut<'_>, group: &Group, from: usize) -> Result<()>;

    /// `tensor` becomes the root's.
    fn broadcast(&self, tensor: TensorMut<'_>, group: &Group, root: usize) -> Result<()>;

    /// `bytes` becomes the root's, whose length only the root need know.
    fn broadcast_bytes(&self, bytes: &mut Vec<u8>, group: &Group, root: usize) -> Result<()>;

    /// The reduction of every member's tensor, at the root; `None` elsewhere.
    fn reduce(&self, tensor: TensorRef<'_>, group: &Group, op: ReduceOp, root: usize) -> Result<Option<Tensor>>;

    /// Every member's tensor concatenated along dimension 0 in group order, at the root; `None` elsewhere.
    fn gather(&self, tensor: TensorRef<'_>, group: &Group, root: usize) -> Result<Option<Tensor>>;

    /// `output` becomes part `rank` of the root's tensor, which is `Some` at the root only.
    fn scatter(&self, tensor: Option<TensorRef<'_>>, output: TensorMut<'_>, group: &Group, root: usize) -> Result<()>;

    /// Returns when all members have entered.
    fn barrier(&self, group: &Group) -> Result<()>;

    /// All-to-all with `send_counts[r]` elements to and `recv_counts[r]` elements from the member at position r.
    fn all_to_all_v(
        &self,
        output: TensorMut<'_>,
        input: TensorRef<'_>,
        group: &Group,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<()>;

    /// Every member's elements, `counts[r]` of the member at position r, as a tensor of one dimension.
    fn all_gather_v(&self, tensor: TensorRef<'_>, group: &Group, counts: &[usize]) -> Result<Tensor>;

    /// This rank's `counts[rank]` elements out of the reduction of every member's, as a tensor of one dimension.
    fn reduce_scatter_v(&self, tensor: TensorRef<'_>, group: &Group, counts: &[usize], op: ReduceOp) -> Result<Tensor>;

    /// See [`Communicator::split`].
    fn split(&self, group: &Group, color: Option<u64>, key: i64) -> Result<Option<Communicator>>;

    /// See [`Communicator::shrink`].
    fn shrink(&self, group: &Group) -> Result<Communicator>;

    /// See [`Backend::register`](crate::Backend::register).
    fn register(&self, group: &Group) -> Result<()>;

    /// This rank's global rank.
    fn rank(&self) -> usize;

    /// Number of ranks in the world.
    fn world_size(&self) -> usize;

    /// What this rank could offer.
    fn capabilities(&self) -> &Capabilities;

    /// What the group offers: the same on all its members.
    fn group_capabilities(&self, group: &Group) -> Result<Capabilities>;

    /// See [`Communicator::abort`].
    fn abort(&self, group: &Group) -> Result<()>;
}
