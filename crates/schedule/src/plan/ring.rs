//! Neighbour to neighbour: blocks travel around the circle, or data along a chain from or to the root.
//!
//! The optimal number of bytes with one partner on each side; n - 1 message times (twice that for an all-reduce). A block's contributions
//! are folded along its way, which begins behind its owner: block b takes those of b + 1, b + 2, …, b in this order.

use super::round::{Fold, Round};
use super::{Form, View};

pub(super) fn rounds(v: View<'_>) -> usize {
    match v.form {
        Form::AllReduce => 2 * (v.n - 1),
        _ => v.n - 1,
    }
}

pub(super) fn scratch(v: View<'_>) -> usize {
    match v.form {
        Form::AllReduce | Form::ReduceScatter => 2 * v.longest(),
        Form::Reduce => v.all().len,
        _ => 0,
    }
}

pub(super) fn round(v: View<'_>, round: usize, out: &mut Round) {
    match v.form {
        Form::AllReduce if round < v.n - 1 => reduce_scatter(v, round, out),
        Form::AllReduce => all_gather(v, round - (v.n - 1), out),
        Form::ReduceScatter => reduce_scatter(v, round, out),
        Form::AllGather => all_gather(v, round, out),
        Form::Broadcast => broadcast(v, round, out),
        _ => reduce(v, round, out),
    }
}

/// What was folded in the last round goes on; what arrives meets this member's contribution.
fn reduce_scatter(v: View<'_>, round: usize, out: &mut Round) {
    let half = v.longest();
    let (leaving, coming) = (v.block(v.down(round + 1)), v.block(v.down(round + 2)));
    let received = v.scratch(round % 2 * half, coming.len);
    out.receive(v.down(1), received);
    out.send(v.up(1), if round == 0 { v.source(leaving) } else { v.scratch((round + 1) % 2 * half, leaving.len) });
    let to = if round == v.n - 2 { v.result() } else { received };
    out.fold(Fold::Partial, [received, v.source(coming)], to);
}

/// What arrived in the last round goes on.
pub(super) fn all_gather(v: View<'_>, round: usize, out: &mut Round) {
    let (leaving, coming) = (v.block(v.down(round)), v.block(v.down(round + 1)));
    out.receive(v.down(1), v.destination(coming));
    if round == 0 {
        out.send(v.up(1), v.contribution());
        v.place_contribution(out);
    } else {
        out.send(v.up(1), v.destination(leaving));
    }
}

/// Down the chain from the root.
fn broadcast(v: View<'_>, round: usize, out: &mut Round) {
    let (all, hops) = (v.all(), v.hops());
    if hops == round + 1 {
        out.receive(v.down(1), v.destination(all));
    }
    if hops == round {
        out.send(v.up(1), if v.is_root() { v.source(all) } else { v.destination(all) });
        if v.is_root() {
            out.copy_meanwhile(v.source(all), v.destination(all));
        }
    }
}

/// Up the chain to the root.
fn reduce(v: View<'_>, round: usize, out: &mut Round) {
    let (all, hops) = (v.all(), v.hops());
    let partial = v.scratch(0, all.len);
    let sender = v.n - 1 - round;
    if hops == sender {
        out.send(v.down(1), if round == 0 { v.source(all) } else { partial });
    }
    if hops + 1 == sender {
        out.receive(v.up(1), partial);
        let to = if v.is_root() { v.destination(all) } else { partial };
        out.fold(Fold::Partial, [v.source(all), partial], to);
    }
}
