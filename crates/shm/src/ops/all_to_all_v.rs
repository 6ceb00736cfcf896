//! All-to-all with a count per pair: each rank posts its row of counts, then streams like the even form.

use super::Op;
use super::streamed::piece;
use crate::comm::Comm;
use crate::ctl::{PoisonKind, Progress};
use crate::descriptor;
use rankwise_core::backend::RawCall;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_reduce::copy::copy;
use std::sync::atomic::Ordering;

impl Comm {
    pub(crate) async fn all_to_all_v(&self, op: Op<'_>) -> Result<()> {
        let call = &op.call;
        let words = descriptor::words(call, op.index, op.batch);
        let seq = self.next_seq();
        self.slot_is_free(seq).await;
        for (q, count) in call.counts.send.iter().enumerate() {
            self.count(self.me, seq, q).store(*count as u64, Ordering::Relaxed);
        }
        self.post(seq, words, |_| {});
        self.meet(seq, words).await?;
        self.compare_counts(call, seq)?;
        self.stream_pairs(call, seq).await;
        self.recheck(seq)
    }

    /// The count that `from` sends to `to`, as posted.
    fn count(&self, from: usize, seq: u64, to: usize) -> &std::sync::atomic::AtomicU64 {
        self.word(from, self.layout.counts(seq) + to * 8)
    }

    /// What each member sends us must be what we expect from it.
    fn compare_counts(&self, call: &RawCall<'_>, seq: u64) -> Result<()> {
        for q in 0..self.members() {
            let (sent, expected) = (self.count(q, seq, self.me).load(Ordering::Relaxed), call.counts.recv[q] as u64);
            if sent != expected {
                let (sender, me) = (self.global(q), self.global(self.me));
                let error = Error::new(
                    ErrorKind::Mismatch,
                    format!(
                        "rank {sender} sends {sent} elements to rank {me}, which expects {expected}; \
                         send counts of one must equal receive counts of the other"
                    ),
                )
                .with_peers([sender, me]);
                return Err(self.fail(PoisonKind::Mismatch, sender, error));
            }
        }
        Ok(())
    }

    async fn stream_pairs(&self, call: &RawCall<'_>, seq: u64) {
        let n = self.members();
        let size = call.elem_size;
        let piece = piece(n);
        // The longest pair decides the number of steps: everybody reads all rows.
        let mut longest = 0;
        for from in 0..n {
            for to in 0..n {
                longest = longest.max(self.count(from, seq, to).load(Ordering::Relaxed));
            }
        }
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
