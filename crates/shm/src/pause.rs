//! The stages of waiting: spin, yield, sleep.

use rankwise_core::Wait;
use std::time::{Duration, Instant};

/// How long the stages last, fixed when a communicator is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitRules {
    /// Looks at a condition before a first wait gives up its turn.
    pub(crate) burst: u32,
    spin: Duration,
    doze: Duration,
}

/// Longest sleep: bounds what a lost wake of an abort costs, and how late a death is noticed.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(25);

impl WaitRules {
    /// `fits`: each rank of the host has a processor of its own.
    pub(crate) fn new(wait: Wait, fits: bool) -> WaitRules {
        let spin = match wait {
            Wait::Spin => true,
            Wait::Yield => false,
            _ => fits,
        };
        if spin {
            // A futex wake across cores costs 36 to 46 us on virtual machines: spin well past it.
            WaitRules { burst: 2000, spin: Duration::from_micros(300), doze: Duration::from_millis(2) }
        } else {
            WaitRules { burst: 2, spin: Duration::ZERO, doze: Duration::from_millis(2) }
        }
    }
}

/// What to do before looking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again at once.
    Spin,
    /// Give the processor away.
    Yield,
    /// Sleep this long unless woken.
    Sleep(Duration),
}

/// One wait's way through the stages. Progress starts it over.
pub(crate) struct Pause {
    rules: WaitRules,
    /// When the whole wait began.
    pub(crate) began: Instant,
    idle_since: Instant,
    idle_looks: u32,
    sleep: Duration,
}

impl Pause {
    pub(crate) fn new(rules: WaitRules) -> Pause {
        let now = Instant::now();
        Pause { rules, began: now, idle_since: now, idle_looks: 0, sleep: Duration::ZERO }
    }

    /// Something moved since the last step.
    pub(crate) fn progressed(&mut self) {
        self.idle_looks = 0;
        self.sleep = Duration::ZERO;
    }

    /// The next step, and whether it is time to look at poison, peers and the deadline.
    pub(crate) fn step(&mut self) -> (Step, bool) {
        self.idle_looks = self.idle_looks.saturating_add(1);
        if self.idle_looks == 1 {
            self.idle_since = Instant::now();
        }
        // The clock is read once in 16 looks while spinning or yielding.
        if !self.idle_looks.is_multiple_of(16) {
            let step = match self.sleep {
                Duration::ZERO if self.rules.spin.is_zero() => Step::Yield,
                Duration::ZERO => Step::Spin,
                sleep => Step::Sleep(sleep),
            };
            return (step, matches!(step, Step::Sleep(_)));
        }
        let idle = self.idle_since.elapsed();
        if idle < self.rules.spin {
            (Step::Spin, true)
        } else if idle < self.rules.doze {
            (Step::Yield, true)
        } else {
            self.sleep = (self.sleep * 2).clamp(Duration::from_millis(1), LONGEST_SLEEP);
            (Step::Sleep(self.sleep), true)
        }
    }
}
