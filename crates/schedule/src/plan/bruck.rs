//! Messages go around the circle in distances of 1, 2, 4, …: ceil(log2 n) message times for any n (Bruck and others 1997).
//!
//! An all-gather moves the optimal bytes but copies once more. An all-to-all sends about half of the data in every round: for short
//! blocks. An all-reduce gathers the contributions of all and folds them in group order: the fewest rounds that keep the order. Of
//! nothing it is the dissemination barrier.

use super::round::{Fold, Region, Round, Span};
use super::{Form, View};

pub(super) fn rounds(v: View<'_>) -> usize {
    // An all-to-all begins with a round of its own, which arranges the blocks.
    steps(v.n) + usize::from(v.form == Form::AllToAll)
}

pub(super) fn scratch(v: View<'_>) -> usize {
    match v.form {
        Form::AllReduce => v.n * v.all().len,
        Form::AllGather => v.all().len,
        _ => v.all().len + 2 * most_moved(v.n) * v.block(0).len,
    }
}

pub(super) fn round(v: View<'_>, round: usize, out: &mut Round) {
    match v.form {
        Form::AllReduce => all_reduce(v, round, out),
        Form::AllGather => all_gather(v, round, out),
        _ => all_to_all(v, round, out),
    }
}

/// ceil(log2 n)
fn steps(n: usize) -> usize {
    n.next_power_of_two().ilog2() as usize
}

/// The whole contributions of the members from this one on, in the order of the circle.
fn all_reduce(v: View<'_>, round: usize, out: &mut Round) {
    let len = v.all().len;
    let have = 1 << round;
    let more = have.min(v.n - have);
    out.receive(v.up(have), v.scratch(have * len, more * len));
    if round == 0 {
        out.send(v.down(have), v.source(v.all()));
        out.copy_meanwhile(v.source(v.all()), v.scratch(0, len));
    } else {
        out.send(v.down(have), v.scratch(0, more * len));
    }
    if round + 1 == steps(v.n) {
        let contribution = |q: usize| v.scratch((q + v.n - v.me) % v.n * len, len);
        out.fold(Fold::Whole, (0..v.n).map(contribution), v.destination(v.all()));
    }
}

/// The blocks of the members from this one on, in the order of the circle.
fn all_gather(v: View<'_>, round: usize, out: &mut Round) {
    let have = 1 << round;
    let more = have.min(v.n - have);
    let from = v.up(have);
    out.receive(from, v.scratch(v.around(v.me, have), v.around(from, more)));
    if round == 0 {
        out.send(v.down(have), v.contribution());
        out.copy_meanwhile(v.contribution(), v.scratch(0, v.block(v.me).len));
    } else {
        out.send(v.down(have), v.scratch(0, v.around(v.me, more)));
    }
    if round + 1 == steps(v.n) {
        let (front, back) = v.arc(v.me, v.n);
        out.copy(v.scratch(0, front.len), v.destination(front));
        out.copy(v.scratch(front.len, back.len), v.destination(back));
    }
}

/// Scratch holds the blocks by the distance they still have to go, then what is sent, then what is received. A block at distance d moves in the rounds of
/// the bits of d.
fn all_to_all(v: View<'_>, round: usize, out: &mut Round) {
    let len = v.block(0).len;
    let arranged = |index: usize, count: usize| v.scratch(index * len, count * len);
    let sent = |index: usize, count: usize| v.scratch((v.n + index) * len, count * len);
    let received = |index: usize, count: usize| v.scratch((v.n + most_moved(v.n) + index) * len, count * len);
    let Some(step) = round.checked_sub(1) else {
        let (front, back) = v.arc(v.me, v.n);
        out.copy(v.source(front), v.scratch(0, front.len));
        out.copy(v.source(back), v.scratch(front.len, back.len));
        return move_runs(v.n, 0, |from, to, count| out.copy(arranged(from, count), sent(to, count)));
    };
    let count = moved(v.n, step);
    out.receive(v.down(1 << step), received(0, count));
    out.send(v.up(1 << step), sent(0, count));
    move_runs(v.n, step, |from, to, count| out.copy(received(to, count), arranged(from, count)));
    if step + 1 < steps(v.n) {
        return move_runs(v.n, step + 1, |from, to, count| out.copy(arranged(from, count), sent(to, count)));
    }
    for distance in 0..v.n {
        let place: Span = v.received(v.down(distance));
        let arrived: Region = arranged(distance, 1);
        out.copy(arrived, v.destination(place));
    }
}

/// Blocks that move in a step: the distances below n with that bit.
fn moved(n: usize, step: usize) -> usize {
    let mut count = 0;
    move_runs(n, step, |_, _, run| count += run);
    count
}

fn most_moved(n: usize) -> usize {
    (0..steps(n)).map(|step| moved(n, step)).max().unwrap_or(0)
}

/// The runs of distances with the bit of the step: first distance, number of moving ones before it, length.
fn move_runs(n: usize, step: usize, mut run: impl FnMut(usize, usize, usize)) {
    let bit = 1 << step;
    let (mut distance, mut before) = (bit, 0);
    while distance < n {
        let count = bit.min(n - distance);
        run(distance, before, count);
        before += count;
        distance += 2 * bit;
    }
}
