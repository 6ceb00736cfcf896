//! Every example runs alone and as several processes, and says what it should.
#![cfg(all(target_os = "linux", feature = "shm"))]

use rankwise_world::launch::{Event, Launch, Output};
use std::path::PathBuf;
use std::time::Duration;

/// The example's executable, which `cargo test` and `cargo nextest run` build beside this test.
fn executable(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built; run `cargo build -p rankwise --examples` first", path.display());
    path
}

/// What the ranks printed, sorted by rank.
fn run(name: &str, ranks: usize) -> Vec<(usize, String)> {
    let job =
        Launch::new(ranks, executable(name)).timeout(Duration::from_secs(60)).output(Output::Lines).spawn().unwrap();
    let mut lines = Vec::new();
    let outcome = job.run(&mut |event| {
        if let Event::Line { rank, text, .. } = event {
            lines.push((rank, String::from_utf8_lossy(&text).trim_end().to_string()));
        }
    });
    assert!(outcome.success(), "{name} with {ranks} ranks: {outcome:?}\n{lines:#?}");
    lines.sort();
    lines
}

/// Every rank printed exactly one line, and it is this.
fn each_rank_says(name: &str, ranks: usize, line: impl Fn(usize) -> String) {
    let expected: Vec<_> = (0..ranks).map(|rank| (rank, line(rank))).collect();
    assert_eq!(run(name, ranks), expected, "{name} with {ranks} ranks");
}

#[test]
fn hello() {
    for n in [1, 3, 4] {
        each_rank_says("hello", n, |rank| format!("rank {rank} of {n}: the sum is {}", n * (n + 1) / 2));
    }
}

#[test]
fn subgroups() {
    for n in [1, 2, 3, 4] {
        let lines = run("subgroups", n);
        assert_eq!(lines.len(), n, "{lines:?}");
    }
    let lines = run("subgroups", 4);
    assert_eq!(lines[2].1, "rank 2: row (2,3) sums to 5, column (0,2) has the greatest rank 2, reversed [2, 0]");
}

#[test]
fn uneven_tokens() {
    for n in [1, 2, 4, 5] {
        let counts: Vec<usize> = (0..n).map(|rank| [3, 0, 1, 5][rank % 4]).collect();
        let (total, factor) = (counts.iter().sum::<usize>(), n * (n + 1) / 2);
        each_rank_says("uneven_tokens", n, |rank| {
            format!("rank {rank}: {} of {total} tokens came back multiplied by {factor}", counts[rank])
        });
    }
}

#[test]
fn nonblocking() {
    for n in [1, 3, 4] {
        each_rank_says("nonblocking", n, |rank| {
            format!("rank {rank}: 4 sums in flight, then two inside a scope, all exact")
        });
    }
}

#[test]
fn tensor_parallel_mlp_prints_the_same_for_every_number_of_ranks() {
    let alone = run("tensor_parallel_mlp", 1);
    assert_eq!(alone.len(), 1);
    assert!(alone[0].1.ends_with("equal: true"), "{alone:?}");
    for n in [2, 4, 5] {
        assert_eq!(run("tensor_parallel_mlp", n), alone, "{n} ranks");
    }
}
