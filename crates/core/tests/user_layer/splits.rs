//! Split and shrink.

use crate::fake::{Event, Fake};
use rankwise_core::{Communicator, ErrorKind};
use std::sync::Arc;

/// A member's contribution, as split sends it.
fn wish(color: Option<u64>, key: i64, splits: u64) -> Vec<u8> {
    let mut bytes = vec![u8::from(color.is_some()), 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(color.unwrap_or(0).to_le_bytes());
    bytes.extend(key.to_le_bytes());
    bytes.extend(splits.to_le_bytes());
    bytes
}

/// This rank of a world whose members wish these in the next split.
fn world(rank: usize, wishes: &[(Option<u64>, i64, u64)]) -> (Communicator, Arc<Fake>) {
    let (backend, fake) = Fake::joined(rank, wishes.len());
    let comm = backend.world().unwrap();
    let all: Vec<u8> = wishes.iter().flat_map(|(color, key, splits)| wish(*color, *key, *splits)).collect();
    fake.answer(move |call| {
        // SAFETY: both are valid for their lengths.
        let (src, dst) = unsafe {
            (
                std::slice::from_raw_parts(call.src.ptr, call.src.bytes),
                std::slice::from_raw_parts_mut(call.dst.ptr, call.dst.bytes),
            )
        };
        assert_ne!(call.tag, 0, "must not meet a user's all_gather");
        dst.copy_from_slice(&all);
        // Splits counted so far change from call to call.
        assert_eq!(src[..24], all[call.src.bytes * rank..][..24]);
        Ok(())
    });
    fake.events();
    (comm, fake)
}

fn made(fake: &Fake) -> Vec<(String, u64)> {
    let made = |event| match event {
        Event::Communicator { group, tag } => Some((group, tag)),
        _ => None,
    };
    fake.events().into_iter().filter_map(made).collect()
}

#[test]
fn ordered_by_key_then_position() {
    let wishes = [(Some(1), 5, 0), (Some(1), -5, 0), (Some(2), 0, 0), (Some(1), 5, 0), (None, 0, 0)];
    let (mut comm, fake) = world(0, &wishes);
    let child = comm.split(Some(1), 5).unwrap().unwrap();
    assert_eq!(child.group().ranks().collect::<Vec<_>>(), [1, 0, 3]);
    assert_eq!(child.rank(), 1);
    let made_here = made(&fake);
    let (mut peer, fake) = world(3, &wishes);
    peer.split(Some(1), 5).unwrap().unwrap();
    assert_eq!(made_here, made(&fake), "group and tag are the same on all members");
    assert_ne!(made_here[0].1, 0);
}

#[test]
fn no_colour_no_communicator_and_one_member_no_engine() {
    let wishes = [(None, 0, 0), (Some(7), 0, 0)];
    let (mut comm, fake) = world(0, &wishes);
    assert!(comm.split(None, 0).unwrap().is_none());
    assert_eq!(made(&fake), []);
    let (mut comm, fake) = world(1, &wishes);
    let mut child = comm.split(Some(7), 0).unwrap().unwrap();
    assert_eq!((child.size(), child.global_rank()), (1, 1));
    child.barrier().unwrap();
    assert_eq!(made(&fake), []);
}

#[test]
fn tags_differ_between_splits_and_agree_after_a_missed_one() {
    let wishes = [(Some(0), 0, 0), (Some(0), 0, 0)];
    let (mut comm, fake) = world(0, &wishes);
    let first = comm.split(Some(0), 0).unwrap().unwrap();
    let second = comm.split(Some(0), 0).unwrap().unwrap();
    let tags: Vec<u64> = made(&fake).into_iter().map(|(_, tag)| tag).collect();
    assert_eq!(first.group(), second.group());
    // The fake repeats the peers' counter, so that the larger of both decides: they agree on the first only.
    assert_eq!(tags.len(), 2);
    // A member that missed one split and a member that did not come to the same tag.
    let uneven = [(Some(0), 0, 3), (Some(0), 0, 0)];
    let mut seen = Vec::new();
    for rank in [0, 1] {
        let (backend, fake) = Fake::joined(rank, 2);
        let mut comm = backend.world().unwrap();
        let all: Vec<u8> = uneven.iter().flat_map(|(color, key, splits)| wish(*color, *key, *splits)).collect();
        fake.answer(move |call| {
            // SAFETY: the destination is valid for its length.
            unsafe { call.dst.ptr.copy_from(all.as_ptr(), call.dst.bytes.min(all.len())) };
            Ok(())
        });
        fake.events();
        comm.split(Some(0), 0).unwrap().unwrap();
        seen.push(made(&fake));
    }
    assert_eq!(seen[0], seen[1]);
    assert!(!tags.contains(&seen[0][0].1));
}

#[test]
fn a_split_communicator_ends_with_its_handle() {
    let (mut comm, fake) = world(0, &[(Some(0), 0, 0), (Some(0), 0, 0)]);
    let child = comm.split(Some(0), 0).unwrap().unwrap();
    fake.events();
    drop(child);
    assert_eq!(fake.events(), [Event::Dropped("(0,1)".into())]);
    fake.answer(|_| Ok(()));
    comm.barrier().unwrap();
}

#[test]
fn errors_name_the_split() {
    let (backend, fake) = Fake::joined(0, 2);
    let mut comm = backend.world().unwrap();
    fake.answer(|_| Err(rankwise_core::Error::new(ErrorKind::Timeout, "rank 1 has not arrived")));
    let error = comm.split(Some(0), 0).unwrap_err();
    assert!(error.to_string().starts_with("split on group (0,1) at rank 0"), "{error}");
}

#[test]
fn shrink_takes_the_survivors() {
    let (backend, fake) = Fake::joined(2, 3);
    let mut comm = backend.world().unwrap();
    fake.events();
    let smaller = comm.shrink().unwrap();
    assert_eq!((smaller.group().to_string(), smaller.rank()), ("(1,2)".to_string(), 1));
    assert_eq!(fake.events(), [Event::Shrink]);
}
