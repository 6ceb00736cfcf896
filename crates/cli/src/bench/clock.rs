//! One clock that all ranks of a host read alike, cheap enough to stamp sub-microsecond calls.

// The counters of the processor are read by intrinsic or instruction.
#![allow(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The counter of the processor where it runs at a constant rate, else the kernel's raw monotonic clock.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Counter {
        ticks_per_ns: f64,
    },
    Kernel,
    /// Reads a number that a test moves; one tick a nanosecond.
    #[cfg(test)]
    Fake(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Clock {
    /// Chooses and calibrates; takes 20 ms.
    pub(crate) fn calibrated() -> Clock {
        if !constant_rate() {
            return Clock::Kernel;
        }
        let (kernel, counter) = (kernel_ns(), counter());
        std::thread::sleep(Duration::from_millis(20));
        let (kernel, counter) = (kernel_ns() - kernel, self::counter().wrapping_sub(counter));
        let ticks_per_ns = counter as f64 / kernel as f64;
        if ticks_per_ns.is_finite() && ticks_per_ns > 0.001 { Clock::Counter { ticks_per_ns } } else { Clock::Kernel }
    }

    /// Ticks now.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Clock::Counter { .. } => counter(),
            Clock::Kernel => kernel_ns(),
            #[cfg(test)]
            Clock::Fake(now) => now.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    /// Ticks once everything before has been executed.
    #[inline(always)]
    pub(crate) fn after(&self) -> u64 {
        match self {
            Clock::Counter { .. } => counter_after(),
            _ => self.now(),
        }
    }

    pub(crate) fn nanoseconds(&self, ticks: u64) -> f64 {
        match self {
            Clock::Counter { ticks_per_ns } => ticks as f64 / ticks_per_ns,
            _ => ticks as f64,
        }
    }

    pub(crate) fn ticks(&self, duration: Duration) -> u64 {
        let nanoseconds = duration.as_nanos() as f64;
        match self {
            Clock::Counter { ticks_per_ns } => (nanoseconds * ticks_per_ns) as u64,
            _ => nanoseconds as u64,
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Clock::Counter { ticks_per_ns } => format!("processor counter at {:.0} MHz", ticks_per_ns * 1e3),
            Clock::Kernel => "CLOCK_MONOTONIC_RAW".into(),
            #[cfg(test)]
            Clock::Fake(_) => "fake".into(),
        }
    }
}

fn kernel_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
fn constant_rate() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("constant_tsc"))
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter_after() -> u64 {
    let mut processor = 0;
    // SAFETY: every x86-64 processor that rankwise runs on (with constant_tsc) has the instruction; `processor` is writable.
    unsafe { std::arch::x86_64::__rdtscp(&mut processor) }
}

#[cfg(target_arch = "aarch64")]
fn constant_rate() -> bool {
    true
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    let ticks;
    // SAFETY: Linux lets user code read the virtual counter; the barrier keeps earlier instructions before it.
    unsafe { std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack)) };
    ticks
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter_after() -> u64 {
    counter()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn constant_rate() -> bool {
    false
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    kernel_ns()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter_after() -> u64 {
    kernel_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_kernel() {
        let clock = Clock::calibrated();
        let (ticks, kernel) = (clock.now(), kernel_ns());
        std::thread::sleep(Duration::from_millis(30));
        let (ticks, kernel) = (clock.after() - ticks, kernel_ns() - kernel);
        let ratio = clock.nanoseconds(ticks) / kernel as f64;
        assert!((0.9..1.1).contains(&ratio), "{clock:?}: {ratio}");
        let there_and_back = clock.nanoseconds(clock.ticks(Duration::from_micros(100)));
        assert!((99_000.0..101_000.0).contains(&there_and_back), "{there_and_back}");
    }
}
