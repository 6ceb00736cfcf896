//! A point in time that never overflows.

use std::time::{Duration, Instant};

/// When a wait has to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    started: Instant,
    end: Instant,
}

impl Deadline {
    /// `limit` from now; an absurdly long limit is taken as one year.
    pub(crate) fn after(limit: Duration) -> Deadline {
        let started = Instant::now();
        let year = Duration::from_secs(365 * 86_400);
        let end = started.checked_add(limit.min(year)).unwrap_or(started);
        Deadline { started, end }
    }

    /// Time left; zero when passed.
    pub(crate) fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Time since the deadline was made.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_duration_is_fine() {
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(3600));
        assert_eq!(Deadline::after(Duration::ZERO).remaining(), Duration::ZERO);
    }
}
