//! All-to-all with a count per pair: each rank posts its row of counts, then streams like the even form.

use super::Op;
use super::streamed::piece;
use crate::comm::Comm;
use crate::ctl::{PoisonKind, Progress};
use crate::layout::STAGE;
use rankwise_core::backend::RawCall;
use rankwise_core::descriptor;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_reduce::copy::copy;
use std::sync::atomic::Ordering;

/// What the counts of all members come to, in elements.
struct Largest {
    /// Between one member and one other.
    pair: u64,
    /// Sent by one member.
    total: u64,
}

impl Comm {
    pub(crate) async fn all_to_all_v(&self, op: Op<'_>) -> Result<()> {
        let call = &op.call;
        let words = descriptor::words(call, op.launch);
        let seq = self.next_seq();
        self.slot_is_free(seq).await;
        for (i, count) in call.counts.send.iter().chain(call.counts.recv).enumerate() {
            self.word(self.me, self.layout.counts(seq) + i * 8).store(*count as u64, Ordering::Relaxed);
        }
        let sent = call.counts.send.iter().sum::<usize>() * call.elem_size;
        self.post(seq, words, |_| {
            if (1..=STAGE).contains(&sent) {
                // SAFETY: `src` has `sent` bytes; the own stage has room and nobody reads it (`slot_is_free`).
                unsafe { copy(self.exposed(self.me, seq, false), call.src.ptr, sent) };
            }
        });
        self.meet(seq, words).await?;
        let Largest { pair, total } = self.compare_counts(seq)?;
        if total.saturating_mul(call.elem_size as u64) <= STAGE as u64 {
            self.take_staged(call, seq);
        } else {
            self.stream_pairs(call, pair).await;
        }
        self.recheck(seq)
    }

    /// Copies the parts for this rank from what all have staged.
    fn take_staged(&self, call: &RawCall<'_>, seq: u64) {
        let mut to = 0;
        for (q, count) in call.counts.recv.iter().enumerate() {
            let before: u64 = (0..self.me).map(|other| self.counts(q, seq, other).0).sum();
            let bytes = count * call.elem_size;
            // What a peer with corrupt memory may post later stays within the stage.
            let from = before.saturating_mul(call.elem_size as u64).min(STAGE.saturating_sub(bytes) as u64) as usize;
            let staged = if q == self.me { call.src.ptr } else { self.exposed(q, seq, false) };
            if bytes > 0 {
                // SAFETY: `dst` has room for all parts; the member has staged all of its source, whose counts were compared.
                unsafe { copy(call.dst.ptr.add(to), staged.add(from), bytes) };
            }
            to += bytes;
        }
    }

    /// The counts that a member posted: what it sends to `other`, and what it expects from it.
    fn counts(&self, member: usize, seq: u64, other: usize) -> (u64, u64) {
        let word = |i: usize| self.word(member, self.layout.counts(seq) + i * 8).load(Ordering::Relaxed);
        (word(other), word(self.members() + other))
    }

    /// What each member sends must be what the other expects. Everybody compares all pairs, so that all find the same
    /// odd pair before data moves. Returns the largest count.
    fn compare_counts(&self, seq: u64) -> Result<Largest> {
        let n = self.members();
        let mut largest = Largest { pair: 0, total: 0 };
        for from in 0..n {
            let mut total = 0_u64;
            for to in 0..n {
                let (sent, expected) = (self.counts(from, seq, to).0, self.counts(to, seq, from).1);
                if sent != expected {
                    let (from, to) = (self.global(from), self.global(to));
                    let error = Error::new(
                        ErrorKind::Mismatch,
                        format!(
                            "rank {from} sends {sent} elements to rank {to}, which expects {expected}; \
                             send counts of one must equal receive counts of the other"
                        ),
                    )
                    .with_peers([from, to]);
                    return Err(self.fail(PoisonKind::Mismatch, from, error));
                }
                largest.pair = largest.pair.max(sent);
                total = total.saturating_add(sent);
            }
            largest.total = largest.total.max(total);
        }
        Ok(largest)
    }

    async fn stream_pairs(&self, call: &RawCall<'_>, longest: u64) {
        let n = self.members();
        let size = call.elem_size;
        let piece = piece(n);
        let rounds = longest.saturating_mul(size as u64).div_ceil(piece as u64);
        let base = self.steps.load(Ordering::Relaxed);
        for i in 0..=rounds {
            if i < rounds {
                let g = base + i;
                self.in_ring_is_free(g).await;
                let from = i as usize * piece;
                let mut offset = 0;
                for (q, count) in call.counts.send.iter().enumerate() {
                    let bytes = (count * size).saturating_sub(from).min(piece);
                    if bytes > 0 {
                        // SAFETY: within part q of `src`, and into piece q of the own ring slot, which nobody reads now.
                        unsafe {
                            let to = self.at(self.me, self.layout.in_ring(g)).add(q * piece);
                            copy(to, call.src.ptr.add(offset + from), bytes);
                        }
                    }
                    offset += count * size;
                }
                self.advance(Progress::Ready, g + 1);
            }
            if i > 0 {
                let g = base + i - 1;
                let from = (i - 1) as usize * piece;
                let mut offset = 0;
                for (q, count) in call.counts.recv.iter().enumerate() {
                    let bytes = (count * size).saturating_sub(from).min(piece);
                    if bytes > 0 {
                        if q != self.me {
                            self.until(q, || self.ctl(q).has_reached(Progress::Ready, g + 1)).await;
                        }
                        // SAFETY: within part q of `dst`; the member keeps its ring slot until we have consumed.
                        unsafe {
                            let source = self.at(q, self.layout.in_ring(g)).add(self.me * piece);
                            copy(call.dst.ptr.add(offset + from), source, bytes);
                        }
                    }
                    offset += count * size;
                }
                self.consumed(g + 1);
            }
        }
        self.end_steps(base, rounds);
    }
}
