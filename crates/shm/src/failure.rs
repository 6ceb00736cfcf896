//! The first failure of a communicator: recording it, telling peers, and learning of theirs.

use crate::comm::Comm;
use crate::ctl::{Poison, PoisonKind};
use rankwise_core::{Error, ErrorKind, OpKind};
use std::sync::atomic::Ordering;

impl Comm {
    /// Records the first failure, poisons, wakes everybody, and returns what this call fails with.
    #[cold]
    pub(crate) fn fail(&self, kind: PoisonKind, culprit: usize, error: Error) -> Error {
        let seq = self.current_seq();
        self.own().poison(Poison { kind, culprit: culprit as u32, seq: self.poisoned_seq() });
        let mut error = error.with_group(self.group(), self.global(self.me));
        if let Some(operation) = OpKind::from_tag(self.last_kind.load(Ordering::Relaxed)) {
            error = error.with_operation(operation);
        }
        // Sends and receives have no sequence number.
        if !self.in_mail() && seq > 0 {
            error = error.with_sequence(seq);
        }
        let _ = self.cause.set(error.clone());
        if kind == PoisonKind::Lost {
            self.rank.add_lost(culprit);
        }
        self.ring_all();
        error
    }

    /// The first call that a poison set now concerns: this one, or the next if this one is complete.
    fn poisoned_seq(&self) -> u32 {
        let seq = self.current_seq();
        let complete = self.completed.load(Ordering::Relaxed) == seq;
        seq.wrapping_add(u64::from(complete)) as u32
    }

    /// Whether the last call was a send or receive.
    pub(crate) fn in_mail(&self) -> bool {
        let kind = self.last_kind.load(Ordering::Relaxed);
        kind == OpKind::Send as u8 || kind == OpKind::Recv as u8
    }

    /// A member's poison becomes this rank's failure.
    #[cold]
    pub(crate) fn adopt(&self, member: usize, poison: Poison) -> Error {
        let (kind, culprit, error) = self.adopted(member, poison);
        self.fail(kind, culprit, error)
    }

    /// What a member's poison means to this rank.
    #[cold]
    pub(crate) fn adopted(&self, member: usize, poison: Poison) -> (PoisonKind, usize, Error) {
        let culprit = poison.culprit as usize;
        let (reporter, me) = (self.global(member), self.global(self.me));
        // A peer can't say that an outsider, or this very rank, is dead or gone; that counts as its own abort.
        let credible = self.group().contains(culprit)
            && (culprit != me || !matches!(poison.kind, PoisonKind::Lost | PoisonKind::Left));
        let (kind, culprit) = if credible { (poison.kind, culprit) } else { (PoisonKind::Aborted, reporter) };
        let error = match kind {
            PoisonKind::Lost => lost_error(culprit),
            PoisonKind::Left => left_error(culprit),
            PoisonKind::Aborted => Error::new(
                ErrorKind::Aborted,
                format!("rank {culprit} aborted this communicator; make a new one to go on"),
            )
            .with_peers([culprit]),
            PoisonKind::Mismatch => Error::new(
                ErrorKind::Mismatch,
                format!(
                    "rank {reporter} found that rank {culprit} called something else; see its error for both calls"
                ),
            )
            .with_peers([culprit]),
            PoisonKind::Timeout if culprit == me => Error::new(
                ErrorKind::Timeout,
                format!("rank {reporter} gave up waiting for this rank; call in time or raise the deadline"),
            )
            .with_peers([culprit]),
            PoisonKind::Timeout => Error::new(
                ErrorKind::Timeout,
                format!("rank {reporter} gave up waiting for rank {culprit}; is that rank stuck?"),
            )
            .with_peers([culprit]),
        };
        (kind, culprit, error)
    }

    /// Makes every member's calls fail. Any thread.
    pub(crate) fn abort(&self) {
        if !self.generation.is_current() {
            return;
        }
        let seq = self.poisoned_seq();
        self.own().poison(Poison { kind: PoisonKind::Aborted, culprit: self.global(self.me) as u32, seq });
        self.ring_all();
    }

    /// The goodbye was said: later calls are `Closed`, peers see this rank as left.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.own().leave();
        self.ring_all();
    }
}

pub(crate) fn lost_error(rank: usize) -> Error {
    Error::new(
        ErrorKind::PeerLost,
        format!(
            "rank {rank} died; look at its output and exit status, then go on with a group of the others or start again"
        ),
    )
    .with_peers([rank])
}

pub(crate) fn left_error(rank: usize) -> Error {
    Error::new(
        ErrorKind::PeerLeft,
        format!("rank {rank} finalized, dropped its communicator or exited before this call; make it take part, or stop calling it"),
    )
    .with_peers([rank])
}
