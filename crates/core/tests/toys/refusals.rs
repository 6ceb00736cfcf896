//! The checks of calls that don't fit: refused above the backend, or different on different members.

use super::spi::{LONG, MakeWorld, buf, buf_mut, call, inputs, known_answer, on_members, started};
use rankwise_core::backend::{RawBuf, Refusal};
use rankwise_core::{Error, ErrorKind, OpKind};

pub(crate) fn rejection(make: MakeWorld) {
    on_members(make, 3, |me, comm| {
        for round in 0..3 {
            match (me, round) {
                (1, _) => comm.reject(&Refusal::new(OpKind::AllReduce, &Error::invalid("lengths 3 and 4"), 1)),
                (_, 2) => {
                    let (_held, mut work) = started(comm, 1, LONG).unwrap();
                    assert_eq!(work.wait(LONG).unwrap_err().kind(), &ErrorKind::PeerRejected);
                    assert_eq!(work.test().unwrap_err().kind(), &ErrorKind::PeerRejected, "an error is final");
                    assert!(work.cancel(), "idle after the error");
                }
                _ => {
                    let error = known_answer(me, comm).unwrap_err();
                    assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerRejected, &[1][..]));
                    assert!(error.message().contains("lengths 3 and 4"), "{error}");
                }
            }
            known_answer(me, comm).unwrap();
        }
    });
}

/// A refused launch of several calls is met by all of them.
pub(crate) fn rejection_of_several(make: MakeWorld) {
    on_members(make, 3, |me, comm| {
        for _ in 0..2 {
            let (src, mut a, mut b) = ([1], [-1], [-1]);
            let sums = [&mut a, &mut b].map(|dst| call::<i32>(OpKind::AllReduce, 1, 0, buf(&src), buf_mut(dst)));
            if me == 1 {
                comm.reject(&Refusal::new(OpKind::AllReduce, &Error::invalid("no"), 2));
            } else {
                // SAFETY: the arrays live until return, and nobody else uses them.
                let error = unsafe { comm.run(&sums, LONG) }.unwrap_err();
                assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerRejected, &[1][..]));
                assert_eq!((a, b), ([-1], [-1]));
            }
            known_answer(me, comm).unwrap();
        }
    });
}

/// A refused send or receive is told to its one peer; nobody else notices, and the pair goes on.
pub(crate) fn rejection_of_pairs(make: MakeWorld) {
    on_members(make, 3, |me, comm| {
        for refused in [OpKind::Send, OpKind::Recv] {
            let (mine, mut got) = ([7], [-1]);
            let send = call::<i32>(OpKind::Send, 1, 2, buf(&mine), RawBuf::NONE);
            let recv = call::<i32>(OpKind::Recv, 1, 0, RawBuf::NONE, buf_mut(&mut got));
            let own = match me {
                0 => send,
                2 => recv,
                _ => {
                    known_answer(me, comm).unwrap();
                    continue;
                }
            };
            let why = Error::invalid("a wrong length");
            let mut refusal = Refusal::new(refused, &why, 1);
            // Nobody can meet a call without a peer, so it takes no number.
            comm.reject(&refusal);
            if own.kind == refused {
                refusal.peer = Some(own.root);
                comm.reject(&refusal);
            } else {
                // SAFETY: the arrays live until return, and nobody else uses them.
                let error = unsafe { comm.run(&[own], LONG) }.unwrap_err();
                assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerRejected, &[2 - me][..]));
                assert!(error.message().contains("a wrong length"), "{error}");
            }
            // SAFETY: as above.
            unsafe { comm.run(&[own], LONG) }.unwrap();
            assert_eq!(got, [if me == 2 { 7 } else { -1 }]);
            known_answer(me, comm).unwrap();
        }
    });
}

pub(crate) fn mismatch(make: MakeWorld) {
    on_members(make, 3, |me, comm| {
        let count = if me == 1 { 3 } else { 4 };
        let (src, mut dst) = (inputs::<i32>(me, count), vec![-1; count]);
        let sum = call::<i32>(OpKind::AllReduce, count, 0, buf(&src), buf_mut(&mut dst));
        // SAFETY: the buffers live until return, and nobody else uses them.
        let error = unsafe { comm.run(&[sum], LONG) }.unwrap_err();
        assert_eq!((error.kind(), error.peers()), (&ErrorKind::Mismatch, &[1][..]));
        assert_eq!(dst, vec![-1; count], "the output is unchanged");
        assert_eq!(known_answer(me, comm).unwrap_err().kind(), &ErrorKind::Poisoned);
    });
}

/// How many calls are launched as one is part of what must be equal.
pub(crate) fn mismatch_of_launches(make: MakeWorld) {
    on_members(make, 3, |me, comm| {
        let (src, mut a, mut b) = ([1], [-1], [-1]);
        let sums = [&mut a, &mut b].map(|dst| call::<i32>(OpKind::AllReduce, 1, 0, buf(&src), buf_mut(dst)));
        // SAFETY: the arrays live until return, and nobody else uses them.
        let error = unsafe { comm.run(if me == 1 { &sums[..1] } else { &sums }, LONG) }.unwrap_err();
        assert_eq!((error.kind(), error.peers()), (&ErrorKind::Mismatch, &[1][..]));
        assert_eq!((a, b), ([-1], [-1]));
    });
}
