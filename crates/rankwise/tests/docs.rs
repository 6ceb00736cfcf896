//! The documents agree with the code: tables, examples, paths and links.

use rankwise::config::VARIABLES;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const DOCUMENTS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "docs/guide.md",
    "docs/semantics.md",
    "docs/safety.md",
    "docs/backends.md",
    "docs/adding-a-backend.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands between `<!-- NAME -->` and `<!-- end -->`.
fn marked<'a>(document: &'a str, name: &str) -> &'a str {
    let start = format!("<!-- {name} -->\n");
    let (_, rest) = document.split_once(&start).unwrap_or_else(|| panic!("no `{}`", start.trim()));
    rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("no end of {name}")).0
}

fn assert_table(path: &str, name: &str, expected: &str) {
    let document = read(path);
    let found = marked(&document, name);
    assert!(found == expected, "{path}, {name}: has\n{found}\nbut the code says\n{expected}");
}

/// The fenced blocks of a language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let rest = document.split(&fence).skip(1);
    rest.map(|part| part.split("```").next().unwrap_or_default().to_string()).collect()
}

#[test]
fn environment_variables_are_those_of_the_code() {
    let mut table = String::from("| variable | values | unset | meaning |\n|---|---|---|---|\n");
    for v in VARIABLES {
        writeln!(table, "| `{}` | {} | {} | {} |", v.name, v.values, v.default, v.meaning).unwrap();
    }
    assert_table("docs/semantics.md", "table: environment", &table);
    let mut table = String::from("| variable | meaning |\n|---|---|\n");
    for (name, meaning) in rankwise_world::LAUNCH_VARIABLES {
        writeln!(table, "| `{name}` | {meaning} |").unwrap();
    }
    assert_table("docs/semantics.md", "table: launch", &table);
    let mut table = String::from("| variable | meaning |\n|---|---|\n");
    for (name, meaning) in rankwise_world::MEETING_VARIABLES {
        writeln!(table, "| `{name}` | {meaning} |").unwrap();
    }
    assert_table("docs/joining.md", "table: meeting", &table);
}

#[test]
fn every_error_kind_has_its_row() {
    let source = read("crates/core/src/error.rs");
    let (_, names) = source.split_once("pub fn name(&self)").unwrap();
    let names = names.split_once("\n    }\n").unwrap().0;
    let kinds: Vec<&str> = names.split('"').skip(1).step_by(2).collect();
    assert!(kinds.len() > 20 && kinds.contains(&"PeerLost"), "{kinds:?}");
    let document = read("docs/semantics.md");
    let (_, errors) = document.split_once("\n## Errors\n").unwrap();
    let errors = errors.split_once("\n## ").unwrap().0;
    let rows: Vec<&str> = errors.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(rows, kinds, "the error table of docs/semantics.md follows the order of ErrorKind::name");
}

#[test]
fn semantics_names_every_operation() {
    let document = read("docs/semantics.md");
    for kind in rankwise::OpKind::DATA {
        assert!(document.contains(&format!("`{kind}`")), "{kind} is missing");
    }
}

#[cfg(feature = "shm")]
#[test]
fn shm_keeps_what_backends_md_promises() {
    use rankwise::{Config, DType, DeadlineSupport, Determinism, MemorySpace, OpKind, ReduceOp, World};

    let backend = rankwise::join(&World::solo(), &Config::new().backend("shm")).unwrap();
    let caps = backend.capabilities();
    let yes = |offered| if offered { "yes" } else { "no" };

    let mut table = String::from("| operation | offered |\n|---|---|\n");
    for kind in OpKind::DATA {
        writeln!(table, "| {kind} | {} |", yes(caps.has_kind(kind))).unwrap();
    }
    assert_table("docs/backends.md", "promised: shm operations", &table);

    let names: Vec<&str> = DType::NUMERIC.iter().map(|dtype| dtype.name()).collect();
    let mut table = format!("| operator | {} |\n|{}\n", names.join(" | "), "---|".repeat(names.len() + 1));
    for op in ReduceOp::ALL {
        let cell = |dtype: &DType| if caps.reduces(op).contains(*dtype) { "yes" } else { "-" };
        let cells: Vec<&str> = DType::NUMERIC.iter().map(cell).collect();
        writeln!(table, "| {} | {} |", op.name(), cells.join(" | ")).unwrap();
    }
    assert_table("docs/backends.md", "promised: shm reductions", &table);
    assert!(DType::NUMERIC.into_iter().chain([DType::Opaque]).all(|dtype| caps.moves().contains(dtype)));

    let memory: Vec<&str> = [("host", MemorySpace::Host), ("cuda", MemorySpace::Cuda(0))]
        .into_iter()
        .filter_map(|(name, space)| caps.has_space(space).then_some(name))
        .collect();
    let determinism = if caps.determinism() == Determinism::Fixed { "fixed" } else { "same topology" };
    let deadline = if caps.deadline() == DeadlineSupport::Enforced { "enforced" } else { "watched" };
    let mut table = String::from("| what | value |\n|---|---|\n");
    let mut row = |what: &str, value: &str| writeln!(table, "| {what} | {value} |").unwrap();
    row("memory", &memory.join(", "));
    row("movement", "all types");
    row("determinism", determinism);
    row("deadline", deadline);
    row("mismatches found and told", yes(caps.agreement()));
    row("start and scope", yes(caps.nonblocking()));
    row("alloc", yes(caps.alloc()));
    row("largest buffer", &format!("{} bytes", caps.max_bytes()));
    assert_table("docs/backends.md", "promised: shm modes", &table);

    let mut table = String::from("| what | value |\n|---|---|\n");
    for threshold in caps.thresholds() {
        writeln!(table, "| {} up to | {} bytes |", threshold.name, threshold.bytes).unwrap();
    }
    assert_table("docs/backends.md", "table: shm thresholds", &table);
}

#[test]
fn the_readme_shows_the_hello_example() {
    let readme = read("README.md");
    let code = blocks(&readme, "rust").remove(0);
    let example = read("crates/rankwise/examples/hello.rs");
    assert!(example.ends_with(&code), "README.md shows\n{code}\nbut hello.rs is\n{example}");
    assert!(code.lines().count() <= 12, "the first example has at most 12 lines");
}

#[test]
fn the_walkthrough_quotes_the_backend_that_compiles() {
    let files = ["Cargo.toml", "expected.toml", "src/communicator.rs", "src/driver.rs", "src/hub.rs", "src/main.rs"];
    let example: String = files.iter().map(|file| read(&format!("examples/own-backend/{file}"))).collect();
    let page = read("docs/adding-a-backend.md");
    let mut quotes = blocks(&page, "rust,ignore");
    assert!(quotes.len() >= 5, "{} quotes", quotes.len());
    quotes.extend(blocks(&page, "toml").into_iter().filter(|quote| !quote.contains("not of star")));
    for quote in quotes {
        assert!(example.contains(&quote), "docs/adding-a-backend.md quotes what own-backend does not have:\n{quote}");
    }
}

#[test]
fn links_and_paths_lead_somewhere() {
    let mut dead = BTreeSet::new();
    for document in DOCUMENTS {
        let text = read(document);
        let here = root().join(document);
        let here = here.parent().unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            if path.starts_with("http") {
                continue;
            }
            let file = if path.is_empty() { root().join(document) } else { here.join(path) };
            let alive = match std::fs::read_to_string(&file) {
                Ok(text) => anchor.is_empty() || anchors(&text).contains(anchor),
                Err(_) => file.is_dir(),
            };
            if !alive {
                dead.insert(format!("{document}: {target}"));
            }
        }
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_path = ["crates/", "docs/", "ci/", "xtask/"].iter().any(|folder| quoted.starts_with(folder));
            if is_path && !quoted.contains(char::is_whitespace) && !root().join(quoted).exists() {
                dead.insert(format!("{document}: `{quoted}`"));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The anchors that the headings of a document get.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}
