//! Faults of groups: their order, and what a split asks for.

use super::Mutant;
use super::wrapped::{Fault, Finished, Seat};
use rankwise_core::{OpKind, Result};
use std::sync::Arc;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("sorted-group", "all-gather gives the parts in the order of the global ranks", &["GR"], || {
        Arc::new(Sorted)
    }),
    Mutant::new("ignored-split-key", "a split does not look at the keys", &["GR-118", "GR-121"], || Arc::new(NoKeys)),
    Mutant::new("ignored-split-colour", "a split puts every member into the first one's part", &["GR-119"], || {
        Arc::new(NoColours)
    }),
];

struct Sorted;

impl Fault for Sorted {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        let part = finished.call.count * finished.call.elem_size;
        if !finished.is(OpKind::AllGather) || part == 0 {
            return Ok(());
        }
        let mut order: Vec<usize> = (0..seat.members()).collect();
        order.sort_unstable_by_key(|position| seat.inner.group().global(*position));
        let right = dst.to_vec();
        for (slot, position) in dst.chunks_exact_mut(part).zip(order) {
            slot.copy_from_slice(&right[position * part..(position + 1) * part]);
        }
        Ok(())
    }
}

/// What a member says in a split: 8 bytes whether it takes part, 8 of colour, 8 of key, 8 more.
const WISH: usize = 32;

/// The exchange of a split is a gather that the layer above makes for itself.
fn wishes<'a>(finished: &Finished<'_>, dst: &'a mut [u8]) -> &'a mut [[u8; WISH]] {
    let is_split = finished.call.kind == OpKind::AllGather
        && finished.call.tag != 0
        && finished.call.count * finished.call.elem_size == WISH;
    if is_split { dst.as_chunks_mut().0 } else { &mut [] }
}

struct NoKeys;

impl Fault for NoKeys {
    fn spoil(&self, _: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        wishes(finished, dst).iter_mut().for_each(|wish| wish[16..24].fill(0));
        Ok(())
    }
}

struct NoColours;

impl Fault for NoColours {
    fn spoil(&self, _: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        if let Some((first, rest)) = wishes(finished, dst).split_first_mut() {
            rest.iter_mut().for_each(|wish| wish[..16].copy_from_slice(&first[..16]));
        }
        Ok(())
    }
}
