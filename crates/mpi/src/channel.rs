//! One communicator on this rank: what all its parts share.

use crate::api::{Api, Comm, Named, Request, Status};
use crate::library::Library;
use crate::native::{self, Integers};
use crate::room::Room;
use crate::watch::{Call, Watched};
use crate::way::{self, Way};
use rankwise_core::backend::{CommSpec, RawCall, RawWork};
use rankwise_core::{Capabilities, Determinism, Error, ErrorKind, OnStuck, OpKind, Result, Settings};
use rankwise_world::World;
use std::any::Any;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tags of messages between two members.
pub(crate) const DATA: c_int = 1;
pub(crate) const HEADER: c_int = 2;
pub(crate) const NOTICE: c_int = 3;

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
    pub(crate) comm: Comm<A>,
    pub(crate) spec: CommSpec,
    pub(crate) me: usize,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) world: World,
    /// What the watching thread sees.
    pub(crate) call: Call,
    /// Calls so far.
    sequence: AtomicU64,
    broken: AtomicBool,
    cause: Mutex<Option<Error>>,
    pub(crate) scratch: Mutex<Scratch>,
    /// Work whose handle is gone, and what its buffers live in.
    pub(crate) detached: Mutex<Vec<Detached>>,
}

type Detached = (Box<dyn RawWork>, Box<dyn Any + Send>);

// SAFETY: the handle is a name that any thread may use.
unsafe impl<A: Api> Send for Channel<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Channel<A> {}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A: Api> Channel<A> {
    pub(crate) fn new(
        library: Arc<Library<A>>,
        comm: Comm<A>,
        spec: CommSpec,
        me: usize,
        capabilities: Capabilities,
        settings: Settings,
        world: World,
    ) -> Channel<A> {
        Channel {
            library,
            comm,
            spec,
            me,
            capabilities,
            settings,
            world,
            call: Call::default(),
            sequence: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            cause: Mutex::new(None),
            scratch: Mutex::default(),
            detached: Mutex::default(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.spec.group.len()
    }

    pub(crate) fn fixed(&self) -> bool {
        self.spec.determinism == Determinism::Fixed
    }

    pub(crate) fn next(&self) -> u64 {
        // Relaxed: one thread issues calls, and the layer above orders them.
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
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
            self.library.failure(code)
        };
        self.library.mark_broken();
        self.poison(error)
    }

    /// Runs a collective to its end.
    ///
    /// # Safety
    ///
    /// The buffers of the call are valid and nobody else's until return.
    #[inline]
    pub(crate) unsafe fn collective(&self, call: &RawCall<'_>) -> Result<()> {
        let mut scratch = lock(&self.scratch);
        let Scratch { room, ints, members } = &mut *scratch;
        // SAFETY: the caller's promise; scratch is held until the call has finished.
        unsafe {
            let place = (self.size(), self.me);
            let way = way::decide(&self.library, call, place, self.fixed(), room, ints)?;
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
        let by = self.library.rank;
        self.poison(aborted(by));
        self.tell(by);
    }

    /// Sends a notice to all other members, and does not wait.
    fn tell(&self, by: usize) {
        let text: &'static [u64; 1] = Box::leak(Box::new([by as u64]));
        for peer in (0..self.size()).filter(|peer| *peer != self.me) {
            let mut request = self.library.api.request_null();
            // SAFETY: the text lives for ever, as does a request that nobody waits for.
            unsafe {
                let (to, datatype) = (peer as c_int, self.library.named(Named::U64));
                self.library.api.isend(text.as_ptr().cast(), 1, datatype, to, NOTICE, self.comm, &mut request);
            }
        }
    }

    /// Looks for what ends a wait: an abort of a peer.
    pub(crate) fn interrupted(&self) -> Result<()> {
        self.look_for_notice();
        if self.broken.load(Ordering::Acquire) {
            let cause = lock(&self.cause).clone();
            return Err(cause.unwrap_or_else(|| self.poisoned()));
        }
        Ok(())
    }

    fn look_for_notice(&self) {
        let mut flag = 0;
        let mut message = std::mem::MaybeUninit::uninit();
        let mut status = Status::default();
        let mut by = [u64::MAX; 1];
        let (api, any) = (&self.library.api, self.library.constants.any_source);
        // SAFETY: a message that was found is received into a place of its length.
        unsafe {
            let code = api.improbe(any, NOTICE, self.comm, &mut flag, message.as_mut_ptr(), &mut status);
            if code != 0 || flag == 0 {
                return;
            }
            api.mrecv(by.as_mut_ptr().cast(), 1, self.library.named(Named::U64), message.as_mut_ptr(), &mut status);
        }
        self.library.mark_broken();
        self.poison(aborted(by[0] as usize));
    }

    /// Sends or receives to the end.
    ///
    /// # Safety
    ///
    /// The buffers of the call are valid and nobody else's until return.
    pub(crate) unsafe fn point_to_point(&self, call: &RawCall<'_>) -> Result<()> {
        let piece = way::message(&self.library, call)?;
        let peer = call.root as c_int;
        let api = &self.library.api;
        // SAFETY: the caller's promise.
        unsafe {
            if call.kind == OpKind::Send {
                let code = api.send(piece.src.cast(), piece.count, piece.datatype, peer, DATA, self.comm);
                return if code == 0 { Ok(()) } else { Err(self.failed(code)) };
            }
            let mut status = Status::default();
            let code = api.recv(piece.dst.cast(), piece.count, piece.datatype, peer, DATA, self.comm, &mut status);
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
        if arrived == piece.count as usize {
            return Ok(());
        }
        let unit = bytes / (piece.count as usize).max(1);
        let text = format!(
            "this rank receives {bytes} bytes, the peer sent {}; both sides of a message name the same length",
            arrived * unit
        );
        Err(self.poison(Error::new(ErrorKind::Mismatch, text).with_peers(self.spec.group.global(peer))))
    }
}

#[cold]
fn aborted(by: usize) -> Error {
    Error::new(ErrorKind::Aborted, format!("rank {by} called abort; make another communicator to go on"))
        .with_peers([by])
}

impl<A: Api> Watched for Channel<A> {
    fn call(&self) -> &Call {
        &self.call
    }

    fn name(&self) -> String {
        format!("group {} at rank {}", self.spec.group, self.library.rank)
    }

    fn on_stuck(&self) -> OnStuck {
        self.settings.on_stuck
    }

    fn aborted(&self) -> bool {
        self.look_for_notice();
        self.broken.load(Ordering::Acquire)
    }
}

impl<A: Api> Drop for Channel<A> {
    fn drop(&mut self) {
        for (mut work, owned) in std::mem::take(&mut *lock(&self.detached)) {
            if !work.test().unwrap_or(false) {
                // MPI may use it for as long as the process lives.
                std::mem::forget(owned);
            }
        }
        // Freed only when no call can be in it.
        if self.broken.load(Ordering::Acquire) {
            return;
        }
        let mut finalized = 0;
        // SAFETY: may be asked at any time; the handle is ours, and this is its last use.
        unsafe {
            self.library.api.finalized(&mut finalized);
            if finalized == 0 {
                let mut comm = self.comm;
                self.library.api.comm_free(&mut comm);
            }
        }
    }
}
