//! Which crate may depend on which. Crates are named by their directory.

use super::{Findings, Tree};
use crate::metadata::{Kind, Package};

/// A row: crate, what it may link, and what its tests may use beyond that.
struct Layer {
    name: &'static str,
    links: &'static [&'static str],
    tests: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer { name: "core", links: &[], tests: &[] },
    Layer { name: "reduce", links: &["core"], tests: &[] },
    Layer { name: "schedule", links: &["core", "reduce"], tests: &[] },
    Layer { name: "world", links: &["core"], tests: &[] },
    Layer { name: "shm", links: &["core", "reduce", "world"], tests: &["conformance"] },
    Layer { name: "mpi", links: &["core", "reduce", "world"], tests: &["conformance"] },
    Layer { name: "ucx", links: &["core", "reduce", "schedule", "world", "ucx-sys"], tests: &["conformance"] },
    Layer { name: "nccl", links: &["core", "world", "nccl-sys"], tests: &["conformance", "emu-cuda", "emu-nccl"] },
    Layer { name: "conformance", links: &["core", "world"], tests: &["shm"] },
    Layer { name: "rankwise", links: &["core", "world", "shm", "mpi", "ucx", "nccl"], tests: &["reduce"] },
    // No backend: the binary takes those the facade compiled in.
    Layer { name: "cli", links: &["core", "reduce", "schedule", "world", "conformance", "rankwise"], tests: &[] },
    // Somebody else's backend: what is published, and nothing that only this workspace has.
    Layer { name: "own-backend", links: &["core", "world", "conformance"], tests: &[] },
];

/// Crates that stand alone, beside `*-sys` and `emu-*`.
const ALONE: &[&str] = &["xtask"];

/// What a library user would have to build for nothing.
const HEAVY: &[&str] = &["clap", "clap_derive", "plotters", "indicatif", "comfy-table", "tokio", "ureq", "reqwest"];

/// Crates that must not pull in anything heavy at any depth: the facade and all below it.
const LIGHT: &[&str] = &["rankwise", "core", "reduce", "schedule", "world", "shm", "mpi", "ucx", "nccl"];

pub(super) fn check(tree: &Tree, findings: &mut Findings) {
    for package in &tree.packages {
        let name = package.directory.as_str();
        let Some((links, tests)) = allowed(name) else {
            findings
                .errors
                .push(format!("crate {name} has no row in xtask/src/tidy/layering.rs: say what it may link"));
            continue;
        };
        for (dependency, kind) in ours(package, &tree.packages) {
            let fits = links.contains(&dependency) || (kind == Kind::Dev && tests.contains(&dependency));
            if !fits {
                let does = if kind == Kind::Dev { "tests itself with" } else { "depends on" };
                findings.errors.push(format!("{name} {does} {dependency}; it may use: [{}]", links.join(", ")));
            }
        }
        if LIGHT.contains(&name) {
            for heavy in HEAVY.iter().filter(|heavy| package.closure.contains(**heavy)) {
                findings.errors.push(format!("{name} pulls in {heavy}, which belongs to the command line only"));
            }
        }
    }
}

fn allowed(name: &str) -> Option<(&'static [&'static str], &'static [&'static str])> {
    if name.ends_with("-sys") || name.starts_with("emu-") || ALONE.contains(&name) {
        return Some((&[], &[]));
    }
    LAYERS.iter().find(|layer| layer.name == name).map(|layer| (layer.links, layer.tests))
}

/// Directories of the workspace's own crates that `package` names, and what for.
fn ours<'a>(package: &'a Package, packages: &'a [Package]) -> impl Iterator<Item = (&'a str, Kind)> {
    package.dependencies.iter().filter_map(|(name, kind)| {
        let ours = packages.iter().find(|other| other.name == *name)?;
        (ours.name != package.name).then_some((ours.directory.as_str(), *kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(directory: &str, dependencies: &[(&str, Kind)], closure: &[&str]) -> Package {
        Package {
            name: format!("rankwise-{directory}"),
            directory: directory.to_string(),
            features: Vec::new(),
            roots: Vec::new(),
            dependencies: dependencies.iter().map(|(name, kind)| (format!("rankwise-{name}"), *kind)).collect(),
            closure: closure.iter().map(|name| name.to_string()).collect(),
        }
    }

    fn errors(packages: Vec<Package>) -> Vec<String> {
        super::super::findings(check, &[], packages).errors
    }

    #[test]
    fn the_intended_shape_passes() {
        let packages = vec![
            package("core", &[], &["bytemuck"]),
            package("world", &[("core", Kind::Normal)], &[]),
            package("shm", &[("core", Kind::Normal), ("world", Kind::Normal), ("conformance", Kind::Dev)], &[]),
            package("conformance", &[("core", Kind::Normal)], &["clap"]),
            package("emu-nccl", &[], &[]),
        ];
        assert_eq!(errors(packages), [] as [&str; 0]);
    }

    #[test]
    fn upward_sideways_and_unknown_edges_fail() {
        let backends = |edge| vec![package("shm", &[edge], &[]), package("mpi", &[], &[]), package("world", &[], &[])];
        assert!(errors(backends(("mpi", Kind::Normal)))[0].starts_with("shm depends on mpi;"));
        assert!(errors(backends(("mpi", Kind::Dev)))[0].starts_with("shm tests itself with mpi;"));
        let sys = vec![package("ucx-sys", &[("core", Kind::Build)], &[]), package("core", &[], &[])];
        assert!(errors(sys)[0].starts_with("ucx-sys depends on core;"));
        let command_line = vec![package("cli", &[("shm", Kind::Normal)], &[]), package("shm", &[], &[])];
        assert!(errors(command_line)[0].starts_with("cli depends on shm;"));
        assert!(errors(vec![package("gpu", &[], &[])])[0].starts_with("crate gpu has no row"));
    }

    #[test]
    fn heavy_crates_stay_out_of_the_libraries_at_any_depth() {
        assert_eq!(errors(vec![package("rankwise", &[], &["half", "clap"])]).len(), 1);
        assert_eq!(errors(vec![package("cli", &[], &["clap", "indicatif"])]).len(), 0);
    }
}
