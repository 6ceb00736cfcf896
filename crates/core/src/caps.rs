//! What a communicator can do, as a value fixed when it is created.

use crate::dtype::{DType, DTypeSet};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::MemorySpace;
use crate::op::{OpKind, ReduceOp};

/// How far results are reproducible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Determinism {
    /// All ranks get the same bits, and the same bits again on the same topology.
    #[default]
    SameTopology,
    /// Left fold in group order per element: the same bits for any message length, split or alignment, and across
    /// backends that offer it.
    Fixed,
}

/// What the engine does when a deadline passes while it still holds the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadlineSupport {
    /// The call is stopped and returns `Timeout`.
    Enforced,
    /// The call can't be stopped; it is reported and the configured action is applied.
    Watched,
}

/// The capability table of a communicator: the intersection over its members.
///
/// All ranks decide from the same table, so an unsupported call is refused on every rank before anything moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    kinds: u64,
    reduce: [DTypeSet; ReduceOp::COUNT],
    moves: DTypeSet,
    host: bool,
    cuda: bool,
    determinism: Determinism,
    enforced: bool,
    agreement: bool,
    nonblocking: bool,
    alloc: bool,
    max_bytes: u64,
    thresholds: Vec<Threshold>,
}

/// A size at which the backend changes its way of working; conformance tests it at -1, 0 and +1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// What changes there, for example `inline`.
    pub name: &'static str,
    /// The last size, in bytes of one rank's contribution, that is handled the smaller way.
    pub bytes: u64,
}

impl Capabilities {
    /// A table that offers nothing; add with the `with_` methods.
    pub fn none() -> Capabilities {
        Capabilities {
            kinds: 0,
            reduce: [DTypeSet::NONE; ReduceOp::COUNT],
            moves: DTypeSet::NONE,
            host: false,
            cuda: false,
            determinism: Determinism::SameTopology,
            enforced: false,
            agreement: false,
            nonblocking: false,
            alloc: false,
            max_bytes: u64::MAX,
            thresholds: Vec::new(),
        }
    }

    /// Adds these kinds of operation.
    #[must_use]
    pub fn with_kinds(mut self, kinds: &[OpKind]) -> Self {
        for kind in kinds {
            self.kinds |= 1 << *kind as u64;
        }
        self
    }

    /// Removes one kind of operation.
    #[must_use]
    pub fn without_kind(mut self, kind: OpKind) -> Self {
        self.kinds &= !(1 << kind as u64);
        self
    }

    /// Sets the types one operator can combine.
    #[must_use]
    pub fn with_reduce(mut self, op: ReduceOp, types: DTypeSet) -> Self {
        self.reduce[op.index()] = types;
        self
    }

    /// Sets the types that can be moved; usually all, since movement is by bytes.
    #[must_use]
    pub fn with_moves(mut self, types: DTypeSet) -> Self {
        self.moves = types;
        self
    }

    /// Sets whether host memory and CUDA memory can be used.
    #[must_use]
    pub fn with_spaces(mut self, host: bool, cuda: bool) -> Self {
        self.host = host;
        self.cuda = cuda;
        self
    }

    /// Sets the strongest determinism offered.
    #[must_use]
    pub fn with_determinism(mut self, determinism: Determinism) -> Self {
        self.determinism = determinism;
        self
    }

    /// Sets what happens at a deadline.
    #[must_use]
    pub fn with_deadline(mut self, support: DeadlineSupport) -> Self {
        self.enforced = support == DeadlineSupport::Enforced;
        self
    }

    /// Sets whether mismatching calls and refusals are found and told to the peers.
    #[must_use]
    pub fn with_agreement(mut self, agreement: bool) -> Self {
        self.agreement = agreement;
        self
    }

    /// Sets whether `start` and scopes work, and whether `alloc` does.
    #[must_use]
    pub fn with_nonblocking(mut self, nonblocking: bool, alloc: bool) -> Self {
        self.nonblocking = nonblocking;
        self.alloc = alloc;
        self
    }

    /// Sets the largest buffer in bytes.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Adds a size at which the way of working changes.
    #[must_use]
    pub fn with_threshold(mut self, name: &'static str, bytes: u64) -> Self {
        self.thresholds.push(Threshold { name, bytes });
        self
    }

    /// What both tables offer; the thresholds of `self` are kept.
    #[must_use]
    pub fn intersection(mut self, other: &Capabilities) -> Capabilities {
        self.kinds &= other.kinds;
        for (mine, theirs) in self.reduce.iter_mut().zip(&other.reduce) {
            *mine = mine.intersection(*theirs);
        }
        self.moves = self.moves.intersection(other.moves);
        self.host &= other.host;
        self.cuda &= other.cuda;
        self.determinism = self.determinism.min(other.determinism);
        self.enforced &= other.enforced;
        self.agreement &= other.agreement;
        self.nonblocking &= other.nonblocking;
        self.alloc &= other.alloc;
        self.max_bytes = self.max_bytes.min(other.max_bytes);
        self
    }

    /// Whether the kind of operation is offered.
    pub fn has_kind(&self, kind: OpKind) -> bool {
        self.kinds & (1 << kind as u64) != 0
    }

    /// The types `op` can combine.
    pub fn reduces(&self, op: ReduceOp) -> DTypeSet {
        self.reduce[op.index()]
    }

    /// The types that can be moved.
    pub fn moves(&self) -> DTypeSet {
        self.moves
    }

    /// Whether buffers of this space can be used.
    pub fn has_space(&self, space: MemorySpace) -> bool {
        match space {
            MemorySpace::Host => self.host,
            MemorySpace::Cuda(_) => self.cuda,
        }
    }

    /// The strongest determinism offered.
    pub fn determinism(&self) -> Determinism {
        self.determinism
    }

    /// What happens at a deadline.
    pub fn deadline(&self) -> DeadlineSupport {
        if self.enforced { DeadlineSupport::Enforced } else { DeadlineSupport::Watched }
    }

    /// Whether calls that don't fit together are found and become `Mismatch`, and a rank's refusal `PeerRejected` on its peers. Where
    /// not, such calls are the program's mistake with undefined results, and a refusal makes the communicator unusable.
    pub fn agreement(&self) -> bool {
        self.agreement
    }

    /// Whether `start` and scopes work.
    pub fn nonblocking(&self) -> bool {
        self.nonblocking
    }

    /// Whether `alloc` works.
    pub fn alloc(&self) -> bool {
        self.alloc
    }

    /// The largest buffer in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Sizes at which the way of working changes.
    pub fn thresholds(&self) -> &[Threshold] {
        &self.thresholds
    }

    /// Refuses what the table does not offer. `op` is given for reducing kinds.
    ///
    /// Order of the checks: kind, operator's meaning, operator and type, movement, memory space.
    #[inline]
    pub fn check(&self, kind: OpKind, dtype: DType, op: Option<ReduceOp>, space: MemorySpace) -> Result<()> {
        let fine = self.has_kind(kind)
            && self.has_space(space)
            && match op {
                Some(op) if kind.reduces() => self.reduces(op).contains(dtype),
                _ => kind == OpKind::Barrier || self.moves.contains(dtype),
            };
        if fine { Ok(()) } else { Err(self.refusal(kind, dtype, op, space)) }
    }

    #[cold]
    fn refusal(&self, kind: OpKind, dtype: DType, op: Option<ReduceOp>, space: MemorySpace) -> Error {
        if !self.has_kind(kind) {
            return Error::new(
                ErrorKind::UnsupportedOp,
                format!("this backend does not offer {kind}; see its row in docs/backends.md"),
            );
        }
        if !self.has_space(space) {
            return Error::new(
                ErrorKind::UnsupportedMemory,
                format!("this backend can't use {space} memory; copy the data or choose another backend"),
            );
        }
        match op {
            Some(op) if kind.reduces() => {
                if dtype == DType::Opaque {
                    Error::new(
                        ErrorKind::UnsupportedDtype,
                        format!("{op} needs a numeric type; opaque bytes can only be moved"),
                    )
                } else if !op.is_meaningful_for(dtype) {
                    Error::new(
                        ErrorKind::UnsupportedOp,
                        format!("{op} has no meaning for {dtype}; see the operator table in docs/semantics.md"),
                    )
                } else {
                    Error::new(
                        ErrorKind::UnsupportedDtype,
                        format!("this backend can't compute {op} of {dtype}; see its row in docs/backends.md"),
                    )
                }
            }
            _ => Error::new(ErrorKind::UnsupportedDtype, format!("this backend can't move {dtype}")),
        }
    }

    /// The table as bytes for the exchange at communicator creation, without the thresholds.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(self.kinds.to_le_bytes());
        for set in &self.reduce {
            bytes.extend(set.bits().to_le_bytes());
        }
        bytes.extend(self.moves.bits().to_le_bytes());
        let flags = [
            self.host,
            self.cuda,
            self.determinism == Determinism::Fixed,
            self.enforced,
            self.nonblocking,
            self.alloc,
            self.agreement,
        ];
        bytes.push(flags.iter().enumerate().map(|(i, flag)| u8::from(*flag) << i).sum());
        bytes.extend(self.max_bytes.to_le_bytes());
        bytes
    }

    /// The inverse of [`Capabilities::to_bytes`]; `None` when the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Capabilities> {
        let (kinds, rest) = bytes.split_first_chunk()?;
        let mut table = Capabilities::none();
        table.kinds = u64::from_le_bytes(*kinds);
        let mut rest = rest;
        for slot in table.reduce.iter_mut().chain([&mut table.moves]) {
            let (bits, tail) = rest.split_first_chunk()?;
            *slot = DTypeSet::from_bits(u16::from_le_bytes(*bits));
            rest = tail;
        }
        let (flags, rest) = rest.split_first()?;
        let flag = |i: u8| flags & (1 << i) != 0;
        table.host = flag(0);
        table.cuda = flag(1);
        table.determinism = if flag(2) { Determinism::Fixed } else { Determinism::SameTopology };
        table.enforced = flag(3);
        table.agreement = flag(6);
        table.nonblocking = flag(4);
        table.alloc = flag(5);
        table.max_bytes = u64::from_le_bytes(rest.try_into().ok()?);
        Some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Capabilities {
        Capabilities::none()
            .with_kinds(&[OpKind::AllReduce, OpKind::AllGather])
            .with_reduce(ReduceOp::Sum, DTypeSet::FLOATS)
            .with_moves(DTypeSet::NUMERIC)
            .with_spaces(true, false)
            .with_max_bytes(1 << 40)
    }

    #[test]
    fn refusals_name_the_reason() {
        let refuse = |kind, dtype, op, space| table().check(kind, dtype, op, space).unwrap_err().kind().clone();
        let host = MemorySpace::Host;
        assert!(table().check(OpKind::AllReduce, DType::F32, Some(ReduceOp::Sum), host).is_ok());
        assert_eq!(refuse(OpKind::Barrier, DType::U8, None, host), ErrorKind::UnsupportedOp);
        assert_eq!(refuse(OpKind::AllReduce, DType::I32, Some(ReduceOp::Avg), host), ErrorKind::UnsupportedOp);
        assert_eq!(refuse(OpKind::AllReduce, DType::I32, Some(ReduceOp::Sum), host), ErrorKind::UnsupportedDtype);
        assert_eq!(refuse(OpKind::AllReduce, DType::Opaque, Some(ReduceOp::Sum), host), ErrorKind::UnsupportedDtype);
        assert_eq!(refuse(OpKind::AllGather, DType::Opaque, None, host), ErrorKind::UnsupportedDtype);
        assert_eq!(
            refuse(OpKind::AllReduce, DType::F32, Some(ReduceOp::Sum), MemorySpace::Cuda(0)),
            ErrorKind::UnsupportedMemory
        );
    }

    #[test]
    fn bytes_round_trip_and_bad_lengths_are_refused() {
        let table = table().with_determinism(Determinism::Fixed).with_agreement(true).with_nonblocking(true, false);
        let bytes = table.to_bytes();
        assert_eq!(Capabilities::from_bytes(&bytes), Some(table));
        for cut in 0..bytes.len() {
            assert_eq!(Capabilities::from_bytes(&bytes[..cut]), None);
        }
    }

    #[test]
    fn intersection_keeps_only_what_both_offer() {
        let both = table().intersection(&table().without_kind(OpKind::AllGather).with_max_bytes(10));
        assert!(both.has_kind(OpKind::AllReduce) && !both.has_kind(OpKind::AllGather));
        assert_eq!(both.max_bytes(), 10);
    }
}
