//! One communicator on this rank: what all its parts share.

use crate::api::{Api, Comm, Request, Status};
use crate::backend::MpiBackend;
use crate::base::Base;
use crate::end;
use crate::goodbye::{self, Left};
use crate::library::Library;
use crate::native::{self, Integers};
use crate::post::Word;
use crate::queue;
use crate::room::Room;
use crate::watch::{Call, Watched};
use crate::way::{self, Way};
use rankwise_core::backend::{CommSpec, RawCall};
use rankwise_core::{Capabilities, Determinism, Error, ErrorKind, OnStuck, OpKind, Result, Settings};
use rankwise_world::{PeerStatus, World};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tags of messages between two members.
pub(crate) const DATA: c_int = 1;
pub(crate) const HEADER: c_int = 2;
pub(crate) const MEET: c_int = 4;
pub(crate) const PAIRS: c_int = 7;
/// And of parts of a large call.
pub(crate) const PART: c_int = 5;

/// How often a waiting rank asks whether its members live.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(10);

/// How long after a failure of MPI the kernel may take to tell that a member has died.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What blocking calls use again.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) room: Room,
    pub(crate) ints: Integers,
    pub(crate) members: Vec<*const u8>,
}

// SAFETY: the pointers are only looked at by the call that wrote them.
unsafe impl Send for Scratch {}

pub(crate) struct Channel<A: Api> {
    pub(crate) library: Arc<Library<A>>,
    pub(crate) base: Arc<Base<A>>,
    pub(crate) comm: Comm<A>,
    pub(crate) spec: CommSpec,
    pub(crate) me: usize,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) world: World,
    /// What the watching thread sees.
    pub(crate) call: Call,
    /// Calls so far, and how many of them were collective.
    sequence: AtomicU64,
    collectives: AtomicU64,
    broken: AtomicBool,
    cause: Mutex<Option<Error>>,
    /// Of the blocking call that is running; there is one at a time.
    scratch: UnsafeCell<Scratch>,
    /// Check mode: what waits for the members, in order.
    pub(crate) pending: Mutex<VecDeque<queue::Shared<A>>>,
    /// Check mode: messages so far to and from each member.
    pub(crate) mail: Mutex<Vec<(u64, u64)>>,
    /// When the members were last asked for.
    asked: Mutex<Option<Instant>>,
    /// Distinguishes it from every other communicator of the job.
    id: u64,
    /// Members that use it no more.
    left: Mutex<Vec<Left>>,
    kept: AtomicBool,
    /// It was usable when MPI came to its end.
    is_whole: AtomicBool,
}

fn lost(gone: Vec<usize>) -> Error {
    let text = format!("the processes of the ranks {gone:?} have ended; look at their output");
    Error::new(ErrorKind::PeerLost, text).with_peers(gone)
}

// SAFETY: the handle is a name that any thread may use.
unsafe impl<A: Api> Send for Channel<A> {}
// SAFETY: as above; the scratch memory is used by the one blocking call alone.
unsafe impl<A: Api> Sync for Channel<A> {}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A: Api> Channel<A> {
    /// `comm` becomes this channel's own.
    pub(crate) fn new(backend: &MpiBackend<A>, comm: Comm<A>, spec: CommSpec, id: u64, me: usize) -> Channel<A> {
        let members = spec.group.len();
        Channel {
            library: backend.base.library.clone(),
            base: backend.base.clone(),
            comm,
            spec,
            me,
            capabilities: backend.table(),
            settings: backend.settings.clone(),
            world: backend.world.clone(),
            call: Call::default(),
            sequence: AtomicU64::new(0),
            collectives: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            cause: Mutex::new(None),
            scratch: UnsafeCell::default(),
            pending: Mutex::default(),
            mail: Mutex::new(vec![(0, 0); members]),
            asked: Mutex::default(),
            id,
            left: Mutex::default(),
            kept: AtomicBool::new(false),
            is_whole: AtomicBool::new(false),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.spec.group.len()
    }

    pub(crate) fn fixed(&self) -> bool {
        self.spec.determinism == Determinism::Fixed
    }

    /// The number of the next call.
    #[inline]
    pub(crate) fn next(&self, kind: OpKind) -> u64 {
        // Relaxed, and no read-modify-write: one thread at a time issues calls, and the layer above orders them.
        let count = |counter: &AtomicU64| {
            let next = counter.load(Ordering::Relaxed) + 1;
            counter.store(next, Ordering::Relaxed);
            next
        };
        if !matches!(kind, OpKind::Send | OpKind::Recv) {
            count(&self.collectives);
        }
        count(&self.sequence)
    }

    /// Collective calls so far: the same number on all members that have made the same calls.
    pub(crate) fn collectives(&self) -> u64 {
        self.collectives.load(Ordering::Relaxed)
    }

    /// Nothing while the communicator is usable; else its first failure, as the cause after it was told once.
    #[inline]
    pub(crate) fn usable(&self) -> Result<()> {
        // Acquire: pairs with the release in `poison`.
        if self.broken.load(Ordering::Acquire) { Err(self.poisoned()) } else { Ok(()) }
    }

    #[cold]
    fn poisoned(&self) -> Error {
        let cause = lock(&self.cause).clone();
        let error = Error::new(
            ErrorKind::Poisoned,
            "the communicator can't be used after an earlier failure; make another one",
        );
        match cause {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }

    /// Makes the communicator unusable; the first cause stays. Returns the error for the caller.
    #[cold]
    pub(crate) fn poison(&self, error: Error) -> Error {
        lock(&self.cause).get_or_insert_with(|| error.clone());
        // Release: who sees the flag sees the cause.
        self.broken.store(true, Ordering::Release);
        error
    }

    /// A failure of MPI in a call.
    #[cold]
    pub(crate) fn failed(&self, code: c_int) -> Error {
        let error = if self.library.class(code) == self.library.constants.err_truncate {
            Error::new(
                ErrorKind::Mismatch,
                format!(
                    "a message is longer than what this rank expects, so the ranks called different things: {}",
                    self.library.failure(code).message()
                ),
            )
        } else {
            self.lost_or(self.library.failure(code))
        };
        self.library.mark_broken();
        self.poison(error)
    }

    /// A failure of MPI is the death of a member when there was one: an MPI with fault tolerance (ULFM) ends the calls of the others with an
    /// error of its own, a moment before or after the kernel tells.
    fn lost_or(&self, failure: Error) -> Error {
        let begun = Instant::now();
        loop {
            let gone = self.gone();
            if !gone.is_empty() {
                return lost(gone).with_source(failure);
            }
            if begun.elapsed() >= LAST_WORDS {
                return failure;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn gone(&self) -> Vec<usize> {
        let liveness = self.world.liveness();
        self.spec.group.ranks().filter(|rank| liveness.status(*rank) == PeerStatus::Gone).collect()
    }

    #[cold]
    fn unable(&self, error: Error) -> Error {
        self.library.mark_broken();
        self.poison(error)
    }

    /// Runs a collective to its end.
    ///
    /// # Safety
    ///
    /// The buffers of the call are valid and nobody else's until return, and no other blocking call of the communicator is running.
    #[inline]
    pub(crate) unsafe fn collective(&self, call: &RawCall<'_>) -> Result<()> {
        // SAFETY: the caller's promise; only this function uses the scratch memory, and `RawCommunicator::run` has one call at a time on a
        // communicator.
        unsafe {
            let Scratch { room, ints, members } = &mut *self.scratch.get();
            let place = (self.size(), self.me);
            // What this rank can't do its peers may be doing: its next call must not meet this one of theirs.
            let way = way::decide(&self.library, call, place, self.fixed(), room, ints)
                .map_err(|error| self.unable(error))?;
            let code = self.launch(call, &way, ints, None);
            if code != 0 {
                return Err(self.failed(code));
            }
            way.after.finish(members);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`native::launch`].
    #[inline]
    pub(crate) unsafe fn launch(
        &self,
        call: &RawCall<'_>,
        way: &Way<A>,
        ints: &Integers,
        request: Option<&mut Request<A>>,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { native::launch(&self.library, self.comm, call.root, way, ints, request) }
    }

    /// Makes every member's calls fail: tells them, and refuses calls here.
    pub(crate) fn abort(&self) {
        if self.broken.load(Ordering::Acquire) {
            return;
        }
        self.poison(Word::Aborted.error(self.base.rank));
        self.tell(Word::Aborted);
    }

    /// Tells all other members, without waiting.
    pub(crate) fn tell(&self, word: Word) {
        for rank in self.spec.group.ranks().filter(|rank| *rank != self.base.rank) {
            self.base.tell(rank, word, self.id);
        }
    }

    /// A member has told something.
    pub(crate) fn hear(&self, word: Word, by: usize) {
        match (word, self.spec.group.position(by)) {
            (_, None) => {}
            _ => {
                self.library.mark_broken();
                self.poison(word.error(by));
            }
        }
    }

    /// Tells the members that this rank has left. The last use of the communicator, which nobody frees when calls can still be in it.
    fn retire(&self, is_whole: bool) {
        let keep = !is_whole || self.kept.load(Ordering::Relaxed);
        self.base.retire(self.comm, (self.me, self.size()), self.collectives(), &self.left(), keep);
    }

    /// The members that have left, as far as is known.
    pub(crate) fn left(&self) -> Vec<Left> {
        lock(&self.left).clone()
    }

    /// A member that will not come any more.
    #[cold]
    pub(crate) fn left_by(&self, position: usize) -> Error {
        let rank = self.spec.group.global(position).unwrap_or(position);
        let text = format!("rank {rank} has dropped or finalized the communicator, while this rank goes on");
        self.poison(Error::new(ErrorKind::PeerLeft, text).with_peers([rank]))
    }

    /// MPI may get messages for it that nobody takes: it is never freed.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Looks for what ends a wait: the abort or the death of a peer.
    pub(crate) fn interrupted(&self) -> Result<()> {
        self.base.collect();
        goodbye::hear(&self.library, self.comm, |left| lock(&self.left).push(left));
        self.look_for_the_dead();
        self.cause().map_or(Ok(()), Err)
    }

    /// What broke it, if anything did.
    pub(crate) fn cause(&self) -> Option<Error> {
        if !self.broken.load(Ordering::Acquire) {
            return None;
        }
        Some(lock(&self.cause).clone().unwrap_or_else(|| self.poisoned()))
    }

    fn look_for_the_dead(&self) {
        {
            let mut asked = lock(&self.asked);
            if asked.is_some_and(|when| when.elapsed() < BETWEEN_QUESTIONS) {
                return;
            }
            *asked = Some(Instant::now());
        }
        let gone = self.gone();
        if !gone.is_empty() && !self.broken.load(Ordering::Acquire) {
            self.library.mark_broken();
            self.poison(lost(gone));
        }
    }

    /// Sends or receives to the end.
    ///
    /// # Safety
    ///
    /// The buffers of the call are valid and nobody else's until return.
    pub(crate) unsafe fn point_to_point(&self, call: &RawCall<'_>) -> Result<()> {
        let (piece, _own_type) = way::message(&self.library, call).map_err(|error| self.unable(error))?;
        let peer = call.root as c_int;
        let api = &self.library.api;
        let count = piece.count as c_int;
        // SAFETY: the caller's promise.
        unsafe {
            if call.kind == OpKind::Send {
                let code = api.send(piece.src.cast(), count, piece.datatype, peer, DATA, self.comm);
                return if code == 0 { Ok(()) } else { Err(self.failed(code)) };
            }
            let mut status = Status::default();
            let code = api.recv(piece.dst.cast(), count, piece.datatype, peer, DATA, self.comm, &mut status);
            if code != 0 {
                return Err(self.failed(code));
            }
            self.all_arrived(&status, &piece, call.root, call.dst.bytes)
        }
    }

    /// A message that is shorter than its receive is a mistake too.
    pub(crate) fn all_arrived(
        &self,
        status: &Status,
        piece: &native::Arguments<A>,
        peer: usize,
        bytes: usize,
    ) -> Result<()> {
        let arrived = crate::library::arrived(&self.library, status, piece.datatype);
        if arrived == Some(piece.count) {
            return Ok(());
        }
        let sent = arrived.map_or("fewer".into(), |arrived| (arrived * (bytes / piece.count.max(1))).to_string());
        let text = format!(
            "this rank receives {bytes} bytes, the peer sent {sent}; both sides of a message name the same length"
        );
        Err(self.poison(Error::new(ErrorKind::Mismatch, text).with_peers(self.spec.group.global(peer))))
    }
}

impl<A: Api> Watched for Channel<A> {
    fn call(&self) -> &Call {
        &self.call
    }

    fn name(&self) -> String {
        format!("group {} at rank {}", self.spec.group, self.base.rank)
    }

    fn on_stuck(&self) -> OnStuck {
        self.settings.on_stuck
    }

    fn aborted(&self) -> bool {
        // At the end of MPI all are broken, and a call that is in it ends with the process.
        let Ok(_inside) = end::enter() else { return false };
        self.base.collect();
        self.broken.load(Ordering::Acquire)
    }

    fn close(&self) {
        if !self.broken.load(Ordering::Acquire) {
            self.is_whole.store(true, Ordering::Relaxed);
        }
        self.poison(end::closed());
    }

    fn leave(&self) {
        self.retire(self.is_whole.load(Ordering::Relaxed));
    }
}

impl<A: Api> Drop for Channel<A> {
    fn drop(&mut self) {
        self.base.refuse_post(self.id);
        let Ok(_inside) = end::enter() else { return };
        self.retire(!self.broken.load(Ordering::Acquire));
    }
}
