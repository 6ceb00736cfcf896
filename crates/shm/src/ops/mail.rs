//! send and recv: fragments in the sender's mail slots, acknowledged by the receiver.

use crate::comm::Comm;
use crate::ctl::{PoisonKind, acquired};
use crate::layout::MAIL_HEADER;
use crate::sync::store_then_fence;
use rankwise_core::backend::RawCall;
use rankwise_core::descriptor::{self, Words};
use rankwise_core::{Error, ErrorKind, OpKind, Result};
use rankwise_reduce::copy::copy;
use std::sync::atomic::Ordering;

/// Where in a mail slot's header the number of fragments left stands, after the sequence number and the descriptor.
const LEFT: usize = 32;

impl Comm {
    /// No member has failed: mail does not meet anybody who would notice.
    fn check_peers(&self) -> Result<()> {
        match (0..self.members()).find_map(|q| Some((q, self.ctl(q).poisoned()?))) {
            Some((member, poison)) => Err(self.adopt(member, poison)),
            None => Ok(()),
        }
    }

    /// Returns when the last fragment is in a slot.
    pub(crate) async fn send(&self, call: &RawCall<'_>) -> Result<()> {
        let to = call.root;
        self.set_kind(OpKind::Send as u8);
        self.check_peers()?;
        let words = descriptor::words(call, 0);
        let number = self.messages_sent[to].load(Ordering::Relaxed) + 1;
        if self.word(to, self.layout.refused(self.me)).load(Ordering::Relaxed) == number {
            self.send_refusal(to, &ErrorKind::PeerRejected).await;
            let receiver = self.global(to);
            return Err(Error::new(
                ErrorKind::PeerRejected,
                format!("rank {receiver} refused its own arguments of recv; see that rank's error, then call again"),
            )
            .with_peers([receiver]));
        }
        self.messages_sent[to].store(number, Ordering::Relaxed);
        let bytes = call.count * call.elem_size;
        let fragments = bytes.div_ceil(self.layout.mail_bytes).max(1);
        for i in 0..fragments {
            let from = i * self.layout.mail_bytes;
            let length = (bytes - from).min(self.layout.mail_bytes);
            self.send_fragment(to, words, fragments - i, |slot| {
                // SAFETY: within `src`, and into an own mail slot that the receiver has acknowledged.
                unsafe { copy(slot, call.src.ptr.add(from), length) };
            })
            .await;
        }
        Ok(())
    }

    /// Tells the receiver that the message it waits for was refused.
    pub(crate) async fn send_refusal(&self, to: usize, why: &ErrorKind) {
        let number = self.messages_sent[to].load(Ordering::Relaxed) + 1;
        self.messages_sent[to].store(number, Ordering::Relaxed);
        self.send_fragment(to, descriptor::rejected(OpKind::Send, why), 1, |_| {}).await;
    }

    /// One fragment; `left` counts it and those that follow.
    async fn send_fragment(&self, to: usize, words: Words, left: usize, fill: impl FnOnce(*mut u8)) {
        let f = self.sent[to].load(Ordering::Relaxed);
        let free = (f + 1).saturating_sub(self.layout.mail_slots);
        let acks = self.word(to, self.layout.ack(self.me));
        self.until_mail(to, || acquired(acks.load(Ordering::Relaxed) >= free)).await;
        let slot = self.layout.mail(to, f);
        fill(self.at(self.me, slot + MAIL_HEADER));
        for (i, word) in words.iter().enumerate() {
            self.word(self.me, slot + 8 + i * 8).store(*word, Ordering::Relaxed);
        }
        self.word(self.me, slot + LEFT).store(left as u64, Ordering::Relaxed);
        // Releases the data and the words.
        store_then_fence(self.word(self.me, slot), f + 1);
        self.sent[to].store(f + 1, Ordering::Relaxed);
        self.ring();
    }

    pub(crate) async fn receive(&self, call: &RawCall<'_>) -> Result<()> {
        let from = call.root;
        let bytes = call.count * call.elem_size;
        let fragments = bytes.div_ceil(self.layout.mail_bytes).max(1);
        let mut ours = descriptor::words(call, 0);
        self.set_kind(OpKind::Recv as u8);
        let number = self.messages_received[from].load(Ordering::Relaxed) + 1;
        self.messages_received[from].store(number, Ordering::Relaxed);
        for i in 0..fragments {
            let f = self.received[from].load(Ordering::Relaxed);
            let slot = self.layout.mail(self.me, f);
            let seq = self.word(from, slot);
            // Acquires the data and the words.
            self.until_mail(from, || acquired(seq.load(Ordering::Relaxed) > f)).await;
            let mut theirs: Words = [0; 3];
            for (i, word) in theirs.iter_mut().enumerate() {
                *word = self.word(from, slot + 8 + i * 8).load(Ordering::Relaxed);
            }
            if let Some(why) = descriptor::refusal(theirs) {
                self.acknowledge(from, f);
                let sender = self.global(from);
                return Err(Error::new(
                    ErrorKind::PeerRejected,
                    format!("rank {sender} refused its own arguments of send with {why}; see that rank's error"),
                )
                .with_peers([sender]));
            }
            // All but the kind must agree.
            ours[0] = ours[0] & !0xff | theirs[0] & 0xff;
            if theirs != ours {
                return Err(self.unexpected_message(from, call, theirs));
            }
            let offset = i * self.layout.mail_bytes;
            let length = (bytes - offset).min(self.layout.mail_bytes);
            // SAFETY: within `dst`; the sender keeps the slot until the acknowledgement.
            unsafe { copy(call.dst.ptr.add(offset), self.at(from, slot + MAIL_HEADER), length) };
            self.acknowledge(from, f);
        }
        Ok(())
    }

    /// A refused receive takes the next message of its pair, so that later ones meet theirs. A sender that has not sent it
    /// yet is told.
    pub(crate) async fn discard(&self, from: usize) {
        let number = self.messages_received[from].load(Ordering::Relaxed) + 1;
        self.messages_received[from].store(number, Ordering::Relaxed);
        self.word(self.me, self.layout.refused(from)).store(number, Ordering::Release);
        loop {
            let f = self.received[from].load(Ordering::Relaxed);
            let slot = self.layout.mail(self.me, f);
            let seq = self.word(from, slot);
            self.until_mail(from, || acquired(seq.load(Ordering::Relaxed) > f)).await;
            let left = self.word(from, slot + LEFT).load(Ordering::Relaxed);
            self.acknowledge(from, f);
            if left <= 1 {
                return;
            }
        }
    }

    /// The slot of fragment `f` may be used again.
    fn acknowledge(&self, from: usize, f: u64) {
        // Releases the reads of the slot.
        store_then_fence(self.word(self.me, self.layout.ack(from)), f + 1);
        self.received[from].store(f + 1, Ordering::Relaxed);
        self.ring();
    }

    #[cold]
    fn unexpected_message(&self, from: usize, call: &RawCall<'_>, theirs: Words) -> Error {
        let (sender, me) = (self.global(from), self.global(self.me));
        let error = Error::new(
            ErrorKind::Mismatch,
            format!(
                "rank {sender} sent {}, rank {me} receives {} {} (element size and tag count too); make both calls alike",
                descriptor::describe(theirs),
                call.count,
                call.dtype
            ),
        )
        .with_peers([sender, me]);
        self.fail(PoisonKind::Mismatch, sender, error)
    }
}
