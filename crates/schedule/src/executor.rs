//! Runs any number of calls of any number of communicators on one transport.

#![allow(unsafe_code)]

use crate::memory::Memory;
use crate::operation::{Operation, Stamp};
use crate::plan::{Choice, Plan};
use crate::transport::{Lent, Transport};
use rankwise_core::backend::RawCall;
use rankwise_core::{Error, ErrorKind, Group, Result};
use std::time::Duration;

/// A started call. Give it to [`Executor::finish`] once it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    index: u32,
    /// Distinguishes the users of a place.
    turn: u32,
}

/// Who calls, and how the call is to run.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The members.
    pub group: &'a Group,
    /// This rank's position in the group.
    pub me: usize,
    /// What marks the call's messages.
    pub stamp: Stamp,
    /// The same on all members.
    pub choice: Choice,
    /// On the transport's clock; `Duration::MAX` for none.
    pub deadline: Duration,
}

/// How far a call is.
#[derive(Clone, Debug)]
pub enum Status {
    /// Under way.
    Running,
    /// Failed; the transport has not yet let go of all of its memory.
    Draining(Error),
    /// Finished; the result is in the destination.
    Done,
    /// Failed, and nothing touches its memory any more.
    Failed(Error),
}

/// The calls of one rank. Not synchronised: a backend whose calls come from several threads puts it behind a lock.
///
/// Every poll moves all calls on, so that ranks may wait for theirs in different orders. A call's memory may be freed when its status is
/// [`Status::Done`] or [`Status::Failed`]. Dropped earlier, the executor keeps its own memory alive for ever, and the caller has to do the same.
pub struct Executor<T: Transport, M> {
    transport: T,
    places: Vec<Place<T::Request, M>>,
    free: Vec<u32>,
    /// Places of the calls that are not idle.
    active: Vec<u32>,
    passes: u32,
}

/// One pass in so many looks at every message for an error.
const THOROUGH: u32 = 64;

struct Place<R, M> {
    /// Only taken from where it is when the transport keeps its memory for ever.
    operation: Option<Box<Operation<R, M>>>,
    turn: u32,
    deadline: Duration,
}

impl<T: Transport, M: Memory + Default> Executor<T, M> {
    /// An executor without calls.
    pub fn new(transport: T) -> Executor<T, M> {
        Executor { transport, places: Vec::new(), free: Vec::new(), active: Vec::new(), passes: 0 }
    }

    /// What it runs on.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Starts a call and returns at once. `arm` gives the call's memory what the plan needs; it may be that of an earlier call.
    ///
    /// Fails, with nothing started, when the plan does not offer the call or `arm` fails.
    ///
    /// # Safety
    ///
    /// After `arm`, the memory is valid as [`Memory`] says until the call's status is `Done` or `Failed`.
    pub unsafe fn start(
        &mut self,
        call: &RawCall<'_>,
        start: &Start<'_>,
        arm: impl FnOnce(&mut M, &Plan) -> Result<()>,
    ) -> Result<Ticket> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { operation: None, turn: 0, deadline: Duration::MAX });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        let operation = place.operation.get_or_insert_with(|| Box::new(Operation::new()));
        let armed = operation
            .plan
            .set(call, start.me, start.group.len(), start.choice)
            .and_then(|()| arm(&mut operation.memory, &operation.plan));
        if let Err(error) = armed {
            self.free.push(index);
            return Err(error);
        }
        place.deadline = start.deadline;
        // SAFETY: the caller's promise.
        unsafe { operation.begin(start.group, start.stamp) };
        if !operation.poll(&self.transport, false) {
            self.active.push(index);
        }
        Ok(Ticket { index, turn: place.turn })
    }

    /// Moves all calls on as far as possible. True when something has moved.
    pub fn progress(&mut self) -> bool {
        let moved = self.transport.progress();
        let (places, transport) = (&mut self.places, &self.transport);
        let before = self.active.len();
        self.passes = self.passes.wrapping_add(1);
        let thorough = self.passes.is_multiple_of(THOROUGH);
        self.active.retain(|index| {
            let operation = places[*index as usize].operation.as_deref_mut();
            operation.is_some_and(|operation| !operation.poll(transport, thorough))
        });
        moved || self.active.len() < before
    }

    /// Stops the calls whose deadline has passed, with `Timeout`. Reads the transport's clock.
    pub fn expire(&mut self) {
        let now = self.transport.now();
        for index in &self.active {
            let place = &mut self.places[*index as usize];
            if now >= place.deadline
                && let Some(operation) = place.operation.as_deref_mut()
                // What has arrived is not missing.
                && !operation.poll(&self.transport, true)
                && operation.error().is_none()
            {
                let error = operation.timeout();
                operation.stop(&self.transport, error);
            }
        }
    }

    /// How far a call is; does not progress.
    pub fn status(&self, ticket: Ticket) -> Status {
        let Some(operation) = self.operation(ticket) else {
            return Status::Failed(Error::new(ErrorKind::Closed, "the call was finished before"));
        };
        match (operation.is_idle(), operation.error()) {
            (false, None) => Status::Running,
            (false, Some(error)) => Status::Draining(error.clone()),
            (true, None) => Status::Done,
            (true, Some(error)) => Status::Failed(error.clone()),
        }
    }

    /// Whether a call is idle; cheaper than its status.
    pub fn is_idle(&self, ticket: Ticket) -> bool {
        self.operation(ticket).is_none_or(Operation::is_idle)
    }

    /// Ends a call early: its messages are cancelled. It is idle when the transport has let go of them. A call that has failed keeps its error.
    pub fn stop(&mut self, ticket: Ticket, error: Error) {
        let transport = &self.transport;
        let place = self.places.get_mut(ticket.index as usize).filter(|place| place.turn == ticket.turn);
        if let Some(operation) = place.and_then(|place| place.operation.as_deref_mut()) {
            operation.stop(transport, error);
            operation.poll(transport, false);
        }
    }

    /// The memory of a call that the transport may still touch: none once it is idle.
    pub fn held(&self, ticket: Ticket) -> impl Iterator<Item = Lent> + '_ {
        self.operation(ticket).into_iter().flat_map(Operation::held)
    }

    /// Waits until a call is idle, moving all calls on. `watch` is called after each pass in which nothing moved, with the number of such passes since
    /// something did: it spins, yields or sleeps. Deadlines are looked at once in some passes. An error from it ends the call early, and the wait goes on until it is idle; a second error
    /// ends the wait. Then the status is `Draining`, and [`Executor::held`] says what is stuck.
    pub fn wait(&mut self, ticket: Ticket, mut watch: impl FnMut(&T, u32) -> Result<()>) -> Status {
        let mut fruitless = 0_u32;
        let mut stopped = false;
        while !self.is_idle(ticket) {
            if self.progress() {
                fruitless = 0;
                continue;
            }
            fruitless = fruitless.saturating_add(1);
            if fruitless.is_multiple_of(THOROUGH) {
                self.expire();
            }
            match watch(&self.transport, fruitless) {
                Ok(()) => {}
                Err(_) if stopped => break,
                Err(error) => {
                    stopped = true;
                    self.stop(ticket, error);
                }
            }
        }
        self.status(ticket)
    }

    /// Ends the use of a ticket: its place and its memory serve the next call. A call that is not idle is left to the transport for ever, with its
    /// memory.
    pub fn finish(&mut self, ticket: Ticket) {
        let Some(place) = self.places.get_mut(ticket.index as usize).filter(|place| place.turn == ticket.turn) else {
            return;
        };
        place.turn = place.turn.wrapping_add(1);
        if place.operation.as_deref().is_some_and(|operation| !operation.is_idle()) {
            std::mem::forget(place.operation.take());
            self.active.retain(|index| *index != ticket.index);
        }
        self.free.push(ticket.index);
    }

    /// Number of calls that are not idle.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// A call's memory, to look at.
    pub fn memory(&self, ticket: Ticket) -> Option<&M> {
        self.operation(ticket).map(|operation| &operation.memory)
    }

    fn operation(&self, ticket: Ticket) -> Option<&Operation<T::Request, M>> {
        self.places.get(ticket.index as usize).filter(|place| place.turn == ticket.turn)?.operation.as_deref()
    }
}

impl<T: Transport, M> Drop for Executor<T, M> {
    fn drop(&mut self) {
        for index in &self.active {
            std::mem::forget(self.places[*index as usize].operation.take());
        }
    }
}
