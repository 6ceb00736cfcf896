//! One call of the backend interface as one collective of MPI, blocking or not.

use crate::api::{Api, Comm, Datatype, Op, Request};
use crate::library::Library;
use crate::way::Way;
use rankwise_core::OpKind;
use rankwise_core::backend::RawCall;
use std::ffi::{c_int, c_void};

/// Counts and displacements as MPI wants them. They stay where they are until a started call has finished.
#[derive(Default)]
pub(crate) struct Integers {
    send: Vec<c_int>,
    send_at: Vec<c_int>,
    recv: Vec<c_int>,
    recv_at: Vec<c_int>,
}

impl Integers {
    /// Takes the counts of a call whose sums fit, `unit` to an element.
    pub(crate) fn fill(&mut self, call: &RawCall<'_>, unit: usize) {
        let list = |counts: &[usize], into: &mut Vec<c_int>, at: &mut Vec<c_int>| {
            into.clear();
            at.clear();
            let mut sum = 0;
            for count in counts {
                into.push((count * unit) as c_int);
                at.push(sum as c_int);
                sum += count * unit;
            }
        };
        list(call.counts.send, &mut self.send, &mut self.send_at);
        list(call.counts.recv, &mut self.recv, &mut self.recv_at);
    }
}

/// What MPI is given: the call's own buffers, or staging in their place.
pub(crate) struct Arguments<A: Api> {
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    /// In units of `datatype`, where the call has one count.
    pub(crate) count: c_int,
    pub(crate) datatype: Datatype<A>,
    pub(crate) op: Option<Op<A>>,
    /// The source is in the destination already.
    pub(crate) in_place: bool,
}

/// Runs the collective for a kind, or starts it when there is a place for its request. Returns MPI's code.
///
/// # Safety
///
/// The arguments are what the call says, valid until the call returns or the request has finished; so are the integers.
#[inline]
pub(crate) unsafe fn launch<A: Api>(
    library: &Library<A>,
    comm: Comm<A>,
    root: usize,
    way: &Way<A>,
    ints: &Integers,
    request: Option<&mut Request<A>>,
) -> c_int {
    let api = &library.api;
    let Way { kind, arguments, .. } = way;
    let Arguments { count: n, datatype: t, .. } = *arguments;
    let src: *const c_void = if arguments.in_place {
        std::ptr::without_provenance(library.constants.in_place as usize)
    } else {
        arguments.src.cast()
    };
    let dst: *mut c_void = arguments.dst.cast();
    let op = arguments.op.unwrap_or_else(|| api.builtin_op(crate::api::Builtin::Sum));
    let root = root as c_int;
    macro_rules! either {
        ($blocking:ident, $started:ident, $($argument:expr),*) => {
            match request {
                None => api.$blocking($($argument),*),
                Some(request) => api.$started($($argument,)* request),
            }
        };
    }
    // SAFETY: the caller's promise; root and counts were checked above the backend.
    unsafe {
        match kind {
            OpKind::AllReduce => either!(allreduce, iallreduce, src, dst, n, t, op, comm),
            OpKind::Reduce => either!(reduce, ireduce, src, dst, n, t, op, root, comm),
            OpKind::ReduceScatter => either!(reduce_scatter_block, ireduce_scatter_block, src, dst, n, t, op, comm),
            OpKind::ReduceScatterV => {
                either!(reduce_scatter, ireduce_scatter, src, dst, ints.send.as_ptr(), t, op, comm)
            }
            OpKind::AllGather => either!(allgather, iallgather, src, n, t, dst, n, t, comm),
            OpKind::AllGatherV => {
                let (counts, at) = (ints.recv.as_ptr(), ints.recv_at.as_ptr());
                either!(allgatherv, iallgatherv, src, n, t, dst, counts, at, t, comm)
            }
            OpKind::AllToAll => either!(alltoall, ialltoall, src, n, t, dst, n, t, comm),
            OpKind::AllToAllV => {
                let (send, send_at) = (ints.send.as_ptr(), ints.send_at.as_ptr());
                let (recv, recv_at) = (ints.recv.as_ptr(), ints.recv_at.as_ptr());
                either!(alltoallv, ialltoallv, src, send, send_at, t, dst, recv, recv_at, t, comm)
            }
            OpKind::Broadcast => either!(bcast, ibcast, dst, n, t, root, comm),
            OpKind::Gather => either!(gather, igather, src, n, t, dst, n, t, root, comm),
            OpKind::GatherV => {
                let (counts, at) = (ints.recv.as_ptr(), ints.recv_at.as_ptr());
                either!(gatherv, igatherv, src, n, t, dst, counts, at, t, root, comm)
            }
            // In place does not exist for the receiving side here: the root's own part is copied like any other.
            OpKind::Scatter => either!(scatter, iscatter, src, n, t, dst, n, t, root, comm),
            OpKind::ScatterV => {
                let (counts, at) = (ints.send.as_ptr(), ints.send_at.as_ptr());
                either!(scatterv, iscatterv, src, counts, at, t, dst, n, t, root, comm)
            }
            _ => either!(barrier, ibarrier, comm),
        }
    }
}
