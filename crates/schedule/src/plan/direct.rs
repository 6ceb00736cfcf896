//! One round: everybody to everybody, or to or from the root.
//!
//! The least latency while the members are few: one message time, n - 1 messages a member. Reductions fold the contributions in group order.

use super::round::{Fold, Region, Round};
use super::{Form, View};

pub(super) fn scratch(v: View<'_>) -> usize {
    match v.form {
        Form::AllReduce => (v.n - 1) * v.all().len,
        Form::Reduce if v.is_root() => (v.n - 1) * v.all().len,
        Form::ReduceScatter => (v.n - 1) * v.block(v.me).len,
        _ => 0,
    }
}

pub(super) fn round(v: View<'_>, out: &mut Round) {
    match v.form {
        Form::AllReduce => {
            let all = v.all();
            for q in v.others() {
                out.receive(q, slot(v, q, all.len));
                out.send(q, v.source(all));
            }
            fold(v, v.source(all), v.destination(all), out);
        }
        Form::ReduceScatter => reduce_scatter(v, out),
        Form::AllGather => all_gather(v, out),
        Form::AllToAll => {
            for q in v.others() {
                out.receive(q, v.destination(v.received(q)));
                out.send(q, v.source(v.block(q)));
            }
            out.copy_meanwhile(v.source(v.block(v.me)), v.destination(v.received(v.me)));
        }
        Form::Broadcast => {
            let all = v.all();
            if v.is_root() {
                v.others().for_each(|q| out.send(q, v.source(all)));
                out.copy_meanwhile(v.source(all), v.destination(all));
            } else {
                out.receive(v.root, v.destination(all));
            }
        }
        Form::Reduce => {
            let all = v.all();
            if v.is_root() {
                v.others().for_each(|q| out.receive(q, slot(v, q, all.len)));
                fold(v, v.source(all), v.destination(all), out);
            } else {
                out.send(v.root, v.source(all));
            }
        }
        Form::Gather => gather(v, out),
        Form::Scatter => {
            if v.is_root() {
                v.others().for_each(|q| out.send(q, v.source(v.block(q))));
                out.copy_meanwhile(v.source(v.block(v.me)), v.result());
            } else {
                out.receive(v.root, v.result());
            }
        }
        Form::Message => match v.plan.kind {
            rankwise_core::OpKind::Send => out.send(v.root, v.source(v.all())),
            _ => out.receive(v.root, v.destination(v.all())),
        },
    }
}

/// Every block of the source to its owner, who folds what it gets.
pub(super) fn reduce_scatter(v: View<'_>, out: &mut Round) {
    reduce_scatter_to(v, v.result(), out);
}

/// As [`reduce_scatter`], with the result elsewhere.
pub(super) fn reduce_scatter_to(v: View<'_>, to: Region, out: &mut Round) {
    let mine = v.block(v.me);
    for q in v.others() {
        out.receive(q, slot(v, q, mine.len));
        out.send(q, v.source(v.block(q)));
    }
    fold(v, v.source(mine), to, out);
}

/// Every member's block to all.
pub(super) fn all_gather(v: View<'_>, out: &mut Round) {
    for q in v.others() {
        out.receive(q, v.destination(v.block(q)));
        out.send(q, v.contribution());
    }
    v.place_contribution(out);
}

/// Every member's block to the root.
fn gather(v: View<'_>, out: &mut Round) {
    if v.is_root() {
        v.others().for_each(|q| out.receive(q, v.destination(v.block(q))));
        v.place_contribution(out);
    } else {
        out.send(v.root, v.contribution());
    }
}

/// Where the contribution of `q` waits to be folded.
fn slot(v: View<'_>, q: usize, len: usize) -> Region {
    v.scratch((q - usize::from(q > v.me)) * len, len)
}

/// Folds the contributions of all in group order.
fn fold(v: View<'_>, mine: Region, to: Region, out: &mut Round) {
    out.fold(Fold::Whole, (0..v.n).map(|q| if q == v.me { mine } else { slot(v, q, mine.len) }), to);
}
