//! A member's side of a communicator: calls that the layer above has checked.

#![allow(unsafe_code)]

use crate::driver::table;
use crate::hub::read_failed;
use crate::link::{CLOSING_TIME, Frame, Link, Say};
use rankwise_core::backend::{RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{Capabilities, Error, ErrorKind, Group, MemorySpace, OpKind, Queue, Result};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the hub may take to say who is missing.
const VERDICT_TIME: Duration = Duration::from_millis(500);

pub(crate) struct StarCommunicator {
    group: Group,
    table: Capabilities,
    link: Link,
    /// What the hub says; `None` is its end.
    incoming: Mutex<Receiver<Option<Frame>>>,
    /// Calls so far: the sequence number of the last one.
    calls: AtomicU64,
    /// The first failure; never replaced.
    cause: Mutex<Option<Error>>,
    /// Whether this rank has returned the cause once; later calls are `Poisoned`.
    told: AtomicBool,
}

impl StarCommunicator {
    pub(crate) fn new(group: Group, end: UnixStream) -> io::Result<StarCommunicator> {
        let (sender, receiver) = channel();
        // A failed send means that the communicator is gone, and nobody listens.
        let link = Link::new(end, group.len(), move |frame| drop(sender.send(frame)))?;
        Ok(StarCommunicator {
            group,
            table: table(),
            link,
            incoming: Mutex::new(receiver),
            calls: AtomicU64::new(0),
            cause: Mutex::default(),
            told: AtomicBool::new(false),
        })
    }

    /// Relaxed: one thread at a time issues calls.
    fn next(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records a failure and returns the cause that counts.
    fn fail(&self, error: Error) -> Error {
        self.told.store(true, Ordering::Relaxed);
        self.cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error).clone()
    }

    /// Refuses calls on a communicator that has failed: the cause first, then `Poisoned`.
    fn check_usable(&self) -> Result<()> {
        let mut cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        if cause.is_none() {
            let incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
            *cause = incoming.try_iter().find_map(|frame| match frame {
                Some(frame) if frame.say == Say::Failed => Some(read_failed(&frame)),
                Some(_) => None,
                None => Some(self.hub_is_gone()),
            });
        }
        let Some(cause) = cause.clone() else { return Ok(()) };
        if !self.told.swap(true, Ordering::Relaxed) {
            return Err(cause);
        }
        Err(Error::new(ErrorKind::Poisoned, "an earlier call failed; make a new communicator").with_source(cause))
    }

    fn hub_is_gone(&self) -> Error {
        let rank = self.group.global(0).unwrap_or(0);
        let text = format!("rank {rank}, where the hub is, died; look at its output, then start again");
        Error::new(ErrorKind::PeerLost, text).with_peers([rank])
    }

    /// Waits for everybody's call; returns the sources in group order.
    fn meet(&self, what: &str, source: &[u8], deadline: Duration) -> Result<Vec<u8>> {
        let seq = self.next();
        self.link.send(Frame::new(Say::Call, seq, what.as_bytes(), source));
        let mut until = Instant::now().checked_add(deadline);
        let mut is_late = false;
        let incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Bounded, and woken by whatever the hub says: an answer, a failure, its end.
            let left = until.map_or(Duration::from_secs(1), |until| until.saturating_duration_since(Instant::now()));
            match incoming.recv_timeout(left) {
                Ok(Some(frame)) if frame.say == Say::Answer && frame.seq == seq => return Ok(frame.data.to_vec()),
                Ok(Some(frame)) if frame.say == Say::PeerRefused && frame.seq == seq => {
                    return Err(peer_refused(&frame));
                }
                Ok(Some(frame)) if frame.say == Say::Failed => {
                    return Err(self.fail(read_failed(&frame).with_sequence(seq)));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return Err(self.fail(self.hub_is_gone())),
                Err(RecvTimeoutError::Timeout) if until.is_none() => {}
                Err(RecvTimeoutError::Timeout) if !is_late => {
                    // The hub knows who is missing.
                    self.link.send(Frame::new(Say::Late, seq, &[], &[]));
                    (is_late, until) = (true, Some(Instant::now() + VERDICT_TIME));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let rank = self.group.global(0).unwrap_or(0);
                    let text = format!("rank {rank}, where the hub is, does not answer; look at what it does");
                    return Err(self.fail(Error::new(ErrorKind::Timeout, text).with_peers([rank]).with_sequence(seq)));
                }
            }
        }
    }
}

fn peer_refused(frame: &Frame) -> Error {
    let rank = frame.head.first_chunk().map_or(0, |rank| u32::from_le_bytes(*rank)) as usize;
    let why = String::from_utf8_lossy(&frame.data);
    let text = format!("rank {rank} refused its own arguments ({why}); correct them there and call again");
    Error::new(ErrorKind::PeerRejected, text).with_peers([rank])
}

/// Everything that must be equal on all members.
fn describe(call: &RawCall<'_>) -> String {
    let RawCall { kind, dtype, elem_size, op, count, root, tag, .. } = call;
    format!("{kind} of {count} {dtype} of {elem_size} bytes, {op:?}, root {root}, tag {tag}")
}

fn unsupported(function: &str) -> Error {
    let kind =
        ErrorKind::Unsupported { function: function.into(), needs: "another backend".into(), have: "star".into() };
    Error::new(kind, "star does not offer it; choose another backend for this")
}

// SAFETY: `run` reads `src` and writes `dst` within their lengths, on the calling thread, and keeps no pointer: what the hub
// and peers read is a copy. Nothing is started and no segment is handed out.
unsafe impl RawCommunicator for StarCommunicator {
    fn group(&self) -> &Group {
        &self.group
    }

    fn capabilities(&self) -> &Capabilities {
        &self.table
    }

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        self.check_usable()?;
        let began = Instant::now();
        for (place, call) in calls.iter().enumerate() {
            // SAFETY: the caller lends `src` until return; an absent one is dangling and empty.
            let source = unsafe { std::slice::from_raw_parts(call.src.ptr, call.src.bytes) };
            let what = format!("{} [{} of {}]", describe(call), place + 1, calls.len());
            let answer = self.meet(&what, source, deadline.saturating_sub(began.elapsed()))?;
            let Some(result) = result(call, &sources(&answer)) else { continue };
            debug_assert_eq!(result.len(), call.dst.bytes);
            // SAFETY: `dst` is lent until return and has the size of the table at `OpKind`.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), call.dst.ptr, call.dst.bytes.min(result.len())) };
        }
        Ok(())
    }

    unsafe fn start(&self, _: &[RawCall<'_>], _: Queue, _: Duration) -> Result<Box<dyn RawWork>> {
        // The table says so, and the layer above refuses; reached by nobody.
        Err(Error::new(ErrorKind::UnsupportedMode, "star can't start calls without waiting; use the blocking form"))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        self.link.send(Frame::new(Say::Refused, self.next(), &[], refusal.why.message().as_bytes()));
    }

    fn alloc(&self, _: usize, _: MemorySpace, _: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(unsupported("alloc"))
    }

    fn shrink(&self, _: Duration) -> Result<Arc<dyn RawCommunicator>> {
        Err(unsupported("shrink"))
    }

    fn abort(&self) {
        self.link.send(Frame::new(Say::Abort, 0, &[], &[]));
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        let met = self.check_usable().and_then(|()| self.meet("the goodbye", &[], deadline));
        // Peers see this rank as left also when it fails.
        self.link.send(Frame::new(Say::Leave, 0, &[], &[]));
        met.map(drop)
    }
}

impl Drop for StarCommunicator {
    fn drop(&mut self) {
        self.link.send(Frame::new(Say::Leave, 0, &[], &[]));
        // The hub closes when it has heard that, which a process that ends at once would not wait for.
        let until = Instant::now() + CLOSING_TIME;
        let incoming = self.incoming.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Ok(Some(_)) = incoming.recv_timeout(until.saturating_duration_since(Instant::now())) {}
        self.link.close();
    }
}

/// The sources in an answer of the hub.
fn sources(answer: &[u8]) -> Vec<&[u8]> {
    let mut sources = Vec::new();
    let mut rest = answer;
    while let Some((length, tail)) = rest.split_first_chunk() {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (source, tail) = tail.split_at_checked(length).unwrap_or((tail, &[]));
        sources.push(source);
        rest = tail;
    }
    sources
}

/// What goes into the destination; nothing after a barrier.
fn result(call: &RawCall<'_>, sources: &[&[u8]]) -> Option<Vec<u8>> {
    match call.kind {
        OpKind::AllReduce => Some(sum(sources)),
        OpKind::AllGather => Some(sources.concat()),
        OpKind::Broadcast => sources.get(call.root).map(|source| source.to_vec()),
        _ => None,
    }
}

/// Left fold in group order, and one NaN for all: the table promises `Determinism::Fixed`.
fn sum(sources: &[&[u8]]) -> Vec<u8> {
    let value = |bytes: &[u8; 4]| f32::from_ne_bytes(*bytes);
    let mut sum: Vec<f32> = sources[0].as_chunks().0.iter().map(value).collect();
    for source in &sources[1..] {
        sum.iter_mut().zip(source.as_chunks().0).for_each(|(sum, bytes)| *sum += value(bytes));
    }
    let canonical = |sum: f32| if sum.is_nan() { f32::NAN } else { sum };
    sum.into_iter().map(canonical).flat_map(f32::to_ne_bytes).collect()
}
