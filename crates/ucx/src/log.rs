//! What UCX has to say, kept for errors instead of being printed on standard output.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_uint, c_void};
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

/// Installs the handler, once for the process. It stays: UCX's list of handlers is not made for threads.
pub(crate) fn install(ucx: &Ucx) {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
        && let Some(push) = ucx.push_log_handler
    {
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
    // A thread that is ending has no place any more.
    let heard = HEARD.try_with(|heard| {
        let Ok(mut heard) = heard.try_borrow_mut() else { return false };
        let Some(heard) = heard.as_mut() else { return false };
        let mut text = [0 as c_char; LONGEST];
        // SAFETY: format and arguments belong together and are used once, since nobody after us gets them; the text has the room.
        let length = unsafe { vsnprintf(text.as_mut_ptr(), LONGEST, format, arguments) };
        if length >= 0 {
            // SAFETY: vsnprintf ends the text with a zero.
            heard.push(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().trim().to_string());
        }
        true
    });
    if heard == Ok(true) { STOP } else { PASS_ON }
}
