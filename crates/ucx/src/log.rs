//! What UCX has to say, kept for errors and for `tracing` instead of being printed on standard output.
//!
//! Who sets `UCX_LOG_LEVEL` or `UCX_LOG_FILE` gets what is no part of an error from UCX itself. The handler sees the log of all that use UCX in this process.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use ucx_sys::Ucx;

/// UCX's level of warnings; errors are below.
const WARNING: c_uint = 2;

/// The handler's verdicts.
const STOP: c_uint = 0;
const PASS_ON: c_uint = 1;

/// Longest message that is kept whole.
const LONGEST: usize = 1024;

thread_local! {
    /// What was said while this thread listens.
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Whether what nobody listens to is left to UCX.
static LEFT_TO_UCX: AtomicBool = AtomicBool::new(false);

/// Installs the handler, once for the process. It stays: UCX's list of handlers is not made for threads.
pub(crate) fn install(ucx: &Ucx) {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
        && let Some(push) = ucx.push_log_handler
    {
        let set = ["UCX_LOG_LEVEL", "UCX_LOG_FILE"].iter().any(|name| std::env::var_os(name).is_some());
        // Relaxed: a message that is handled by the old value is printed, no more.
        LEFT_TO_UCX.store(set, Ordering::Relaxed);
        // SAFETY: the handler keeps to the type's promise.
        unsafe { push(handle) };
    }
}

/// Runs `f`; the warnings and errors that UCX has meanwhile on this thread are returned instead of printed.
pub(crate) fn listen<T>(f: impl FnOnce() -> T) -> (T, Vec<String>) {
    let before = HEARD.replace(Some(Vec::new()));
    let result = f();
    (result, HEARD.replace(before).unwrap_or_default())
}

unsafe extern "C" fn handle(
    _file: *const c_char,
    _line: c_uint,
    _function: *const c_char,
    level: c_uint,
    _component: *const c_void,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_uint {
    unsafe extern "C" {
        fn vsnprintf(text: *mut c_char, room: usize, format: *const c_char, arguments: *mut c_void) -> i32;
    }
    if level > WARNING {
        return PASS_ON;
    }
    // A thread that is ending has no place any more, and then nobody listens.
    let listens = HEARD.try_with(|heard| heard.try_borrow().is_ok_and(|heard| heard.is_some())).unwrap_or(false);
    if !listens && LEFT_TO_UCX.load(Ordering::Relaxed) {
        return PASS_ON;
    }
    let mut text = [0 as c_char; LONGEST];
    // SAFETY: format and arguments belong together and are used once, since nobody after us gets them; the text has the room.
    if unsafe { vsnprintf(text.as_mut_ptr(), LONGEST, format, arguments) } < 0 {
        return STOP;
    }
    // SAFETY: vsnprintf ends the text with a zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    if listens {
        HEARD.with_borrow_mut(|heard| heard.iter_mut().for_each(|heard| heard.push(text.trim().to_string())));
    } else {
        tracing::warn!("UCX: {}", text.trim());
    }
    STOP
}
