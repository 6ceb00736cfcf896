//! The entry point: a kernel resolved for one type, operator and group size.

use crate::block::KernelFn;
use crate::isa::Isa;
use crate::table;
use rankwise_core::{DType, ReduceOp};

/// A reduction resolved for one element type, operator and group size.
///
/// `Copy`, no allocation; creation takes a few nanoseconds, so it may happen per call.
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    kernel: KernelFn,
    scale: Scale,
    isa: Isa,
    elem_size: u8,
}

/// What each input is multiplied by before the fold, and the result after it. Only `Avg` and `PreMulSum` look at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) before: f64,
    pub(crate) after: f64,
}

impl Scale {
    const NONE: Scale = Scale { before: 1.0, after: 1.0 };

    fn new(op: ReduceOp, members: usize) -> Scale {
        match op {
            ReduceOp::Avg => {
                let exponent = usize::BITS - (members - 1).leading_zeros();
                let power = 2f64.powi(exponent as i32);
                Scale { before: power.recip(), after: power / members as f64 }
            }
            ReduceOp::PreMulSum(factor) => Scale { before: factor, after: 1.0 },
            _ => Scale::NONE,
        }
    }
}

impl Reducer {
    /// The fastest kernel of this processor for `op` over `dtype` in a group of `members` ranks.
    ///
    /// `None` when the operator has no meaning for the type ([`ReduceOp::is_meaningful_for`]) or `members` is 0.
    pub fn new(dtype: DType, op: ReduceOp, members: usize) -> Option<Reducer> {
        // `best` was found available.
        Reducer::resolve(dtype, op, members, Isa::best())
    }

    /// As [`Reducer::new`] with the instruction set chosen by the caller. `None` also when this processor lacks it.
    pub fn with_isa(dtype: DType, op: ReduceOp, members: usize, isa: Isa) -> Option<Reducer> {
        if isa.is_available() { Reducer::resolve(dtype, op, members, isa) } else { None }
    }

    fn resolve(dtype: DType, op: ReduceOp, members: usize, isa: Isa) -> Option<Reducer> {
        if members == 0 {
            return None;
        }
        let elem_size = dtype.size()? as u8;
        let kernel = table::lookup(isa, dtype, op)?;
        Some(Reducer { kernel, scale: Scale::new(op, members), isa, elem_size })
    }

    /// Bytes of one element.
    pub fn elem_size(&self) -> usize {
        usize::from(self.elem_size)
    }

    /// The instruction set of the kernel.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Writes to `dst[i]` the left fold over `srcs[0][i]`, `srcs[1][i]`, … in that order, for `count` elements.
    ///
    /// `srcs` normally has one entry per member; fewer are folded alike (`Avg` still divides by the group size). A
    /// single source passes through the same arithmetic, so that its NaNs come out canonical. With no source nothing
    /// happens. Pointers need no alignment. Each element of a source is read exactly once, through its pointer, before the
    /// element of `dst` at the same place is written.
    ///
    /// # Safety
    ///
    /// - Each source is readable and `dst` writable for `count * elem_size()` bytes.
    /// - `dst` is the same address as a source (any number of them), or does not overlap it.
    /// - Bytes of a source written by someone else meanwhile, as in memory shared between processes, give unspecified
    ///   elements; within this process such a write is a data race and must not happen.
    #[inline]
    pub unsafe fn fold(&self, dst: *mut u8, srcs: &[*const u8], count: usize) {
        // SAFETY: the caller's promise is the kernel's; the kernel's instruction set was found available by whoever
        // resolved it.
        unsafe { (self.kernel)(dst, srcs, count, self.scale) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exists_exactly_where_the_operator_has_a_meaning() {
        for op in ReduceOp::ALL {
            for dtype in DType::NUMERIC.into_iter().chain([DType::Opaque]) {
                for isa in Isa::ALL {
                    let wanted = op.is_meaningful_for(dtype) && isa.is_available();
                    assert_eq!(Reducer::with_isa(dtype, op, 3, isa).is_some(), wanted, "{dtype} {op} {isa}");
                }
                assert_eq!(crate::supported()[op.index()].contains(dtype), Reducer::new(dtype, op, 3).is_some());
                assert!(Reducer::new(dtype, op, 0).is_none());
            }
        }
    }

    #[test]
    fn average_scales() {
        for (members, before, after) in [
            (1, 1.0, 1.0),
            (2, 0.5, 1.0),
            (3, 0.25, 4.0 / 3.0),
            (4, 0.25, 1.0),
            (5, 0.125, 1.6),
            (1024, 1.0 / 1024.0, 1.0),
        ] {
            let scale = Scale::new(ReduceOp::Avg, members);
            assert_eq!((scale.before, scale.after), (before, after), "{members} members");
        }
        let scale = Scale::new(ReduceOp::Avg, usize::MAX);
        assert!(scale.before > 0.0 && scale.after >= 1.0);
    }

    #[test]
    fn element_sizes() {
        for dtype in DType::NUMERIC {
            assert_eq!(Some(Reducer::new(dtype, ReduceOp::Sum, 2).expect("sum").elem_size()), dtype.size());
        }
    }
}
