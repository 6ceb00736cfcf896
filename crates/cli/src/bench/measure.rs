//! The timed loop: all ranks start each call together, and the slowest one counts.

use super::args::{Effort, LEAST_ITERATIONS};
use super::page::Team;
use rankwise::Result;

/// What is measured, on this rank.
pub(crate) trait Work {
    /// Writes the source and spoils the destination.
    fn fill(&mut self);
    /// Overwrites the result, and leaves the source as warm as it is.
    fn spoil(&mut self);
    /// Rewrites the source with the same values, so that it is in this rank's cache only.
    fn refresh(&mut self);
    /// The call itself.
    fn call(&mut self) -> Result<()>;
    /// Wrong elements of the result.
    fn wrong(&self) -> u64;
    /// Whether a call spoils its own source.
    fn spoils_source(&self) -> bool;
}

/// Times over the iterations, of the slowest rank of each, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) iterations: usize,
    pub(crate) min_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// All of them, in their order.
    pub(crate) times_us: Vec<f64>,
}

impl Figures {
    pub(crate) fn of(times_us: Vec<f64>) -> Figures {
        let mut times = times_us.clone();
        times.sort_unstable_by(f64::total_cmp);
        let at = |position: usize| times.get(position).copied().unwrap_or(0.0);
        let n = times.len();
        Figures {
            iterations: n,
            min_us: at(0),
            mean_us: times.iter().sum::<f64>() / n.max(1) as f64,
            p50_us: at(n / 2),
            p99_us: at((n.saturating_sub(1) as f64 * 0.99) as usize),
            times_us,
        }
    }
}

/// What came of a cell.
#[derive(Debug)]
pub(crate) enum Finding {
    /// With the wrong elements found by all ranks before and after the timed iterations.
    Measured(Figures, u64),
    /// A call takes longer than allowed, about so many milliseconds.
    Slow(f64),
}

/// Measures one cell; collective over the team. The finding is for the first rank alone.
pub(crate) fn measure(
    team: &mut Team,
    work: &mut dyn Work,
    bytes: u64,
    fresh: bool,
    effort: Effort,
) -> Result<Option<Finding>> {
    work.fill();
    team.barrier()?;
    work.call()?;
    team.add_wrong(work.wrong());
    team.barrier()?;

    let warm_up = match bytes {
        0..=4096 => 100,
        4097..=65536 => 30,
        65537..=1048576 => 8,
        _ => 2,
    };
    let began = team.clock().now();
    for call in 0..warm_up {
        // What is slow shows early.
        if call == 1
            && effort.slowest_ms.is_some()
            && let (0, took_ms) = agreed(team, began, 1, effort)?
        {
            return Ok(team.is_first().then_some(Finding::Slow(took_ms)));
        }
        team.barrier()?;
        work.call()?;
    }
    let (iterations, took_ms) = agreed(team, began, warm_up, effort)?;
    if iterations == 0 {
        return Ok(team.is_first().then_some(Finding::Slow(took_ms)));
    }

    // So that the check behind the timed calls is about theirs.
    work.spoil();
    for iteration in 0..iterations {
        if fresh {
            work.refresh();
        }
        team.barrier()?;
        let start = team.clock().now();
        work.call()?;
        let end = team.clock().after();
        team.record(iteration, end.wrapping_sub(start));
    }
    team.barrier()?;
    let figures = team.is_first().then(|| Figures::of(team.slowest(iterations)));
    team.barrier()?;

    if work.spoils_source() {
        work.fill();
        team.barrier()?;
        work.call()?;
    }
    team.add_wrong(work.wrong());
    team.barrier()?;
    let result = figures.map(|figures| Finding::Measured(figures, team.take_wrong()));
    team.barrier()?;
    Ok(result)
}

/// How many iterations fit, after so many calls, and how long a call took in milliseconds; 0 when that is too long.
/// Collective, and the first rank's number holds for all.
fn agreed(team: &mut Team, began: u64, calls: u32, effort: Effort) -> Result<(usize, f64)> {
    team.barrier()?;
    let took_ms = team.clock().nanoseconds(team.clock().now() - began) / 1e6 / f64::from(calls);
    if team.is_first() {
        let fit = || iterations_for(effort.budget_ms / took_ms, team.most_iterations());
        // A wrong result is told however long it takes.
        let slow = effort.slowest_ms.is_some_and(|most| took_ms > most) && team.wrong() == 0;
        team.set_iterations(if slow { 0 } else { effort.iterations.unwrap_or_else(fit) });
    }
    team.barrier()?;
    Ok((team.iterations(), took_ms))
}

fn iterations_for(wanted: f64, most: usize) -> usize {
    // A saturating conversion: nothing measurable takes no time.
    (wanted as usize).clamp(LEAST_ITERATIONS.min(most), most)
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::super::op::{Op, bandwidth};
    use super::super::page::Page;
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Moves the clock instead of data: call i takes i ticks beyond the base.
    struct Paced {
        clock: Arc<AtomicU64>,
        base: u64,
        calls: u64,
        refreshed: u64,
        wrong: u64,
    }

    impl Work for Paced {
        fn fill(&mut self) {}
        fn spoil(&mut self) {}
        fn refresh(&mut self) {
            self.refreshed += 1;
            self.clock.fetch_add(1_000_000, Ordering::Relaxed);
        }
        fn call(&mut self) -> Result<()> {
            self.calls += 1;
            self.clock.fetch_add(self.base + self.calls, Ordering::Relaxed);
            Ok(())
        }
        fn wrong(&self) -> u64 {
            self.wrong
        }
        fn spoils_source(&self) -> bool {
            false
        }
    }

    fn found(base: u64, fresh: bool, effort: Effort, wrong: u64) -> (Finding, Paced) {
        let now = Arc::new(AtomicU64::new(0));
        let fd = Page::create(1, effort.most_iterations()).unwrap();
        let page = Page::map(fd.as_fd(), 1, effort.most_iterations()).unwrap();
        let mut team = Team::new(page, Clock::Fake(now.clone()), 0, true);
        let mut work = Paced { clock: now, base, calls: 0, refreshed: 0, wrong };
        let finding = measure(&mut team, &mut work, 64, fresh, effort).unwrap().unwrap();
        (finding, work)
    }

    fn paced(base: u64, fresh: bool, effort: Effort, wrong: u64) -> (Figures, u64, Paced) {
        match found(base, fresh, effort, wrong) {
            (Finding::Measured(figures, wrong), work) => (figures, wrong, work),
            (slow, _) => panic!("{slow:?}"),
        }
    }

    #[test]
    fn a_slow_cell_ends_after_two_calls_unless_it_is_wrong() {
        let effort = |slowest_ms| Effort { iterations: Some(6), budget_ms: 1.0, slowest_ms };
        // 5 ms a call.
        let (finding, work) = found(5_000_000, true, effort(Some(4.0)), 0);
        assert!(matches!(finding, Finding::Slow(ms) if (ms - 5.0).abs() < 0.01), "{finding:?}");
        assert_eq!(work.calls, 2);
        for (slowest_ms, wrong) in [(None, 0), (Some(6.0), 0), (Some(4.0), 1)] {
            let (finding, _) = found(5_000_000, true, effort(slowest_ms), wrong);
            assert!(matches!(finding, Finding::Measured(_, found) if found == 2 * wrong), "{finding:?}");
        }
    }

    #[test]
    fn figures_follow_a_fake_clock() {
        let effort = Effort { iterations: Some(100), budget_ms: 1.0, slowest_ms: None };
        let (figures, wrong, work) = paced(10_000, true, effort, 0);
        // 101 calls come before the timed ones, which take 10102 to 10201 ns; refreshing is not timed.
        for (found, wanted) in [
            (figures.min_us, 10.102),
            (figures.mean_us, 10.1515),
            (figures.p50_us, 10.152),
            (figures.p99_us, 10.2),
            (figures.times_us[2], 10.104),
        ] {
            assert!((found - wanted).abs() < 1e-9, "{figures:?}");
        }
        assert_eq!((figures.iterations, wrong, work.calls, work.refreshed), (100, 0, 201, 100));
        // 10152 bytes in 10.152 us are 1 GB/s.
        let (algorithm, bus) = bandwidth(Op::AllReduce, 4, 10_152, figures.p50_us);
        assert!((algorithm - 1.0).abs() < 1e-9 && (bus - 1.5).abs() < 1e-9, "{algorithm} {bus}");
        let (algorithm, bus) = bandwidth(Op::AllGather, 4, 10_152, figures.p50_us);
        assert!((algorithm - 4.0).abs() < 1e-9 && (bus - 3.0).abs() < 1e-9, "{algorithm} {bus}");
    }

    #[test]
    fn a_budget_buys_iterations() {
        let effort = |budget_ms| Effort { iterations: None, budget_ms, slowest_ms: None };
        // About 1 ms a call.
        assert_eq!(paced(1_000_000, false, effort(50.0), 0).0.iterations, 49);
        assert_eq!(paced(1_000_000, false, effort(0.1), 0).0.iterations, 5);
        assert_eq!(paced(10, false, effort(1e6), 0).0.iterations, 2000);
    }

    /// Does something only at first.
    struct Lazy {
        calls: u64,
        until: u64,
        right: bool,
    }

    impl Work for Lazy {
        fn fill(&mut self) {
            self.right = false;
        }
        fn spoil(&mut self) {
            self.right = false;
        }
        fn refresh(&mut self) {}
        fn call(&mut self) -> Result<()> {
            self.right |= self.calls < self.until;
            self.calls += 1;
            Ok(())
        }
        fn wrong(&self) -> u64 {
            u64::from(!self.right)
        }
        fn spoils_source(&self) -> bool {
            false
        }
    }

    #[test]
    fn timed_calls_that_do_nothing_are_found() {
        let effort = Effort { iterations: Some(10), budget_ms: 1.0, slowest_ms: None };
        // One checked and a hundred warm-up calls come first.
        for (until, wrong) in [(1000, 0), (101, 1), (0, 2)] {
            let fd = Page::create(1, 10).unwrap();
            let page = Page::map(fd.as_fd(), 1, 10).unwrap();
            let mut team = Team::new(page, Clock::Fake(Arc::default()), 0, true);
            let mut work = Lazy { calls: 0, until, right: false };
            let finding = measure(&mut team, &mut work, 64, true, effort).unwrap().unwrap();
            assert!(matches!(finding, Finding::Measured(_, found) if found == wrong), "{until}: {finding:?}");
        }
    }

    #[test]
    fn wrong_elements_are_counted_before_and_after() {
        let (_, wrong, _) = paced(10, false, Effort { iterations: Some(3), budget_ms: 1.0, slowest_ms: None }, 7);
        assert_eq!(wrong, 14);
    }
}
