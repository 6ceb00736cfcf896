//! `cargo xtask bench`: build for release, check quickly, then measure.

use crate::Outcome;

/// Builds the `rankwise` binary for release and passes `arguments` on to `rankwise bench`.
pub(crate) fn bench(arguments: &[String]) -> Outcome {
    crate::conformance::run_rankwise("bench", &["--release"], arguments)
}
