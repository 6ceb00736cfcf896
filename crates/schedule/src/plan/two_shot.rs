//! Two direct rounds: every member owns a part; what belongs to a part goes to its owner, then from it to whoever wants the result.
//!
//! The optimal number of bytes, 2(n - 1)/n of the data a member, in two message times; it costs n - 1 messages a round. An owner folds in group
//! order. The broadcast is the scatter and all-gather of van de Geijn, both direct.

use super::round::Round;
use super::{Form, View, direct};

pub(super) fn scratch(v: View<'_>) -> usize {
    match v.form {
        Form::Broadcast => 0,
        // The part's result of a member that has no destination comes last.
        _ => v.n * v.block(v.me).len,
    }
}

pub(super) fn round(v: View<'_>, round: usize, out: &mut Round) {
    let mine = v.block(v.me);
    match (v.form, round) {
        (Form::AllReduce, 0) => direct::reduce_scatter(v, out),
        (Form::AllReduce, _) => direct::all_gather(v, out),
        (Form::Broadcast, 0) if v.is_root() => {
            v.others().for_each(|q| out.send(q, v.source(v.block(q))));
            out.copy_meanwhile(v.source(v.all()), v.destination(v.all()));
        }
        (Form::Broadcast, 0) => out.receive(v.root, v.destination(mine)),
        (Form::Broadcast, _) => {
            // The root has all.
            if !v.is_root() {
                v.others().filter(|q| *q != v.root).for_each(|q| out.receive(q, v.destination(v.block(q))));
                out.receive(v.root, v.destination(v.block(v.root)));
            }
            v.others().filter(|q| *q != v.root).for_each(|q| out.send(q, v.destination(mine)));
        }
        (_, 0) if v.is_root() => direct::reduce_scatter(v, out),
        (_, 0) => direct::reduce_scatter_to(v, v.scratch((v.n - 1) * mine.len, mine.len), out),
        (_, _) if v.is_root() => v.others().for_each(|q| out.receive(q, v.destination(v.block(q)))),
        (_, _) => out.send(v.root, v.scratch((v.n - 1) * mine.len, mine.len)),
    }
}
