//! How a backend is found and joined.

use crate::world::World;
use rankwise_core::backend::RawBackend;
use rankwise_core::{Config, Result};
use std::sync::Arc;

/// What a probe found out, for people: name and value, in the order to print them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReport {
    /// The facts.
    pub facts: Vec<(String, String)>,
}

impl ProbeReport {
    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> ProbeReport {
        self.facts.push((name.into(), value.to_string()));
        self
    }
}

/// A backend that is compiled in: probed without side effects, joined once per world.
pub trait Driver: Send + Sync {
    /// The name, as in `RANKWISE_BACKEND`: lower case, one word.
    fn name(&self) -> &'static str;

    /// One line that says which machine it fits.
    fn description(&self) -> &'static str;

    /// Whether it works here, and what it found. Communicates with nobody; `NoBackend` or `Unsupported` say why not.
    fn probe(&self, world: &World) -> Result<ProbeReport>;

    /// The world of this process as this backend sees it. Collective over all ranks, within the join deadline.
    ///
    /// By default what the environment says ([`World::from_env`]). An engine that has brought its ranks together itself, such as MPI, says
    /// who they are and lets them find each other ([`World::bootstrap`]), so that no address and no token has to be set.
    fn world(&self) -> Result<World> {
        World::from_env()
    }

    /// Joins the engine. Collective over the world, within the join deadline of `config`.
    fn join(&self, world: &World, config: &Config) -> Result<Arc<dyn RawBackend>>;
}
