//! The communicator that all others of a world are made from: a duplicate of MPI's own world, or of a communicator that the program has.

use crate::api::{Api, Comm, Named, Request, Status};
use crate::channel::lock;
use crate::goodbye::Retired;
use crate::library::Library;
use crate::post::Post;
use rankwise_core::backend::RawWork;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_world::{Bootstrap, FRAME};
use std::any::Any;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// All ranks of a world, as MPI has them. Never freed: words that arrive late must find it, see `post`.
pub(crate) struct Base<A: Api> {
    pub(crate) library: Arc<Library<A>>,
    /// Returns errors instead of ending the job.
    pub(crate) comm: Comm<A>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) post: Post<A>,
    pub(crate) retired: Mutex<Vec<Retired<A>>>,
    /// Work whose handle is gone, and what its buffers live in, until MPI has finished with it.
    detached: Mutex<Vec<Detached>>,
    has_detached: AtomicBool,
    source: &'static str,
}

type Detached = (Box<dyn RawWork>, Box<dyn Any + Send>);

// SAFETY: the handle is a name that any thread may use.
unsafe impl<A: Api> Send for Base<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Base<A> {}

impl<A: Api> Base<A> {
    /// Duplicates a communicator. Collective over its ranks; `Timeout` when one of them does not come within `limit`.
    ///
    /// # Safety
    ///
    /// `from` is an intracommunicator that exists.
    pub(crate) unsafe fn of(
        library: &Arc<Library<A>>,
        from: Comm<A>,
        source: &'static str,
        limit: Duration,
    ) -> Result<Base<A>> {
        let api = &library.api;
        let (mut rank, mut size) = (0, 0);
        // MPI writes the new handle when the request has finished.
        let mut dup = Box::new(api.comm_null());
        let mut request = api.request_null();
        // SAFETY: the caller's promise; the results are places of ours.
        unsafe {
            library.succeeded(api.comm_rank(from, &mut rank))?;
            library.succeeded(api.comm_size(from, &mut size))?;
            library.succeeded(api.comm_idup(from, &mut *dup, &mut request))?;
        }
        if let Err(error) = finish(library, &mut request, limit, rank as usize) {
            std::mem::forget(dup);
            return Err(error);
        }
        // SAFETY: the duplicate exists.
        library.succeeded(unsafe { api.comm_set_errhandler(*dup, api.errors_return()) })?;
        let (rank, size, comm) = (rank as usize, size as usize, *dup);
        Ok(Base {
            library: library.clone(),
            comm,
            rank,
            size,
            post: Post::default(),
            retired: Mutex::default(),
            detached: Mutex::default(),
            has_detached: AtomicBool::new(false),
            source,
        })
    }
}

impl<A: Api> Base<A> {
    /// Keeps work whose handle is gone, and what its buffers live in, until MPI has finished with it.
    pub(crate) fn detach(&self, work: Box<dyn RawWork>, owned: Box<dyn Any + Send>) {
        lock(&self.detached).push((work, owned));
        self.has_detached.store(true, Ordering::Relaxed);
    }

    /// Lets go of work that has finished meanwhile.
    #[inline]
    pub(crate) fn sweep(&self) {
        if self.has_detached.load(Ordering::Relaxed) {
            self.sweep_all();
        }
    }

    #[cold]
    fn sweep_all(&self) {
        // Not under the lock: the end of work may be that of a communicator.
        let mut kept = std::mem::take(&mut *lock(&self.detached));
        kept.retain_mut(|(work, _)| matches!(work.test(), Ok(false)) || !work.cancel());
        let mut all = lock(&self.detached);
        all.append(&mut kept);
        self.has_detached.store(!all.is_empty(), Ordering::Relaxed);
    }
}

/// Waits for a request of joining.
fn finish<A: Api>(library: &Library<A>, request: &mut Request<A>, limit: Duration, rank: usize) -> Result<()> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        let (mut flag, mut status) = (0, Status::default());
        // SAFETY: a request of ours that has not finished.
        library.succeeded(unsafe { library.api.test(request, &mut flag, &mut status) })?;
        if flag != 0 {
            return Ok(());
        }
        if begun.elapsed() >= limit {
            library.mark_broken();
            let message = format!(
                "not all ranks of MPI came within {:.1} s, and MPI does not say which; look at their output; RANKWISE_JOIN_TIMEOUT gives them \
                 more time; this process can't try again, since MPI still waits",
                limit.as_secs_f64()
            );
            return Err(Error::new(ErrorKind::Timeout, message).with_rank(rank));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

impl<A: Api> Bootstrap for Base<A> {
    fn source(&self) -> &'static str {
        self.source
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, mine: &[u8; FRAME], limit: Duration) -> Result<Vec<[u8; FRAME]>> {
        let library = &self.library;
        let (mine, mut all) = (Box::new(*mine), vec![[0; FRAME]; self.size]);
        let (bytes, frame) = (library.named(Named::U8), FRAME as c_int);
        let mut request = library.api.request_null();
        // SAFETY: the buffers have the lengths that are said, and stay until the request has finished, or for ever.
        library.succeeded(unsafe {
            let (src, dst) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            library.api.iallgather(src, frame, bytes, dst, frame, bytes, self.comm, &mut request)
        })?;
        match finish(library, &mut request, limit, self.rank) {
            Ok(()) => Ok(all),
            Err(error) => {
                std::mem::forget((mine, all));
                Err(error)
            }
        }
    }
}
