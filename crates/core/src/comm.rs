//! [`Communicator`]: the typed handle of one group. Its data operations are in `ops.rs`.

#![allow(unsafe_code)]

use crate::buffer::{Buffer, Owned, Side};
use crate::call::{Call, Request, Shape};
use crate::caps::Capabilities;
use crate::error::Result;
use crate::group::Group;
use crate::member::{Entered, Member, Scratch};
use crate::op::OpKind;
use crate::registry::Backend;
use crate::segbuf::SegBuf;
use crate::work::Work;
use bytemuck::Pod;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The typed handle of one group on this rank.
///
/// Operations take `&mut self` and block, because the order of calls is the protocol: every member makes the same calls
/// in the same order. A handle can move to another thread, but not be shared between threads; two handles of one
/// group share its busy flag (`Busy`, never a wait).
///
/// Roots, sources and destinations are positions in the group; errors name global ranks. Lengths are in elements.
///
/// Errors that every operation can return: `InvalidArgument`, `CountTooLarge`, `UnsupportedOp`, `UnsupportedDtype` (this
/// rank's call was refused; nothing moved, peers get `PeerRejected`, the communicator stays usable), `PeerRejected`,
/// `Busy`, `Closed`, `ForkedProcess`; and, after which the communicator is unusable, `Mismatch`, `Timeout`, `PeerLost`,
/// `PeerLeft`, `Aborted`, then `Poisoned`. `Engine` passes on a failure of a foreign library.
///
/// ```
/// use rankwise_core::{Backend, ReduceOp, Result};
///
/// fn mean(backend: &Backend, gradients: &mut [f32]) -> Result<()> {
///     let mut world = backend.world()?;
///     world.all_reduce_in_place(gradients, ReduceOp::Avg)
/// }
/// ```
///
/// Two threads can't use one handle:
///
/// ```compile_fail,E0499
/// fn shared(comm: &mut rankwise_core::Communicator) {
///     std::thread::scope(|s| {
///         s.spawn(|| comm.barrier());
///         s.spawn(|| comm.barrier());
///     });
/// }
/// ```
pub struct Communicator {
    pub(crate) member: Arc<Member>,
    pub(crate) backend: Backend,
    pub(crate) timeout: Duration,
    pub(crate) scratch: Scratch,
    /// Send, not Sync.
    one_thread: PhantomData<Cell<()>>,
}

impl Communicator {
    pub(crate) fn new(backend: Backend, member: Arc<Member>) -> Communicator {
        let timeout = backend.settings().timeout;
        Communicator { member, backend, timeout, scratch: Scratch::default(), one_thread: PhantomData }
    }

    /// The members in order.
    pub fn group(&self) -> &Group {
        self.member.group()
    }

    /// This rank's position in the group.
    pub fn rank(&self) -> usize {
        self.member.position()
    }

    /// This rank's global rank.
    pub fn global_rank(&self) -> usize {
        self.member.rank()
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.member.group().len()
    }

    /// What the communicator offers: the same on all members.
    pub fn capabilities(&self) -> &Capabilities {
        self.member.capabilities()
    }

    /// Deadline of a call.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets the deadline of later calls on this handle; `Call::timeout` overrides it for one.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Makes every member's running and later calls fail with `Aborted`, then `Poisoned`. Does not wait.
    pub fn abort(&self) {
        self.member.abort();
    }

    /// A handle that can abort from any thread, also while a call is running.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { member: Arc::downgrade(&self.member) }
    }

    /// Runs one operation; blocks until it is finished. Owned buffers are dropped with their results: give this
    /// borrowed ones.
    #[inline]
    pub fn run<S: Buffer, D: Buffer>(&mut self, call: Call<'_, S, D>) -> Result<()> {
        let (request, timeout, lent) = call.lend();
        let deadline = timeout.unwrap_or(self.timeout);
        // SAFETY: `lent` keeps both buffers valid until after return, the destination exclusively.
        let result = unsafe { self.member.run(&request, deadline, &mut self.scratch) };
        drop(lent);
        result
    }

    /// Starts one operation on buffers that are given away; does not wait for peers. [`Work::wait`] gives them back.
    ///
    /// Several works may be in flight. `UnsupportedMode` when [`Capabilities::nonblocking`] is false. For borrowed
    /// buffers use [`Communicator::scope`].
    ///
    /// ```
    /// # use rankwise_core::{Call, Communicator, ReduceOp, Result};
    /// fn overlapped(comm: &mut Communicator, gradients: Vec<f32>) -> Result<Vec<f32>> {
    ///     let sums = vec![0.0; gradients.len()];
    ///     let work = comm.start(Call::all_reduce(gradients, sums, ReduceOp::Sum))?;
    ///     // ... compute something else ...
    ///     Ok(work.wait()?)
    /// }
    /// ```
    ///
    /// ```compile_fail,E0521
    /// # use rankwise_core::{Call, Communicator, ReduceOp, Result};
    /// fn borrowed(comm: &mut Communicator, buf: &mut [f32]) -> Result<()> {
    ///     std::mem::forget(comm.start(Call::all_reduce_in_place(buf, ReduceOp::Sum))?);
    ///     Ok(())
    /// }
    /// ```
    pub fn start<S: Owned, D: Owned>(&mut self, call: Call<'_, S, D>) -> Result<Work<S, D>> {
        let (request, timeout, lent) = call.lend();
        let deadline = timeout.unwrap_or(self.timeout);
        // SAFETY: the buffers outlive every scope; `Work` keeps them lent until the engine's work is idle, or hands
        // them to the engine, or is forgotten and leaks them.
        let raw = unsafe { self.member.start(&request, deadline, &mut self.scratch) }?;
        Ok(Work::new(raw, lent, request.shape.kind, deadline, self.member.clone()))
    }

    /// Allocates `len` zeroed elements that operations on this communicator can use without copies. Collective, equal
    /// lengths on all members; blocks.
    ///
    /// `Unsupported` when [`Capabilities::alloc`] is false; `NoMemory` or `Limit` when it can't be reserved.
    pub fn alloc<T: Pod>(&mut self, len: usize) -> Result<SegBuf<T>> {
        self.member.alloc(len, self.timeout)
    }

    /// Divides the group: members that give the same colour form a communicator, ordered by (key, position here); a
    /// member that gives `None` gets none. Collective over all members; blocks.
    pub fn split(&mut self, color: Option<u64>, key: i64) -> Result<Option<Communicator>> {
        crate::split::split(self, color, key)
    }

    /// Forms a communicator from the members that are still there, in group order. Collective over the survivors;
    /// blocks. Not every backend can (`Unsupported`).
    pub fn shrink(&mut self) -> Result<Communicator> {
        crate::split::shrink(self)
    }

    /// The collective goodbye: returns when all members have said it, or at the deadline. Later calls on this group are
    /// `Closed`, whatever it returns.
    pub fn finalize(self) -> Result<()> {
        let kind = OpKind::Finalize;
        let _entered = self.member.enter(kind)?;
        let result = match self.member.raw() {
            Some(raw) => raw.finalize(self.timeout).map_err(|error| self.member.blame(kind, error)),
            None => Ok(()),
        };
        self.member.close();
        result
    }

    /// One operation of several that belong together: other handles of the group stay out from the first to the last.
    pub(crate) fn run_inner(
        &mut self,
        entered: &Entered<'_>,
        shape: Shape<'_>,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<()> {
        let src = if shape.in_place { Side::ABSENT } else { Side::of_slice(src) };
        let request = Request { shape, src, dst: Side::of_slice_mut(dst) };
        // SAFETY: both are borrowed until return.
        unsafe { self.member.run_as(entered, &request, self.timeout, &mut self.scratch) }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator({}, group {}, rank {})", self.backend.name(), self.group(), self.rank())
    }
}

/// Aborts a communicator from any thread. Does nothing once the communicator is gone.
#[derive(Clone)]
pub struct AbortHandle {
    member: Weak<Member>,
}

impl AbortHandle {
    /// See [`Communicator::abort`]. Twice is fine.
    pub fn abort(&self) {
        if let Some(member) = self.member.upgrade() {
            member.abort();
        }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AbortHandle")
    }
}
