//! Detection of `fork`: handles made before it belong to the parent.
//!
//! A child shares the parent's writable mappings, so that a call, or even a `Drop`, in the child would speak for the
//! parent. Every handle therefore keeps the generation it was made in and refuses to act in another.

#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process generation a handle was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// The current generation. The first call installs the fork handler.
    pub fn current() -> Generation {
        install();
        // Relaxed: only the forking thread survives in the child, and it wrote the value itself.
        Generation(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether no `fork` lies between the making of this value and now. One load.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}

#[cfg(unix)]
fn install() {
    static ONCE: Once = Once::new();
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    ONCE.call_once(|| {
        // SAFETY: the handler is async-signal-safe (one atomic add) and lives for the whole program.
        let code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if code != 0 {
            tracing::warn!(code, "pthread_atfork failed; use after fork will not be detected");
        }
    });
}

#[cfg(not(unix))]
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| ());
}
