//! The MPI to build the feature `mpi` with: looked for before its bindings are built, which would panic without one.

use crate::machine::{has_program, target_directory};
use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian's packages.
const PACKAGES: &str = "openmpi-bin libopenmpi-dev libclang1-14 libclang-common-14-dev";

/// An MPI that programs can be built with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mpi {
    /// Its compiler wrapper, as `MPICC` names it.
    pub(crate) wrapper: String,
    /// What is built with it: cargo does not notice that `MPICC` has changed.
    pub(crate) target: PathBuf,
}

/// The MPI of this machine, or what is missing and the packages that have it.
pub(crate) fn find() -> Result<Mpi, String> {
    let missing = |what: &str| format!("{what} (Debian: {PACKAGES})");
    let given = env::var("MPICC").ok().filter(|name| !name.is_empty());
    let wrapper = choose(given, &has_program).ok_or_else(|| missing("its build needs mpicc, not found"))?;
    let shown = Command::new(&wrapper).arg("-show").stdin(Stdio::null()).output();
    let shown = shown.ok().filter(|shown| shown.status.success());
    let shown =
        shown.ok_or_else(|| missing(&format!("its build needs {wrapper}, and `{wrapper} -show` does not work")))?;
    let headers = words_of(&String::from_utf8_lossy(&shown.stdout), "-I").any(|dir| dir.join("mpi.h").is_file());
    if !headers && !Path::new("/usr/include/mpi.h").is_file() {
        return Err(missing(&format!("its build needs mpi.h, which is not where `{wrapper} -show` says")));
    }
    if !libclang_directories().iter().any(|dir| holds(dir, is_libclang)) {
        return Err(missing("its build needs libclang, not found"));
    }
    if env::var_os("BINDGEN_EXTRA_CLANG_ARGS").is_none() && !has_program("clang") && !has_clang_headers() {
        return Err(missing("its build needs the headers of clang, not found"));
    }
    let name = name(&wrapper, &String::from_utf8_lossy(&shown.stdout));
    Ok(Mpi { wrapper, target: target_directory().join(format!("mpi-{name}")) })
}

impl Mpi {
    /// Why its launcher would start nothing here: Open MPI's refuses root, as in containers, unless told twice.
    pub(crate) fn refuses(&self) -> Option<String> {
        let told = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
        let is_open_mpi = self.target.ends_with("mpi-openmpi");
        refusal(is_open_mpi, is_root(), &|name| env::var_os(name).is_some(), told)
    }
}

fn refusal(is_open_mpi: bool, is_root: bool, is_set: &dyn Fn(&str) -> bool, told: [&str; 2]) -> Option<String> {
    (is_open_mpi && is_root && !told.into_iter().all(is_set))
        .then(|| format!("Open MPI's mpirun refuses to start programs as root without {} and {}", told[0], told[1]))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// `MPICC` where it is set, else the first that is installed.
fn choose(given: Option<String>, installed: &dyn Fn(&str) -> bool) -> Option<String> {
    let known = ["mpicc.openmpi", "mpicc.mpich", "mpicc"];
    given.or_else(|| known.into_iter().find(|name| installed(name)).map(String::from))
}

/// Which MPI it is, from its wrapper's name or what the wrapper passes on.
fn name(wrapper: &str, shown: &str) -> String {
    let says = |word: &str| wrapper.contains(word) || shown.contains(word);
    match () {
        () if wrapper.contains("openmpi") => "openmpi".into(),
        () if says("mpich") => "mpich".into(),
        () if says("openmpi") || says("ompi") => "openmpi".into(),
        () => wrapper.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect(),
    }
}

/// The values of an option in a command line.
fn words_of<'a>(line: &'a str, option: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    line.split_whitespace().filter_map(move |word| word.strip_prefix(option)).map(|path| path.trim_matches('"').into())
}

fn libclang_directories() -> Vec<PathBuf> {
    if let Some(named) = env::var_os("LIBCLANG_PATH") {
        return vec![named.into()];
    }
    let mut directories: Vec<PathBuf> =
        ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"].map(PathBuf::from).into();
    directories.push(format!("/usr/lib/{}-linux-gnu", env::consts::ARCH).into());
    directories.extend(entries(Path::new("/usr/lib")).filter(|dir| starts(dir, "llvm")).map(|dir| dir.join("lib")));
    directories
}

/// Not the library of its C++ interface, libclang-cpp.
fn is_libclang(name: &str) -> bool {
    let version = name.strip_prefix("libclang").and_then(|rest| rest.split_once(".so")).map(|(version, _)| version);
    version.is_some_and(|version| version.chars().all(|c| c == '-' || c == '.' || c.is_ascii_digit()))
}

/// `stddef.h` and the like, which clang brings along.
fn has_clang_headers() -> bool {
    let above = libclang_directories().into_iter().map(|dir| dir.join("clang"));
    above.flat_map(|dir| entries(&dir).collect::<Vec<_>>()).any(|version| version.join("include/stddef.h").is_file())
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    dir.read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn starts(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))
}

fn holds(dir: &Path, wanted: impl Fn(&str) -> bool) -> bool {
    entries(dir).any(|path| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_refused_by_open_mpi_alone_and_until_it_is_told_twice() {
        let told = ["A", "B"];
        let says =
            |is_open_mpi, is_root, set: &[&str]| refusal(is_open_mpi, is_root, &|name| set.contains(&name), told);
        assert!(says(true, true, &["A"]).is_some_and(|why| why.contains("as root without A and B")));
        assert_eq!(says(true, true, &["A", "B"]), None);
        assert_eq!(says(false, true, &[]), None);
        assert_eq!(says(true, false, &[]), None);
    }

    #[test]
    fn the_wrapper_is_the_named_or_the_first_installed() {
        let has = |installed: &'static [&'static str]| move |name: &str| installed.contains(&name);
        assert_eq!(choose(None, &has(&["mpicc", "mpicc.mpich"])).as_deref(), Some("mpicc.mpich"));
        assert_eq!(choose(Some("/opt/bin/mpicc".into()), &has(&["mpicc"])).as_deref(), Some("/opt/bin/mpicc"));
        assert_eq!(choose(None, &has(&[])), None);
    }

    #[test]
    fn each_mpi_has_a_name() {
        assert_eq!(name("mpicc.openmpi", ""), "openmpi");
        assert_eq!(name("mpicc", "gcc -I/usr/lib/x86_64-linux-gnu/openmpi/include -lmpi"), "openmpi");
        assert_eq!(name("mpicc", "gcc -I/usr/include/x86_64-linux-gnu/mpich -lmpich"), "mpich");
        assert_eq!(name("/opt/x/mpicc", "cc -lmpi"), "-opt-x-mpicc");
    }

    #[test]
    fn only_the_c_interface_of_clang_counts() {
        assert!(
            ["libclang.so", "libclang-14.so.1", "libclang-14.so.14.0.6", "libclang.so.1"].into_iter().all(is_libclang)
        );
        assert!(!["libclang-cpp.so.14", "libclang.a", "libclangAST.so"].into_iter().any(is_libclang));
    }
}
