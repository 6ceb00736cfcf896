//! A tree in which each round multiplies the number of members reached by the radix. Radix 2 is the binomial tree.
//!
//! ceil(log_k n) message times, with up to k - 1 messages at once. Members are counted in *hops* from the root, around the circle. A member
//! whose hops are a multiple of k^r stands for the k^r members from it on. Partial results fold in hops, so that with root 0 the order is the
//! group's. An all-reduce reduces to member 0 and broadcasts.

use super::round::{Fold, Region, Round, Span};
use super::{Form, View};

/// One member's place in the tree.
#[derive(Clone, Copy)]
struct Node<'p> {
    v: View<'p>,
    radix: usize,
    hops: usize,
}

pub(super) fn rounds(v: View<'_>, radix: usize) -> usize {
    let levels = levels(v.n, radix);
    match v.form {
        Form::AllReduce => 2 * levels,
        // The root packs first.
        Form::Scatter => levels + 1,
        _ => levels,
    }
}

pub(super) fn scratch(v: View<'_>, radix: usize) -> usize {
    let node = Node { v, radix, hops: v.hops() };
    match v.form {
        Form::AllReduce | Form::Reduce => radix.min(v.n) * v.all().len,
        Form::Gather | Form::Scatter if v.is_root() => {
            if v.root == 0 {
                0
            } else {
                v.all().len
            }
        }
        Form::Gather | Form::Scatter if node.is_leaf() => 0,
        Form::Gather | Form::Scatter => v.around(v.me, node.subtree()),
        _ => 0,
    }
}

pub(super) fn round(v: View<'_>, radix: usize, round: usize, out: &mut Round) {
    let node = Node { v, radix, hops: v.hops() };
    let levels = levels(v.n, radix);
    match v.form {
        Form::Broadcast => node.broadcast(radix.pow((levels - 1 - round) as u32), v.source(v.all()), out),
        Form::Reduce => node.reduce(radix.pow(round as u32), out),
        Form::AllReduce if round < levels => node.reduce(radix.pow(round as u32), out),
        Form::AllReduce => {
            node.broadcast(radix.pow((2 * levels - 1 - round) as u32), v.destination(v.all()), out);
        }
        Form::Gather => node.gather(radix.pow(round as u32), out),
        _ if round == 0 => node.pack(out),
        _ => node.scatter(radix.pow((levels - round) as u32), out),
    }
}

/// The least number of rounds after which all are reached.
fn levels(n: usize, radix: usize) -> usize {
    let (mut levels, mut reached) = (0, 1_usize);
    while reached < n {
        reached = reached.saturating_mul(radix);
        levels += 1;
    }
    levels
}

impl<'p> Node<'p> {
    /// Members that this one stands for where it sends up to its parent or gets from it; of the root all.
    fn subtree(self) -> usize {
        let mut span = 1;
        while span < self.v.n && self.hops.is_multiple_of(span * self.radix) {
            span *= self.radix;
        }
        span.min(self.v.n - self.hops)
    }

    fn is_leaf(self) -> bool {
        !self.hops.is_multiple_of(self.radix) || self.hops + 1 == self.v.n
    }

    fn member(self, hops: usize) -> usize {
        (hops + self.v.root) % self.v.n
    }

    fn is_parent(self, span: usize) -> bool {
        self.hops.is_multiple_of(span * self.radix)
    }

    /// The parent in the round in which members stand for `span`, if this member meets it then.
    fn parent(self, span: usize) -> Option<usize> {
        (self.hops.is_multiple_of(span) && !self.is_parent(span))
            .then(|| self.member(self.hops - self.hops % (span * self.radix)))
    }

    /// Hops of the children of that round.
    fn children(self, span: usize) -> impl Iterator<Item = usize> + use<> {
        let (hops, n, radix) = (self.hops, self.v.n, self.radix);
        let some = if self.is_parent(span) { radix } else { 1 };
        (1..some).map(move |nth| hops + nth * span).take_while(move |child| *child < n)
    }

    fn broadcast(self, span: usize, roots: Region, out: &mut Round) {
        let v = self.v;
        let all = v.destination(v.all());
        if let Some(parent) = self.parent(span) {
            out.receive(parent, all);
        }
        for child in self.children(span) {
            out.send(self.member(child), if self.hops == 0 { roots } else { all });
        }
        if self.hops == 0 && span == 1 && v.form == Form::Broadcast {
            out.copy_meanwhile(roots, all);
        }
    }

    fn reduce(self, span: usize, out: &mut Round) {
        let v = self.v;
        let len = v.all().len;
        let has_destination = self.hops == 0 || v.form == Form::AllReduce;
        let partial = if has_destination { v.destination(v.all()) } else { v.scratch(0, len) };
        // The nearest child comes in the first round.
        let untouched = span == 1 || self.hops + 1 == v.n;
        let held = if untouched { v.source(v.all()) } else { partial };
        if let Some(parent) = self.parent(span) {
            out.send(parent, held);
        }
        let slot = |nth: usize| v.scratch(nth * len, len);
        let children = self.children(span).count();
        for (nth, child) in self.children(span).enumerate() {
            out.receive(self.member(child), slot(nth + 1));
        }
        if children > 0 {
            out.fold(Fold::Partial, std::iter::once(held).chain((1..=children).map(slot)), partial);
        }
    }

    /// The members that a child stands for in the round of `span`.
    fn stands_for(self, child: usize, span: usize) -> usize {
        span.min(self.v.n - child)
    }

    /// Where this member, not the root, keeps the blocks of a child: in order of hops, its own first.
    fn kept(self, child: usize, span: usize) -> Region {
        let v = self.v;
        v.scratch(v.around(v.me, child - self.hops), v.around(self.member(child), self.stands_for(child, span)))
    }

    /// At the root the blocks of a child are consecutive but for one, whose begin at the end of the buffer and go on at its
    /// beginning: those two pieces.
    fn pieces(self, child: usize, span: usize) -> (Span, Option<Span>) {
        match self.v.arc(self.member(child), self.stands_for(child, span)) {
            (front, back) if self.member(child) + self.stands_for(child, span) > self.v.n => (front, Some(back)),
            (front, _) => (front, None),
        }
    }

    fn gather(self, span: usize, out: &mut Round) {
        let v = self.v;
        if let Some(parent) = self.parent(span) {
            let leaf = self.is_leaf();
            out.send(parent, if leaf { v.contribution() } else { v.scratch(0, v.around(v.me, self.subtree())) });
        }
        for child in self.children(span) {
            if self.hops > 0 {
                out.receive(self.member(child), self.kept(child, span));
                continue;
            }
            match self.pieces(child, span) {
                (whole, None) => out.receive(self.member(child), v.destination(whole)),
                (front, Some(back)) => {
                    out.receive(self.member(child), v.scratch(0, front.len + back.len));
                    out.copy(v.scratch(0, front.len), v.destination(front));
                    out.copy(v.scratch(front.len, back.len), v.destination(back));
                }
            }
        }
        if span == 1 && self.hops == 0 {
            v.place_contribution(out);
        } else if span == 1 && !self.is_leaf() {
            out.copy_meanwhile(v.contribution(), v.scratch(0, v.block(v.me).len));
        }
    }

    /// The root lays the pieces of the child that has two side by side, and takes its own block.
    fn pack(self, out: &mut Round) {
        let v = self.v;
        if self.hops > 0 {
            return;
        }
        out.copy(v.source(v.block(v.me)), v.result());
        let mut span = 1;
        while span < v.n {
            for child in self.children(span) {
                if let (front, Some(back)) = self.pieces(child, span) {
                    out.copy(v.source(front), v.scratch(0, front.len));
                    out.copy(v.source(back), v.scratch(front.len, back.len));
                }
            }
            span *= self.radix;
        }
    }

    fn scatter(self, span: usize, out: &mut Round) {
        let v = self.v;
        if let Some(parent) = self.parent(span) {
            if self.is_leaf() {
                out.receive(parent, v.result());
            } else {
                out.receive(parent, v.scratch(0, v.around(v.me, self.subtree())));
                out.copy(v.scratch(0, v.block(v.me).len), v.result());
            }
        }
        for child in self.children(span) {
            let blocks = match self.pieces(child, span) {
                _ if self.hops > 0 => self.kept(child, span),
                (whole, None) => v.source(whole),
                (front, Some(back)) => v.scratch(0, front.len + back.len),
            };
            out.send(self.member(child), blocks);
        }
    }
}
