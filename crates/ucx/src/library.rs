//! UCX in this process: found once.

use crate::log;
use rankwise_core::{Error, ErrorKind, Result};
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::OnceLock;
use ucx_sys::{NotFound, OLDEST, Ucx, ucs_status_t};

/// Names the library, or the directory it is in.
pub const LIBRARY_VARIABLE: &str = "RANKWISE_UCX_LIBRARY";

/// Settings of UCX that are named when it fails.
const VARIABLES: [&str; 2] = ["UCX_TLS", "UCX_NET_DEVICES"];

/// Finds UCX; the first answer stays for the life of the process.
///
/// `NoBackend` when it is absent, with the names that were tried and the loader's words; `Unsupported` when it is older than 1.13.
pub fn library() -> Result<&'static Ucx> {
    static FOUND: OnceLock<Result<Ucx, NotFound>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let place = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from);
        ucx_sys::find(place.as_deref()).inspect(log::install)
    });
    found.as_ref().map_err(refusal)
}

#[cold]
fn refusal(why: &NotFound) -> Error {
    match why {
        NotFound::Version { library, have } => Error::new(
            ErrorKind::Unsupported {
                function: "messages over UCX".into(),
                needs: format!("UCX {}.{}", OLDEST.0, OLDEST.1),
                have: format!("UCX {}.{}.{}", have.0, have.1, have.2),
            },
            format!(
                "{} is too old or too new; install a later UCX 1.x or set {LIBRARY_VARIABLE} to one",
                library.display()
            ),
        ),
        other => Error::new(
            ErrorKind::NoBackend,
            format!("{other}; install UCX (Debian: libucx0) or set {LIBRARY_VARIABLE} to its library or directory"),
        ),
    }
}

/// UCX's own words for a status.
pub(crate) fn status_text(ucx: &Ucx, status: ucs_status_t) -> String {
    // SAFETY: any status has a text, which is never freed.
    unsafe { CStr::from_ptr(ucx.ucs_status_string(status)) }.to_string_lossy().into_owned()
}

/// The error for a function that failed. `said` is what UCX logged, `set` the settings that we have chosen.
#[cold]
pub(crate) fn failure(ucx: &Ucx, what: &str, status: ucs_status_t, said: &[String], set: &[(&str, &str)]) -> Error {
    let text = status_text(ucx, status);
    let (major, minor, patch) = ucx.version;
    let mut message = format!("{what} failed: {text}");
    if !said.is_empty() {
        message += &format!("; UCX says: {}", said.join("; "));
    }
    let of_user =
        VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?.to_string_lossy().into_owned())));
    let settings: Vec<String> = of_user
        .map(|(name, value)| format!("{name}={value} from the environment"))
        .chain(set.iter().map(|(name, value)| format!("{name}={value}, set by rankwise for a job on one host")))
        .collect();
    if !settings.is_empty() {
        message += &format!(" ({})", settings.join("; "));
    }
    message += "; `ucx_info -d` lists the transports and devices of a host";
    let kind = ErrorKind::Engine { library: format!("UCX {major}.{minor}.{patch}"), code: status.0.into(), text };
    Error::new(kind, message)
}

/// Nothing for success.
pub(crate) fn succeeded(status: ucs_status_t, failure: impl FnOnce() -> Error) -> Result<()> {
    if status == ucs_status_t::UCS_OK { Ok(()) } else { Err(failure()) }
}
