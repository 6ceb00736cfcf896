//! Joining a job that our launcher started.

use crate::environment::Launched;
use crate::world::Inner;
use rankwise_core::{Error, Result};

pub(crate) fn join(_: Launched) -> Result<Inner> {
    Err(Error::config("this build cannot join processes yet; use World::threads"))
}
