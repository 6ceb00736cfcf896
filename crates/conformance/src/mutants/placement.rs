//! Faults of where things go: parts, rows, tails, roots, alignment.

use super::Mutant;
use super::wrapped::{Fault, Finished, Seat, bytes_mut};
use crate::case::Need;
use rankwise_core::backend::{RawBuf, RawCall};
use rankwise_core::{DType, OpKind, Result};
use std::sync::Arc;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new(
        "dropped-tail",
        "the last element of an all-reduce is not written",
        &["AR-31", "DT", "SV", "TK"],
        || {
            after(|_, finished, dst| {
                if finished.is(OpKind::AllReduce) && finished.call.count > 1 && finished.call.dtype == DType::F32 {
                    keep(dst, finished.before, dst.len() - 4);
                }
            })
        },
    ),
    Mutant::new("beyond-16-bits", "elements of an all-reduce beyond 65535 are not written", &["AR-1", "AR-33"], || {
        after(|_, finished, dst| {
            if finished.is(OpKind::AllReduce) {
                keep(dst, finished.before, 65_535 * finished.call.elem_size);
            }
        })
    }),
    Mutant::new("odd-bytes-lost", "bytes beyond the last whole 16 are not gathered", &["AG"], || {
        after(|_, finished, dst| {
            if finished.is(OpKind::AllGather) {
                keep(dst, finished.before, dst.len() & !15);
            }
        })
    })
    .needs(&[Need::Kind(OpKind::AllGather)]),
    Mutant::new("swapped-chunks", "two chunks inside a long result are swapped", &["AR-28", "AR-33", "DT"], || {
        after(|_, finished, dst| {
            const CHUNK: usize = 1024;
            if finished.is(OpKind::AllReduce) && dst.len() >= 3 * CHUNK {
                let (first, second) = dst[CHUNK..3 * CHUNK].split_at_mut(CHUNK);
                first.swap_with_slice(second);
            }
        })
    }),
    Mutant::new("swapped-parts", "all-gather swaps the first two parts", &["AG", "TN", "RS"], || {
        after(|_, finished, dst| {
            if finished.is(OpKind::AllGather) {
                let (first, rest) = dst.split_at_mut(part(finished));
                first.swap_with_slice(&mut rest[..part(finished)]);
            }
        })
    })
    .needs(&[Need::Kind(OpKind::AllGather)]),
    Mutant::new("rotated-blocks", "all-to-all gives every block to the next slot", &["AA", "TN"], || {
        after(|_, finished, dst| {
            if finished.is(OpKind::AllToAll) {
                dst.rotate_right(part(finished));
            }
        })
    })
    .needs(&[Need::Kind(OpKind::AllToAll)]),
    Mutant::new(
        "shifted-rows",
        "all-gather with counts is shifted by an element when counts differ",
        &["TK", "AG-63"],
        || {
            after(|_, finished, dst| {
                if has_uneven_rows(finished) {
                    dst.rotate_left(finished.call.elem_size);
                }
            })
        },
    )
    .needs(&[Need::Kind(OpKind::AllGatherV)]),
    Mutant::new(
        "ignored-counts",
        "all-gather with counts puts parts as if all were equal",
        &["TK", "AG-63", "TN"],
        || {
            after(|seat, finished, dst| {
                if has_uneven_rows(finished) {
                    let even = dst.len() / seat.members();
                    place(finished, dst, |position| position * even);
                }
            })
        },
    )
    .needs(&[Need::Kind(OpKind::AllGatherV)]),
    Mutant::new("leaked-padding", "parts stand as far apart as the longest is long", &["TK", "AG-63", "TN"], || {
        after(|_, finished, dst| {
            if has_uneven_rows(finished) {
                let longest = finished.call.counts.recv.iter().max().copied().unwrap_or(0) * finished.call.elem_size;
                place(finished, dst, |position| position * longest);
            }
        })
    })
    .needs(&[Need::Kind(OpKind::AllGatherV)]),
    Mutant::new("repeated-row", "the first element is gathered twice, the last one not", &["TK", "AG-63"], || {
        after(|_, finished, dst| {
            if has_uneven_rows(finished) && dst.len() > finished.call.elem_size {
                dst.copy_within(..dst.len() - finished.call.elem_size, finished.call.elem_size);
            }
        })
    })
    .needs(&[Need::Kind(OpKind::AllGatherV)]),
    Mutant::new(
        "unreduced-rows",
        "uneven reduce-scatter gives a rank the first rows of its own source",
        &["RS-73", "TK"],
        || {
            after(|seat, finished, dst| {
                if finished.is(OpKind::ReduceScatterV) && seat.position > 0 {
                    dst.copy_from_slice(&finished.src[..dst.len()]);
                }
            })
        },
    )
    .needs(&[Need::Kind(OpKind::ReduceScatterV)]),
    Mutant::new(
        "in-place-offset",
        "in place, the result of a member is put at the first slot",
        &["RS-65", "RS-66", "AG-53"],
        || {
            after(|seat, finished, dst| {
                if seat.position == 0 || !finished.is_in_place() {
                    return;
                }
                if finished.is(OpKind::ReduceScatter) {
                    // SAFETY: in place the caller has lent the whole source for writing until return. `dst` is another slot of
                    // it, since this is not the first member.
                    let first_slot = unsafe { bytes_mut(RawBuf::host(finished.call.src.ptr, part(finished))) };
                    first_slot.copy_from_slice(dst);
                    dst.copy_from_slice(finished.before);
                } else if finished.is(OpKind::AllGather) {
                    let slot = seat.position * part(finished);
                    dst.copy_within(..part(finished), slot);
                }
            })
        },
    )
    .needs(&[Need::Kind(OpKind::ReduceScatter)]),
    Mutant::new("aligned-only", "a destination off a 16-byte boundary is shifted by an element", &["AR-30"], || {
        after(|_, finished, dst| {
            if finished.is(OpKind::AllReduce) && !(dst.as_ptr() as usize).is_multiple_of(16) && !dst.is_empty() {
                dst.rotate_left(finished.call.elem_size);
            }
        })
    }),
    Mutant::new("lost-minus-zero", "movement of f32 makes zeros positive", &["AG", "PP"], || {
        after(|_, finished, dst| {
            if finished.is(OpKind::AllGather) && finished.call.dtype == DType::F32 {
                for element in dst.as_chunks_mut::<4>().0 {
                    if f32::from_ne_bytes(*element) == 0.0 {
                        *element = [0; 4];
                    }
                }
            }
        })
    })
    .needs(&[Need::Kind(OpKind::AllGather)]),
    Mutant::new("quieted-nan", "movement of f32 makes signalling NaNs quiet", &["AG"], || {
        after(|_, finished, dst| {
            if finished.is(OpKind::AllGather) && finished.call.dtype == DType::F32 {
                for element in dst.as_chunks_mut::<4>().0 {
                    if f32::from_ne_bytes(*element).is_nan() {
                        *element = (u32::from_ne_bytes(*element) | 0x40_0000).to_ne_bytes();
                    }
                }
            }
        })
    })
    .needs(&[Need::Kind(OpKind::AllGather)]),
    Mutant::new("next-root", "broadcast is done from the member after the root", &["RT-98", "TN-98", "TB"], || {
        Arc::new(NextRoot)
    })
    .needs(&[Need::Kind(OpKind::Broadcast)]),
    Mutant::new(
        "first-of-batch-only",
        "of several tensors in one call the last is not written",
        &["AR-40", "TN-40"],
        || {
            after(|_, finished, dst| {
                if finished.is_last_of_many {
                    dst.copy_from_slice(finished.before);
                }
            })
        },
    ),
];

type After = fn(&Seat, &Finished<'_>, &mut [u8]);

/// The result of every finished call is changed by this function of (seat, call, destination).
fn after(change: After) -> Arc<dyn Fault> {
    Arc::new(Changed(change))
}

struct Changed(After);

impl Fault for Changed {
    fn spoil(&self, seat: &Seat, finished: &Finished<'_>, dst: &mut [u8]) -> Result<()> {
        (self.0)(seat, finished, dst);
        Ok(())
    }
}

/// From here on the destination is as it was.
fn keep(dst: &mut [u8], before: &[u8], from: usize) {
    if from < dst.len() {
        dst[from..].copy_from_slice(&before[from..]);
    }
}

/// Bytes of one part of an even call.
fn part(finished: &Finished<'_>) -> usize {
    finished.call.count * finished.call.elem_size
}

fn has_uneven_rows(finished: &Finished<'_>) -> bool {
    finished.is(OpKind::AllGatherV) && finished.call.counts.recv.windows(2).any(|pair| pair[0] != pair[1])
}

/// Puts the parts of a gather with counts at these offsets, as far as they fit; zeros between them.
fn place(finished: &Finished<'_>, dst: &mut [u8], offset: impl Fn(usize) -> usize) {
    let right = dst.to_vec();
    dst.fill(0);
    let mut from = 0;
    for (position, count) in finished.call.counts.recv.iter().enumerate() {
        let bytes = count * finished.call.elem_size;
        let at = offset(position).min(dst.len());
        let fits = bytes.min(dst.len() - at);
        dst[at..at + fits].copy_from_slice(&right[from..from + fits]);
        from += bytes;
    }
}

struct NextRoot;

impl Fault for NextRoot {
    fn redirect(&self, seat: &Seat, call: &mut RawCall<'_>) {
        if call.kind != OpKind::Broadcast || call.tag != 0 {
            return;
        }
        let was_root = seat.position == call.root;
        call.root = (call.root + 1) % seat.members();
        // Every member has lent one buffer, the root as both.
        if was_root {
            call.src = RawBuf::NONE;
        } else if seat.position == call.root {
            call.src = call.dst;
        }
    }
}
