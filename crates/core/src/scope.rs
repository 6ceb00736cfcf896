//! [`Scope`]: operations in flight on borrowed buffers.
//!
//! The frame of [`Communicator::scope`] owns the engine's works. It is left only when none of them can touch its buffers
//! any more, whatever happened to the handles, and also when the closure panics.

#![allow(unsafe_code)]

use crate::backend::RawWork;
use crate::buffer::Buffer;
use crate::call::{Call, Lent};
use crate::comm::Communicator;
use crate::config::OnStuck;
use crate::error::{Error, Result};
use crate::member::{Member, Scratch};
use crate::op::OpKind;
use crate::work::WorkError;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// Exit code of a process that ends because the engine can't be stopped: `EX_SOFTWARE` of sysexits.
const STUCK_EXIT_CODE: i32 = 70;

/// Starts operations on borrowed buffers; see [`Communicator::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    member: &'scope Member,
    timeout: Duration,
    scratch: RefCell<Scratch>,
    /// By index of the handle; `None` when idle.
    flights: RefCell<Vec<Option<Flight>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

struct Flight {
    raw: Box<dyn RawWork>,
    kind: OpKind,
    deadline: Duration,
    failed: Option<Error>,
    /// The handle has returned the failure.
    reported: bool,
}

impl Communicator {
    /// Runs `f`, which can start operations on borrowed buffers; returns when all of them are finished or stopped.
    ///
    /// Returns what `f` returns, or else the first error of an operation that `f` did not wait for. The buffers are
    /// borrowed until then, or until [`ScopedWork::wait`] gives them back. When an operation fails and the engine can't
    /// be stopped, [`Settings::on_stuck`](crate::Settings::on_stuck) is applied.
    ///
    /// ```
    /// # use rankwise_core::{Call, Communicator, ReduceOp, Result};
    /// fn two_at_once(comm: &mut Communicator, a: &[f32], b: &mut [f32], c: &mut [i32]) -> Result<()> {
    ///     comm.scope(|s| {
    ///         let sum = s.start(Call::all_reduce(a, &mut *b, ReduceOp::Sum))?;
    ///         s.start(Call::all_reduce_in_place(&mut *c, ReduceOp::Max))?;
    ///         let b = sum.wait()?;
    ///         b[0] += 1.0;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// A buffer in flight can't be touched, and one that lives inside the closure can't be lent:
    ///
    /// ```compile_fail,E0506
    /// # use rankwise_core::{Call, Communicator, ReduceOp, Result};
    /// fn touched(comm: &mut Communicator, buf: &mut [f32]) -> Result<()> {
    ///     comm.scope(|s| {
    ///         s.start(Call::all_reduce_in_place(&mut *buf, ReduceOp::Sum))?;
    ///         buf[0] = 1.0;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// ```compile_fail,E0597
    /// # use rankwise_core::{Call, Communicator, ReduceOp, Result};
    /// fn inside(comm: &mut Communicator) -> Result<()> {
    ///     comm.scope(|s| {
    ///         let mut buf = [0.0_f32; 4];
    ///         s.start(Call::all_reduce_in_place(&mut buf, ReduceOp::Sum))?.wait()?;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    pub fn scope<'env, R>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        let member = self.member.clone();
        let scope = Scope {
            member: &member,
            timeout: self.timeout,
            scratch: RefCell::new(std::mem::take(&mut self.scratch)),
            flights: RefCell::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
        let on_stuck = self.backend.settings().on_stuck;
        let bomb = AbortOnUnwind;
        let mut flights = scope.flights.borrow_mut();
        let unreported = land_all(&mut flights, &member, on_stuck, result.is_err());
        drop(flights);
        std::mem::forget(bomb);
        self.scratch = scope.scratch.take();
        match (result, unreported) {
            (Err(panic), _) => resume_unwind(panic),
            (Ok(Err(error)), _) | (Ok(Ok(_)), Some(error)) => Err(error),
            (Ok(Ok(value)), None) => Ok(value),
        }
    }
}

/// Leaving the frame of a scope with works in flight would let the engine write into freed memory.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Makes every flight idle. The first error that no handle has returned.
fn land_all(flights: &mut [Option<Flight>], member: &Member, on_stuck: OnStuck, panicked: bool) -> Option<Error> {
    let mut first = None;
    for flight in flights.iter_mut().filter_map(Option::take) {
        if !member.is_current() {
            // A forked child: the engine's work is the parent's.
            std::mem::forget(flight.raw);
            continue;
        }
        let reported = flight.reported;
        if let Some(error) = land(flight, member, on_stuck, panicked).filter(|_| !reported) {
            first.get_or_insert(error);
        }
    }
    first
}

/// Returns when the flight is idle, with its first failure.
fn land(mut flight: Flight, member: &Member, on_stuck: OnStuck, panicked: bool) -> Option<Error> {
    // After a panic peers may never come: stop rather than wait.
    if panicked && flight.raw.cancel() {
        return flight.failed;
    }
    let mut known = flight.failed.take();
    let mut first = None;
    loop {
        let failure = match known.take().map_or_else(|| flight.raw.wait(flight.deadline), Err) {
            Ok(()) => return first,
            Err(error) => member.blame(flight.kind, error),
        };
        let text = failure.to_string();
        first.get_or_insert(failure);
        if flight.raw.cancel() {
            return first;
        }
        let held = "the engine can't be stopped and still uses a buffer of this scope";
        match on_stuck {
            OnStuck::Exit => {
                eprintln!("rankwise: {text}; {held}; exiting (RANKWISE_ON_STUCK=exit)");
                std::process::exit(STUCK_EXIT_CODE);
            }
            OnStuck::Wait => {
                eprintln!("rankwise: {text}; {held}; waiting on (RANKWISE_ON_STUCK=wait)");
                // An engine that reports its failure at once must not fill the log.
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts one operation; does not wait for peers. `UnsupportedMode` when
    /// [`Capabilities::nonblocking`](crate::Capabilities::nonblocking) is false.
    pub fn start<S, D>(&'scope self, call: Call<'_, S, D>) -> Result<ScopedWork<'scope, S, D>>
    where
        S: Buffer + 'scope,
        D: Buffer + 'scope,
    {
        let (request, timeout, lent) = call.lend();
        let (kind, deadline) = (request.shape.kind, timeout.unwrap_or(self.timeout));
        let mut flights = self.flights.borrow_mut();
        // SAFETY: the buffers live for 'scope or are kept by the handle; `scope` does not return before the work is
        // idle. A handle that is dropped early keeps them too: see its Drop.
        let raw = unsafe { self.member.start(&request, deadline, &mut self.scratch.borrow_mut()) }?;
        let index = raw.map(|raw| {
            flights.push(Some(Flight { raw, kind, deadline, failed: None, reported: false }));
            flights.len() - 1
        });
        Ok(ScopedWork { member: self.member, flights: &self.flights, index, kind, lent: Some(lent) })
    }

    /// Runs one operation between those in flight; blocks until it is finished.
    pub fn run<S: Buffer, D: Buffer>(&self, call: Call<'_, S, D>) -> Result<()> {
        let (request, timeout, lent) = call.lend();
        let deadline = timeout.unwrap_or(self.timeout);
        // SAFETY: `lent` keeps both buffers valid until after return, the destination exclusively.
        let result = unsafe { self.member.run(&request, deadline, &mut self.scratch.borrow_mut()) };
        drop(lent);
        result
    }
}

/// An operation in flight inside a [`Scope`]. Dropping it does not stop the operation: the scope waits for it.
pub struct ScopedWork<'scope, S: Buffer, D: Buffer> {
    member: &'scope Member,
    flights: &'scope RefCell<Vec<Option<Flight>>>,
    /// `None` when it was finished at once.
    index: Option<usize>,
    kind: OpKind,
    lent: Option<Lent<S, D>>,
}

impl<S: Buffer, D: Buffer> ScopedWork<'_, S, D> {
    /// Whether the operation has finished; does not wait. An error is final: [`ScopedWork::wait`] returns it again.
    pub fn test(&mut self) -> Result<bool> {
        self.poll(true)
    }

    fn poll(&mut self, report: bool) -> Result<bool> {
        let Some(index) = self.index else { return Ok(true) };
        let mut flights = self.flights.borrow_mut();
        let Some(Some(flight)) = flights.get_mut(index) else { return Ok(true) };
        if !self.member.is_current() {
            return Err(self.member.forked(self.kind));
        }
        if let Some(error) = &flight.failed {
            flight.reported |= report;
            return Err(error.clone());
        }
        match flight.raw.test() {
            Ok(false) => Ok(false),
            Ok(true) => {
                flights[index] = None;
                Ok(true)
            }
            Err(error) => {
                flight.reported |= report;
                Err(flight.failed.insert(self.member.blame(self.kind, error)).clone())
            }
        }
    }

    /// Waits until finished and gives the destination back; the source's borrow ends.
    ///
    /// After an error the operation is stopped where the engine can, and the error gives the buffers back; otherwise
    /// the scope deals with it at its end.
    pub fn wait(self) -> Result<D, WorkError<S, D>> {
        self.wait_both().map(|(_, dst)| dst)
    }

    /// [`ScopedWork::wait`], giving both buffers back.
    pub fn wait_both(mut self) -> Result<(S, D), WorkError<S, D>> {
        let error = self.finish().err();
        // SAFETY: `is_idle` says that the engine has let go of the buffers.
        let buffers = if self.is_idle() { self.lent.take().map(|lent| unsafe { lent.give_back() }) } else { None };
        match (error, buffers) {
            (None, Some(buffers)) => Ok(buffers),
            (error, buffers) => {
                let error = error.unwrap_or_else(|| Error::invalid("the work was taken apart before"));
                Err(WorkError::new(error, buffers))
            }
        }
    }

    /// Waits; on an error tries to stop.
    fn finish(&mut self) -> Result<()> {
        let Some(index) = self.index else { return Ok(()) };
        let mut flights = self.flights.borrow_mut();
        let Some(Some(flight)) = flights.get_mut(index) else { return Ok(()) };
        if !self.member.is_current() {
            return Err(self.member.forked(self.kind));
        }
        let result = match flight.failed.take() {
            Some(error) => Err(error),
            None => flight.raw.wait(flight.deadline).map_err(|error| self.member.blame(self.kind, error)),
        };
        flight.failed = result.as_ref().err().cloned();
        flight.reported = result.is_err();
        if result.is_ok() || flight.raw.cancel() {
            flights[index] = None;
        }
        result
    }

    fn is_idle(&self) -> bool {
        let Some(index) = self.index else { return true };
        self.flights.try_borrow().is_ok_and(|flights| matches!(flights.get(index), None | Some(None)))
    }
}

impl<S: Buffer, D: Buffer> Drop for ScopedWork<'_, S, D> {
    fn drop(&mut self) {
        // An owned buffer that the engine may still use is leaked; a borrowed one is not ours to free.
        if std::mem::needs_drop::<Lent<S, D>>() && !self.is_idle() && !self.poll(false).unwrap_or(false) {
            std::mem::forget(self.lent.take());
        }
    }
}

impl<S: Buffer, D: Buffer> fmt::Debug for ScopedWork<'_, S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopedWork({}, finished: {})", self.kind, self.is_idle())
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope")
    }
}
