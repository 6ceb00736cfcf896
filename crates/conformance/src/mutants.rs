//! Deliberately broken backends, made by putting a fault between a real one and the suite. Each must turn a case red.

#![allow(unsafe_code)]

use rankwise_core::backend::{CommSpec, RawBackend, RawBuf, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{
    Capabilities, Config, DType, Error, ErrorKind, Group, MemorySpace, OpKind, Queue, ReduceOp, Result,
};
use rankwise_world::{Driver, ProbeReport, World};
use std::any::Any;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Every rank adds in an order that begins at itself.
    RotatedSum,
    /// The last element of an all-reduce of more than one `f32` is not written.
    DroppedTail,
    /// A NaN in the result of an all-reduce becomes zero.
    LostNan,
    /// All-gather swaps the first two parts, except in what the layer above gathers for itself.
    SwappedParts,
    /// All-gather with counts shifts its result by one element when the counts differ.
    ShiftedRows,
    /// The first byte of what an operation in flight gives is changed.
    SpoiltWork,
    /// A call that another rank made differently, and those after it, say that all went well.
    SwallowedMismatch,
}

impl Mutation {
    /// Every mutation, with its name.
    pub const ALL: [(Mutation, &'static str); 7] = [
        (Mutation::RotatedSum, "rotated-sum"),
        (Mutation::DroppedTail, "dropped-tail"),
        (Mutation::LostNan, "lost-nan"),
        (Mutation::SwappedParts, "swapped-parts"),
        (Mutation::ShiftedRows, "shifted-rows"),
        (Mutation::SpoiltWork, "spoilt-work"),
        (Mutation::SwallowedMismatch, "swallowed-mismatch"),
    ];

    /// Whether the case with this id is of a family that has to notice it; others would only wait for their deadlines.
    pub fn concerns(self, case: &str) -> bool {
        let families: &[&str] = match self {
            Mutation::SpoiltWork => &["NB"],
            Mutation::SwallowedMismatch => &["MM"],
            _ => &["AR", "SV", "DT", "AG", "RS", "AA", "TK", "RT", "TN", "TB"],
        };
        families.contains(&case.split('-').next().unwrap_or(""))
    }
}

/// The driver with the mutation of this name put around it; `None` when there is no such mutation.
pub fn mutate<'a>(inner: &'a dyn Driver, name: &str) -> Option<Box<dyn Driver + 'a>> {
    let (mutation, name) = Mutation::ALL.into_iter().find(|(_, known)| *known == name)?;
    Some(Box::new(MutantDriver { inner, mutation, name }))
}

struct MutantDriver<'a> {
    inner: &'a dyn Driver,
    mutation: Mutation,
    name: &'static str,
}

impl Driver for MutantDriver<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        "a deliberately broken backend, to test the suite"
    }

    fn probe(&self, world: &World) -> Result<ProbeReport> {
        self.inner.probe(world)
    }

    fn join(&self, world: &World, config: &Config) -> Result<Arc<dyn RawBackend>> {
        let inner = self.inner.join(world, config)?;
        Ok(Arc::new(MutantBackend { inner, mutation: self.mutation }))
    }
}

struct MutantBackend {
    inner: Arc<dyn RawBackend>,
    mutation: Mutation,
}

// SAFETY: every call goes to a backend that keeps the promises; what the mutants add stays within `dst`.
unsafe impl RawBackend for MutantBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let inner = self.inner.communicator(spec, deadline)?;
        let position = spec.group.position(self.rank()).unwrap_or(0);
        Ok(Arc::new(MutantCommunicator { inner, mutation: self.mutation, position }))
    }
}

struct MutantCommunicator {
    inner: Arc<dyn RawCommunicator>,
    mutation: Mutation,
    position: usize,
}

// SAFETY: as for the backend.
unsafe impl RawCommunicator for MutantCommunicator {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        // SAFETY: the caller's buffers are valid; sources are read and destinations copied before the call.
        let before: Vec<(Vec<u8>, Vec<u8>)> =
            calls.iter().map(|call| unsafe { (bytes(call.src).to_vec(), bytes(call.dst).to_vec()) }).collect();
        // SAFETY: handed on as it came.
        match unsafe { self.inner.run(calls, deadline) } {
            Err(error) if self.mutation == Mutation::SwallowedMismatch && is_mismatch(&error) => return Ok(()),
            result => result?,
        }
        for (call, (src, dst)) in calls.iter().zip(&before) {
            self.corrupt(call, src, dst, deadline)?;
        }
        Ok(())
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        // SAFETY: handed on as it came.
        let inner = unsafe { self.inner.start(calls, queue, deadline)? };
        if self.mutation != Mutation::SpoiltWork {
            return Ok(inner);
        }
        let first_bytes = calls.iter().filter(|call| call.dst.bytes > 0).map(|call| FirstByte(call.dst.ptr)).collect();
        Ok(Box::new(SpoiltWork { inner, first_bytes }))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        self.inner.reject(refusal);
    }

    fn alloc(&self, bytes: usize, space: MemorySpace, deadline: Duration) -> Result<Arc<dyn RawSegment>> {
        self.inner.alloc(bytes, space, deadline)
    }

    fn shrink(&self, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        self.inner.shrink(deadline)
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        self.inner.finalize(deadline)
    }
}

/// A mismatch, or what calls after one say.
fn is_mismatch(error: &Error) -> bool {
    let first = error.source().and_then(|source| source.downcast_ref::<Error>()).unwrap_or(error);
    first.kind() == &ErrorKind::Mismatch || error.kind() == &ErrorKind::Mismatch
}

/// The first byte of a destination.
struct FirstByte(*mut u8);

// SAFETY: used through the work only, whose calls' memory may be written from whichever thread holds the work.
unsafe impl Send for FirstByte {}

struct SpoiltWork {
    inner: Box<dyn RawWork>,
    /// Those still to be changed.
    first_bytes: Vec<FirstByte>,
}

impl SpoiltWork {
    /// Only right after the inner work has said that it has finished.
    fn spoil(&mut self) {
        for byte in self.first_bytes.drain(..) {
            // SAFETY: the destination lives until the layer above hears that the work is idle, which is after this; the engine
            // has finished with it.
            unsafe { *byte.0 ^= 1 };
        }
    }
}

// SAFETY: the memory is touched by the inner work as it promises, and by `spoil` before the work says that it is idle.
unsafe impl RawWork for SpoiltWork {
    fn test(&mut self) -> Result<bool> {
        let finished = self.inner.test()?;
        if finished {
            self.spoil();
        }
        Ok(finished)
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        self.inner.wait(deadline)?;
        self.spoil();
        Ok(())
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        self.inner.order(queue)
    }

    fn cancel(&mut self) -> bool {
        self.inner.cancel()
    }

    fn detach(self: Box<Self>, owned: Box<dyn Any + Send>) {
        self.inner.detach(owned);
    }
}

impl MutantCommunicator {
    /// Changes the result of a finished call; `src` and `before` are its buffers as they were.
    fn corrupt(&self, call: &RawCall<'_>, src: &[u8], before: &[u8], deadline: Duration) -> Result<()> {
        // SAFETY: the destination is valid and ours until `run` returns.
        let dst = unsafe { bytes_mut(call.dst) };
        let size = call.elem_size;
        let is_sum_f32 = call.dtype == DType::F32 && call.op == Some(ReduceOp::Sum);
        match (self.mutation, call.kind) {
            (Mutation::RotatedSum, OpKind::AllReduce) if is_sum_f32 => self.sum_from_here(src, dst, deadline)?,
            (Mutation::DroppedTail, OpKind::AllReduce) if call.count > 1 && call.dtype == DType::F32 => {
                let tail = dst.len() - size;
                dst[tail..].copy_from_slice(&before[tail..]);
            }
            (Mutation::LostNan, OpKind::AllReduce) if call.dtype == DType::F32 => {
                for element in dst.chunks_exact_mut(4) {
                    if element.try_into().is_ok_and(|bytes| f32::from_ne_bytes(bytes).is_nan()) {
                        element.fill(0);
                    }
                }
            }
            (Mutation::SwappedParts, OpKind::AllGather) if call.tag == 0 => {
                let part = call.count * size;
                let (first, rest) = dst.split_at_mut(part);
                first.swap_with_slice(&mut rest[..part]);
            }
            (Mutation::ShiftedRows, OpKind::AllGatherV) if call.counts.recv.windows(2).any(|w| w[0] != w[1]) => {
                dst.rotate_left(size);
            }
            _ => {}
        }
        Ok(())
    }

    /// Gathers all sources and adds them in group order beginning at this rank.
    fn sum_from_here(&self, src: &[u8], dst: &mut [u8], deadline: Duration) -> Result<()> {
        let members = self.group().len();
        let mut all = vec![0_u8; src.len() * members];
        let mut gather = RawCall::new(OpKind::AllGather, DType::F32, src.len() / 4);
        gather.src = RawBuf::host(src.as_ptr(), src.len());
        gather.dst = RawBuf::host(all.as_mut_ptr(), all.len());
        gather.tag = 0x6d75;
        // SAFETY: both buffers live until return and have the sizes of the table.
        unsafe { self.inner.run(&[gather], deadline)? };
        for (i, out) in dst.chunks_exact_mut(4).enumerate() {
            let value = |step: usize| {
                let rank = (self.position + step) % members;
                let at = rank * src.len() + i * 4;
                all[at..at + 4].try_into().map_or(0.0, f32::from_ne_bytes)
            };
            let sum = (1..members).fold(value(0), |sum, step| sum + value(step));
            out.copy_from_slice(&sum.to_ne_bytes());
        }
        Ok(())
    }
}

/// # Safety
///
/// The buffer is valid for reads, and nobody writes it while the slice lives.
unsafe fn bytes<'a>(buffer: RawBuf) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(buffer.ptr, buffer.bytes) }
}

/// # Safety
///
/// The buffer is valid for reads and writes, and nobody else uses it while the slice lives.
unsafe fn bytes_mut<'a>(buffer: RawBuf) -> &'a mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(buffer.ptr, buffer.bytes) }
}
