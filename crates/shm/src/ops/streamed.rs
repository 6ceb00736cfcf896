//! Chunked movement through the in ring.

use super::shape::{Shape, part};
use crate::comm::Comm;
use crate::ctl::Progress;
use crate::layout::{CHUNK, RING};
use rankwise_core::backend::RawCall;
use rankwise_core::op::OpKind;
use rankwise_reduce::copy::copy;
use std::sync::atomic::Ordering;

/// Largest piece of each part in a step of `members` parts; a multiple of every element size and of a cache line.
pub(crate) fn piece(members: usize) -> usize {
    ((CHUNK / members) & !63).max(64)
}

impl Comm {
    /// Waits until all members' counter has reached `value`.
    pub(crate) async fn all_reach(&self, progress: Progress, value: u64) {
        for q in self.others() {
            self.until(q, || self.ctl(q).has_reached(progress, value)).await;
        }
    }

    /// Waits until nobody reads the in-ring slot of step `g` any more.
    pub(crate) async fn in_ring_is_free(&self, g: u64) {
        self.all_reach(Progress::Reduced, (g + 1).saturating_sub(RING)).await;
    }

    /// This rank has read step `g - 1` and everything before.
    pub(crate) fn consumed(&self, g: u64) {
        self.own().advance(Progress::Reduced, g);
        self.advance(Progress::Done, g);
    }

    /// Ends a chunked call of `rounds` steps from `base`.
    pub(crate) fn end_steps(&self, base: u64, rounds: u64) {
        self.steps.store(base + rounds, Ordering::Relaxed);
    }

    /// Broadcast and the gathers: contributors stream their whole source, consumers copy all of it.
    pub(crate) async fn stream_whole(&self, call: &RawCall<'_>, shape: Shape) {
        let rooted = !matches!(call.kind, OpKind::AllGather | OpKind::AllGatherV);
        let broadcast = call.kind == OpKind::Broadcast;
        let is_root = call.root == self.me;
        let contributes = !broadcast || is_root;
        let consumes = if broadcast { !is_root } else { !rooted || is_root };
        let base = self.steps.load(Ordering::Relaxed);
        let rounds = shape.exposed.div_ceil(CHUNK) as u64;
        // Where in `dst` the contribution of `q` goes, and its length.
        let slot = |q: usize| if broadcast { (0, shape.exposed) } else { part(call, q) };
        if !consumes {
            self.consumed(base + rounds);
        }
        for i in 0..=rounds {
            if contributes && i < rounds {
                let g = base + i;
                self.in_ring_is_free(g).await;
                let from = i as usize * CHUNK;
                let bytes = shape.mine.saturating_sub(from).min(CHUNK);
                if bytes > 0 {
                    // SAFETY: within `src`, and into the own ring slot, which nobody reads now.
                    unsafe { copy(self.at(self.me, self.layout.in_ring(g)), call.src.ptr.add(from), bytes) };
                }
                self.advance(Progress::Ready, g + 1);
            }
            if consumes && i > 0 {
                let g = base + i - 1;
                let from = (i - 1) as usize * CHUNK;
                for q in self.others() {
                    if broadcast && q != call.root {
                        continue;
                    }
                    let (offset, length) = slot(q);
                    let bytes = length.saturating_sub(from).min(CHUNK);
                    if bytes > 0 {
                        self.until(q, || self.ctl(q).has_reached(Progress::Ready, g + 1)).await;
                        // SAFETY: within `dst`; the member's ring slot holds this step until we say consumed.
                        unsafe { copy(call.dst.ptr.add(offset + from), self.at(q, self.layout.in_ring(g)), bytes) };
                    }
                }
                if !broadcast {
                    let (offset, length) = slot(self.me);
                    let bytes = length.saturating_sub(from).min(CHUNK);
                    // SAFETY: within `src` and `dst`; in place they are the same address and nothing is copied.
                    unsafe {
                        let (to, source) = (call.dst.ptr.add(offset + from), call.src.ptr.add(from));
                        if bytes > 0 && !std::ptr::eq(to, source) {
                            copy(to, source, bytes);
                        }
                    }
                }
                self.consumed(g + 1);
            }
        }
        self.end_steps(base, rounds);
    }

    /// Reduce-scatter, all-to-all and scatter: a step holds a piece of every part, each member takes its own.
    pub(crate) async fn stream_parts(&self, call: &RawCall<'_>) {
        let n = self.members();
        let rooted = matches!(call.kind, OpKind::Scatter | OpKind::ScatterV);
        let reduces = call.kind.reduces();
        let contributes = !rooted || call.root == self.me;
        let piece = piece(n);
        let longest = (0..n).map(|q| part(call, q).1).max().unwrap_or(0);
        let base = self.steps.load(Ordering::Relaxed);
        let rounds = longest.div_ceil(piece) as u64;
        for i in 0..=rounds {
            if contributes && i < rounds {
                let g = base + i;
                self.in_ring_is_free(g).await;
                let from = i as usize * piece;
                for q in self.others() {
                    let (offset, length) = part(call, q);
                    let bytes = length.saturating_sub(from).min(piece);
                    if bytes > 0 {
                        // SAFETY: within part q of `src`, and into piece q of the own ring slot.
                        unsafe {
                            let to = self.at(self.me, self.layout.in_ring(g)).add(q * piece);
                            copy(to, call.src.ptr.add(offset + from), bytes);
                        }
                    }
                }
                self.advance(Progress::Ready, g + 1);
            }
            if i > 0 {
                let g = base + i - 1;
                let from = (i - 1) as usize * piece;
                let (mine, length) = part(call, self.me);
                let bytes = length.saturating_sub(from).min(piece);
                if bytes > 0 && rooted && call.root != self.me {
                    self.until(call.root, || self.ctl(call.root).has_reached(Progress::Ready, g + 1)).await;
                } else if bytes > 0 && !rooted {
                    self.all_reach(Progress::Ready, g + 1).await;
                }
                // SAFETY: the own source is read where it lies; in place that is this rank's slot, which only this step
                // overwrites, element by element.
                let exposed = |q: usize| unsafe {
                    if q == self.me {
                        call.src.ptr.add(mine + from).cast_const()
                    } else {
                        self.at(q, self.layout.in_ring(g)).add(self.me * piece).cast_const()
                    }
                };
                if bytes > 0 {
                    // SAFETY: this rank's part of `dst` (all-to-all: of each member) has room for the piece.
                    unsafe {
                        if reduces {
                            self.fold(call, call.dst.ptr.add(from), bytes / call.elem_size, &exposed, 0);
                        } else if rooted {
                            copy(call.dst.ptr.add(from), exposed(call.root), bytes);
                        } else {
                            for q in 0..n {
                                copy(call.dst.ptr.add(q * length + from), exposed(q), bytes);
                            }
                        }
                    }
                }
                self.consumed(g + 1);
            }
        }
        self.end_steps(base, rounds);
    }
}
