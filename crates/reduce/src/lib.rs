//! Reduction kernels: `dst[i] = srcs[0][i] op srcs[1][i] op …`, over bytes, as fast as the processor allows.
//!
//! A [`Reducer`] is resolved once for an element type, an operator and a group size; [`Reducer::fold`] then combines
//! any number of elements. The kernel is chosen at run time among the instruction sets of [`Isa`], and the choice
//! never shows: the result of an element depends on its inputs and their order alone, bit for bit, not on its
//! position, the alignment, the count or the instruction set.
//!
//! What this crate is not: it does not communicate, allocate, wait or check lengths; it is the arithmetic below a
//! backend that has done so.
//!
//! | file | holds |
//! |---|---|
//! | `reducer.rs` | [`Reducer`] and the scale factors of `Avg` and `PreMulSum` |
//! | `isa.rs` | [`Isa`]: which instruction sets exist and which this processor has |
//! | `table.rs` | from (instruction set, type, operator) to a compiled kernel |
//! | `block.rs` | the one loop all kernels share, compiled once per instruction set |
//! | `integer.rs`, `extremum.rs`, `arithmetic.rs` | what a kernel does to one element, by family of operators |
//! | `format.rs`, `x86.rs` | how floats are widened and narrowed; the hardware conversions of binary16 |
//! | [`convert`], [`copy`], [`ftz`] | scalar conversions, moving bytes, detecting flushed subnormals |
//!
//! # Numbers
//!
//! - Integers wrap.
//! - `f32` and `f64` fold in their own precision; `f16`, `bf16` and the two 8-bit floats are converted to `f32`, folded
//!   there and rounded once, to nearest even. Nothing is contracted or reassociated. Subnormals are kept.
//! - `Avg` multiplies each input by `2^-k` with `k = ceil(log2 members)`, folds, and multiplies by `2^k / members`.
//!   The mean of finite numbers is finite: where only rounding would carry it beyond the largest number, it is that.
//! - `Min` and `Max` are the `minimumNumber` and `maximumNumber` of IEEE 754-2019: a NaN loses against a number,
//!   `-0 < +0`.
//! - Every NaN result is the canonical quiet one, whatever the payloads of the inputs.
//!
//! ```
//! use rankwise_core::{DType, ReduceOp};
//! use rankwise_reduce::Reducer;
//!
//! let (mine, theirs) = ([1.0f32, 2.0, 3.0], [10.0f32, 20.0, 30.0]);
//! let mut sum = [0.0f32; 3];
//! let reducer = Reducer::new(DType::F32, ReduceOp::Sum, 2).expect("sums of f32 exist");
//! // SAFETY: all three arrays hold three f32 and do not overlap.
//! unsafe { reducer.fold(sum.as_mut_ptr().cast(), &[mine.as_ptr().cast(), theirs.as_ptr().cast()], 3) };
//! assert_eq!(sum, [11.0, 22.0, 33.0]);
//! ```

mod arithmetic;
mod block;
pub mod convert;
pub mod copy;
mod extremum;
mod format;
pub mod ftz;
mod integer;
mod isa;
mod reducer;
mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use isa::Isa;
pub use reducer::Reducer;

use rankwise_core::{DTypeSet, ReduceOp};

/// For each operator, at [`ReduceOp::index`], the types [`Reducer::new`] accepts: all for which it has a meaning.
pub fn supported() -> [DTypeSet; ReduceOp::COUNT] {
    ReduceOp::ALL.map(ReduceOp::meaningful)
}
