//! Collective communication between the ranks of a parallel program.
//!
//! One interface over several engines; this crate ties the backends that are compiled in to the interface of
//! [`rankwise_core`] and the worlds of [`rankwise_world`], and re-exports both.
//!
//! ```
//! use rankwise::{Config, ReduceOp, World};
//!
//! let sums = World::threads(4, |world| {
//!     let backend = rankwise::join(&world, &Config::new().backend_or("shm"))?;
//!     let mut comm = backend.world()?;
//!     let mut x = [world.rank() as f32; 3];
//!     comm.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
//!     Ok(x[0])
//! })?;
//! assert!(sums.into_iter().all(|sum: rankwise::Result<f32>| sum.unwrap() == 6.0));
//! # Ok::<(), rankwise::Error>(())
//! ```
//!
//! With processes instead of threads, start with [`world`] and run the program under `rankwise launch -n 4 -- ./program`.

#![forbid(unsafe_code)]

pub use rankwise_core::*;
#[cfg(any(feature = "mpi", feature = "mpi-abi"))]
pub use rankwise_mpi as mpi;
pub use rankwise_world::{Driver, Placement, ProbeReport, World};

/// The backends that are compiled in, in a fixed order.
pub fn backends() -> Vec<&'static dyn Driver> {
    vec![
        #[cfg(feature = "shm")]
        rankwise_shm::driver(),
        #[cfg(feature = "mpi")]
        rankwise_mpi::driver(),
        #[cfg(feature = "mpi-abi")]
        rankwise_mpi::abi_driver(),
        #[cfg(feature = "ucx")]
        rankwise_ucx::driver(),
    ]
}

/// The compiled-in backend of this name; `NoBackend` lists those there are.
pub fn driver(name: &str) -> Result<&'static dyn Driver> {
    backends().into_iter().find(|driver| driver.name() == name).ok_or_else(|| {
        Error::new(
            ErrorKind::NoBackend,
            format!("there is no backend {name:?} in this program; compiled in: {}", names()),
        )
    })
}

fn names() -> String {
    let names: Vec<_> = backends().iter().map(|driver| driver.name()).collect();
    if names.is_empty() { "none (enable a feature of the rankwise crate)".into() } else { names.join(", ") }
}

/// The world of this process as the backend that the configuration chooses sees it: for most what the environment says
/// ([`World::from_env`]), for `mpi` and `mpi-abi` the ranks of MPI, which then need nothing else to find each other. Collective over
/// all ranks, within `RANKWISE_JOIN_TIMEOUT`.
///
/// The choice is that of [`join`], which takes the world next.
pub fn world(config: &Config) -> Result<World> {
    driver(&chosen(&config.resolve()?)?)?.world()
}

fn chosen(settings: &Settings) -> Result<String> {
    settings.backend.clone().ok_or_else(|| {
        let text = "no backend is chosen; set RANKWISE_BACKEND or Config::backend_or to one of";
        Error::new(ErrorKind::NoBackend, format!("{text}: {}", names()))
    })
}

/// Joins the backend that the configuration chooses. Collective over the world, within the join deadline.
///
/// The choice: [`Config::backend`], else `RANKWISE_BACKEND`, else [`Config::backend_or`]; with none of them `NoBackend` lists
/// the candidates. What happens to be compiled in never decides.
pub fn join(world: &World, config: &Config) -> Result<Backend> {
    let settings = config.resolve()?;
    let raw = driver(&chosen(&settings)?)?.join(world, config)?;
    Ok(Backend::new(raw, settings))
}

/// Compiles and runs the examples in the documents.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide.md")]
    struct Guide;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let error = driver("tin-cans").err().unwrap();
        assert_eq!(error.kind(), &ErrorKind::NoBackend);
        #[cfg(feature = "shm")]
        assert!(error.message().contains("compiled in: shm"), "{error}");
    }
}
