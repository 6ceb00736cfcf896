//! Finds the library.

use crate::functions::Functions;
use libloading::Library;
use std::ffi::{OsStr, c_char, c_uint, c_void};
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// The oldest version that is supported: major, minor.
pub const OLDEST: (u32, u32) = (1, 13);

/// Names of the library, in the order in which they are tried.
const NAMES: [&str; 2] = ["libucp.so.0", "libucp.so"];

/// What the library depends on, in the order in which it can be loaded.
const DEPENDENCIES: [&str; 3] = ["libucm.so.0", "libucs.so.0", "libuct.so.0"];

/// The library that was found. It is never unloaded: UCX has threads and exit handlers of its own.
pub struct Ucx {
    functions: &'static Functions,
    /// The name under which it was found.
    pub library: PathBuf,
    /// Major, minor and patch version.
    pub version: (u32, u32, u32),
    /// `ucs_log_push_handler`, which is not a part of the stable interface; none where it is missing.
    pub push_log_handler: Option<unsafe extern "C" fn(LogHandler)>,
}

/// `ucs_log_func_t`: file, line, function, level, component, format and `va_list`. Returns 0 to keep the message from the handlers that were
/// pushed before, 1 to pass it on.
///
/// A `va_list` is handed over as a pointer on the architectures that rankwise knows: x86-64 and AArch64.
pub type LogHandler = unsafe extern "C" fn(
    *const c_char,
    c_uint,
    *const c_char,
    c_uint,
    *const c_void,
    *const c_char,
    *mut c_void,
) -> c_uint;

impl Deref for Ucx {
    type Target = Functions;

    #[inline]
    fn deref(&self) -> &Functions {
        self.functions
    }
}

impl fmt::Debug for Ucx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ucx").field("library", &self.library).field("version", &self.version).finish()
    }
}

/// A library that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// As given to the loader.
    pub name: PathBuf,
    /// The loader's own words.
    pub why: String,
}

/// Why there is no UCX.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotFound {
    /// None of the names could be opened.
    Absent(Vec<Attempt>),
    /// It was opened and is older than [`OLDEST`], or of another major version.
    Version {
        /// The name under which it was opened.
        library: PathBuf,
        /// Its version.
        have: (u32, u32, u32),
    },
    /// It was opened and lacks a function.
    Incomplete {
        /// The name under which it was opened.
        library: PathBuf,
        /// The loader's own words, which name the function.
        why: String,
    },
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotFound::Absent(attempts) => {
                f.write_str("UCX was not found; tried")?;
                for (index, attempt) in attempts.iter().enumerate() {
                    let before = if index == 0 { " " } else { "; " };
                    write!(f, "{before}{} ({})", attempt.name.display(), attempt.why)?;
                }
                Ok(())
            }
            NotFound::Version { library, have } => write!(
                f,
                "{} is UCX {}.{}.{}; {}.{} or a later {}.x is needed",
                library.display(),
                have.0,
                have.1,
                have.2,
                OLDEST.0,
                OLDEST.1,
                OLDEST.0
            ),
            NotFound::Incomplete { library, why } => write!(f, "{} is not all of UCX: {why}", library.display()),
        }
    }
}

impl std::error::Error for NotFound {}

/// Opens UCX: the library `place`, or the one in the directory `place`, or, with none, the one that the system's loader finds.
///
/// Libraries that UCX depends on are taken from the same directory where they are there. Runs the libraries' initialisers, so `place` is
/// trusted. Call once and keep the result.
pub fn find(place: Option<&Path>) -> Result<Ucx, NotFound> {
    let names: Vec<PathBuf> = match place {
        None => NAMES.map(PathBuf::from).to_vec(),
        Some(directory) if directory.is_dir() => NAMES.iter().map(|name| directory.join(name)).collect(),
        Some(file) => vec![file.to_path_buf()],
    };
    let directory = place.and_then(|_| names[0].parent()).filter(|parent| *parent != Path::new(""));
    for dependency in directory.iter().flat_map(|from| DEPENDENCIES.map(|name| from.join(name))) {
        if dependency.exists()
            && let Ok(library) = open(dependency.as_os_str())
        {
            std::mem::forget(library);
        }
    }
    let mut attempts = Vec::new();
    for name in names {
        match open(name.as_os_str()) {
            Ok(library) => return resolve(library, name),
            Err(why) => attempts.push(Attempt { name, why }),
        }
    }
    Err(NotFound::Absent(attempts))
}

fn open(name: &OsStr) -> Result<Library, String> {
    // SAFETY: UCX's initialisers ask nothing of us; another name is the user's choice.
    unsafe { Library::new(name) }.map_err(|error| error.to_string())
}

fn resolve(library: Library, name: PathBuf) -> Result<Ucx, NotFound> {
    let have = match version(&library) {
        Ok(have) => have,
        Err(why) => return Err(NotFound::Incomplete { library: name, why }),
    };
    if have.0 != OLDEST.0 || have.1 < OLDEST.1 {
        // What it has started by itself may still run.
        std::mem::forget(library);
        return Err(NotFound::Version { library: name, have });
    }
    // SAFETY: the type of the function in this and all later versions so far.
    let push_log_handler = unsafe { library.get(b"ucs_log_push_handler\0") }.ok().map(|found| *found);
    // SAFETY: each name has in this and all later versions the type that 1.13's headers give it.
    match unsafe { Functions::from_library(library) } {
        Ok(functions) => {
            Ok(Ucx { functions: Box::leak(Box::new(functions)), library: name, version: have, push_log_handler })
        }
        Err(error) => Err(NotFound::Incomplete { library: name, why: error.to_string() }),
    }
}

/// Asked before anything else is looked up: what an old version lacks is no news.
fn version(library: &Library) -> Result<(u32, u32, u32), String> {
    type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the function has had this type in all versions; the results are places of ours.
    unsafe {
        let get_version = library.get::<GetVersion>(b"ucp_get_version\0").map_err(|error| error.to_string())?;
        get_version(&mut major, &mut minor, &mut patch);
    }
    Ok((major, minor, patch))
}
