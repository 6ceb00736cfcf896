//! What a program is told where UCX is absent or too old. Each question needs a process of its own, since the first answer stays.
#![cfg(target_os = "linux")]

use rankwise_ucx::{LIBRARY_VARIABLE, Options, UcxTransport, library};
use rankwise_world::World;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROLE: &str = "RANKWISE_TEST_ROLE";

#[test]
fn as_a_program() {
    if std::env::var_os(ROLE).is_none() {
        return println!("nothing to do: this is the program that the other tests start");
    }
    for _ in 0..2 {
        let Err(error) = library() else { panic!("found") };
        println!("{}: {error}", error.kind().name());
    }
    // All ranks are told, at once.
    let errors = World::threads(3, |world| UcxTransport::join(&world, Options::default()).err().unwrap()).unwrap();
    println!("joined: {}", errors.iter().map(|error| error.kind().name()).collect::<Vec<_>>().join(" "));
}

fn told(place: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_program", "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .env(LIBRARY_VARIABLE, place)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn an_absent_ucx_is_told_with_the_names_that_were_tried() {
    let nowhere = directory("nowhere");
    let text = told(&nowhere);
    let name = nowhere.join("libucp.so.0");
    for part in ["NoBackend: ", name.to_str().unwrap(), "cannot open shared object file", LIBRARY_VARIABLE, "libucx0"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(text.contains("joined: NoBackend NoBackend NoBackend"), "{text}");
}

#[test]
fn an_old_ucx_is_told_with_both_versions() {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    if let Err(error) = Command::new(&compiler).arg("--version").stdout(Stdio::null()).status() {
        return println!("skipped: no C compiler ({}: {error})", Path::new(&compiler).display());
    }
    let file = directory("old").join("libucp.so.0");
    let source = file.with_extension("c");
    std::fs::write(&source, "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1; *b = 9; *c = 4; }")
        .unwrap();
    let built = Command::new(&compiler).args(["-shared", "-fPIC", "-o"]).args([&file, &source]).status().unwrap();
    assert!(built.success());
    let text = told(&file);
    for part in ["Unsupported: ", "UCX 1.13", "UCX 1.9.4", file.to_str().unwrap()] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(text.contains("joined: Unsupported Unsupported Unsupported"), "{text}");
}
