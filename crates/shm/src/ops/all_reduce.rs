//! Chunked two-shot all_reduce and reduce: each member folds its piece of every step, then all pull the pieces.

use super::streamed::piece;
use crate::comm::Comm;
use crate::ctl::Progress;
use crate::layout::RING;
use rankwise_core::backend::RawCall;
use rankwise_core::op::OpKind;
use rankwise_reduce::copy::copy;
use std::sync::atomic::Ordering;

/// The vector cut into one part a member: equal lengths but for the last ones, whole cache lines.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    bytes: usize,
    each: usize,
}

impl Parts {
    pub(crate) fn new(bytes: usize, members: usize) -> Parts {
        Parts { bytes, each: bytes.div_ceil(members).next_multiple_of(64) }
    }

    /// Offset and length of the piece of part `q` from byte `from` of the part on.
    pub(crate) fn piece(&self, q: usize, from: usize, limit: usize) -> (usize, usize) {
        let offset = q * self.each + from;
        let end = ((q + 1) * self.each).min(self.bytes);
        (offset, end.saturating_sub(offset).min(limit))
    }
}

impl Comm {
    pub(crate) async fn all_reduce_chunked(&self, call: &RawCall<'_>) {
        let n = self.members();
        let piece = piece(n);
        let parts = Parts::new(call.count * call.elem_size, n);
        let pulls = call.kind == OpKind::AllReduce || call.root == self.me;
        let base = self.steps.load(Ordering::Relaxed);
        let rounds = parts.each.div_ceil(piece) as u64;
        for i in 0..rounds + 2 {
            if i < rounds {
                self.copy_in(call, &parts, piece, base + i, i).await;
            }
            if (1..=rounds).contains(&i) {
                self.fold_own(call, &parts, piece, pulls, base + i - 1, i - 1).await;
            }
            if i >= 2 {
                let (g, from) = (base + i - 2, (i - 2) as usize * piece);
                self.all_reach(Progress::Reduced, g + 1).await;
                if pulls {
                    for q in self.others() {
                        let (offset, bytes) = parts.piece(q, from, piece);
                        if bytes > 0 {
                            // SAFETY: within `dst`; the folder keeps its out-ring slot until all are done with it.
                            unsafe { copy(call.dst.ptr.add(offset), self.at(q, self.layout.out_ring(g)), bytes) };
                        }
                    }
                }
                self.advance(Progress::Done, g + 1);
            }
        }
        self.end_steps(base, rounds);
    }

    /// Step `g`, the call's `i`-th: the others' pieces go into the own in ring.
    async fn copy_in(&self, call: &RawCall<'_>, parts: &Parts, piece: usize, g: u64, i: u64) {
        self.in_ring_is_free(g).await;
        for q in self.others() {
            let (offset, bytes) = parts.piece(q, i as usize * piece, piece);
            if bytes > 0 {
                // SAFETY: within `src`, and into piece q of the own ring slot, which nobody reads now.
                unsafe {
                    copy(self.at(self.me, self.layout.in_ring(g)).add(q * piece), call.src.ptr.add(offset), bytes);
                }
            }
        }
        self.advance(Progress::Ready, g + 1);
    }

    /// Folds the own piece of step `g`, for the others and, if this rank `pulls`, for itself.
    async fn fold_own(&self, call: &RawCall<'_>, parts: &Parts, piece: usize, pulls: bool, g: u64, i: u64) {
        self.all_reach(Progress::Ready, g + 1).await;
        self.all_reach(Progress::Done, (g + 1).saturating_sub(RING)).await;
        let (offset, bytes) = parts.piece(self.me, i as usize * piece, piece);
        if bytes > 0 {
            // SAFETY: the own piece is read from `src` (in place it is what is overwritten, element by element); the others'
            // from their ring slots, which they keep until this rank has reduced.
            let exposed = |q: usize| unsafe {
                if q == self.me {
                    call.src.ptr.add(offset).cast_const()
                } else {
                    self.at(q, self.layout.in_ring(g)).add(self.me * piece).cast_const()
                }
            };
            let out = self.at(self.me, self.layout.out_ring(g));
            if pulls {
                // SAFETY: within `dst`. In place that is the own piece of the source, which is in nobody else's ring.
                let own = unsafe { call.dst.ptr.add(offset) };
                self.fold(call, own, bytes / call.elem_size, &exposed, 0);
                // Before the others read these lines.
                // SAFETY: the piece just folded, into the own out-ring slot, which nobody reads now.
                unsafe { copy(out, own, bytes) };
            } else {
                self.fold(call, out, bytes / call.elem_size, &exposed, 0);
            }
        }
        self.advance(Progress::Reduced, g + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_vector_once() {
        for (bytes, members) in [(1, 4), (64, 2), (65, 2), (100_003, 7), (32 * 1024 + 8, 3), (128, 8)] {
            let parts = Parts::new(bytes, members);
            let mut next = 0;
            for q in 0..members {
                let mut from = 0;
                loop {
                    let (offset, length) = parts.piece(q, from, 4096);
                    if length == 0 {
                        break;
                    }
                    assert_eq!(offset, next);
                    next += length;
                    from += 4096;
                }
            }
            assert_eq!(next, bytes);
        }
    }
}
