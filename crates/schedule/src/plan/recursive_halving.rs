//! Partners at distances …, 4, 2, 1 exchange halves of what they still hold and fold what they get.
//!
//! The optimal bytes of a reduce-scatter in log2 n message times when n is a power of two. An all-reduce goes on with the recursive doubling of the blocks
//! (Rabenseifner's algorithm). Other numbers of members as in `recursive_doubling.rs`: pairs of neighbours merge before, at the cost of a whole
//! message.

use super::recursive_doubling::{Core, exchange_blocks, serve};
use super::round::{Fold, Region, Round, Span};
use super::{Form, View};

pub(super) fn rounds(v: View<'_>) -> usize {
    let core = Core::of(v.n);
    let phases = if v.form == Form::AllReduce { 2 } else { 1 };
    2 * core.merges() + phases * core.rounds()
}

/// What is received; for a reduce-scatter, which may write nothing but its block, the partial results before it.
pub(super) fn scratch(v: View<'_>) -> usize {
    if v.form == Form::AllReduce { v.all().len } else { 2 * v.all().len }
}

pub(super) fn round(v: View<'_>, round: usize, out: &mut Round) {
    let core = Core::of(v.n);
    let Some(exchange) = round.checked_sub(core.merges()) else { return merge(v, core, out) };
    if exchange < core.rounds() {
        halve(v, core, exchange, out);
    } else if v.form == Form::ReduceScatter {
        deliver(v, core, out);
    } else if exchange < 2 * core.rounds() {
        exchange_blocks(v, core, exchange - core.rounds(), out);
    } else {
        serve(v, core, out);
    }
}

/// Where partial results are kept.
fn partial(v: View<'_>, span: Span) -> Region {
    if v.form == Form::AllReduce { v.destination(span) } else { v.scratch(span.start, span.len) }
}

fn received(v: View<'_>, span: Span) -> Region {
    let all = v.all();
    let behind = if v.form == Form::AllReduce { 0 } else { all.len };
    v.scratch(behind + span.start - all.start, span.len)
}

fn merge(v: View<'_>, core: Core, out: &mut Round) {
    let all = v.all();
    match core.other(v.me) {
        Some(upper) if upper > v.me => {
            out.receive(upper, received(v, all));
            out.fold(Fold::Partial, [v.source(all), received(v, all)], partial(v, all));
        }
        Some(lower) => out.send(lower, v.source(all)),
        None => {}
    }
}

fn halve(v: View<'_>, core: Core, round: usize, out: &mut Round) {
    let Some(index) = core.index(v.me) else { return };
    let run = 1 << (core.rounds() - 1 - round);
    let (ours, theirs) = (index & !(run - 1), (index ^ run) & !(run - 1));
    let (keep, give) = (core.blocks(v, ours, run), core.blocks(v, theirs, run));
    let partner = core.member(index ^ run);
    let held = |span| if round == 0 && core.other(v.me).is_none() { v.source(span) } else { partial(v, span) };
    out.receive(partner, received(v, keep));
    out.send(partner, held(give));
    let ordered = if v.me < partner { [held(keep), received(v, keep)] } else { [received(v, keep), held(keep)] };
    let last = run == 1 && core.other(v.me).is_none();
    out.fold(Fold::Partial, ordered, if last { v.result() } else { partial(v, keep) });
}

/// The finished blocks of a pair to their owners.
fn deliver(v: View<'_>, core: Core, out: &mut Round) {
    match core.other(v.me) {
        Some(upper) if upper > v.me => {
            out.send(upper, partial(v, v.block(upper)));
            out.copy_meanwhile(partial(v, v.block(v.me)), v.result());
        }
        Some(lower) => out.receive(lower, v.result()),
        None => {}
    }
}
