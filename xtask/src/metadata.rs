//! The packages of this workspace and what they depend on, as `cargo metadata` tells it.

use crate::machine;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Linked into the package.
    Normal,
    /// Used by the build script.
    Build,
    /// Used by tests, examples and benchmarks only.
    Dev,
}

/// One package of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    /// Name in `Cargo.toml`.
    pub(crate) name: String,
    /// Name of the directory that holds it: `core` for `crates/core`.
    pub(crate) directory: String,
    /// Features it defines.
    pub(crate) features: Vec<String>,
    /// Root files of its library and binaries, relative to the workspace.
    pub(crate) roots: Vec<String>,
    /// What its manifest names: package name and purpose.
    pub(crate) dependencies: Vec<(String, Kind)>,
    /// Names of everything that is linked in or used to build it, through all levels, with all features.
    pub(crate) closure: BTreeSet<String>,
}

/// Asks cargo about the workspace, with every feature on and for one fixed platform, so that the answer is the same
/// on every machine. `Cargo.lock` must be up to date.
///
/// # Errors
/// When cargo fails, or answers something that is not its documented format.
pub(crate) fn workspace() -> Result<Vec<Package>, Box<dyn Error>> {
    let output = machine::cargo()
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    packages(&serde_json::from_slice(&output.stdout)?).ok_or_else(|| "cargo metadata has an unknown format".into())
}

/// Reads the packages of the workspace out of cargo's answer; None when a field it documents is absent.
pub(crate) fn packages(answer: &Value) -> Option<Vec<Package>> {
    let root = answer["workspace_root"].as_str()?;
    let all: BTreeMap<&str, &Value> = answer["packages"]
        .as_array()?
        .iter()
        .map(|package| Some((package["id"].as_str()?, package)))
        .collect::<Option<_>>()?;
    let links = links(answer)?;
    let members = answer["workspace_members"].as_array()?;
    members.iter().map(|id| package(root, id.as_str()?, &all, &links)).collect()
}

/// Which package ids a package id pulls in, other than for its own tests.
fn links(answer: &Value) -> Option<BTreeMap<&str, Vec<&str>>> {
    let mut links = BTreeMap::new();
    for node in answer["resolve"]["nodes"].as_array()? {
        let mut pulled = Vec::new();
        for dependency in node["deps"].as_array()? {
            if dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].as_str() != Some("dev")) {
                pulled.push(dependency["pkg"].as_str()?);
            }
        }
        links.insert(node["id"].as_str()?, pulled);
    }
    Some(links)
}

fn package(root: &str, id: &str, all: &BTreeMap<&str, &Value>, links: &BTreeMap<&str, Vec<&str>>) -> Option<Package> {
    let this = all.get(id)?;
    let relative = |path: &str| Some(path.strip_prefix(root)?.trim_start_matches('/').to_string());
    let manifest = relative(this["manifest_path"].as_str()?)?;
    let mut roots = Vec::new();
    for target in this["targets"].as_array()? {
        let kinds: Vec<&str> = target["kind"].as_array()?.iter().filter_map(Value::as_str).collect();
        if kinds.iter().any(|kind| matches!(*kind, "lib" | "bin" | "cdylib" | "rlib" | "proc-macro")) {
            roots.push(relative(target["src_path"].as_str()?)?);
        }
    }
    let mut dependencies = Vec::new();
    for dependency in this["dependencies"].as_array()? {
        let kind = match dependency["kind"].as_str() {
            None => Kind::Normal,
            Some("build") => Kind::Build,
            Some(_) => Kind::Dev,
        };
        dependencies.push((dependency["name"].as_str()?.to_string(), kind));
    }
    let mut reached = BTreeSet::new();
    let mut open = links.get(id)?.clone();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(links.get(next)?);
        }
    }
    let closure = reached.iter().map(|id| Some(all.get(id)?["name"].as_str()?.to_string())).collect::<Option<_>>()?;
    Some(Package {
        name: this["name"].as_str()?.to_string(),
        directory: manifest.rsplit('/').nth(1)?.to_string(),
        features: this["features"].as_object()?.keys().cloned().collect(),
        roots,
        dependencies,
        closure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_members_kinds_and_closure() {
        let answer = json!({
            "workspace_root": "/w",
            "workspace_members": ["a"],
            "packages": [
                {"id": "a", "name": "rankwise-a", "manifest_path": "/w/crates/a/Cargo.toml", "features": {"shm": []},
                 "targets": [{"kind": ["lib"], "src_path": "/w/crates/a/src/lib.rs"},
                             {"kind": ["test"], "src_path": "/w/crates/a/tests/t.rs"}],
                 "dependencies": [{"name": "b", "kind": null}, {"name": "d", "kind": "dev"}]},
                {"id": "b", "name": "b"}, {"id": "c", "name": "c"}, {"id": "d", "name": "d"}
            ],
            "resolve": {"nodes": [
                {"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": null}]}, {"pkg": "d", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "b", "deps": [{"pkg": "c", "dep_kinds": [{"kind": "build"}]}]},
                {"id": "c", "deps": []}, {"id": "d", "deps": []}
            ]}
        });
        let found = packages(&answer).expect("the format is right");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].directory, "a");
        assert_eq!(found[0].roots, ["crates/a/src/lib.rs"]);
        assert_eq!(found[0].dependencies, [("b".to_string(), Kind::Normal), ("d".to_string(), Kind::Dev)]);
        assert_eq!(found[0].closure.iter().map(String::as_str).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn an_unknown_format_is_refused() {
        assert!(packages(&json!({"packages": []})).is_none());
    }
}
