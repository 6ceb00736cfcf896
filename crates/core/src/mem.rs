//! Memory spaces and queues: where a buffer lives and what orders the work on it.

use std::fmt;

/// Where a buffer lives. Nothing is moved between spaces silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemorySpace {
    /// Memory that the CPU addresses.
    #[default]
    Host,
    /// Memory of the CUDA device with this ordinal.
    Cuda(u32),
}

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemorySpace::Host => f.write_str("host"),
            MemorySpace::Cuda(device) => write!(f, "cuda:{device}"),
        }
    }
}

/// What orders a call among other work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queue {
    /// Program order of the calling thread: a blocking call is finished when it returns.
    #[default]
    Host,
    /// An engine's own stream, as the engine's handle. A call is *enqueued* when it returns.
    Stream(u64),
}
