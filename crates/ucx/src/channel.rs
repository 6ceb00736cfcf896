//! What one rank knows of one communicator.

use rankwise_core::backend::CommSpec;
use rankwise_core::descriptor::Words;
use rankwise_core::{Error, ErrorKind};
use rankwise_schedule::Selection;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Calls whose descriptors are remembered, for those who ask later.
const REMEMBERED: usize = 32;

/// Refusals and disputes that are remembered, at most.
const MOST_NOTES: usize = 64;

/// One communicator.
pub(crate) struct Channel {
    pub(crate) spec: CommSpec,
    /// Position of this rank.
    pub(crate) me: usize,
    pub(crate) selection: Selection,
    /// Collective calls begun.
    pub(crate) begun: u64,
    /// Sends to, and receives from, each member.
    pub(crate) sent: Vec<u64>,
    pub(crate) received: Vec<u64>,
    /// Jobs of collectives, the first of which runs.
    pub(crate) queue: VecDeque<usize>,
    /// The first failure.
    pub(crate) cause: Option<Error>,
    /// A call has returned it.
    pub(crate) told: bool,
    pub(crate) closed: bool,
    /// No handle is left.
    pub(crate) dropped: bool,
    /// Who has gone: after how many collective calls, when it was learned, and how.
    pub(crate) gone: Vec<Option<(u64, Duration, Error)>>,
    /// What members have called, by number: their descriptors where they were told.
    pub(crate) notes: BTreeMap<u64, Vec<Option<Words>>>,
    /// What the members have said of how far they are, for a call that is late.
    pub(crate) seen: Vec<Option<(u64, Words)>>,
    /// This rank's last calls.
    history: VecDeque<(u64, Words)>,
    /// A call of earlier, about which others disagree, and until when their descriptors are waited for.
    pub(crate) dispute: Option<(u64, Duration)>,
    /// Receives that members have refused: whose, which message, and its descriptor.
    pub(crate) refused_receives: Vec<(usize, u64, Words)>,
}

impl Channel {
    pub(crate) fn new(spec: CommSpec, me: usize, selection: Selection) -> Channel {
        let members = spec.group.len();
        Channel {
            spec,
            me,
            selection,
            begun: 0,
            sent: vec![0; members],
            received: vec![0; members],
            queue: VecDeque::new(),
            cause: None,
            told: false,
            closed: false,
            dropped: false,
            gone: vec![None; members],
            notes: BTreeMap::new(),
            seen: vec![None; members],
            dispute: None,
            history: VecDeque::with_capacity(REMEMBERED),
            refused_receives: Vec::new(),
        }
    }

    pub(crate) fn global(&self, position: usize) -> usize {
        self.spec.group.global(position).unwrap_or(usize::MAX)
    }

    /// The other members.
    pub(crate) fn others(&self) -> Vec<usize> {
        self.spec.group.ranks().filter(|rank| *rank != self.global(self.me)).collect()
    }

    pub(crate) fn remember(&mut self, sequence: u64, words: Words) {
        if self.history.len() == REMEMBERED {
            self.history.pop_front();
        }
        self.history.push_back((sequence, words));
    }

    pub(crate) fn own_words(&self, sequence: u64) -> Option<Words> {
        self.history.iter().find(|(number, _)| *number == sequence).map(|(_, words)| *words)
    }

    pub(crate) fn last_words(&self) -> Words {
        self.history.back().map_or([0; 3], |(_, words)| *words)
    }

    /// Notes what a member called.
    pub(crate) fn note(&mut self, sequence: u64, member: usize, words: Words) {
        let members = self.spec.group.len();
        self.notes.entry(sequence).or_insert_with(|| vec![None; members])[member] = Some(words);
        if self.notes.len() > MOST_NOTES {
            self.notes.pop_first();
        }
    }

    /// What later calls return.
    pub(crate) fn usable(&mut self) -> rankwise_core::Result<()> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed, "the communicator was finalized; make a new one"));
        }
        let rank = self.global(self.me);
        let Some(cause) = &self.cause else { return Ok(()) };
        if !std::mem::replace(&mut self.told, true) {
            return Err(cause.clone().with_group(&self.spec.group, rank));
        }
        let kind = cause.kind().name();
        let text = format!(
            "{kind} in an earlier call made this communicator unusable; make a new one of the ranks that are left"
        );
        Err(Error::new(ErrorKind::Poisoned, text)
            .with_group(&self.spec.group, rank)
            .with_peers(cause.peers().iter().copied())
            .with_source(cause.clone()))
    }
}
