//! Plans as data: messages meet, regions lie within their buffers and don't collide, and the cost is what the formulas say.

use rankwise_core::backend::{Counts, RawCall};
use rankwise_core::{DType, OpKind, ReduceOp};
use rankwise_schedule::plan::{Buffer, Cost, Local, Region, Round};
use rankwise_schedule::{Algorithm, Choice, Plan};
use std::collections::HashMap;

fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().chain([Algorithm::KNomial(3), Algorithm::KNomial(7)])
}

/// Plans of all members.
fn plans(kind: OpKind, n: usize, count: usize, root: usize, choice: Choice) -> Vec<Plan> {
    let counts: Vec<usize> = (0..n).map(|q| (q * 5 + count) % 4).collect();
    let pair = |i: usize, j: usize| (i * 3 + j * 5 + count) % 4;
    let plan = |me| {
        let (sent, received): (Vec<_>, Vec<_>) = (0..n).map(|q| (pair(me, q), pair(q, me))).unzip();
        let mut call = RawCall::new(kind, DType::F32, count);
        call.op = kind.reduces().then_some(ReduceOp::Sum);
        call.root = root;
        call.counts = match kind {
            OpKind::AllGatherV | OpKind::GatherV => Counts { send: &[], recv: &counts },
            OpKind::ReduceScatterV | OpKind::ScatterV => Counts { send: &counts, recv: &[] },
            OpKind::AllToAllV => Counts { send: &sent, recv: &received },
            _ => Counts::default(),
        };
        Plan::new(&call, me, n, choice).unwrap_or_else(|error| panic!("{kind} {choice:?}: {error}"))
    };
    (0..n).map(plan).collect()
}

/// What the busiest members do in one chunk.
fn walk(plans: &[Plan], chunk: usize) -> Cost {
    let (mut sent, mut elements) = (vec![0; plans.len()], vec![0; plans.len()]);
    let (mut rounds, mut steps) = (0, Round::default());
    for round in 0..plans[0].rounds() {
        let mut messages = HashMap::new();
        let mut expected = HashMap::new();
        for (me, plan) in plans.iter().enumerate() {
            assert_eq!(plan.rounds(), plans[0].rounds());
            plan.round(chunk, round, &mut steps);
            for send in &steps.sends {
                let twice = messages.insert((me, send.peer), send.region.len);
                assert!(
                    twice.is_none() && send.peer != me,
                    "{plan:?}: two messages of {me} to {} in {round}",
                    send.peer
                );
                sent[me] += 1;
                elements[me] += send.region.len;
            }
            for receive in &steps.receives {
                assert_eq!(expected.insert((receive.peer, me), receive.region.len), None);
            }
            look(plan, chunk, &steps);
        }
        assert_eq!(messages, expected, "round {round} of {:?}", plans[0]);
        rounds += usize::from(!messages.is_empty());
    }
    let most = |numbers: Vec<usize>| numbers.into_iter().max().unwrap_or(0);
    Cost { rounds, messages: most(sent), elements: most(elements) }
}

fn overlap(a: Region, b: Region) -> bool {
    a.buffer == b.buffer && a.len > 0 && b.len > 0 && a.start < b.start + b.len && b.start < a.start + a.len
}

/// Within a round: nothing writes the source or beyond the scratch, and nothing touches what is under way.
fn look(plan: &Plan, chunk: usize, round: &Round) {
    let (sent, received): (Vec<Region>, Vec<Region>) =
        (round.sends.iter().map(|m| m.region).collect(), round.receives.iter().map(|m| m.region).collect());
    let (mut reads, mut early) = (Vec::new(), Vec::new());
    let mut writes = received.clone();
    for (steps, early_ones) in [(&round.meanwhile, true), (&round.after, false)] {
        for step in steps {
            let to = match *step {
                Local::Copy { from, to } => {
                    assert_eq!(from.len, to.len);
                    assert!(!overlap(from, to), "{plan:?}: {step:?}");
                    reads.push(from);
                    to
                }
                Local::Reduce { from, to, .. } => {
                    for source in &round.sources[from.0..from.1] {
                        assert_eq!(source.len, to.len);
                        assert!(!overlap(*source, to) || *source == to, "{plan:?}: {step:?}");
                        reads.push(*source);
                    }
                    to
                }
            };
            writes.push(to);
            if early_ones {
                early.push((reads.last().copied().expect("a copy"), to));
            }
        }
    }
    for (at, one) in received.iter().enumerate() {
        let others = received[at + 1..].iter().chain(&sent);
        assert!(others.into_iter().all(|other| !overlap(*one, *other)), "{plan:?}: {round:?}");
    }
    for (from, to) in early {
        assert!(received.iter().all(|region| !overlap(*region, from) && !overlap(*region, to)), "{plan:?}: {round:?}");
        assert!(sent.iter().all(|region| !overlap(*region, to)), "{plan:?}: {round:?}");
    }
    let lane = plan.scratch() / plan.lanes();
    let own = chunk % plan.lanes() * lane..(chunk % plan.lanes() + 1) * lane;
    for region in writes.iter().chain(&reads).chain(&sent) {
        let inside = own.start <= region.start && region.start + region.len <= own.end;
        assert!(region.buffer != Buffer::Scratch || inside, "{plan:?}: {region:?} is not in the scratch of its lane");
    }
    assert!(writes.iter().all(|region| region.buffer != Buffer::Source), "{plan:?}: {round:?}");
}

#[test]
fn every_plan_fits_together_and_costs_what_its_formula_says() {
    for n in (1..=64).chain([100, 128]) {
        for (algorithm, kind) in algorithms().flat_map(|algorithm| OpKind::DATA.map(|kind| (algorithm, kind))) {
            if !algorithm.offers(kind) || matches!(kind, OpKind::Send | OpKind::Recv) {
                continue;
            }
            let count = if kind == OpKind::Barrier { 0 } else { 2 * n };
            let roots = if kind.has_root() { vec![0, n / 3] } else { vec![0] };
            for root in roots {
                let walked = walk(&plans(kind, n, count, root, Choice::whole(algorithm)), 0);
                match Cost::of(algorithm, kind, n, count) {
                    Some(cost) => assert_eq!(walked, cost, "{kind} by {algorithm} in {n}, root {root}"),
                    None => assert!(kind.name().ends_with("_v"), "{kind} has a formula"),
                }
            }
        }
    }
}

#[test]
fn chunks_fit_together_and_move_the_same_elements() {
    for n in [2, 3, 5, 8, 13, 31] {
        for (algorithm, kind) in algorithms().flat_map(|algorithm| OpKind::DATA.map(|kind| (algorithm, kind))) {
            if !algorithm.offers(kind) || !algorithm.chunks(kind) {
                continue;
            }
            let whole = walk(&plans(kind, n, 6 * n, 0, Choice::whole(algorithm)), 0);
            let plans = plans(kind, n, 6 * n, 0, Choice { algorithm, chunk: Some(4 * n) });
            let chunks = plans[0].chunks();
            let elements: usize = (0..chunks).map(|chunk| walk(&plans, chunk).elements).sum();
            assert!(
                chunks > 1 || kind == OpKind::Barrier || kind.name().ends_with("_v") || n < 5,
                "{kind} by {algorithm} in {n}"
            );
            // In uneven blocks each chunk may have its own busiest member.
            if !kind.name().ends_with("_v") {
                assert_eq!(elements, whole.elements, "{kind} by {algorithm} in {n}");
            }
        }
    }
}

#[test]
fn thousands_of_members_cost_what_the_formulas_say() {
    let n = 4096;
    for (algorithm, kind) in [
        (Algorithm::RecursiveDoubling, OpKind::AllReduce),
        (Algorithm::RecursiveHalving, OpKind::AllReduce),
        (Algorithm::KNomial(2), OpKind::Broadcast),
        (Algorithm::Bruck, OpKind::AllGather),
        (Algorithm::Bruck, OpKind::Barrier),
    ] {
        let count = if kind == OpKind::Barrier { 0 } else { n };
        let plans: Vec<Plan> = plans(kind, n, count, 0, Choice::whole(algorithm));
        assert_eq!(Some(walk(&plans, 0)), Cost::of(algorithm, kind, n, count), "{kind} by {algorithm}");
    }
}

#[test]
fn send_and_receive_are_one_message() {
    for (kind, sends, receives) in [(OpKind::Send, 1, 0), (OpKind::Recv, 0, 1)] {
        let mut call = RawCall::new(kind, DType::U8, 9);
        call.root = 2;
        let plan = Plan::new(&call, 1, 4, Choice::whole(Algorithm::Direct)).expect("offered");
        let mut round = Round::default();
        plan.round(0, 0, &mut round);
        assert_eq!((plan.rounds(), round.sends.len(), round.receives.len()), (1, sends, receives));
        let message = round.sends.first().or(round.receives.first()).expect("one message");
        assert_eq!((message.peer, message.region.len), (2, 9));
        assert_eq!(Cost::of(Algorithm::Direct, kind, 4, 9).map(|cost| cost.messages), Some(sends));
    }
}

#[test]
fn what_a_plan_lacks_is_refused_with_its_name() {
    let mut call = RawCall::new(OpKind::AllToAllV, DType::F32, 0);
    let refused = Plan::new(&call, 0, 4, Choice::whole(Algorithm::Bruck)).expect_err("not offered");
    assert!(refused.to_string().contains("the plan bruck has no all_to_all_v"), "{refused}");
    call = RawCall::new(OpKind::AllReduce, DType::F32, 8);
    call.op = Some(ReduceOp::Avg);
    for algorithm in algorithms().filter(|algorithm| algorithm.offers(OpKind::AllReduce)) {
        let planned = Plan::new(&call, 0, 4, Choice::whole(algorithm)).is_ok();
        assert_eq!(planned, algorithm.folds_whole(OpKind::AllReduce), "{algorithm}");
    }
}

#[test]
fn names_round_trip() {
    for algorithm in algorithms() {
        assert_eq!(Algorithm::from_name(&algorithm.to_string()), Some(algorithm));
    }
    for bad in ["", "1-nomial", "0-nomial", "x-nomial", "300-nomial", "rings", "2-"] {
        assert_eq!(Algorithm::from_name(bad), None, "{bad}");
    }
    assert_eq!(Algorithm::from_name("2-nomial"), Some(Algorithm::KNomial(2)));
}
