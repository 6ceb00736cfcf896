//! Marks this rank as left when the process exits without dropping its communicators.

use crate::comm::Comm;
use crate::segment::Segment;
use rankwise_core::fork::Generation;
use std::sync::{Arc, Mutex, Once};

/// Own segments of live communicators, and the process generation they were made in.
static LIVE: Mutex<Vec<(Generation, Arc<Segment>)>> = Mutex::new(Vec::new());

pub(crate) fn register(own: &Arc<Segment>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(unix)]
        // SAFETY: `at_exit` is a plain function that lives for the whole program and does not unwind.
        unsafe {
            libc::atexit(at_exit);
        }
    });
    LIVE.lock().unwrap_or_else(|e| e.into_inner()).push((Generation::current(), own.clone()));
}

pub(crate) fn unregister(own: &Arc<Segment>) {
    LIVE.lock().unwrap_or_else(|e| e.into_inner()).retain(|(_, segment)| !Arc::ptr_eq(segment, own));
}

#[cfg(unix)]
extern "C" fn at_exit() {
    // A thread that is killed by the exit may hold the lock: never wait here. Sleepers notice within one sleep.
    let Ok(live) = LIVE.try_lock() else { return };
    for (generation, segment) in live.iter() {
        if generation.is_current() {
            Comm::leave_segment(segment);
        }
    }
}
