//! Element counts that find off-by-one errors, with each backend's own thresholds (H3).

use crate::number::elem_size;
use rankwise_core::{Capabilities, DType};

/// The counts that every backend is tried with.
pub(crate) const COMMON: [usize; 33] = [
    0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097,
    65_535, 65_536, 65_537, 1_048_579, 5, 6, 100, 1000,
];

/// A count: fixed, or one that lies at a threshold whatever the element size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// This many elements.
    Elements(usize),
    /// The elements that fill this many bytes, plus or minus.
    Bytes {
        /// The threshold.
        bytes: u64,
        /// Elements more or fewer.
        offset: i64,
    },
}

impl Size {
    /// The number of elements for a type.
    pub fn elements(self, dtype: DType) -> usize {
        match self {
            Size::Elements(count) => count,
            Size::Bytes { bytes, offset } => {
                let whole = i64::try_from(bytes / elem_size(dtype) as u64).unwrap_or(i64::MAX - 1);
                usize::try_from(whole.saturating_add(offset)).unwrap_or(0)
            }
        }
    }
}

/// The counts to try: the common ones and those around the thresholds of `capabilities`, none above `most` elements
/// of one byte.
pub(crate) fn sizes(capabilities: &Capabilities, most: usize) -> Vec<Size> {
    let mut sizes: Vec<Size> = COMMON.into_iter().filter(|count| *count <= most).map(Size::Elements).collect();
    for threshold in capabilities.thresholds() {
        if threshold.bytes <= most as u64 {
            sizes.extend([-1, 0, 1].map(|offset| Size::Bytes { bytes: threshold.bytes, offset }));
        }
    }
    sizes
}

/// The largest number of elements that a world of `members` ranks is tried with when the run has to be short: the
/// oracle's work grows with the square of the world.
pub(crate) fn most_elements(members: usize, full: bool) -> usize {
    match members {
        _ if full => usize::MAX,
        // A group of one copies: no engine has a threshold there.
        1 => 5_000,
        _ => (1_200_000 / (members * members)).min(70_000),
    }
}
