//! Sleeping on a shared word. Works on read-only mappings, between processes and between threads.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `expected`, at most `limit`. May return early.
#[cfg(target_os = "linux")]
pub(crate) fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    use rustix::thread::futex;
    let limit = rustix::fs::Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    // Every outcome (woken, changed before, timed out, interrupted) means the same: look again.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&limit));
}

/// Wakes everybody who sleeps on `word`.
#[cfg(target_os = "linux")]
pub(crate) fn wake_all(word: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Without a futex: a short nap.
#[cfg(not(target_os = "linux"))]
pub(crate) fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    if word.load(std::sync::atomic::Ordering::Acquire) == expected {
        std::thread::sleep(limit.min(Duration::from_micros(200)));
    }
}

/// Without a futex nobody needs waking.
#[cfg(not(target_os = "linux"))]
pub(crate) fn wake_all(_word: &AtomicU32) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_changed_word_does_not_sleep_and_a_wake_is_seen() {
        let word = Arc::new(AtomicU32::new(1));
        wait(&word, 0, Duration::from_secs(60));
        let sleeper = {
            let word = word.clone();
            std::thread::spawn(move || {
                while word.load(Ordering::Acquire) == 1 {
                    wait(&word, 1, Duration::from_secs(60));
                }
            })
        };
        std::thread::sleep(Duration::from_millis(20));
        word.store(2, Ordering::Release);
        wake_all(&word);
        sleeper.join().unwrap();
    }
}
