//! Misuse that must not compile.

#![allow(missing_docs)]

/// The compiler whose messages the expectations quote. Others word them differently.
const QUOTED: &str = "rustc 1.95.";

#[test]
fn misuse_does_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output().expect("rustc runs where cargo does");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.starts_with(QUOTED) {
        println!(
            "skipped: the expected messages are those of {QUOTED}x, this is {}; the compile_fail examples in the \
             documentation of rankwise-core cover the same cases with any compiler",
            version.trim()
        );
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
