//! Groups: ordered tuples of distinct global ranks.

use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A non-empty ordered tuple of distinct global ranks. The position in the tuple is the rank in the group.
///
/// `(0, 1)` and `(1, 0)` are two different groups, and results follow the tuple's order. Cloning is cheap.
#[derive(Clone)]
pub struct Group {
    ranks: Arc<[u32]>,
    hash: u64,
}

impl Group {
    /// A group of these global ranks in this order.
    ///
    /// `InvalidArgument` when there is none, or one twice, or one above `u32::MAX - 1`. Whether the ranks exist is checked
    /// where the group meets a world.
    pub fn new(ranks: impl IntoIterator<Item = usize>) -> Result<Group> {
        let mut tuple = Vec::new();
        for rank in ranks {
            match u32::try_from(rank) {
                Ok(small) if small != u32::MAX => tuple.push(small),
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        format!("global rank {rank} is too large for a group"),
                    ));
                }
            }
        }
        if tuple.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a group needs at least one rank; list the global ranks of its members",
            ));
        }
        let mut sorted = tuple.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("global rank {} appears twice in the group; list each rank once", pair[0]),
            ));
        }
        Ok(Group::from_tuple(tuple.into()))
    }

    /// The group of all ranks of a world of `size` ranks, in order; a size of zero is taken as one.
    pub fn world(size: usize) -> Group {
        let size = u32::try_from(size.max(1)).unwrap_or(u32::MAX - 1);
        Group::from_tuple((0..size).collect())
    }

    fn from_tuple(ranks: Arc<[u32]>) -> Group {
        // FNV-1a: stable across processes and versions, unlike the standard hasher.
        let hash = ranks
            .iter()
            .flat_map(|rank| rank.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Group { ranks, hash }
    }

    /// Number of members, at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The global rank of the member at `position`; `None` outside the group.
    pub fn global(&self, position: usize) -> Option<usize> {
        self.ranks.get(position).map(|rank| *rank as usize)
    }

    /// The global ranks in group order.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = usize> + Clone + '_ {
        self.ranks.iter().map(|rank| *rank as usize)
    }

    /// The position of a global rank; `None` for a non-member.
    pub fn position(&self, global: usize) -> Option<usize> {
        // A world group is the identity; test that before searching.
        match self.ranks.get(global) {
            Some(rank) if *rank as usize == global => Some(global),
            _ => self.ranks().position(|rank| rank == global),
        }
    }

    /// Whether the global rank is a member.
    pub fn contains(&self, global: usize) -> bool {
        self.position(global).is_some()
    }

    /// A hash of the tuple that is the same in every process and version.
    pub fn stable_hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        Arc::ptr_eq(&self.ranks, &other.ranks) || (self.hash == other.hash && self.ranks == other.ranks)
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Display for Group {
    /// `(0,1,2)`; long groups are shortened in the middle.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.len();
        f.write_str("(")?;
        for (i, rank) in self.ranks().enumerate() {
            if n > 16 && i == 8 {
                write!(f, ",… {} more …", n - 12)?;
            }
            if n > 16 && (8..n - 4).contains(&i) {
                continue;
            }
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{rank}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_matters() {
        let a = Group::new([0, 1]).unwrap();
        let b = Group::new([1, 0]).unwrap();
        assert_ne!(a, b);
        assert_ne!(a.stable_hash(), b.stable_hash());
        assert_eq!(b.position(0), Some(1));
        assert_eq!(b.global(0), Some(1));
        assert_eq!(a.position(7), None);
    }

    #[test]
    fn bad_tuples_are_refused() {
        for bad in [vec![], vec![0, 0], vec![3, 1, 3], vec![usize::MAX], vec![u32::MAX as usize]] {
            let error = Group::new(bad).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn display_is_short() {
        assert_eq!(Group::new([2, 0]).unwrap().to_string(), "(2,0)");
        assert_eq!(Group::world(20).to_string(), "(0,1,2,3,4,5,6,7,… 8 more …,16,17,18,19)");
    }
}
