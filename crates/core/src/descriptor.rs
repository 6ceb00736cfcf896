//! Call descriptors: three words that all members of a communicator say alike, and the verdict when they don't. For backends.

use crate::backend::RawCall;
use crate::{DType, Error, ErrorKind, Group, OpKind, ReduceOp};

/// First byte of the first word of a call that was refused above the backend.
const REJECTED: u8 = 0xff;

/// The three words of a posted call.
pub type Words = [u64; 3];

/// The words of a call. `launch` is 0 for a call by itself, else the same for all members that launch the same calls.
#[inline]
pub fn words(call: &RawCall<'_>, launch: u64) -> Words {
    let op = call.op.map_or(0, |op| op.index() as u64 + 1);
    let root = if matches!(call.kind, OpKind::Send | OpKind::Recv) { 0 } else { call.root as u64 };
    let mut check = mix(call.elem_size as u64, launch);
    check = mix(check, u64::from(call.tag));
    if let Some(ReduceOp::PreMulSum(factor)) = call.op {
        // All NaNs are one factor.
        check = mix(check, if factor.is_nan() { f64::NAN.to_bits() } else { factor.to_bits() });
    }
    // The counts of AllToAllV differ by nature; they are compared pair by pair.
    if call.kind != OpKind::AllToAllV {
        for count in call.counts.send.iter().chain(call.counts.recv) {
            check = mix(check, *count as u64);
        }
    }
    [call.kind as u64 | (call.dtype as u64) << 8 | op << 16 | root << 32, call.count as u64, check]
}

/// What identifies a launch of several calls, so that members with different ones part at the first, before data moves.
pub fn launch(calls: &[RawCall<'_>]) -> u64 {
    if calls.len() == 1 {
        return 0;
    }
    let whole = calls.iter().flat_map(|call| words(call, 0)).fold(calls.len() as u64, mix);
    whole.max(1)
}

/// The words of a refused call.
pub fn rejected(kind: OpKind, why: &ErrorKind) -> Words {
    [u64::from(REJECTED) | (kind as u64) << 8, reason_code(why), 0]
}

#[inline]
fn mix(h: u64, v: u64) -> u64 {
    (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

fn reason_code(why: &ErrorKind) -> u64 {
    REASONS.iter().position(|name| *name == why.name()).unwrap_or(0) as u64
}

const REASONS: [&str; 7] = [
    "InvalidArgument",
    "UnsupportedOp",
    "UnsupportedDtype",
    "UnsupportedMemory",
    "UnsupportedMode",
    "CountTooLarge",
    "NoMemory",
];

/// A descriptor in words, for errors.
pub fn describe(words: Words) -> String {
    let kind = |tag: u64| OpKind::from_tag(tag as u8).map_or("an unknown operation", OpKind::name);
    if words[0] as u8 == REJECTED {
        return format!("{} (refused)", kind(words[0] >> 8 & 0xff));
    }
    let name = kind(words[0] & 0xff);
    let mut text = name.to_string();
    let op = words[0] >> 16 & 0xff;
    if let Some(op) = ReduceOp::ALL.get((op as usize).wrapping_sub(1)) {
        text += &format!(" {}", op.name());
    }
    if let Some(dtype) = DType::from_tag((words[0] >> 8) as u8) {
        text += &format!(" of {} {dtype}", words[1]);
    }
    if OpKind::from_tag(words[0] as u8).is_some_and(OpKind::has_root) {
        text += &format!(" with root {}", words[0] >> 32);
    }
    text
}

/// Whether a call was refused above the backend, and why.
pub fn refusal(words: Words) -> Option<&'static str> {
    (words[0] as u8 == REJECTED).then(|| REASONS.get(words[1] as usize).copied().unwrap_or("an error"))
}

/// What all members conclude from the same n descriptors, at least two of which differ.
pub fn verdict(group: &Group, me: usize, all: &[Words]) -> Error {
    let rejecting: Vec<usize> = (0..all.len()).filter(|q| all[*q][0] as u8 == REJECTED).collect();
    let global = |q: &usize| group.global(*q).unwrap_or(usize::MAX);
    if let Some(first) = rejecting.first() {
        let words = all[*first];
        let why = refusal(words).unwrap_or("an error");
        return Error::new(
            ErrorKind::PeerRejected,
            format!(
                "rank {} refused its own arguments of {} with {why}; nothing moved, see that rank's error, then call again",
                global(first),
                OpKind::from_tag((words[0] >> 8) as u8).map_or("the call", OpKind::name),
            ),
        )
        .with_peers(rejecting.iter().map(global));
    }
    // The majority is right; on a tie the side of the lowest member.
    let votes = |words: &Words| all.iter().filter(|other| *other == words).count();
    let right = all.iter().rev().max_by_key(|words| votes(words)).copied().unwrap_or(all[me]);
    let odd: Vec<usize> = (0..all.len()).filter(|q| all[*q] != right).collect();
    let example = all[odd.first().copied().unwrap_or(me)];
    let (theirs, ours) = (describe(example), describe(right));
    let detail = if theirs == ours {
        format!("all called {ours}, but with different counts per rank, element sizes, factors or numbers of tensors")
    } else {
        format!("rank {} called {theirs}, the others {ours}", global(&odd[0]))
    };
    Error::new(
        ErrorKind::Mismatch,
        format!(
            "the ranks called different things: {detail}; make every member call the same operations in the same order"
        ),
    )
    .with_peers(odd.iter().map(global))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Counts;

    fn call(kind: OpKind, count: usize) -> RawCall<'static> {
        let mut call = RawCall::new(kind, DType::F32, count);
        call.op = kind.reduces().then_some(ReduceOp::Sum);
        call
    }

    #[test]
    fn every_field_shows_in_the_words() {
        let base = call(OpKind::AllReduce, 8);
        type Change = fn(&mut RawCall<'static>);
        let changes: [Change; 11] = [
            |call| call.kind = OpKind::Reduce,
            |call| call.dtype = DType::I32,
            |call| call.op = Some(ReduceOp::Max),
            |call| call.op = Some(ReduceOp::PreMulSum(0.5)),
            |call| call.op = Some(ReduceOp::PreMulSum(0.25)),
            |call| call.count = 9,
            |call| call.root = 1,
            |call| call.elem_size = 8,
            |call| call.tag = 1,
            |call| call.counts = Counts { send: &[1, 2], recv: &[] },
            |call| call.counts = Counts { send: &[2, 1], recv: &[] },
        ];
        let mut longer = base;
        longer.count = 9;
        let launches = [launch(&[base, base]), launch(&[base, longer]), launch(&[longer, base]), launch(&[base; 3])];
        let mut seen = vec![words(&base, 0)];
        for launch in launches {
            assert!(!seen.contains(&words(&base, launch)));
            seen.push(words(&base, launch));
        }
        for change in changes {
            let mut call = base;
            change(&mut call);
            let words = words(&call, 0);
            assert!(!seen.contains(&words), "{call:?}");
            seen.push(words);
        }
    }

    #[test]
    fn majority_rules_and_ties_go_to_the_lowest_rank() {
        let group = Group::new([4, 5, 6]).unwrap();
        let (a, b) = (words(&call(OpKind::AllReduce, 8), 0), words(&call(OpKind::AllReduce, 4), 0));
        assert_eq!(verdict(&group, 0, &[a, b, b]).peers(), [4]);
        assert_eq!(verdict(&group, 0, &[a, b, a]).peers(), [5]);
        let error = verdict(&Group::new([4, 5]).unwrap(), 1, &[a, b]);
        assert_eq!((error.kind(), error.peers()), (&ErrorKind::Mismatch, &[5_usize][..]));
        assert!(error.message().contains("rank 5 called all_reduce sum of 4 f32, the others all_reduce sum of 8 f32"));
    }

    #[test]
    fn a_refusal_wins_over_a_mismatch() {
        let group = Group::world(3);
        let all = [
            words(&call(OpKind::AllReduce, 8), 0),
            words(&call(OpKind::Barrier, 0), 0),
            rejected(OpKind::AllGather, &ErrorKind::CountTooLarge),
        ];
        let error = verdict(&group, 0, &all);
        assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerRejected, &[2_usize][..]));
        assert!(error.message().contains("all_gather with CountTooLarge"), "{error}");
    }
}
