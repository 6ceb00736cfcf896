//! A plan as one chunk's rounds see it.

use super::round::{Buffer, Fold, Region, Round, Span};
use super::{Form, Plan};

/// One chunk of a plan: regions by the names the algorithms use.
#[derive(Clone, Copy)]
pub(crate) struct View<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) form: Form,
    pub(crate) me: usize,
    pub(crate) n: usize,
    pub(crate) root: usize,
    pub(crate) chunk: usize,
    /// Where the lane's scratch begins.
    pub(crate) scratch: usize,
}

impl View<'_> {
    fn chunk(&self) -> (usize, usize) {
        (self.chunk, self.plan.chunks)
    }

    /// The member `distance` behind in the circle. `distance` is at most n.
    pub(crate) fn down(&self, distance: usize) -> usize {
        let position = self.me + self.n - distance;
        if position >= self.n { position - self.n } else { position }
    }

    /// The member `distance` ahead in the circle. `distance` is at most n.
    pub(crate) fn up(&self, distance: usize) -> usize {
        let position = self.me + distance;
        if position >= self.n { position - self.n } else { position }
    }

    /// The members but this one, nearest ahead first, so that not everybody begins with the same.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let view = *self;
        (1..view.n).map(move |distance| view.up(distance))
    }

    /// Whether this member is the root.
    pub(crate) fn is_root(&self) -> bool {
        self.me == self.root
    }

    /// How far this member is ahead of the root.
    pub(crate) fn hops(&self) -> usize {
        if self.me >= self.root { self.me - self.root } else { self.me + self.n - self.root }
    }

    /// Member `q`'s block of the divided buffer; of an undivided one the part that the plan gives it.
    pub(crate) fn block(&self, q: usize) -> Span {
        self.plan.blocks.block(self.n, q, self.chunk())
    }

    /// Blocks `from..to` together.
    pub(crate) fn blocks(&self, from: usize, to: usize) -> Span {
        self.plan.blocks.range(self.n, from, to, self.chunk())
    }

    /// All blocks.
    pub(crate) fn all(&self) -> Span {
        self.blocks(0, self.n)
    }

    /// Elements of the longest block of the chunk.
    pub(crate) fn longest(&self) -> usize {
        self.plan.blocks.longest(self.n).div_ceil(self.plan.chunks)
    }

    /// Elements of the blocks of `count` members around the circle from `first` on.
    pub(crate) fn around(&self, first: usize, count: usize) -> usize {
        let (front, back) = self.arc(first, count);
        front.len + back.len
    }

    /// The blocks of `count` members around the circle from `first` on: those up to the end of the buffer, and those from its beginning.
    pub(crate) fn arc(&self, first: usize, count: usize) -> (Span, Span) {
        let end = first + count;
        (self.blocks(first, end.min(self.n)), self.blocks(0, end.saturating_sub(self.n)))
    }

    /// In an all-to-all, where the data of `q` goes.
    pub(crate) fn received(&self, q: usize) -> Span {
        self.plan.received.block(self.n, q, self.chunk())
    }

    pub(crate) fn source(&self, span: Span) -> Region {
        Region::new(Buffer::Source, span)
    }

    pub(crate) fn destination(&self, span: Span) -> Region {
        Region::new(Buffer::Destination, span)
    }

    pub(crate) fn scratch(&self, start: usize, len: usize) -> Region {
        Region { buffer: Buffer::Scratch, start: self.scratch + start, len }
    }

    /// The block of this member where it is the whole buffer: in the source of a gather, in the destination of a scatter.
    fn lone(&self) -> Span {
        let whole = self.plan.blocks.block(self.n, self.me, (0, 1));
        Span { start: 0, len: whole.len }.part(self.plan.chunks, self.chunk)
    }

    /// What this member brings into a gathering of blocks.
    pub(crate) fn contribution(&self) -> Region {
        match self.form {
            Form::AllGather | Form::Gather => self.source(self.lone()),
            _ => self.destination(self.block(self.me)),
        }
    }

    /// Where this member's block goes when blocks are scattered.
    pub(crate) fn result(&self) -> Region {
        match self.form {
            Form::ReduceScatter | Form::Scatter => self.destination(self.lone()),
            _ => self.destination(self.block(self.me)),
        }
    }

    /// Copies what this member contributes to its place among the gathered, where it is not there already.
    pub(crate) fn place_contribution(&self, out: &mut Round) {
        if matches!(self.form, Form::AllGather | Form::Gather) {
            out.copy_meanwhile(self.contribution(), self.destination(self.block(self.me)));
        }
    }

    /// The one round of a group of one.
    pub(crate) fn alone(&self, out: &mut Round) {
        let all = self.all();
        match self.form {
            Form::AllReduce | Form::Reduce | Form::ReduceScatter => {
                out.fold(Fold::Whole, [self.source(all)], self.destination(all));
            }
            _ => out.copy(self.source(all), self.destination(all)),
        }
    }
}
