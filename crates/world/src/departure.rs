//! Saying goodbye at exit, so that peers can tell an orderly end from a death where no launcher of ours sees how a rank
//! ended.

#![allow(unsafe_code)]

use crate::line::Line;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the thread that serves the store may take to tell everybody that its process ends.
const LAST_WORDS: Duration = Duration::from_millis(200);

struct Departure {
    /// Never closed.
    line: Arc<Line>,
    process: u32,
    is_host: bool,
}

static DEPARTURE: OnceLock<Departure> = OnceLock::new();

/// From now on an orderly end of this process is told on this line. A process is one rank, so only the first call counts.
pub(crate) fn announce_at_exit(line: &Arc<Line>, is_host: bool) {
    let departure = Departure { line: line.clone(), process: std::process::id(), is_host };
    if DEPARTURE.set(departure).is_ok() {
        // SAFETY: the handler neither panics nor unwinds, uses only a static that is never dropped, and is unregistered by
        // the C library if the code that holds it is unloaded.
        unsafe { libc::atexit(say_goodbye) };
    }
}

extern "C" fn say_goodbye() {
    // A forked child that exits runs this too, and is no rank.
    if let Some(departure) = DEPARTURE.get().filter(|departure| departure.process == std::process::id()) {
        departure.line.say_goodbye(departure.is_host, LAST_WORDS);
    }
}
