//! A call like an earlier one allocates nothing: not for its plan, its rounds, its scratch or its messages.

#[path = "ranks/mod.rs"]
mod ranks;

use ranks::Job;
use rankwise_core::backend::RawBuf;
use rankwise_core::{DType, Group, OpKind, Result};
use rankwise_schedule::loopback::{self, Loopback, Request, Settings};
use rankwise_schedule::{Algorithm, Choice, Envelope, Executor, HostMemory, Lent, Stamp, Start, Status, Transport};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

/// Counts what this thread allocates while it is told to.
struct Counting;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.get() {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn quietly<R>(f: impl FnOnce() -> R) -> R {
    let counted = COUNTS.replace(false);
    let result = f();
    COUNTS.set(counted);
    result
}

/// The loopback, whose own allocations don't count.
struct Quiet(Loopback);

// SAFETY: the loopback's promise.
unsafe impl Transport for Quiet {
    type Request = Request;

    fn now(&self) -> Duration {
        quietly(|| self.0.now())
    }

    unsafe fn send(&self, to: Envelope, data: Lent) -> Result<Option<Request>> {
        // SAFETY: the caller's promise.
        quietly(|| unsafe { self.0.send(to, data) })
    }

    unsafe fn receive(&self, from: Envelope, data: Lent) -> Result<Option<Request>> {
        // SAFETY: the caller's promise.
        quietly(|| unsafe { self.0.receive(from, data) })
    }

    fn test(&self, request: &mut Request) -> Result<bool> {
        quietly(|| self.0.test(request))
    }

    fn progress(&self) -> bool {
        quietly(|| self.0.progress())
    }

    fn cancel(&self, request: &mut Request) {
        quietly(|| self.0.cancel(request));
    }
}

#[test]
fn the_second_call_of_a_shape_allocates_nothing() {
    const N: usize = 5;
    let group = Group::world(N);
    let world = loopback::world(N, Settings::default());
    let mut ranks: Vec<Executor<Quiet, HostMemory>> =
        world.into_iter().map(|rank| Executor::new(Quiet(rank))).collect();
    let mut tickets = Vec::with_capacity(N);
    for algorithm in Algorithm::ALL {
        for kind in OpKind::DATA.into_iter().filter(|kind| algorithm.offers(*kind)) {
            if matches!(kind, OpKind::Send | OpKind::Recv) {
                continue;
            }
            let job = Job::new(kind, DType::F32, N, Choice { algorithm, chunk: Some(32) }).with_size(40);
            let mut columns: Vec<Vec<usize>> = (0..N).map(|_| Vec::with_capacity(N)).collect();
            let buffer = |len: usize| vec![0_f32; len];
            let mut sources: Vec<Vec<f32>> = (0..N).map(|rank| buffer(job.source_len(rank))).collect();
            let mut results: Vec<Vec<f32>> = (0..N).map(|rank| buffer(job.destination_len(rank))).collect();
            for sequence in 1..=4 {
                COUNTS.set(sequence > 1);
                for (me, rank) in ranks.iter_mut().enumerate() {
                    let mut call = job.call(me, &mut columns[me]);
                    call.src = RawBuf::host(sources[me].as_mut_ptr().cast(), 4 * sources[me].len());
                    call.dst = RawBuf::host(results[me].as_mut_ptr().cast(), 4 * results[me].len());
                    let stamp = Stamp::new(1, sequence, &call, 0);
                    let start = Start { group: &group, me, stamp, choice: job.choice, deadline: Duration::MAX };
                    // SAFETY: the buffers stay until all calls are idle, below.
                    let ticket =
                        unsafe { rank.start(&call, &start, |memory, plan| memory.arm(&call, N, plan.scratch())) };
                    tickets.push(ticket.expect("started"));
                }
                while ranks.iter().zip(&tickets).any(|(rank, ticket)| !rank.is_idle(*ticket)) {
                    ranks.iter_mut().for_each(|rank| _ = rank.progress());
                }
                for (rank, ticket) in ranks.iter_mut().zip(tickets.drain(..)) {
                    assert!(matches!(rank.status(ticket), Status::Done));
                    rank.finish(ticket);
                }
                COUNTS.set(false);
                assert_eq!(ALLOCATIONS.take(), 0, "{kind} by {algorithm}, call {sequence}");
            }
        }
    }
}
