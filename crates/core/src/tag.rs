//! Tags of the layer's own calls, so that they never meet a user's call of the same kind and size.

/// The length message of a broadcast of unknown length.
pub(crate) const LENGTH: u32 = 1;
/// The data of a broadcast of unknown length.
pub(crate) const BYTES: u32 = 2;
/// The colours and keys of a split.
pub(crate) const SPLIT: u32 = 3;
