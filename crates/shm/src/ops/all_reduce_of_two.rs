//! Streamed one-shot all_reduce and reduce of two members: each copies its whole source in and folds the other's with its own.
//!
//! As many bytes cross between the processors as in two shots, which would meet twice a step and read their own result from
//! lines that the other is reading.

use crate::comm::Comm;
use crate::ctl::Progress;
use crate::layout::CHUNK;
use rankwise_core::backend::RawCall;
use rankwise_core::op::OpKind;
use rankwise_reduce::copy::copy;
use std::sync::atomic::Ordering;

impl Comm {
    pub(crate) async fn all_reduce_of_two(&self, call: &RawCall<'_>) {
        let other = 1 - self.me;
        let all = call.kind == OpKind::AllReduce;
        let (contributes, consumes) = (all || call.root == other, all || call.root == self.me);
        let bytes = call.count * call.elem_size;
        let base = self.steps.load(Ordering::Relaxed);
        let rounds = bytes.div_ceil(CHUNK) as u64;
        let part = |i: u64| (i as usize * CHUNK, (bytes - i as usize * CHUNK).min(CHUNK));
        if !consumes {
            self.consumed(base + rounds);
        }
        for i in 0..=rounds {
            if contributes && i < rounds {
                let g = base + i;
                let (from, length) = part(i);
                self.in_ring_is_free(g).await;
                // SAFETY: within `src`, and into the own ring slot, which nobody reads now.
                unsafe { copy(self.at(self.me, self.layout.in_ring(g)), call.src.ptr.add(from), length) };
                self.advance(Progress::Ready, g + 1);
            }
            if consumes && i > 0 {
                let g = base + i - 1;
                let (from, length) = part(i - 1);
                self.until(other, || self.ctl(other).has_reached(Progress::Ready, g + 1)).await;
                // SAFETY: the other's ring slot holds this step until we say consumed; the own source is read where it lies,
                // in place it is what is overwritten, element by element, after it was copied in.
                let exposed = |q: usize| unsafe {
                    match q == self.me {
                        true => call.src.ptr.add(from).cast_const(),
                        false => self.at(q, self.layout.in_ring(g)).cast_const(),
                    }
                };
                // SAFETY: within `dst`.
                self.fold(call, unsafe { call.dst.ptr.add(from) }, length / call.elem_size, &exposed, 0);
                self.consumed(g + 1);
            }
        }
        self.end_steps(base, rounds);
    }
}
