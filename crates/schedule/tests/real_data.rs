//! Plans with real numbers against a naive fold.

#[path = "ranks/mod.rs"]
mod ranks;

use half::{bf16, f16};
use ranks::Job;
use rankwise_core::{DType, OpKind, ReduceOp};
use rankwise_schedule::loopback::Settings;
use rankwise_schedule::{Algorithm, Choice, HostMemory};

const REDUCING: [OpKind; 4] = [OpKind::AllReduce, OpKind::ReduceScatter, OpKind::Reduce, OpKind::ReduceScatterV];

/// splitmix64 of a place in a rank's data.
fn noise(rank: usize, index: usize) -> u64 {
    let mut z = (rank as u64 * 1_000_003 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// What every rank of a job gets, out of the reduction of all its data.
fn shares<T: Clone>(job: &Job, all: &[T]) -> Vec<Vec<T>> {
    let share = |rank: usize| match job.kind {
        OpKind::AllReduce => all.to_vec(),
        OpKind::Reduce if rank == job.root => all.to_vec(),
        OpKind::Reduce => Vec::new(),
        _ => all[job.offset(rank)..job.offset(rank) + job.block(rank)].to_vec(),
    };
    (0..job.n).map(share).collect()
}

/// Runs the job with `value(rank, index)` on each rank; compares with a left fold.
fn check<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(
    job: &Job,
    value: impl Fn(usize, usize) -> T,
    fold: impl Fn(&mut dyn Iterator<Item = T>) -> T,
) {
    let bytes = |values: Vec<T>| bytemuck::cast_slice::<T, u8>(&values).to_vec();
    let input = |rank| bytes((0..job.source_len(rank)).map(|index| value(rank, index)).collect());
    let len = job.source_len(0);
    let all: Vec<T> = (0..len).map(|index| fold(&mut (0..job.n).map(|rank| value(rank, index)))).collect();
    let settings = Settings { delay: 3, ..Settings::default() };
    for (rank, (result, share)) in
        ranks::run::<HostMemory>(job, settings, input).into_iter().zip(shares(job, &all)).enumerate()
    {
        let result: Vec<T> = result.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        assert_eq!(result, share, "{job:?}: rank {rank}");
    }
}

/// Jobs of every plan that reduces, with sizes that are no multiple of anything.
fn jobs(dtype: DType, op: ReduceOp, whole: bool) -> impl Iterator<Item = Job> {
    let plans = Algorithm::ALL.into_iter().flat_map(|algorithm| REDUCING.map(|kind| (algorithm, kind)));
    let plans =
        plans.filter(move |(algorithm, kind)| algorithm.offers(*kind) && (!whole || algorithm.folds_whole(*kind)));
    plans.flat_map(move |(algorithm, kind)| {
        [1_usize, 2, 3, 5, 8, 13].into_iter().flat_map(move |n| {
            [(1, None), (37, None), (501, Some(400))].into_iter().map(move |(count, chunk)| {
                let mut job = Job::new(kind, dtype, n, Choice { algorithm, chunk }).with_size(count);
                job.op = Some(op);
                job.in_place = count % 3 == 0;
                job.root = if kind.has_root() { n - 1 } else { 0 };
                job
            })
        })
    })
}

#[test]
fn integers_are_exact_by_every_plan() {
    for job in jobs(DType::I32, ReduceOp::Sum, false) {
        check(&job, |rank, index| noise(rank, index) as i32, |all| all.fold(0, i32::wrapping_add));
    }
    for job in jobs(DType::U64, ReduceOp::Prod, false) {
        check(&job, noise, |all| all.fold(1, u64::wrapping_mul));
    }
    for job in jobs(DType::U8, ReduceOp::BXor, false) {
        check(&job, |rank, index| noise(rank, index) as u8, |all| all.fold(0, |a, b| a ^ b));
    }
    for job in jobs(DType::I16, ReduceOp::Min, false) {
        check(&job, |rank, index| noise(rank, index) as i16, |all| all.min().expect("members"));
    }
}

#[test]
fn whole_numbers_in_floats_are_exact_by_every_plan() {
    for job in jobs(DType::F32, ReduceOp::Sum, false) {
        check(&job, |rank, index| (noise(rank, index) % 1000) as f32, |all| all.sum());
    }
    for job in jobs(DType::BF16, ReduceOp::Sum, false) {
        let value = |rank, index| bf16::from_f32((noise(rank, index) % 9) as f32);
        check(&job, value, |all| bf16::from_f32(all.map(bf16::to_f32).sum()));
    }
    for job in jobs(DType::F64, ReduceOp::Max, false) {
        check(&job, |rank, index| noise(rank, index) as f64, |all| all.fold(f64::MIN, f64::max));
    }
}

#[test]
fn what_folds_whole_is_the_left_fold_rounded_once() {
    let real = |rank, index| (noise(rank, index) >> 40) as f32 / 1e5 - 80.0;
    for job in jobs(DType::F32, ReduceOp::Sum, true) {
        check(&job, real, |all| all.reduce(|a, b| a + b).expect("members"));
    }
    for job in jobs(DType::F16, ReduceOp::Sum, true) {
        let value = |rank, index| f16::from_f32(real(rank, index));
        check(&job, value, |all| f16::from_f32(all.map(f16::to_f32).reduce(|a, b| a + b).expect("members")));
    }
    for job in jobs(DType::F64, ReduceOp::PreMulSum(0.3), true) {
        check(
            &job,
            |rank, index| f64::from(real(rank, index)),
            |all| all.map(|x| x * 0.3).reduce(|a, b| a + b).expect("members"),
        );
    }
}

#[test]
fn means_are_scaled_so_that_they_stay_in_range() {
    for job in jobs(DType::F32, ReduceOp::Avg, true) {
        let n = job.n as f32;
        let before = job.n.next_power_of_two() as f32;
        check(
            &job,
            |rank, index| (noise(rank, index) % 4096) as f32,
            |all| all.map(|x| x / before).reduce(|a, b| a + b).expect("members") * (before / n),
        );
        check(&job, |_, _| f32::MAX, |_| f32::MAX);
    }
}

/// Hop by hop the rounding may differ from a left fold, but not between ranks or runs.
#[test]
fn all_ranks_get_the_same_bits_and_get_them_again() {
    for job in jobs(DType::F32, ReduceOp::Sum, false).filter(|job| job.kind == OpKind::AllReduce) {
        let input = |rank| {
            let values = (0..job.count).map(|index| (noise(rank, index) >> 38) as f32 / 3e4);
            values.flat_map(f32::to_ne_bytes).collect::<Vec<u8>>()
        };
        let results = ranks::run::<HostMemory>(&job, Settings::default(), input);
        assert!(results.iter().all(|result| *result == results[0]), "{job:?}");
        let delayed = Settings { delay: 9, seed: 5, eager: 0 };
        assert_eq!(ranks::run::<HostMemory>(&job, delayed, input), results, "{job:?}");
    }
}
