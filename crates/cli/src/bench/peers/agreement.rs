//! The programs of peers/ share out and check the same data as the backends' ranks.

use crate::bench::cell::{Cell, Piece};
use crate::bench::elem::{BenchElem, with_elem};
use crate::bench::op::Op;
use crate::bench::pattern::Pattern;
use rankwise::{DType, ReduceOp};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// What the C program prints with the argument `shares`.
fn shares() -> String {
    let mut text = String::new();
    for op in Op::ALL.into_iter().filter(|op| *op != Op::Barrier) {
        for n in 1..=5 {
            for me in 0..n {
                for dtype in [DType::F32, DType::BF16, DType::I8] {
                    with_elem!(dtype, line(&mut text, op, n, me), unreachable!());
                }
            }
        }
    }
    text
}

fn line<T: BenchElem>(text: &mut String, op: Op, n: usize, me: usize) {
    let redop = op.reduces().then_some(ReduceOp::Sum);
    let in_place = !op.out_of_place();
    let cell = Cell { op, dtype: Some(T::DTYPE), redop, bytes: 0, in_place, alloc: false, fresh: true };
    let (shares, pattern) = (cell.shares(me, n, 96), Pattern::new::<T>(n, redop));
    let piece = |side: char, Piece { of, block, len }: &Piece| {
        let (name, value) = match of {
            Some(rank) => (*rank as i64, pattern.value(*rank as u64, *block as u64, 5)),
            None => (-1, pattern.reduced(*block as u64, 5)),
        };
        format!(" {side}{name}.{block}.{len}={value}")
    };
    let source: String = shares.source.iter().map(|one| piece('s', one)).collect();
    let result: String = shares.result.iter().map(|one| piece('r', one)).collect();
    writeln!(text, "{} {} {n} {me}{source}{result}", op.name(), T::DTYPE.name()).unwrap();
}

#[test]
fn peers_measure_the_same_data() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers/selfcheck.c"));
    if !source.exists() {
        println!("skipped: data of the peers: peers/selfcheck.c is not part of this package");
        return;
    }
    let program = std::env::temp_dir().join(format!("rankwise-selfcheck-{}", std::process::id()));
    let compiled = Command::new("cc").args(["-std=gnu11", "-O1", "-w", "-o"]).arg(&program).arg(source).output();
    let compiled = match compiled {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: data of the peers: no C compiler ({error})");
            return;
        }
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = |arguments: &[&str]| Command::new(&program).args(arguments).output().unwrap();
    let (checked, printed) = (run(&[]), run(&["shares"]));
    std::fs::remove_file(&program).unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let (ours, theirs) = (shares(), String::from_utf8(printed.stdout).unwrap());
    for (our, their) in ours.lines().zip(theirs.lines()) {
        assert_eq!(our, their);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}
