//! The words plans are written in: regions of buffers, messages, local steps, and a round of them.

/// One of the three buffers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's data; never written.
    Source,
    /// The caller's result. In place it overlaps the source as [`rankwise_core::backend::RawCall`] says.
    Destination,
    /// The plan's own memory.
    Scratch,
}

/// Consecutive elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Which buffer.
    pub buffer: Buffer,
    /// First element.
    pub start: usize,
    /// Number of elements; may be 0.
    pub len: usize,
}

impl Region {
    pub(crate) fn new(buffer: Buffer, span: Span) -> Region {
        Region { buffer, start: span.start, len: span.len }
    }
}

/// Consecutive elements of no buffer in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Span {
    pub(crate) fn end(self) -> usize {
        self.start + self.len
    }

    /// Part `index` of `parts` that differ by one element at most, the longer ones first.
    pub(crate) fn part(self, parts: usize, index: usize) -> Span {
        let (quotient, rest) = (self.len / parts, self.len % parts);
        let start = self.start + index * quotient + index.min(rest);
        Span { start, len: quotient + usize::from(index < rest) }
    }
}

/// What goes to, or comes from, a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other side's position in the group.
    pub peer: usize,
    /// Read for a send, written for a receive.
    pub region: Region,
}

/// How a reduction treats what it combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// The contributions of all members in group order, at once: the call's operator with its scaling.
    Whole,
    /// Contributions and partial results: the call's operator, which does not scale ([`super::Algorithm::folds_whole`]).
    Partial,
}

/// What a rank does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Copies; equal lengths. The two don't overlap, or are the same memory in a call in place.
    Copy {
        /// Read.
        from: Region,
        /// Written.
        to: Region,
    },
    /// `to = from[0] op from[1] op …`; each as long as `to`, and apart from it or the same.
    Reduce {
        /// How.
        fold: Fold,
        /// First and last-but-one index into [`Round::sources`].
        from: (usize, usize),
        /// Written.
        to: Region,
    },
}

/// A round of a plan: post the receives and the sends, do `meanwhile`, wait for all messages, do `after`.
///
/// Within a round there is one message at most from a rank to another. What `meanwhile` writes is not under way, and what it reads
/// is not being received.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// To be posted first.
    pub receives: Vec<Message>,
    /// To be posted then.
    pub sends: Vec<Message>,
    /// Local steps that overlap with the messages.
    pub meanwhile: Vec<Local>,
    /// Local steps on what has arrived, in this order.
    pub after: Vec<Local>,
    /// What the local steps combine.
    pub sources: Vec<Region>,
}

impl Round {
    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        self.receives.clear();
        self.sends.clear();
        self.meanwhile.clear();
        self.after.clear();
        self.sources.clear();
    }

    pub(crate) fn send(&mut self, peer: usize, region: Region) {
        self.sends.push(Message { peer, region });
    }

    pub(crate) fn receive(&mut self, peer: usize, region: Region) {
        self.receives.push(Message { peer, region });
    }

    pub(crate) fn copy_meanwhile(&mut self, from: Region, to: Region) {
        if to.len > 0 {
            self.meanwhile.push(Local::Copy { from, to });
        }
    }

    pub(crate) fn copy(&mut self, from: Region, to: Region) {
        if to.len > 0 {
            self.after.push(Local::Copy { from, to });
        }
    }

    pub(crate) fn fold(&mut self, fold: Fold, from: impl IntoIterator<Item = Region>, to: Region) {
        if to.len > 0 {
            let first = self.sources.len();
            self.sources.extend(from);
            self.after.push(Local::Reduce { fold, from: (first, self.sources.len()), to });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_span_without_gaps() {
        for len in 0..40 {
            for parts in 1..12 {
                let span = Span { start: 5, len };
                let mut next = span.start;
                for index in 0..parts {
                    let part = span.part(parts, index);
                    assert_eq!(part.start, next);
                    assert!(part.len <= span.part(parts, 0).len && part.len + 1 >= span.part(parts, 0).len);
                    next = part.end();
                }
                assert_eq!(next, span.end());
            }
        }
    }
}
