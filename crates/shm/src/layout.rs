//! Where things lie in a rank's segment.

use crate::ctl::{Ctl, SLOTS};

/// Longest contribution that a call stages whole.
pub(crate) const STAGE: usize = 32 * 1024;
/// Bytes of one ring step.
pub(crate) const CHUNK: usize = 64 * 1024;
/// Steps in each ring.
pub(crate) const RING: u64 = 4;
/// Bytes before the data of a mail slot.
pub(crate) const MAIL_HEADER: usize = 64;

/// Mail memory of a rank, shared out among its destinations.
const MAIL: usize = 128 * 1024;

/// Offsets in bytes within a segment of a communicator of `members`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) members: usize,
    counts: usize,
    stage: usize,
    in_ring: usize,
    out_ring: usize,
    mail: usize,
    /// Mail slots for each destination.
    pub(crate) mail_slots: u64,
    /// Data bytes of a mail slot.
    pub(crate) mail_bytes: usize,
    acks: usize,
    /// Length of the segment.
    pub(crate) bytes: usize,
}

impl Layout {
    pub(crate) fn new(members: usize) -> Layout {
        let destinations = members.saturating_sub(1).max(1);
        let mail_slots = (8 / destinations).max(2);
        let mail_bytes = (MAIL / (destinations * mail_slots)).clamp(448, 16 * 1024) & !63;
        let counts = size_of::<Ctl>();
        let stage = (counts + SLOTS as usize * members * 16).next_multiple_of(64);
        let in_ring = stage + SLOTS as usize * STAGE;
        let out_ring = in_ring + RING as usize * CHUNK;
        let mail = out_ring + RING as usize * CHUNK;
        let acks = mail + members * mail_slots * (MAIL_HEADER + mail_bytes);
        let bytes = (acks + members * 16).next_multiple_of(4096);
        Layout {
            members,
            counts,
            stage,
            in_ring,
            out_ring,
            mail,
            mail_slots: mail_slots as u64,
            mail_bytes,
            acks,
            bytes,
        }
    }

    pub(crate) fn counts(&self, seq: u64) -> usize {
        self.counts + (seq % SLOTS) as usize * self.members * 16
    }

    pub(crate) fn stage(&self, seq: u64) -> usize {
        self.stage + (seq % SLOTS) as usize * STAGE
    }

    pub(crate) fn in_ring(&self, step: u64) -> usize {
        self.in_ring + (step % RING) as usize * CHUNK
    }

    pub(crate) fn out_ring(&self, step: u64) -> usize {
        self.out_ring + (step % RING) as usize * CHUNK
    }

    pub(crate) fn mail(&self, destination: usize, fragment: u64) -> usize {
        let slot = destination * self.mail_slots as usize + (fragment % self.mail_slots) as usize;
        self.mail + slot * (MAIL_HEADER + self.mail_bytes)
    }

    pub(crate) fn ack(&self, source: usize) -> usize {
        self.acks + source * 16
    }

    /// The number of the last message from `source` that was refused before it came, counted from 1.
    pub(crate) fn refused(&self, source: usize) -> usize {
        self.ack(source) + 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_within_the_segment() {
        for members in [2, 3, 8, 64, 256, 1000] {
            let l = Layout::new(members);
            assert!(l.counts(3) + members * 16 <= l.stage(0));
            assert_eq!(l.stage(3) + STAGE, l.in_ring(0));
            assert_eq!(l.in_ring(3) + CHUNK, l.out_ring(0));
            assert_eq!(l.out_ring(3) + CHUNK, l.mail(0, 0));
            let last = l.mail(members - 1, l.mail_slots - 1);
            assert!(last + MAIL_HEADER + l.mail_bytes <= l.ack(0));
            assert!(l.refused(members - 1) + 8 <= l.bytes);
            assert!(l.stage(1).is_multiple_of(64) && l.mail(1, 1).is_multiple_of(64) && l.ack(1).is_multiple_of(8));
            assert!(members > 256 || l.bytes < 1 << 20, "{members} members take {} bytes", l.bytes);
            assert!(l.bytes < 2 << 20, "{members} members take {} bytes", l.bytes);
        }
    }
}
