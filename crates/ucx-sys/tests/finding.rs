//! What is said of libraries that are not there, too old, or not whole. The libraries are made by the C compiler.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use ucx_sys::{NotFound, OLDEST, find};

fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Compiles a library; `None`, with a word on it, where there is no compiler.
fn library(path: &Path, source: &str) -> Option<()> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    if let Err(error) = Command::new(&compiler).arg("--version").stdout(Stdio::null()).status() {
        println!("skipped: no C compiler ({}: {error})", Path::new(&compiler).display());
        return None;
    }
    let file = path.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let built = Command::new(&compiler).args(["-shared", "-fPIC", "-o"]).arg(path).arg(&file).status().unwrap();
    assert!(built.success());
    Some(())
}

fn version(major: u32, minor: u32, patch: u32) -> String {
    format!(
        "void ucp_get_version(unsigned *major, unsigned *minor, unsigned *patch) {{
            *major = {major}; *minor = {minor}; *patch = {patch};
        }}\n"
    )
}

#[test]
fn what_is_absent_is_named_with_the_loaders_words() {
    let nowhere = directory("nowhere");
    let Err(NotFound::Absent(attempts)) = find(Some(&nowhere)) else { panic!("found where nothing is") };
    assert_eq!(
        attempts.iter().map(|attempt| attempt.name.clone()).collect::<Vec<_>>(),
        [nowhere.join("libucp.so.0"), nowhere.join("libucp.so")]
    );
    for attempt in &attempts {
        assert!(attempt.why.contains("cannot open shared object file"), "{}", attempt.why);
    }
    let file = nowhere.join("another.so");
    let error = find(Some(&file)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(file.to_str().unwrap()) && text.contains("No such file or directory"), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let file = directory("no-library").join("libucp.so.0");
    std::fs::write(&file, "not ELF").unwrap();
    let text = find(Some(&file)).unwrap_err().to_string();
    assert!(text.contains("file too short") || text.contains("invalid ELF header"), "{text}");
}

#[test]
fn another_version_is_refused_before_its_functions_are_looked_up() {
    for (name, have) in [("old", (OLDEST.0, OLDEST.1 - 1, 7)), ("next-major", (OLDEST.0 + 1, 99, 0))] {
        let file = directory(name).join("libucp.so.0");
        if library(&file, &version(have.0, have.1, have.2)).is_none() {
            return;
        }
        let error = find(file.parent()).unwrap_err();
        assert_eq!(error, NotFound::Version { library: file, have });
        let text = error.to_string();
        assert!(
            text.contains(&format!("is UCX {}.{}.{}; 1.13 or a later 1.x is needed", have.0, have.1, have.2)),
            "{text}"
        );
    }
}

#[test]
fn a_missing_function_is_found_when_the_library_is_opened() {
    let file = directory("incomplete").join("libucp.so.0");
    if library(&file, &version(OLDEST.0, OLDEST.1, 0)).is_none() {
        return;
    }
    match find(Some(&file)).unwrap_err() {
        NotFound::Incomplete { library, why } => {
            assert_eq!(library, file);
            assert!(why.contains("undefined symbol: uc"), "{why}");
        }
        other => panic!("{other}"),
    }
    let file = directory("empty").join("libucp.so.0");
    library(&file, "int nothing;").unwrap();
    let text = find(Some(&file)).unwrap_err().to_string();
    assert!(text.contains("undefined symbol: ucp_get_version"), "{text}");
}

#[test]
fn the_ucx_of_this_machine_answers() {
    let ucx = match find(std::env::var_os("RANKWISE_UCX_LIBRARY").as_deref().map(Path::new)) {
        Ok(ucx) => ucx,
        Err(absent @ NotFound::Absent(_)) => return println!("skipped: {absent}"),
        Err(other) => panic!("{other}"),
    };
    println!("{ucx:?}");
    assert!(ucx.version >= (OLDEST.0, OLDEST.1, 0));
    // SAFETY: both return texts that live as long as the library.
    let texts = unsafe {
        [ucx.ucp_get_version_string(), ucx.ucs_status_string(ucx_sys::ucs_status_t::UCS_ERR_CANCELED)]
            .map(|text| std::ffi::CStr::from_ptr(text).to_str().unwrap())
    };
    assert!(texts[0].starts_with(&format!("{}.{}.", ucx.version.0, ucx.version.1)), "{texts:?}");
    assert!(texts[1].contains("cancel"), "{texts:?}");
}
