//! The operations: how each kind moves data in each of the four ways of `docs/design/protocol.md`.

mod all_reduce;
mod all_reduce_of_two;
mod all_to_all_v;
mod direct;
mod mail;
mod shape;
mod small;
mod streamed;

use crate::comm::Comm;
use rankwise_core::Result;
use rankwise_core::backend::RawCall;
use rankwise_core::descriptor;
use rankwise_core::op::OpKind;
pub(crate) use shape::Shape;

/// One call with what identifies its launch. The buffers are valid as [`rankwise_core::backend::RawCommunicator`] demands.
#[derive(Clone, Copy)]
pub(crate) struct Op<'a> {
    pub(crate) call: RawCall<'a>,
    pub(crate) launch: u64,
}

impl Comm {
    /// Runs one call.
    #[inline]
    pub(crate) async fn execute(&self, op: Op<'_>) -> Result<()> {
        match op.call.kind {
            OpKind::Send => self.send(&op.call).await,
            OpKind::Recv => self.receive(&op.call).await,
            OpKind::AllToAllV => self.all_to_all_v(op).await,
            _ => match Shape::of_small(&op.call, self.members(), self.me) {
                Some(shape) => self.small(op, shape).await,
                None => self.large(op, Shape::new(&op.call, self.members(), self.me)).await,
            },
        }
    }

    /// Beyond what can be staged: directly from the buffers if all members allocated them, else in chunks.
    async fn large(&self, op: Op<'_>, shape: Shape) -> Result<()> {
        let call = &op.call;
        let words = descriptor::words(call, op.launch);
        let seq = self.next_seq();
        self.slot_is_free(seq).await;
        let (places, allocations) = self.places(call);
        self.post(seq, words, |payload| places.write(payload));
        self.meet(seq, words).await?;
        if let Some(direct) = self.direct(call, seq, &allocations)? {
            self.run_direct(call, &direct).await?;
        } else {
            match call.kind {
                OpKind::AllReduce | OpKind::Reduce if self.members() == 2 => self.all_reduce_of_two(call).await,
                OpKind::AllReduce | OpKind::Reduce => self.all_reduce_chunked(call).await,
                OpKind::AllGather | OpKind::AllGatherV | OpKind::Gather | OpKind::GatherV | OpKind::Broadcast => {
                    self.stream_whole(call, shape).await;
                }
                _ => self.stream_parts(call).await,
            }
        }
        self.recheck(seq)
    }
}
