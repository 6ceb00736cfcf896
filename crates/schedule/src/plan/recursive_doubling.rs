//! Partners at distances 1, 2, 4, … exchange all they have.
//!
//! log2 n message times. Of n members the largest power of two, the *core*, takes part; the others are merged before and served after: the
//! first 2(n - p) members form pairs of neighbours, of which the lower one is in the core for both. So the members behind a core member are
//! always consecutive, partial results are folded lower ranks first on both sides, and all members get the same bits.

use super::round::{Fold, Region, Round, Span};
use super::{Form, View};

/// The members that exchange among themselves, and whom they stand for.
#[derive(Clone, Copy)]
pub(super) struct Core {
    /// Number of core members, a power of two.
    size: usize,
    /// Pairs of neighbours at the beginning of the group.
    pairs: usize,
}

impl Core {
    pub(super) fn of(n: usize) -> Core {
        let size = 1 << n.ilog2();
        Core { size, pairs: n - size }
    }

    /// Rounds of the exchange.
    pub(super) fn rounds(self) -> usize {
        self.size.ilog2() as usize
    }

    /// One round before the exchange if there are pairs.
    pub(super) fn merges(self) -> usize {
        usize::from(self.pairs > 0)
    }

    /// Index in the core of a member; `None` for the upper one of a pair.
    pub(super) fn index(self, member: usize) -> Option<usize> {
        match member {
            paired if paired < 2 * self.pairs => (paired % 2 == 0).then_some(paired / 2),
            alone => Some(alone - self.pairs),
        }
    }

    /// The member at an index of the core: also the first of those it stands for. The size of the core gives n.
    pub(super) fn member(self, index: usize) -> usize {
        if index < self.pairs { 2 * index } else { index + self.pairs }
    }

    /// The other one of the member's pair.
    pub(super) fn other(self, member: usize) -> Option<usize> {
        (member < 2 * self.pairs).then_some(member ^ 1)
    }

    /// The blocks of all members that the `count` core members from `first` stand for.
    pub(super) fn blocks(self, v: View<'_>, first: usize, count: usize) -> Span {
        v.blocks(self.member(first), self.member(first + count))
    }
}

pub(super) fn rounds(v: View<'_>) -> usize {
    let core = Core::of(v.n);
    2 * core.merges() + core.rounds()
}

pub(super) fn scratch(v: View<'_>) -> usize {
    if v.form == Form::AllReduce { v.all().len } else { 0 }
}

pub(super) fn round(v: View<'_>, round: usize, out: &mut Round) {
    let core = Core::of(v.n);
    let exchange = round.wrapping_sub(core.merges());
    match (v.form, exchange < core.rounds()) {
        (Form::AllReduce, true) => exchange_sums(v, core, exchange, out),
        (_, true) => exchange_blocks(v, core, exchange, out),
        (_, false) if round > 0 => serve(v, core, out),
        (Form::AllReduce, false) => merge_sums(v, core, out),
        (_, false) => merge_blocks(v, core, out),
    }
}

fn merge_sums(v: View<'_>, core: Core, out: &mut Round) {
    let (all, received) = (v.all(), v.scratch(0, v.all().len));
    match core.other(v.me) {
        Some(upper) if upper > v.me => {
            out.receive(upper, received);
            out.fold(Fold::Partial, [v.source(all), received], v.destination(all));
        }
        Some(lower) => out.send(lower, v.source(all)),
        None => {}
    }
}

fn exchange_sums(v: View<'_>, core: Core, round: usize, out: &mut Round) {
    let Some(index) = core.index(v.me) else { return };
    let (all, received) = (v.all(), v.scratch(0, v.all().len));
    let partner = core.member(index ^ 1 << round);
    let untouched = round == 0 && core.other(v.me).is_none();
    let partial: Region = if untouched { v.source(all) } else { v.destination(all) };
    out.receive(partner, received);
    out.send(partner, partial);
    let ordered = if v.me < partner { [partial, received] } else { [received, partial] };
    out.fold(Fold::Partial, ordered, v.destination(all));
}

fn merge_blocks(v: View<'_>, core: Core, out: &mut Round) {
    match core.other(v.me) {
        Some(upper) if upper > v.me => {
            out.receive(upper, v.destination(v.block(upper)));
            v.place_contribution(out);
        }
        Some(lower) => out.send(lower, v.contribution()),
        None => {}
    }
}

/// A round of the exchange of blocks: each core member has those of an aligned run of `2^round` core members, and gets as many.
pub(super) fn exchange_blocks(v: View<'_>, core: Core, round: usize, out: &mut Round) {
    let Some(index) = core.index(v.me) else { return };
    let run = 1 << round;
    let (ours, theirs) = (index & !(run - 1), (index ^ run) & !(run - 1));
    let partner = core.member(index ^ run);
    out.receive(partner, v.destination(core.blocks(v, theirs, run)));
    if round == 0 && core.other(v.me).is_none() {
        out.send(partner, v.contribution());
        v.place_contribution(out);
    } else {
        out.send(partner, v.destination(core.blocks(v, ours, run)));
    }
}

/// The whole result for those who did not take part.
pub(super) fn serve(v: View<'_>, core: Core, out: &mut Round) {
    match core.other(v.me) {
        Some(upper) if upper > v.me => out.send(upper, v.destination(v.all())),
        Some(lower) => out.receive(lower, v.destination(v.all())),
        None => {}
    }
}
