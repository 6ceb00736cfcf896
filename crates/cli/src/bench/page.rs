//! The memory that the ranks of a benchmark share, apart from the backend under test: a barrier of its own and the samples.

// The page is mapped and read through references to atomics.
#![allow(unsafe_code)]

use super::clock::Clock;
use rankwise::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long after the last arrival the ranks are released: enough for the news to reach all of them.
const RELEASE: Duration = Duration::from_nanos(1200);
/// Longest wait for a rank. The backends have shorter deadlines, so that it only ends waits nobody else would end.
const PATIENCE: Duration = Duration::from_secs(600);

/// Counters that start at zero, each group in lines of its own.
#[repr(C, align(64))]
struct Header {
    arrived: Line,
    release: Release,
    wrong: Line,
    iterations: Line,
}

#[repr(C, align(64))]
struct Line(AtomicU64);

/// What waiting ranks look at, in one line.
#[repr(C, align(64))]
struct Release {
    generation: AtomicU64,
    at: AtomicU64,
    failed: AtomicU64,
}

/// The mapped page.
pub(crate) struct Page {
    first: NonNull<u8>,
    bytes: usize,
    ranks: usize,
    iterations: usize,
}

impl Page {
    /// A memfd for so many ranks and samples each.
    pub(crate) fn create(ranks: usize, iterations: usize) -> Result<OwnedFd> {
        let create = || {
            let fd = memfd_create("rankwise-bench", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&fd, Page::bytes(ranks, iterations) as u64)?;
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(fd)
        };
        create().map_err(|errno| system("create the page of the benchmark", errno))
    }

    /// Maps a page made by [`Page::create`] with the same numbers.
    pub(crate) fn map(fd: BorrowedFd<'_>, ranks: usize, iterations: usize) -> Result<Page> {
        let bytes = Page::bytes(ranks, iterations);
        let found = fstat(fd).map_err(|errno| system("look at the page of the benchmark", errno))?.st_size;
        if found as u64 != bytes as u64 {
            return Err(Error::config(format!(
                "the page of the benchmark has {found} bytes, not {bytes}; start all ranks alike"
            )));
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let first = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                0,
            )
        };
        let first = first.map_err(|errno| system("map the page of the benchmark", errno))?;
        let first =
            NonNull::new(first.cast()).ok_or_else(|| Error::config("the page of the benchmark was mapped at zero"))?;
        Ok(Page { first, bytes, ranks, iterations })
    }

    const fn bytes(ranks: usize, iterations: usize) -> usize {
        size_of::<Header>() + ranks * iterations * size_of::<AtomicU64>()
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped writable for `bytes`, which covers the header, until drop; page-aligned; zero is a valid value; the file
        // cannot shrink; all ranks access it as atomics only.
        unsafe { self.first.cast().as_ref() }
    }

    fn sample(&self, rank: usize, iteration: usize) -> &AtomicU64 {
        assert!(rank < self.ranks && iteration < self.iterations, "sample {iteration} of rank {rank}");
        let offset = size_of::<Header>() + (rank * self.iterations + iteration) * size_of::<AtomicU64>();
        // SAFETY: as for the header; the offset is inside by the check above and a multiple of eight.
        unsafe { self.first.byte_add(offset).cast().as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; no reference outlives `self`.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

fn system(what: &str, errno: rustix::io::Errno) -> Error {
    Error::config(format!("cannot {what}: {errno}; look at the limits on memory and descriptors")).with_source(errno)
}

/// One rank's place at the page.
pub(crate) struct Team {
    page: Page,
    clock: Clock,
    rank: usize,
    ranks: usize,
    /// Ranks outnumber processors: hand them over instead of spinning.
    crowded: bool,
    barriers: u64,
}

impl Team {
    pub(crate) fn new(page: Page, clock: Clock, rank: usize, crowded: bool) -> Team {
        let ranks = page.ranks;
        Team { page, clock, rank, ranks, crowded, barriers: 0 }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn is_first(&self) -> bool {
        self.rank == 0
    }

    pub(crate) fn most_iterations(&self) -> usize {
        self.page.iterations
    }

    /// Waits for all ranks; when each has a processor they leave at one moment. An error when a rank has failed.
    pub(crate) fn barrier(&mut self) -> Result<()> {
        let header = self.page.header();
        self.barriers += 1;
        // AcqRel: the last to arrive has seen what the others did before, and publishes it with the release below.
        if header.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.barriers * self.ranks as u64 {
            header.release.at.store(self.clock.now() + self.clock.ticks(RELEASE), Ordering::Relaxed);
            header.release.generation.store(self.barriers, Ordering::Release);
        } else {
            self.wait_for_release()?;
        }
        if !self.crowded {
            let at = header.release.at.load(Ordering::Relaxed);
            while self.clock.now() < at {}
        }
        if header.release.failed.load(Ordering::Relaxed) != 0 { Err(peer_failed()) } else { Ok(()) }
    }

    fn wait_for_release(&self) -> Result<()> {
        let release = &self.page.header().release;
        let mut looks = 0_u64;
        let mut began = 0;
        // Acquire pairs with the release store of the last rank to arrive.
        while release.generation.load(Ordering::Acquire) < self.barriers {
            if release.failed.load(Ordering::Relaxed) != 0 {
                return Err(peer_failed());
            }
            looks += 1;
            if looks.is_multiple_of(4096) {
                let now = self.clock.now();
                began = if began == 0 { now } else { began };
                if self.clock.nanoseconds(now - began) > PATIENCE.as_nanos() as f64 {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        "a rank of the benchmark stands still; look at its process",
                    ));
                }
            }
            if self.crowded { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        Ok(())
    }

    /// Tells the other ranks not to wait for this one.
    pub(crate) fn fail(&self) {
        self.page.header().release.failed.store(1, Ordering::Relaxed);
    }

    /// Adds to the wrong elements found by all ranks; read and cleared with [`Team::take_wrong`].
    pub(crate) fn add_wrong(&self, elements: u64) {
        self.page.header().wrong.0.fetch_add(elements, Ordering::Relaxed);
    }

    pub(crate) fn wrong(&self) -> u64 {
        self.page.header().wrong.0.load(Ordering::Relaxed)
    }

    pub(crate) fn take_wrong(&self) -> u64 {
        self.page.header().wrong.0.swap(0, Ordering::Relaxed)
    }

    /// The first rank's number of iterations, for the others. A barrier lies between.
    pub(crate) fn set_iterations(&self, iterations: usize) {
        self.page.header().iterations.0.store(iterations as u64, Ordering::Relaxed);
    }

    pub(crate) fn iterations(&self) -> usize {
        (self.page.header().iterations.0.load(Ordering::Relaxed) as usize).min(self.page.iterations)
    }

    /// Keeps this rank's ticks of one iteration.
    #[inline]
    pub(crate) fn record(&self, iteration: usize, ticks: u64) {
        self.page.sample(self.rank, iteration).store(ticks, Ordering::Relaxed);
    }

    /// The slowest rank's time of each iteration, in microseconds. After a barrier.
    pub(crate) fn slowest(&self, iterations: usize) -> Vec<f64> {
        let slowest =
            |iteration| (0..self.ranks).map(|rank| self.page.sample(rank, iteration).load(Ordering::Relaxed)).max();
        (0..iterations).map(|iteration| self.clock.nanoseconds(slowest(iteration).unwrap_or(0)) / 1e3).collect()
    }
}

fn peer_failed() -> Error {
    Error::new(ErrorKind::PeerLost, "another rank of the benchmark failed; its own message says why")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn barriers_keep_ranks_together_and_failure_ends_them() {
        let fd = Page::create(3, 4).unwrap();
        let clock = Clock::calibrated();
        let all_left = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (fd, clock, all_left) = (fd.as_fd(), clock.clone(), &all_left);
                scope.spawn(move || {
                    let mut team = Team::new(Page::map(fd, 3, 4).unwrap(), clock, rank, true);
                    for round in 0..200 {
                        team.add_wrong(1);
                        team.barrier().unwrap();
                        let all = team.page.header().wrong.0.load(Ordering::Relaxed);
                        assert!(all >= 3 * (round + 1), "{all} in round {round}");
                        team.barrier().unwrap();
                    }
                    team.record(2, (rank as u64 + 1) * 1000);
                    team.barrier().unwrap();
                    assert!(team.slowest(3)[2] > 0.0);
                    // Whoever has not left the barrier above would see the failure there.
                    all_left.wait();
                    if rank == 1 {
                        team.fail();
                    } else {
                        assert!(team.barrier().is_err());
                    }
                });
            }
        });
    }

    #[test]
    fn a_page_of_another_size_is_refused() {
        let fd = Page::create(2, 4).unwrap();
        assert!(Page::map(fd.as_fd(), 2, 5).is_err());
    }
}
