//! A round for each distance d = 1 … n - 1: send to the member d ahead, receive from the one d behind.
//!
//! The bytes of the direct exchange, with one partner at a time on each side: for long messages, which would get in each other's way. A
//! reduction folds this member's contribution, then those of the members behind, nearest first.

use super::round::{Fold, Round};
use super::{Form, View};

pub(super) fn scratch(v: View<'_>) -> usize {
    if v.form == Form::ReduceScatter { v.block(v.me).len } else { 0 }
}

pub(super) fn round(v: View<'_>, round: usize, out: &mut Round) {
    let (to, from) = (v.up(round + 1), v.down(round + 1));
    out.send(to, v.source(v.block(to)));
    if v.form == Form::ReduceScatter {
        let mine = v.block(v.me);
        let received = v.scratch(0, mine.len);
        out.receive(from, received);
        // In place the result takes the place of this member's contribution, which nobody else needs.
        let partial = if round == 0 { v.source(mine) } else { v.result() };
        out.fold(Fold::Partial, [partial, received], v.result());
        return;
    }
    out.receive(from, v.destination(v.received(from)));
    if round == 0 {
        out.copy_meanwhile(v.source(v.block(v.me)), v.destination(v.received(v.me)));
    }
}
