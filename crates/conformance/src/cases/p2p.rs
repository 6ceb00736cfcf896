//! Send and receive.

use crate::case::{Case, CaseResult, Need, ensure};
use crate::ctx::{Ctx, expect_error};
use crate::values::{Pattern, fill};
use rankwise_core::{DType, ErrorKind, OpKind};

const BOTH: &[Need] = &[Need::Kind(OpKind::Send), Need::Kind(OpKind::Recv)];
const MANY: usize = usize::MAX;

pub(super) const CASES: &[Case] = &[
    Case::must("PP-100", "p2p: a ring in which one rank receives first", ring).offered(BOTH).ranks(2, MANY),
    Case::must("PP-101", "p2p: two sends to one peer arrive in order", order).offered(BOTH).ranks(2, MANY),
    Case::must("PP-102", "p2p: a length that differs is an error on the receiver", length_differs)
        .offered(BOTH)
        .ranks(2, MANY),
    Case::must("PP-103", "p2p: to oneself and outside the group is refused", bad_peer),
    Case::must("PP-104", "p2p: every type from every rank to every other", all_pairs).offered(BOTH).ranks(2, 5),
    Case::must("PP-105", "p2p: pairs that do not wait for the rest of the group", pairs_alone)
        .offered(BOTH)
        .ranks(3, MANY),
    Case::must("PP-106", "p2p: a type that differs is an error on the receiver", type_differs)
        .offered(BOTH)
        .ranks(2, MANY),
];

fn ring(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    let (next, previous) = ((me + 1) % members, (me + members - 1) % members);
    for count in [0, 1, 1000, 300_000] {
        let seed = ctx.next_seed();
        let data = |rank| -> Vec<u8> { fill(Pattern::Bits, DType::U8, seed, rank, members, count) };
        let mut got = vec![0xA5_u8; count];
        ctx.note(|| format!("ring of {count} bytes"));
        ctx.pause();
        if me == 0 {
            comm.recv(&mut got, previous)?;
            comm.send(&data(me), next)?;
        } else {
            comm.send(&data(me), next)?;
            comm.recv(&mut got, previous)?;
        }
        ensure!(got == data(previous), "{count} bytes from {previous} are wrong");
    }
    Ok(())
}

fn order(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let last = comm.size() - 1;
    for i in 0..50_u64 {
        let first = [i, 1];
        let second = [i, 2];
        if comm.rank() == 0 {
            comm.send(&first, last)?;
            comm.send(&second, last)?;
        } else if comm.rank() == last {
            let (mut a, mut b) = ([0; 2], [0; 2]);
            comm.recv(&mut a, 0)?;
            comm.recv(&mut b, 0)?;
            ensure!(a == first && b == second, "round {i}: got {a:?} then {b:?}");
        }
    }
    ctx.known_answer(&mut comm)
}

fn length_differs(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    comm.set_timeout(std::time::Duration::from_secs(5));
    let mut got = [0xA5_u8; 7];
    ctx.note(|| "send of 8 bytes, recv of 7".into());
    let first = match comm.rank() {
        0 => comm.send(&[1_u8; 8], 1),
        1 => comm.recv(&mut got, 0),
        _ => Ok(()),
    };
    ensure!(comm.rank() != 1 || first.is_err(), "the receiver returned Ok");
    ensure!(got == [0xA5; 7], "a failed recv wrote its destination");
    let learned = if first.is_err() || comm.rank() > 1 { first } else { comm.barrier() };
    if comm.rank() <= 1 {
        let kind = learned.as_ref().err().map(|e| e.kind().clone());
        ensure!(
            matches!(kind, Some(ErrorKind::Mismatch | ErrorKind::Poisoned)),
            "rank {} learned {learned:?}",
            comm.rank()
        );
    }
    ctx.meet(&[])?;
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}

fn type_differs(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    comm.set_timeout(std::time::Duration::from_secs(5));
    let mut got = [7_i32; 4];
    ctx.note(|| "send of f32, recv of i32".into());
    let result = match comm.rank() {
        0 => comm.send(&[1.0_f32; 4], 1),
        1 => comm.recv(&mut got, 0),
        _ => Ok(()),
    };
    ctx.meet(&[])?;
    if comm.rank() == 1 {
        expect_error(result, &ErrorKind::Mismatch, None)?;
        ensure!(got == [7; 4], "a failed recv wrote its destination");
    }
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}

fn bad_peer(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    for peer in [me, members, usize::MAX] {
        expect_error(comm.send(&[1_u8], peer), &ErrorKind::InvalidArgument, None)?;
        expect_error(comm.recv(&mut [1_u8], peer), &ErrorKind::InvalidArgument, None)?;
    }
    ctx.known_answer(&mut comm)
}

fn all_pairs(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    let (me, members) = (comm.rank(), comm.size());
    for from in 0..members {
        for to in (0..members).filter(|to| *to != from) {
            let want = [(from * 100 + to) as f64, f64::from_bits(0x7FF0_0000_0000_0001), -0.0];
            if me == from {
                comm.send(&want, to)?;
            } else if me == to {
                let mut got = [0.0; 3];
                comm.recv(&mut got, from)?;
                ensure!(got.map(f64::to_bits) == want.map(f64::to_bits), "{from} to {to}: {got:?}");
            }
        }
    }
    ctx.known_answer(&mut comm)
}

fn pairs_alone(ctx: &mut Ctx<'_>) -> CaseResult {
    let mut comm = ctx.communicator()?;
    // The others are not in any call while ranks 0 and 1 talk.
    if comm.rank() < 2 {
        let peer = 1 - comm.rank();
        for i in 0..20_i32 {
            let mut got = [0];
            if comm.rank() == 0 {
                comm.send(&[i], peer)?;
                comm.recv(&mut got, peer)?;
            } else {
                comm.recv(&mut got, peer)?;
                comm.send(&[i], peer)?;
            }
            ensure!(got == [i], "round {i}: got {got:?}");
        }
    }
    ctx.meet(&[])?;
    ctx.known_answer(&mut comm)
}
