//! From an instruction set, a type and an operator to the compiled kernel.

use crate::block::{self, KernelFn};
use crate::format::{Bf16, E4m3, E5m2, F16, F32, F64};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::x86::{Bf16Avx2, F16Avx2, F16Avx512};
use crate::{arithmetic, extremum, integer};
use rankwise_core::{DType, ReduceOp};

/// The kernel; `None` where the operator has no meaning for the type or the architecture lacks the instruction set.
pub(crate) fn lookup(isa: Isa, dtype: DType, op: ReduceOp) -> Option<KernelFn> {
    match isa {
        Isa::Portable => portable(dtype, op),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2(dtype, op),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512(dtype, op),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon(dtype, op),
        _ => None,
    }
}

macro_rules! integer_ops {
    ($module:ident, $op:ident, $type:ty, $unsigned:ty, $block:literal) => {
        match $op {
            ReduceOp::Sum => block::$module::fold::<integer::Sum<$unsigned>, $block>,
            ReduceOp::Prod => block::$module::fold::<integer::Prod<$unsigned>, $block>,
            ReduceOp::Min => block::$module::fold::<integer::Min<$type>, $block>,
            ReduceOp::Max => block::$module::fold::<integer::Max<$type>, $block>,
            ReduceOp::BAnd => block::$module::fold::<integer::And<$unsigned>, $block>,
            ReduceOp::BOr => block::$module::fold::<integer::Or<$unsigned>, $block>,
            ReduceOp::BXor => block::$module::fold::<integer::Xor<$unsigned>, $block>,
            _ => return None,
        }
    };
}

/// `$extremum` is the format for `Min` and `Max`, which convert nothing.
macro_rules! float_ops {
    ($module:ident, $op:ident, $format:ty, $extremum:ty, $block:literal, $extremum_block:literal) => {
        match $op {
            ReduceOp::Sum => block::$module::fold::<arithmetic::Sum<$format>, $block>,
            ReduceOp::Prod => block::$module::fold::<arithmetic::Prod<$format>, $block>,
            ReduceOp::Min => block::$module::fold::<extremum::Min<$extremum>, $extremum_block>,
            ReduceOp::Max => block::$module::fold::<extremum::Max<$extremum>, $extremum_block>,
            ReduceOp::Avg => block::$module::fold::<arithmetic::Avg<$format>, $block>,
            ReduceOp::PreMulSum(_) => block::$module::fold::<arithmetic::PreMulSum<$format>, $block>,
            _ => return None,
        }
    };
}

/// Blocks of 256 bytes of accumulators: four AVX-512 registers, and sixteen left for the next source.
macro_rules! table {
    ($module:ident, $f16:ty, $bf16:ty) => {
        fn $module(dtype: DType, op: ReduceOp) -> Option<KernelFn> {
            let kernel: KernelFn = match dtype {
                DType::I8 => integer_ops!($module, op, i8, u8, 256),
                DType::U8 => integer_ops!($module, op, u8, u8, 256),
                DType::I16 => integer_ops!($module, op, i16, u16, 128),
                DType::U16 => integer_ops!($module, op, u16, u16, 128),
                DType::I32 => integer_ops!($module, op, i32, u32, 64),
                DType::U32 => integer_ops!($module, op, u32, u32, 64),
                DType::I64 => integer_ops!($module, op, i64, u64, 64),
                DType::U64 => integer_ops!($module, op, u64, u64, 64),
                DType::F16 => float_ops!($module, op, $f16, F16, 64, 128),
                DType::BF16 => float_ops!($module, op, $bf16, Bf16, 64, 128),
                DType::F32 => float_ops!($module, op, F32, F32, 64, 64),
                DType::F64 => float_ops!($module, op, F64, F64, 32, 64),
                DType::F8E4M3 => float_ops!($module, op, E4m3, E4m3, 64, 256),
                DType::F8E5M2 => float_ops!($module, op, E5m2, E5m2, 64, 256),
                _ => return None,
            };
            Some(kernel)
        }
    };
}

table!(portable, F16, Bf16);
#[cfg(target_arch = "x86_64")]
table!(avx2, F16Avx2, Bf16Avx2);
#[cfg(target_arch = "x86_64")]
table!(avx512, F16Avx512, Bf16);
#[cfg(target_arch = "aarch64")]
table!(neon, F16, Bf16);
