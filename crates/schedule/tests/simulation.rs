use rankwise_core::backend::RawCall;
use rankwise_core::{DType, OpKind, ReduceOp};
use rankwise_schedule::plan::Cost;
use rankwise_schedule::sim::{Model, simulate};
use rankwise_schedule::{Algorithm, Choice};
use std::time::Duration;

fn call(kind: OpKind, count: usize) -> RawCall<'static> {
    let mut call = RawCall::new(kind, DType::F32, count);
    call.op = kind.reduces().then_some(ReduceOp::Sum);
    call
}

#[test]
fn explore() {
    let model = Model::flat(Duration::from_micros(2), 12.5e9, Duration::from_nanos(500));
    for algorithm in Algorithm::ALL {
        for kind in [OpKind::AllReduce, OpKind::AllGather, OpKind::ReduceScatter, OpKind::AllToAll, OpKind::Broadcast, OpKind::Reduce, OpKind::Scatter, OpKind::Gather] {
            if !algorithm.offers(kind) { continue; }
            for count in [2, 65536usize] {
                let mut line = String::new();
                for n in [2, 3, 4, 5, 7, 8, 13, 16, 31, 32, 48, 63, 64] {
                    let cost = Cost::of(algorithm, kind, n, count).unwrap();
                    let out = simulate(&model, n, &call(kind, count), Choice::whole(algorithm)).unwrap();
                    line += &format!(" {:.2}", out.time.as_secs_f64() / model.formula(cost, 4).as_secs_f64());
                }
                println!("{algorithm:20} {kind:16} {count:6} {line}");
            }
        }
    }
}

#[test]
fn big() {
    let model = Model::default();
    for (kind, algorithm, n) in [(OpKind::AllReduce, Algorithm::RecursiveDoubling, 4096), (OpKind::AllToAll, Algorithm::Pairwise, 1024), (OpKind::AllReduce, Algorithm::Ring, 1024), (OpKind::AllToAll, Algorithm::Direct, 1024)] {
        let start = std::time::Instant::now();
        let out = simulate(&model, n, &call(kind, 65536), Choice::whole(algorithm)).unwrap();
        println!("{kind} {algorithm} {n}: {out:?} in {:?}", start.elapsed());
    }
}
