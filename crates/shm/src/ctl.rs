//! The protocol core: what a rank publishes and how its peers look at it. See `docs/design/protocol.md`.
//!
//! A [`Ctl`] is the first part of a rank's segment. Its owner writes it; peers have it mapped read-only, so every method
//! that writes is called on the own `Ctl` only. The loom models run this file with loom's atomics.

use crate::sync::{AtomicU32, AtomicU64, Ordering, Payload, fence, store_then_fence};

/// Call slots a rank rotates through. Slot reuse: post `s` only when every member has posted `s + 1 - SLOTS`.
pub(crate) const SLOTS: u64 = 4;

/// A value on cache lines of its own.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// One posted call.
#[repr(C, align(64))]
pub(crate) struct Slot {
    seq: AtomicU64,
    words: [AtomicU64; 3],
    pub(crate) payload: Payload,
}

#[repr(C)]
struct Board {
    poison: AtomicU64,
    waiting_on: AtomicU32,
    left: AtomicU32,
}

/// The three progress counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Steps copied into the in ring.
    Ready = 0,
    /// Steps whose in rings were read by this rank, and whose piece is in its out ring.
    Reduced = 1,
    /// Steps pulled by this rank.
    Done = 2,
}

/// The control part of a rank's segment. All zero is its initial state.
#[repr(C)]
pub(crate) struct Ctl {
    board: Line<Board>,
    bell: Line<AtomicU32>,
    progress: [Line<AtomicU64>; 3],
    slots: [Slot; SLOTS as usize],
}

/// Why a communicator became unusable, as one word: kind, culprit's global rank, sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poison {
    pub(crate) kind: PoisonKind,
    pub(crate) culprit: u32,
    pub(crate) seq: u32,
}

/// The kinds of poison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PoisonKind {
    Mismatch = 1,
    Timeout = 2,
    Lost = 3,
    Left = 4,
    Aborted = 5,
}

impl Poison {
    /// 4 bits of kind, 24 of rank, 32 of sequence number; never zero.
    pub(crate) fn pack(self) -> u64 {
        (self.kind as u64) << 60 | u64::from(self.culprit & 0xff_ffff) << 32 | u64::from(self.seq)
    }

    /// `None` for zero. An unknown kind can only come from a peer that scribbles; it counts as an abort.
    pub(crate) fn unpack(word: u64) -> Option<Poison> {
        if word == 0 {
            return None;
        }
        let kind = match word >> 60 {
            1 => PoisonKind::Mismatch,
            2 => PoisonKind::Timeout,
            3 => PoisonKind::Lost,
            4 => PoisonKind::Left,
            _ => PoisonKind::Aborted,
        };
        Some(Poison { kind, culprit: (word >> 32) as u32 & 0xff_ffff, seq: word as u32 })
    }

    /// Whether it concerns call `seq`: it was set in that call or an earlier one. Wraps.
    pub(crate) fn concerns(self, seq: u64) -> bool {
        (self.seq.wrapping_sub(seq as u32) as i32) <= 0
    }
}

impl Ctl {
    #[cfg(loom)]
    pub(crate) fn new() -> Ctl {
        let slot = || Slot {
            seq: AtomicU64::new(0),
            words: [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)],
            payload: Payload(loom::cell::UnsafeCell::new(0)),
        };
        let line = || Line(AtomicU64::new(0));
        Ctl {
            board: Line(Board { poison: AtomicU64::new(0), waiting_on: AtomicU32::new(0), left: AtomicU32::new(0) }),
            bell: Line(AtomicU32::new(0)),
            progress: [line(), line(), line()],
            slots: [slot(), slot(), slot(), slot()],
        }
    }

    /// The slot of call `seq`.
    #[inline]
    pub(crate) fn slot(&self, seq: u64) -> &Slot {
        &self.slots[(seq % SLOTS) as usize]
    }

    /// Own `Ctl`: publishes call `seq`. `fill` writes the payload first. The caller then rings (see [`Ctl::has_sleepers`]).
    #[inline]
    pub(crate) fn post(&self, seq: u64, words: [u64; 3], fill: impl FnOnce(&Payload)) {
        let slot = self.slot(seq);
        fill(&slot.payload);
        for (slot, word) in slot.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        // Releases payload and words to `has_posted`; ordered before the load of the sleepers' flags.
        store_then_fence(&slot.seq, seq);
    }

    /// Whether call `seq` (or a later one in its slot) has been posted. Acquires its words and payload.
    #[inline]
    pub(crate) fn has_posted(&self, seq: u64) -> bool {
        acquired(self.slot(seq).seq.load(Ordering::Relaxed) >= seq)
    }

    /// The descriptor words of a call that [`Ctl::has_posted`].
    #[inline]
    pub(crate) fn words(&self, seq: u64) -> [u64; 3] {
        let words = &self.slot(seq).words;
        [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed), words[2].load(Ordering::Relaxed)]
    }

    /// The newest posted call and its words, for diagnosis; racy by nature.
    pub(crate) fn last_posted(&self) -> (u64, [u64; 3]) {
        let newest = self.slots.iter().map(|slot| slot.seq.load(Ordering::Relaxed)).max().unwrap_or(0);
        (newest, self.words(newest))
    }

    /// Own `Ctl`: raises a progress counter. The caller then rings.
    #[inline]
    pub(crate) fn advance(&self, progress: Progress, value: u64) {
        // Releases the ring data written before, and the reads of foreign ring data done before, to `has_reached`.
        store_then_fence(&self.progress[progress as usize].0, value);
    }

    /// Whether a progress counter has reached `value`. Acquires what was written before.
    #[inline]
    pub(crate) fn has_reached(&self, progress: Progress, value: u64) -> bool {
        acquired(self.progress[progress as usize].0.load(Ordering::Relaxed) >= value)
    }

    /// Own `Ctl`: poisons, unless poisoned before. Ordered before everything the rank does later.
    pub(crate) fn poison(&self, poison: Poison) -> bool {
        let first = self.board.0.poison.compare_exchange(0, poison.pack(), Ordering::AcqRel, Ordering::Acquire).is_ok();
        // A direct reader that sees bytes written after this must see the poison: pairs with `recheck_fence`.
        fence(Ordering::SeqCst);
        first
    }

    /// The poison, if any.
    #[inline]
    pub(crate) fn poisoned(&self) -> Option<Poison> {
        // Relaxed: the word carries all there is to know.
        match self.board.0.poison.load(Ordering::Relaxed) {
            0 => None,
            word => Poison::unpack(word),
        }
    }

    /// Own `Ctl`: this rank will post nothing more.
    pub(crate) fn leave(&self) {
        self.board.0.left.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether the rank left. Read it before a last look at what it posted.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        acquired(self.board.0.left.load(Ordering::Relaxed) != 0)
    }

    /// Own `Ctl`: about to sleep until `member` publishes. Returns its bell, to be given to the futex after the caller has
    /// looked at its condition once more.
    pub(crate) fn prepare_sleep(&self, member: usize, target: &Ctl) -> u32 {
        self.board.0.waiting_on.store(member as u32 + 1, Ordering::Relaxed);
        // Orders the flag before the caller's recheck: the other half of `store_then_fence`.
        fence(Ordering::SeqCst);
        // Pairs with `change_bell`: who reads the new bell, and so would sleep on it, sees the publication when it rechecks.
        let bell = target.bell.0.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        bell
    }

    /// Own `Ctl`: awake again.
    pub(crate) fn finish_sleep(&self) {
        self.board.0.waiting_on.store(0, Ordering::Relaxed);
    }

    /// Whether this rank sleeps (or is about to) until `member` publishes. Looked at after `store_then_fence`.
    #[inline]
    pub(crate) fn sleeps_on(&self, member: usize) -> bool {
        self.board.0.waiting_on.load(Ordering::Relaxed) == member as u32 + 1
    }

    /// Own `Ctl`: changes the bell, so that a sleeper that is about to sleep does not. The caller then wakes the futex.
    pub(crate) fn change_bell(&self) {
        self.bell.0.fetch_add(1, Ordering::Release);
    }

    /// The futex word.
    #[cfg(not(loom))]
    pub(crate) fn bell(&self) -> &AtomicU32 {
        &self.bell.0
    }

    /// For the models: the bell's value.
    #[cfg(loom)]
    pub(crate) fn bell_value(&self) -> u32 {
        self.bell.0.load(Ordering::Acquire)
    }
}

/// Acquires what was released before the relaxed load that gave `seen`, if it did.
///
/// Peers' words lie in read-only mappings, where the standard library promises relaxed loads only.
#[inline]
pub(crate) fn acquired(seen: bool) -> bool {
    if seen {
        fence(Ordering::Acquire);
    }
    seen
}

/// To be put between the last read of foreign memory and the look at the poison words.
#[inline]
pub(crate) fn recheck_fence() {
    fence(Ordering::Acquire);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn poison_round_trips_and_compares_with_wrap() {
        let poison = Poison { kind: PoisonKind::Lost, culprit: 77, seq: 5 };
        assert_eq!(Poison::unpack(poison.pack()), Some(poison));
        assert_eq!(Poison::unpack(0), None);
        assert!(poison.concerns(5) && poison.concerns(6) && !poison.concerns(4));
        let late = Poison { seq: u32::MAX, ..poison };
        assert!(late.concerns(1 << 32) && !late.concerns((1 << 32) - 2));
    }

    #[test]
    fn layout_is_what_the_protocol_page_says() {
        assert_eq!(size_of::<Slot>(), 512);
        assert_eq!(size_of::<Ctl>(), 5 * 64 + 4 * 512);
        assert_eq!(align_of::<Ctl>(), 64);
    }
}
