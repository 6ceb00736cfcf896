//! The instruction sets kernels are compiled for.

use std::fmt;
use std::sync::OnceLock;

/// An instruction set the kernels exist for. All give the same bits; they differ in speed.
///
/// This crate reads no environment variable. A program that lets its user lower the choice (`RANKWISE_ISA`) parses the
/// value with [`Isa::from_name`], decides what to do with a bad one, and passes the result to
/// [`Reducer::with_isa`](crate::Reducer::with_isa).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// What every processor of the target architecture has: SSE2 on x86-64. The twin the others are tested against.
    Portable,
    /// AVX2 and F16C on x86-64.
    Avx2,
    /// AVX-512 F, BW, DQ and VL on x86-64.
    Avx512,
    /// Advanced SIMD on aarch64.
    Neon,
}

impl Isa {
    /// Every instruction set, slowest first, whether or not this processor has it.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The fastest one of this processor. Detected once, then remembered.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available().last().unwrap_or(Isa::Portable))
    }

    /// Those of this processor, slowest first; never empty.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this processor (and operating system) can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            _ => false,
        }
    }

    /// The name used in settings and reports: `portable`, `neon`, `avx2`, `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    /// The inverse of [`Isa::name`]; says nothing about whether this processor has it.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("sse9"), None);
    }

    #[test]
    fn best_is_available_and_portable_always_is() {
        assert!(Isa::best().is_available());
        assert!(Isa::available().any(|isa| isa == Isa::Portable));
        assert!(Isa::available().any(|isa| isa == Isa::best()));
    }
}
