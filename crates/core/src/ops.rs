//! The operations of [`Communicator`]: each is its [`Call`], run. Sizes are those of the table at
//! [`OpKind`](crate::OpKind); the errors are listed at [`Communicator`].

use crate::call::{Call, Part, Shape};
use crate::comm::Communicator;
use crate::dtype::Elem;
use crate::error::{Error, ErrorKind, Result};
use crate::op::{OpKind, ReduceOp};
use crate::tag;
use bytemuck::Pod;

impl Communicator {
    /// Returns when all members have entered.
    pub fn barrier(&mut self) -> Result<()> {
        self.run(Call::barrier())
    }

    /// `dst` becomes the reduction of every member's `src`. Equal lengths.
    #[inline]
    pub fn all_reduce<T: Elem>(&mut self, src: &[T], dst: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(Call::all_reduce(src, dst, op))
    }

    /// `buf` becomes the reduction of every member's `buf`.
    #[inline]
    pub fn all_reduce_in_place<T: Elem>(&mut self, buf: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(Call::all_reduce_in_place(buf, op))
    }

    /// Several all-reduces of their own lengths, types and operators as one call. The same list on all members;
    /// `InvalidArgument` when it is empty.
    pub fn all_reduce_many(&mut self, parts: &mut [Part<'_>]) -> Result<()> {
        let timeout = self.timeout;
        self.member.run_many(parts, timeout, &mut self.scratch)
    }

    /// `dst` becomes every member's `src` in group order: `size() * src.len()` elements.
    pub fn all_gather<T: Pod>(&mut self, src: &[T], dst: &mut [T]) -> Result<()> {
        self.run(Call::all_gather(src, dst))
    }

    /// All-gather whose input is this rank's own slot of `buf`: part `rank()` of `size()` equal parts.
    pub fn all_gather_in_place<T: Pod>(&mut self, buf: &mut [T]) -> Result<()> {
        self.run(Call::all_gather_in_place(buf))
    }

    /// `dst` becomes part `rank()` of the reduction of every member's `src`: `src.len() == size() * dst.len()`.
    pub fn reduce_scatter<T: Elem>(&mut self, src: &[T], dst: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(Call::reduce_scatter(src, dst, op))
    }

    /// Reduce-scatter whose result goes to this rank's own slot of `buf`; the other slots are unspecified afterwards.
    pub fn reduce_scatter_in_place<T: Elem>(&mut self, buf: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(Call::reduce_scatter_in_place(buf, op))
    }

    /// `dst` becomes part `rank()` of every member's `src`, in group order. Equal lengths, divisible by `size()`.
    pub fn all_to_all<T: Pod>(&mut self, src: &[T], dst: &mut [T]) -> Result<()> {
        self.run(Call::all_to_all(src, dst))
    }

    /// `buf` becomes the root's `buf`.
    pub fn broadcast<T: Pod>(&mut self, buf: &mut [T], root: usize) -> Result<()> {
        self.run(Call::broadcast(buf, root))
    }

    /// `bytes` becomes the root's `bytes`, whose length only the root need know. Two calls of the protocol.
    ///
    /// Beyond the errors of every operation: `NoMemory` when this rank can't hold them, of which the peers learn.
    pub fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        let shape = Shape::of::<u8>(OpKind::Broadcast).root(root).in_place();
        let is_root = root == self.rank();
        let max = self.capabilities().max_bytes();
        let member = self.member.clone();
        let entered = member.enter(OpKind::Broadcast)?;
        if is_root && bytes.len() as u64 > max {
            let error = crate::check::too_large(bytes.len(), 1, max);
            return Err(member.refuse(&entered, OpKind::Broadcast, error, 1));
        }
        let mut length = if is_root { (bytes.len() as u64).to_le_bytes() } else { [0; 8] };
        self.run_inner(&entered, Shape { tag: tag::LENGTH, ..shape }, &[], &mut length)?;
        let length = u64::from_le_bytes(length);
        if length == 0 {
            bytes.clear();
            return Ok(());
        }
        if !is_root && let Err(error) = make_room(bytes, length, max) {
            return Err(member.refuse(&entered, OpKind::Broadcast, error, 1));
        }
        self.run_inner(&entered, Shape { tag: tag::BYTES, ..shape }, &[], bytes)
    }

    /// At the root `dst` becomes the reduction of every member's `src`. `dst` is `Some` at the root only.
    pub fn reduce<T: Elem>(&mut self, src: &[T], dst: Option<&mut [T]>, op: ReduceOp, root: usize) -> Result<()> {
        self.run(Call::reduce(src, dst, op, root))
    }

    /// At the root `dst` becomes every member's `src` in group order. `dst` is `Some` at the root only.
    pub fn gather<T: Pod>(&mut self, src: &[T], dst: Option<&mut [T]>, root: usize) -> Result<()> {
        self.run(Call::gather(src, dst, root))
    }

    /// `dst` becomes part `rank()` of the root's `src`. `src` is `Some` at the root only.
    pub fn scatter<T: Pod>(&mut self, src: Option<&[T]>, dst: &mut [T], root: usize) -> Result<()> {
        self.run(Call::scatter(src, dst, root))
    }

    /// All-gather of `counts[r]` elements from the member at position r. The same counts on all members.
    pub fn all_gather_v<T: Pod>(&mut self, src: &[T], dst: &mut [T], counts: &[usize]) -> Result<()> {
        self.run(Call::all_gather_v(src, dst, counts))
    }

    /// Reduce-scatter with `counts[r]` elements for the member at position r. The same counts on all members.
    pub fn reduce_scatter_v<T: Elem>(
        &mut self,
        src: &[T],
        dst: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::reduce_scatter_v(src, dst, counts, op))
    }

    /// All-to-all with `send_counts[r]` elements to and `recv_counts[r]` elements from the member at position r.
    pub fn all_to_all_v<T: Pod>(
        &mut self,
        src: &[T],
        send_counts: &[usize],
        dst: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        self.run(Call::all_to_all_v(src, send_counts, dst, recv_counts))
    }

    /// Gather of `counts[r]` elements from the member at position r. The same counts on all members.
    pub fn gather_v<T: Pod>(&mut self, src: &[T], dst: Option<&mut [T]>, counts: &[usize], root: usize) -> Result<()> {
        self.run(Call::gather_v(src, dst, counts, root))
    }

    /// Scatter with `counts[r]` elements for the member at position r. The same counts on all members.
    pub fn scatter_v<T: Pod>(&mut self, src: Option<&[T]>, dst: &mut [T], counts: &[usize], root: usize) -> Result<()> {
        self.run(Call::scatter_v(src, dst, counts, root))
    }

    /// All-gather of `counts[r]` rows of `width` elements from the member at position r:
    /// `(counts[r], width) -> (sum(counts), width)`.
    pub fn token_all_gather<T: Pod>(&mut self, src: &[T], dst: &mut [T], width: usize, counts: &[usize]) -> Result<()> {
        self.run(Call::token_all_gather(src, dst, width, counts))
    }

    /// Reduce-scatter with `counts[r]` rows of `width` elements for the member at position r:
    /// `(sum(counts), width) -> (counts[r], width)`.
    pub fn token_reduce_scatter<T: Elem>(
        &mut self,
        src: &[T],
        dst: &mut [T],
        width: usize,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        self.run(Call::token_reduce_scatter(src, dst, width, counts, op))
    }

    /// Sends to another position of the group, which receives as many elements of the same type.
    pub fn send<T: Pod>(&mut self, buf: &[T], to: usize) -> Result<()> {
        self.run(Call::send(buf, to))
    }

    /// Receives from another position of the group.
    pub fn recv<T: Pod>(&mut self, buf: &mut [T], from: usize) -> Result<()> {
        self.run(Call::recv(buf, from))
    }
}

/// Resizes to a length that came from a peer.
fn make_room(bytes: &mut Vec<u8>, length: u64, max: u64) -> Result<()> {
    let none = |_| {
        Error::new(
            ErrorKind::NoMemory { need: length, limit: 0 },
            "this rank can't hold the bytes that the root sends; send them in pieces",
        )
    };
    let wanted = usize::try_from(length).ok().filter(|_| length <= max);
    let Some(wanted) = wanted else {
        return Err(Error::new(
            ErrorKind::CountTooLarge,
            format!("the root announces {length} bytes, more than {max}; send them in pieces"),
        ));
    };
    bytes.clear();
    bytes.try_reserve_exact(wanted).map_err(none)?;
    bytes.resize(wanted, 0);
    Ok(())
}
