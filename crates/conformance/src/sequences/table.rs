//! What the parent has to know of a backend before it makes sequences: asked of a process of its own, since joining an
//! engine in the parent may bind it to the engine for good.

use crate::ctx::join;
use crate::job::{self, RankCommand};
use crate::plan::{Mode, Plan, Record, Role};
use rankwise_core::{Config, Determinism, Result};
use rankwise_world::{Driver, World};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What `Record::Table` carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TablePart {
    /// Bytes at which the backend changes its method.
    pub(crate) thresholds: Vec<u64>,
    /// Whether it offers fixed determinism.
    pub(crate) fixed: bool,
    pub(crate) nonblocking: bool,
    pub(crate) alloc: bool,
}

/// The part of the process that [`table_of`] has started.
pub(crate) fn describe(world: &World, driver: &dyn Driver) -> bool {
    match join(world, driver, Config::new()) {
        Ok(backend) => {
            let table = backend.capabilities();
            Record::Table(TablePart {
                thresholds: table.thresholds().iter().map(|threshold| threshold.bytes).collect(),
                fixed: table.determinism() >= Determinism::Fixed,
                nonblocking: table.nonblocking(),
                alloc: table.alloc(),
            })
            .emit();
        }
        Err(error) => Record::Broken { rank: world.rank(), why: error.to_string() }.emit(),
    }
    true
}

/// What the table of a backend holds; an empty one when it can't be joined by one rank.
pub(crate) fn table_of(backend: &str, mode: Mode, command: &RankCommand) -> Result<TablePart> {
    let plan = Plan {
        role: Role::Describe,
        backend: backend.into(),
        mutant: None,
        mode,
        ranks: 1,
        worlds: vec![1],
        modes: vec![mode],
        seed: 0,
        full: false,
        case_seconds: None,
        promise: None,
        deviations: Vec::new(),
    };
    let job = job::run(&plan, command, |_| Duration::from_secs(60))?;
    Ok(job.table.unwrap_or_default())
}
