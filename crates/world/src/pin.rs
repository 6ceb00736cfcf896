//! Which CPU each rank runs on.

use rustix::thread::{CpuSet, sched_getaffinity};

/// How ranks are bound to CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Not at all: the kernel places them.
    #[default]
    None,
    /// One allowed CPU for each rank if there are enough, else not at all.
    Auto,
    /// One allowed CPU for each rank, in turn when there are fewer.
    Cores,
}

/// The CPUs this process may use, in order.
pub(crate) fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The CPU for a rank of `ranks`.
pub(crate) fn choose(pin: Pin, rank: usize, ranks: usize, allowed: &[usize]) -> Option<CpuSet> {
    let fits = match pin {
        Pin::None => false,
        Pin::Auto => ranks <= allowed.len(),
        Pin::Cores => !allowed.is_empty(),
    };
    fits.then(|| {
        let mut set = CpuSet::new();
        set.set(allowed[rank % allowed.len()]);
        set
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(pin: Pin, rank: usize, ranks: usize, allowed: &[usize]) -> Option<usize> {
        let set = choose(pin, rank, ranks, allowed)?;
        (0..CpuSet::MAX_CPU).find(|cpu| set.is_set(*cpu))
    }

    #[test]
    fn choices() {
        assert_eq!(cpu(Pin::None, 0, 1, &[4]), None);
        assert_eq!(cpu(Pin::Auto, 1, 2, &[4, 7]), Some(7));
        assert_eq!(cpu(Pin::Auto, 1, 3, &[4, 7]), None);
        assert_eq!(cpu(Pin::Cores, 2, 3, &[4, 7]), Some(4));
        assert_eq!(cpu(Pin::Cores, 2, 3, &[]), None);
    }
}
