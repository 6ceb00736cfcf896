//! Virtual time against what theory says, on networks where nothing is shared and where something is.

use rankwise_core::backend::RawCall;
use rankwise_core::{DType, ErrorKind, OpKind, ReduceOp};
use rankwise_schedule::plan::Cost;
use rankwise_schedule::sim::{Model, Outcome, simulate};
use rankwise_schedule::{Algorithm, Choice};
use std::time::Duration;

const BANDWIDTH: f64 = 12.5e9;

/// An empty message takes 3 us.
fn flat() -> Model {
    Model::flat(Duration::from_micros(2), BANDWIDTH, Duration::from_nanos(500))
}

fn call(kind: OpKind, count: usize) -> RawCall<'static> {
    let mut call = RawCall::new(kind, DType::F32, count);
    call.op = kind.reduces().then_some(ReduceOp::Sum);
    call
}

fn run(model: &Model, kind: OpKind, algorithm: Algorithm, n: usize, count: usize) -> Outcome {
    simulate(model, n, &call(kind, count), Choice::whole(algorithm)).expect("a call that ends")
}

/// Virtual time over the formula for the cost of a plan of that kind.
fn ratio(kind: OpKind, like: OpKind, algorithm: Algorithm, n: usize, count: usize) -> f64 {
    let cost = Cost::of(algorithm, like, n, count).expect("a formula");
    run(&flat(), kind, algorithm, n, count).time.as_secs_f64() / flat().formula(cost, 4).as_secs_f64()
}

/// The transfer time of elements.
fn seconds(elements: usize) -> f64 {
    (4 * elements) as f64 / BANDWIDTH
}

fn near(time: Duration, expected: f64, what: &str) {
    let ratio = time.as_secs_f64() / expected;
    assert!((0.99..=1.01).contains(&ratio), "{what}: {time:?}, expected {expected} s");
}

/// All members do the same in every round: then the formula is the time, within 1 %.
#[test]
fn even_plans_take_what_the_formula_says() {
    use OpKind::*;
    let log = [Algorithm::RecursiveDoubling, Algorithm::RecursiveHalving];
    let plans = [
        (Algorithm::Ring, vec![AllReduce, AllGather, ReduceScatter]),
        (Algorithm::Pairwise, vec![AllToAll, ReduceScatter]),
        (Algorithm::Bruck, vec![AllReduce, AllGather, AllToAll, Barrier]),
        (log[0], vec![AllReduce, AllGather]),
        (log[1], vec![AllReduce, ReduceScatter]),
    ];
    for (algorithm, kinds) in plans {
        for n in (2..=64).chain([128, 1024, 4096]) {
            let is_log = log.contains(&algorithm);
            if (is_log && !usize::is_power_of_two(n)) || (n > 128 && !is_log && algorithm != Algorithm::Bruck) {
                continue;
            }
            for kind in kinds.iter().filter(|kind| n <= 128 || **kind != AllToAll) {
                // Parts of equal lengths.
                for count in if *kind == Barrier { vec![0] } else { vec![2 * n, 1024 * n] } {
                    let ratio = ratio(*kind, *kind, algorithm, n, count);
                    assert!((0.99..=1.01).contains(&ratio), "{kind} by {algorithm}, {n} ranks, {count}: {ratio}");
                }
            }
        }
    }
}

/// In trees the way to the last member is shorter than the most messages in every round, by less than half; reductions and gathers are the mirror.
#[test]
fn trees_take_at_most_what_the_formula_says() {
    use OpKind::*;
    for radix in [2, 4] {
        for n in (2..=64).chain([1000, 4096]) {
            for count in [2, 1 << 16] {
                for (kind, like) in [(Broadcast, Broadcast), (Scatter, Scatter), (Reduce, Broadcast), (Gather, Scatter)]
                {
                    let ratio = ratio(kind, like, Algorithm::KNomial(radix), n, count);
                    // A parent of many takes their short messages one after the other, behind the longest way.
                    assert!((0.5..=1.35).contains(&ratio), "{kind} by a tree of {radix}, {n} ranks, {count}: {ratio}");
                }
            }
        }
    }
}

/// Other numbers of members merge pairs first, who wait for each other.
#[test]
fn no_power_of_two_costs_at_most_two_rounds_of_all_the_data_more() {
    for n in 3_usize..=64 {
        for (algorithm, kind) in
            [(Algorithm::RecursiveDoubling, OpKind::AllReduce), (Algorithm::RecursiveHalving, OpKind::AllReduce)]
        {
            // Whole parts for all of the core, too.
            let count = 1024 * n * (1 << n.ilog2());
            let below = run(&flat(), kind, algorithm, 1 << n.ilog2(), count).time;
            let time = run(&flat(), kind, algorithm, n, count).time;
            let most = below.as_secs_f64() + 2.0 * (3e-6 + seconds(count)) + 1e-9;
            assert!(time >= below && time.as_secs_f64() <= most * 1.5, "{algorithm}, {n} ranks: {time:?}, {below:?}");
        }
    }
}

#[test]
fn latency_grows_with_the_logarithm() {
    for (algorithm, kind, trips) in [
        (Algorithm::RecursiveDoubling, OpKind::AllReduce, 1.0),
        (Algorithm::RecursiveHalving, OpKind::AllReduce, 2.0),
        (Algorithm::KNomial(2), OpKind::Broadcast, 1.0),
        (Algorithm::KNomial(2), OpKind::AllReduce, 2.0),
        (Algorithm::Bruck, OpKind::Barrier, 1.0),
    ] {
        let count = usize::from(kind != OpKind::Barrier);
        let time = |n| run(&flat(), kind, algorithm, n, count).time;
        for power in 1..=12 {
            // A few bytes count a little.
            near(time(1 << power), f64::from(power) * trips * 3e-6, &format!("{kind} by {algorithm}, 2^{power} ranks"));
        }
    }
}

#[test]
fn large_reductions_send_the_fewest_bytes_possible() {
    for n in [2, 4, 16, 64] {
        let count = 1 << 24;
        for algorithm in [Algorithm::Ring, Algorithm::RecursiveHalving, Algorithm::TwoShot] {
            let outcome = run(&flat(), OpKind::AllReduce, algorithm, n, count);
            assert_eq!(outcome.most.bytes, (8 * (n - 1) * (count / n)) as u64, "{algorithm}, {n} ranks");
            assert_eq!(outcome.all.bytes, outcome.most.bytes * n as u64);
            let ratio = outcome.time.as_secs_f64() / (2.0 * seconds(count / n) * (n - 1) as f64);
            // A member's two cards are not both busy all the time if it sends everything at once.
            let most = if algorithm == Algorithm::TwoShot { 2.0 } else { 1.05 };
            assert!((1.0..most).contains(&ratio), "{algorithm}, {n} ranks: {ratio}");
        }
    }
}

#[test]
fn a_tree_in_chunks_is_a_pipeline() {
    let call = call(OpKind::Broadcast, 1 << 20);
    let time = |chunk| {
        let choice = Choice { algorithm: Algorithm::Ring, chunk };
        simulate(&flat(), 16, &call, choice).expect("a call that ends").time.as_secs_f64()
    };
    let whole = 15.0 * (3e-6 + seconds(1 << 20));
    assert!((time(None) / whole - 1.0).abs() < 0.01);
    // All chunks one after the other through one card, and the way of the last.
    let pipeline = seconds(1 << 20) + 3e-6 + 14.0 * (3e-6 + seconds(1 << 14));
    assert!((time(Some(1 << 16)) / pipeline - 1.0).abs() < 0.01, "{} of {pipeline}", time(Some(1 << 16)));
}

#[test]
fn messages_to_one_card_take_turns() {
    let count = 1 << 18;
    for n in [2, 9, 33] {
        let time = run(&flat(), OpKind::Gather, Algorithm::Direct, n, count).time;
        near(time, 3e-6 + (n - 1) as f64 * seconds(count), &format!("gather from {n} hosts"));
    }
    // Eight ranks behind one card send through it in turn: to the root on another host.
    let mut model = Model { ranks_per_host: 8, host_bandwidth: f64::INFINITY, ..flat() };
    let time = run(&model, OpKind::Scatter, Algorithm::Direct, 16, count).time;
    near(time, 3e-6 + 8.0 * seconds(count), "scatter to the eight of another host");
    // Short messages cost the receiver's processor.
    model.ranks_per_host = 1;
    model.receive_overhead = Duration::from_micros(5);
    near(run(&model, OpKind::Gather, Algorithm::Direct, 101, 1).time, 2.5e-6 + 100.0 * 5e-6, "100 short messages");
}

#[test]
fn a_slow_uplink_slows_only_what_crosses_it() {
    let count = 1 << 16;
    let model = |oversubscription: f64| Model {
        hosts_per_rack: 4,
        rack_latency: Duration::from_micros(1),
        uplink: 4.0 * BANDWIDTH / oversubscription,
        ..flat()
    };
    // Within a rack: no difference.
    let inside = |over| run(&model(over), OpKind::AllToAll, Algorithm::Pairwise, 4, count).time;
    assert_eq!(inside(1.0), inside(8.0));
    assert_eq!(inside(1.0), run(&flat(), OpKind::AllToAll, Algorithm::Pairwise, 4, count).time);
    // A halving's first round crosses with all hosts at once: half the data each.
    let across = |over| run(&model(over), OpKind::ReduceScatter, Algorithm::RecursiveHalving, 8, count).time;
    let more = across(8.0).as_secs_f64() - across(1.0).as_secs_f64();
    // Four hosts in turn at half the speed of a card.
    let expected = 4.0 * 2.0 * seconds(4 * count) - seconds(4 * count);
    assert!((more / expected - 1.0).abs() < 0.05, "{more} s more, expected {expected}");
    // And the uplink that keeps up costs its latency alone.
    let flat = run(&flat(), OpKind::ReduceScatter, Algorithm::RecursiveHalving, 8, count).time;
    let latency = (across(1.0) - flat).as_secs_f64();
    assert!((latency - 1e-6).abs() < 1e-8, "{latency}");
}

#[test]
fn ranks_of_a_host_are_nearer() {
    let model = Model { ranks_per_host: 2, host_latency: Duration::from_nanos(100), ..flat() };
    let time = run(&model, OpKind::Broadcast, Algorithm::Direct, 2, 1).time;
    assert!((1100..1110).contains(&time.as_nanos()), "{time:?}");
}

#[test]
fn local_work_takes_time() {
    let model = Model { reduce: 1e9, ..flat() };
    let count = 1 << 16;
    let more = run(&model, OpKind::Reduce, Algorithm::Direct, 4, count).time
        - run(&flat(), OpKind::Reduce, Algorithm::Direct, 4, count).time;
    // Four sources.
    near(more, 16.0 * count as f64 / 1e9, "a reduction");
}

#[test]
fn equal_calls_take_equal_times() {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.offers(OpKind::AllReduce)) {
        let outcome = || run(&Model::default(), OpKind::AllReduce, algorithm, 200, 12_345);
        assert_eq!(outcome(), outcome(), "{algorithm}");
    }
}

#[test]
fn thousands_of_ranks_take_little_of_this_machine() {
    // Terabytes in all.
    for (kind, algorithm) in [
        (OpKind::AllReduce, Algorithm::RecursiveHalving),
        (OpKind::AllGather, Algorithm::Bruck),
        (OpKind::Broadcast, Algorithm::KNomial(4)),
    ] {
        let outcome = run(&Model::default(), kind, algorithm, 4096, 1 << 20);
        assert!(outcome.time > Duration::from_micros(100), "{kind} by {algorithm}: {outcome:?}");
    }
    // A million messages.
    let outcome = run(&Model::default(), OpKind::AllToAll, Algorithm::Pairwise, 1024, 1);
    assert_eq!((outcome.most.messages, outcome.all.messages), (1023, 1024 * 1023));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |model: Model, n, call: RawCall<'_>, algorithm| {
        simulate(&model, n, &call, Choice::whole(algorithm)).expect_err("refused")
    };
    let sum = || call(OpKind::AllReduce, 1);
    for (model, n, expected) in [
        (flat(), 0, "0 ranks"),
        (flat(), 70_000, "70000 ranks"),
        (Model { ranks_per_host: 0, ..flat() }, 4, "a host has a rank"),
        (Model { bandwidth: f64::NAN, ..flat() }, 4, "a bandwidth"),
        (Model { uplink: 0.0, ..flat() }, 4, "a bandwidth"),
        (Model { latency: Duration::MAX, ..flat() }, 4, "a latency"),
    ] {
        let error = refused(model, n, sum(), Algorithm::Ring);
        assert_eq!(error.kind(), &ErrorKind::Config);
        assert!(error.message().contains(expected), "{error}");
    }
    let mut far = call(OpKind::Broadcast, 1);
    far.root = 4;
    assert_eq!(refused(flat(), 4, far, Algorithm::Direct).kind(), &ErrorKind::Config);
    assert_eq!(refused(flat(), 4, call(OpKind::AllToAllV, 0), Algorithm::Direct).kind(), &ErrorKind::Config);
    let error = refused(flat(), 4, sum(), Algorithm::Pairwise);
    assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
}
