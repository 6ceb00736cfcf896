//! The lock around a rank's state, waiting, and the thread that looks after it while nobody calls.

use crate::core::Core;
use crate::job::{Job, Stage};
use rankwise_core::fork::Generation;
use rankwise_core::{OnStuck, Result, Settings};
use rankwise_world::World;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Passes in a row under one lock.
const PASSES: u32 = 64;
/// Passes without yielding where each rank has a processor of its own.
const SPINS: u32 = 2000;
/// Idle for longer, a rank sleeps between two looks, a little longer each time.
const DROWSY: Duration = Duration::from_millis(2);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// How often it is looked after a rank that is in no call.
const CARE: Duration = Duration::from_millis(20);
/// How long leaving may take.
const LEAVING: Duration = Duration::from_secs(1);
/// How long UCX may hold the memory of a call that has failed, before that is reported.
const GRACE: Duration = Duration::from_secs(2);
/// Exit code of a process whose call is stuck; the same as in the layer above.
const STUCK_EXIT_CODE: i32 = 70;

pub(crate) struct Shared {
    core: Mutex<Core>,
    /// Threads that wait for the lock.
    wanted: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        if let Ok(core) = self.core.try_lock() {
            return core;
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        core
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }
}

/// One joined rank.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) world: World,
    pub(crate) settings: Settings,
    carer: Option<JoinHandle<()>>,
    generation: Generation,
    spins: u32,
}

impl Engine {
    pub(crate) fn new(core: Core, world: World, settings: Settings) -> Result<Engine> {
        let shared =
            Arc::new(Shared { core: Mutex::new(core), wanted: AtomicUsize::new(0), stop: AtomicBool::new(false) });
        let theirs = shared.clone();
        let carer = std::thread::Builder::new().name("rankwise-ucx".into()).spawn(move || {
            while !theirs.stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(CARE);
                // Who holds the lock looks after it.
                if let Ok(mut core) = theirs.core.try_lock() {
                    core.pass();
                    core.look();
                }
            }
        });
        let carer = carer.map_err(|error| {
            let kind = rankwise_core::ErrorKind::Limit { which: "threads".into(), have: 0, need: 1 };
            rankwise_core::Error::new(kind, "cannot create a thread; raise RLIMIT_NPROC").with_source(error)
        })?;
        let spins = if world.cpus() >= world.local_size() { SPINS } else { 1 };
        Ok(Engine { shared, world, settings, carer: Some(carer), generation: Generation::current(), spins })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.shared.lock()
    }

    /// Moves everything on until `found` says something, at most until `limit`.
    pub(crate) fn wait<R>(&self, limit: Duration, mut found: impl FnMut(&mut Core) -> Option<R>) -> Option<R> {
        let began = Instant::now();
        let mut pause = Pause { spins: self.spins, fruitless: 0, idle_since: began, sleep: Duration::ZERO };
        loop {
            let mut core = self.lock();
            let mut passes = 0;
            loop {
                if let Some(found) = found(&mut core) {
                    return Some(found);
                }
                passes += 1;
                if core.pass() {
                    pause.fruitless = 0;
                } else {
                    pause.fruitless = pause.fruitless.saturating_add(1);
                }
                if passes == PASSES || pause.fruitless > self.spins || self.shared.is_wanted() {
                    break;
                }
                if pause.fruitless > 0 {
                    std::hint::spin_loop();
                }
            }
            if pause.is_time_to_look() {
                core.look();
                if let Some(found) = found(&mut core) {
                    return Some(found);
                }
            }
            drop(core);
            if pause.is_time_to_look() && began.elapsed() >= limit {
                return None;
            }
            if self.shared.is_wanted() {
                std::thread::yield_now();
            }
            pause.take();
        }
    }

    /// Waits until a job has ended, and its memory is free.
    pub(crate) fn finish(&self, id: usize) -> Result<()> {
        let ended = |core: &mut Core| core.job(id).is_none_or(Job::is_idle).then(|| take(core, id));
        if let Some(result) = self.wait(Duration::MAX, |core| {
            let job = core.job(id);
            let over = job.is_none_or(|job| matches!(job.stage, Stage::Ended(_)));
            over.then(|| job.is_none_or(Job::is_idle))
        }) && result
        {
            return take(&mut self.lock(), id);
        }
        let mut reported = false;
        loop {
            let limit = if reported { Duration::MAX } else { GRACE };
            if let Some(result) = self.wait(limit, ended) {
                return result;
            }
            reported = true;
            let rank = self.world.rank();
            let what = match self.lock().job(id).map(|job| &job.stage) {
                Some(Stage::Ended(Err(error))) => error.to_string(),
                _ => "a call".into(),
            };
            let text = format!(
                "rankwise: rank {rank}: UCX still uses the memory of a call that has failed, because a rank takes no messages: {what}"
            );
            match self.settings.on_stuck {
                OnStuck::Wait => eprintln!("{text}; waiting on (RANKWISE_ON_STUCK=wait)"),
                _ => {
                    eprintln!("{text}; exiting (RANKWISE_ON_STUCK=exit)");
                    std::process::exit(STUCK_EXIT_CODE);
                }
            }
        }
    }
}

/// The result of a job that has ended.
pub(crate) fn take(core: &mut Core, id: usize) -> Result<()> {
    let result = core.jobs[id].as_mut().map(|job| std::mem::replace(&mut job.stage, Stage::Ended(Ok(()))));
    core.remove(id);
    match result {
        Some(Stage::Ended(result)) => result,
        _ => Ok(()),
    }
}

/// Between two passes.
struct Pause {
    spins: u32,
    fruitless: u32,
    idle_since: Instant,
    sleep: Duration,
}

impl Pause {
    fn is_time_to_look(&self) -> bool {
        self.fruitless > self.spins || self.fruitless.is_multiple_of(PASSES)
    }

    fn take(&mut self) {
        if self.fruitless <= self.spins {
            (self.idle_since, self.sleep) = (Instant::now(), Duration::ZERO);
        } else if self.idle_since.elapsed() < DROWSY {
            std::thread::yield_now();
        } else {
            self.sleep = (self.sleep + Duration::from_micros(10)).min(LONGEST_SLEEP);
            std::thread::sleep(self.sleep);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The parent's: nothing here may touch what it shares with this process.
            std::mem::forget(self.shared.clone());
            std::mem::forget(self.carer.take());
            return;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(carer) = self.carer.take() {
            carer.thread().unpark();
            let _ = carer.join();
        }
        let _ = self.wait(LEAVING, |core| {
            let left = core.channels.is_empty() && core.executor.active() == 0;
            (left && core.transport().is_said()).then_some(())
        });
    }
}
