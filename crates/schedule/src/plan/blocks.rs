//! How a buffer is divided among the members.

use super::round::Span;

/// One block per member, in group order, without gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    rule: Rule,
    /// Of [`Rule::Uneven`]: n + 1 offsets.
    starts: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    /// All blocks of this length.
    Even(usize),
    /// A total divided as evenly as possible.
    Parts(usize),
    /// By a list of offsets.
    Uneven,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule::Even(0)
    }
}

impl Blocks {
    pub(crate) fn even(&mut self, len: usize) {
        self.rule = Rule::Even(len);
    }

    pub(crate) fn parts(&mut self, total: usize) {
        self.rule = Rule::Parts(total);
    }

    /// The sum of the counts does not overflow.
    pub(crate) fn uneven(&mut self, counts: &[usize]) {
        self.rule = Rule::Uneven;
        self.starts.clear();
        self.starts.push(0);
        let mut end = 0;
        for count in counts {
            end += count;
            self.starts.push(end);
        }
    }

    /// Block `index` of `n`. `chunk` is (index, number): a total is cut into chunks first and those into parts; of other blocks this is the
    /// chunk of the block.
    pub(crate) fn block(&self, n: usize, index: usize, chunk: (usize, usize)) -> Span {
        match self.rule {
            Rule::Even(len) => Span { start: index * len, len }.part(chunk.1, chunk.0),
            Rule::Parts(len) => Span { start: 0, len }.part(chunk.1, chunk.0).part(n, index),
            Rule::Uneven => {
                let (start, end) = (self.starts[index], self.starts[index + 1]);
                Span { start, len: end - start }.part(chunk.1, chunk.0)
            }
        }
    }

    /// Blocks `from..to` together.
    pub(crate) fn range(&self, n: usize, from: usize, to: usize, chunk: (usize, usize)) -> Span {
        debug_assert!(
            chunk.1 == 1 || to - from == 1 || matches!(self.rule, Rule::Parts(_)),
            "chunks of blocks are apart"
        );
        if from == to {
            return Span { start: if from == 0 { 0 } else { self.block(n, from - 1, chunk).end() }, len: 0 };
        }
        let start = self.block(n, from, chunk).start;
        Span { start, len: self.block(n, to - 1, chunk).end() - start }
    }

    /// Elements of the longest block.
    pub(crate) fn longest(&self, n: usize) -> usize {
        match self.rule {
            Rule::Even(len) => len,
            Rule::Parts(total) => total.div_ceil(n),
            Rule::Uneven => self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0),
        }
    }
}
