//! Communicators made from communicators: split and shrink.

use crate::call::Shape;
use crate::comm::Communicator;
use crate::error::Result;
use crate::group::Group;
use crate::member::Member;
use crate::op::OpKind;
use crate::tag;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a member says in a split.
#[derive(Clone, Copy)]
struct Wish {
    color: Option<u64>,
    key: i64,
    /// Splits of the parent that the member knows of.
    splits: u64,
}

const WISH: usize = 32;

impl Wish {
    fn to_bytes(self) -> [u8; WISH] {
        let mut bytes = [0; WISH];
        bytes[0] = u8::from(self.color.is_some());
        bytes[8..16].copy_from_slice(&self.color.unwrap_or(0).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..].copy_from_slice(&self.splits.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; WISH]) -> Wish {
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[i + k]));
        Wish { color: (bytes[0] != 0).then(|| word(8)), key: word(16).cast_signed(), splits: word(24) }
    }
}

pub(crate) fn split(comm: &mut Communicator, color: Option<u64>, key: i64) -> Result<Option<Communicator>> {
    let member = comm.member.clone();
    let blame = |error| member.blame(OpKind::Split, error);
    // Held until the new number is stored: else splits of two threads could take one number.
    let entered = member.enter(OpKind::Split)?;
    // Relaxed: ordered by the busy flag.
    let mine = Wish { color, key, splits: member.splits().load(Ordering::Relaxed) };
    let mut wishes = vec![0; member.group().len() * WISH];
    let shape = Shape { tag: tag::SPLIT, ..Shape::of::<u8>(OpKind::AllGather) };
    comm.run_inner(&entered, shape, &mine.to_bytes(), &mut wishes)
        .map_err(|error| blame(error.renamed(OpKind::Split)))?;
    let wishes: Vec<Wish> = wishes.as_chunks().0.iter().map(Wish::from_bytes).collect();
    // A member may have missed a split that failed; with the largest number all agree again.
    let splits = wishes.iter().map(|wish| wish.splits).max().unwrap_or(0) + 1;
    member.splits().store(splits, Ordering::Relaxed);
    drop(entered);
    let Some(color) = color else { return Ok(None) };

    let mut chosen: Vec<(i64, usize)> =
        (0..).zip(&wishes).filter(|(_, w)| w.color == Some(color)).map(|(i, w)| (w.key, i)).collect();
    chosen.sort_unstable();
    let group = Group::new(chosen.into_iter().filter_map(|(_, position)| member.group().global(position)))?;
    let tag = derive(member.tag(), splits, color);
    let child = comm.backend.join(&group, tag).map_err(blame)?;
    Ok(Some(child_of(comm, child)))
}

pub(crate) fn shrink(comm: &mut Communicator) -> Result<Communicator> {
    let member = comm.member.clone();
    let kind = OpKind::Shrink;
    let _entered = member.enter(kind)?;
    let splits = member.splits().fetch_add(1, Ordering::Relaxed) + 1;
    let tag = derive(member.tag(), splits, u64::MAX);
    let child = match member.raw() {
        Some(raw) => raw.shrink(comm.backend.settings().join_timeout).and_then(|raw| {
            let group = raw.group().clone();
            Member::new(Some(raw), &group, member.rank(), tag, comm.backend.capabilities())
        }),
        None => comm.backend.join(member.group(), tag),
    };
    Ok(child_of(comm, child.map_err(|error| member.blame(kind, error))?))
}

fn child_of(comm: &Communicator, child: Member) -> Communicator {
    let mut handle = Communicator::new(comm.backend.clone(), Arc::new(child));
    handle.set_timeout(comm.timeout());
    handle
}

/// A tag for a child: the same on all members, different from those of other children, never 0.
fn derive(parent: u64, splits: u64, color: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in [parent, splits, color] {
        // The finalizer of SplitMix64: every bit of the word reaches every bit of the tag.
        hash = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^= hash >> 31;
    }
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{CommSpec, RawBackend, RawCommunicator};
    use crate::config::Config;
    use crate::error::ErrorKind;
    use crate::{Backend, Capabilities, DTypeSet};
    use std::collections::HashSet;
    use std::time::Duration;

    struct Alone;

    // SAFETY: it makes no communicator.
    unsafe impl RawBackend for Alone {
        fn name(&self) -> &'static str {
            "alone"
        }

        fn rank(&self) -> usize {
            0
        }

        fn world_size(&self) -> usize {
            1
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::none().with_kinds(&OpKind::DATA).with_moves(DTypeSet::NUMERIC).with_spaces(true, false)
        }

        fn communicator(&self, spec: &CommSpec, _: Duration) -> Result<Arc<dyn RawCommunicator>> {
            unreachable!("a communicator of {}", spec.group)
        }
    }

    /// Two threads that split through handles of one group get children with tags of their own.
    #[test]
    fn children_of_two_threads_have_different_tags() {
        const SPLITS: usize = 20_000;
        let backend = Backend::new(Arc::new(Alone), Config::new().resolve().unwrap());
        let tags = || {
            let mut comm = backend.world().unwrap();
            let mut tags = Vec::with_capacity(SPLITS);
            while tags.len() < SPLITS {
                match comm.split(Some(0), 0) {
                    Ok(child) => tags.push(child.unwrap().member.tag()),
                    Err(error) => assert_eq!(error.kind(), &ErrorKind::Busy),
                }
            }
            tags
        };
        let all: Vec<u64> = std::thread::scope(|scope| {
            let other = scope.spawn(tags);
            let mut all = tags();
            all.extend(other.join().unwrap());
            all
        });
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
