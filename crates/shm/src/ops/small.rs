//! Inline and one-shot calls: everything is exposed before the meet, and one synchronisation suffices.

use super::Op;
use super::shape::{Shape, part};
use crate::comm::Comm;
use crate::sync::PAYLOAD;
use rankwise_core::Result;
use rankwise_core::backend::RawCall;
use rankwise_core::descriptor::{self, Words};
use rankwise_core::op::OpKind;
use rankwise_reduce::{Reducer, copy::copy};
use std::time::Duration;

impl Comm {
    /// A call whose contributions fit the payload or the stage.
    #[inline]
    pub(crate) async fn small(&self, op: Op<'_>, shape: Shape) -> Result<()> {
        let words = descriptor::words(&op.call, op.launch);
        let seq = self.next_seq();
        self.slot_is_free(seq).await;
        self.expose(&op.call, shape, seq, words);
        self.meet(seq, words).await?;
        self.take_exposed(&op.call, shape, seq)
    }

    /// The same for one blocking call, without a future unless it has to wait for long: moving one costs more than the
    /// call.
    #[inline]
    pub(crate) fn small_now(&self, op: Op<'_>, shape: Shape, deadline: Duration) -> Result<()> {
        let words = descriptor::words(&op.call, op.launch);
        let seq = self.next_seq();
        if !self.slot_is_known_free(seq) {
            self.drive(
                async {
                    self.slot_is_free(seq).await;
                    Ok(())
                },
                deadline,
            )?;
        }
        self.expose(&op.call, shape, seq, words);
        match self.meet_soon(seq, words) {
            Some(result) => result?,
            None => self.drive(self.meet(seq, words), deadline)?,
        }
        self.take_exposed(&op.call, shape, seq)
    }

    /// Exposes this rank's contribution and posts the call.
    #[inline]
    fn expose(&self, call: &RawCall<'_>, shape: Shape, seq: u64, words: Words) {
        let target = self.exposed(self.me, seq, shape.exposed <= PAYLOAD);
        self.post(seq, words, |_| {
            if shape.mine > 0 {
                // SAFETY: `src` has `mine` bytes; the own payload or stage has room and nobody reads it (`slot_is_free`).
                unsafe { copy(target, call.src.ptr, shape.mine) };
            }
        });
    }

    #[inline]
    fn take_exposed(&self, call: &RawCall<'_>, shape: Shape, seq: u64) -> Result<()> {
        let inline = shape.exposed <= PAYLOAD;
        // The own contribution from where it lies: the peers are reading the lines of what was exposed.
        self.take(call, |q| match q == self.me && shape.mine > 0 {
            true => call.src.ptr.cast_const(),
            false => self.exposed(q, seq, inline).cast_const(),
        });
        self.recheck(seq)
    }

    /// Takes this rank's result from what the members expose: the whole source of each.
    #[inline]
    pub(crate) fn take(&self, call: &RawCall<'_>, exposed: impl Fn(usize) -> *const u8) {
        let n = self.members();
        let dst = call.dst.ptr;
        match call.kind {
            OpKind::AllReduce => self.fold(call, dst, call.count, &exposed, 0),
            OpKind::Reduce if call.root == self.me => self.fold(call, dst, call.count, &exposed, 0),
            OpKind::ReduceScatter | OpKind::ReduceScatterV => {
                let (offset, bytes) = part(call, self.me);
                self.fold(call, dst, bytes / call.elem_size.max(1), &exposed, offset);
            }
            OpKind::AllGather | OpKind::AllGatherV => self.gather(call, &exposed),
            OpKind::Gather | OpKind::GatherV if call.root == self.me => self.gather(call, &exposed),
            OpKind::AllToAll => {
                let bytes = call.count * call.elem_size;
                for q in 0..n {
                    // SAFETY: `dst` has n parts, each exposed source as well.
                    unsafe { copy(dst.add(q * bytes), exposed(q).add(self.me * bytes), bytes) };
                }
            }
            OpKind::Broadcast if call.root != self.me => {
                // SAFETY: `dst` and the root's exposed source have this many bytes.
                unsafe { copy(dst, exposed(call.root), call.count * call.elem_size) };
            }
            OpKind::Scatter | OpKind::ScatterV => {
                let (offset, bytes) = part(call, self.me);
                // SAFETY: the root exposes all parts, `dst` has room for this rank's.
                unsafe { copy(dst, exposed(call.root).add(offset), bytes) };
            }
            _ => {}
        }
    }

    #[inline]
    fn gather(&self, call: &RawCall<'_>, exposed: &impl Fn(usize) -> *const u8) {
        for q in 0..self.members() {
            let (offset, bytes) = part(call, q);
            // SAFETY: `dst` has room for all parts; each member exposes its own. In place, this rank's part is the same memory,
            // which needs no copy.
            unsafe {
                let (to, from) = (call.dst.ptr.add(offset), exposed(q));
                if !std::ptr::eq(to, from) {
                    copy(to, from, bytes);
                }
            }
        }
    }

    /// Folds `count` elements at byte `offset` of every exposed source.
    #[inline]
    pub(crate) fn fold(
        &self,
        call: &RawCall<'_>,
        dst: *mut u8,
        count: usize,
        exposed: &impl Fn(usize) -> *const u8,
        offset: usize,
    ) {
        let Some(reducer) = call.op.and_then(|op| Reducer::new(call.dtype, op, self.members())) else { return };
        // SAFETY: every exposed source has `count` elements from `offset` on, `dst` has room for them, and `dst` is either
        // one of the sources at the same place or apart from them.
        self.with_sources(
            |q| unsafe { exposed(q).add(offset) },
            |sources| unsafe { reducer.fold(dst, sources, count) },
        );
    }
}
