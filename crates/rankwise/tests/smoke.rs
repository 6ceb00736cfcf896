//! The shared-memory backend between threads, through the public interface.

use rankwise::{Config, ReduceOp, Result, World};

#[test]
fn every_size_class_adds_up() {
    for n in [1, 2, 3, 4, 7] {
        let results: Vec<Result<()>> = World::threads(n, |world| {
            let backend = rankwise::join(&world, &Config::new().backend("shm"))?;
            let mut comm = backend.world()?;
            comm.barrier()?;
            for len in [0, 1, 8, 120, 121, 1000, 8192, 8193, 100_000, 1_000_003] {
                let src: Vec<f32> = (0..len).map(|i| ((31 * world.rank() + 7 * i) % 61) as f32).collect();
                let mut dst = vec![f32::NAN; len];
                comm.all_reduce(&src, &mut dst, ReduceOp::Sum)?;
                for (i, got) in dst.iter().enumerate() {
                    let want: f32 = (0..n).map(|r| ((31 * r + 7 * i) % 61) as f32).sum();
                    assert_eq!(*got, want, "n {n} len {len} i {i}");
                }
                let mut all = vec![0.0; n * len];
                comm.all_gather(&src, &mut all)?;
                let mut part = vec![0.0; len];
                comm.reduce_scatter(&all, &mut part, ReduceOp::Max)?;
                let mut turned = vec![0.0; n * len];
                comm.all_to_all(&all, &mut turned)?;
                for r in 0..n {
                    for i in 0..len {
                        assert_eq!(all[r * len + i], ((31 * r + 7 * i) % 61) as f32);
                    }
                }
                assert_eq!(part, all[world.rank() * len..][..len]);
            }
            comm.finalize()
        })
        .unwrap();
        for result in results {
            result.unwrap();
        }
    }
}
