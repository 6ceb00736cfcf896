//! One call of the backend interface as one collective of MPI, blocking or not.

use crate::api::{Api, Comm, Datatype, Op, Request};
use crate::large::{self, Plan};
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
    /// How a call is carried out whose counts don't fit.
    pub(crate) plan: Option<Plan>,
}

impl Integers {
    /// Takes the counts of a call, `unit` to an element; the larger of their sums. What does not fit is not what MPI is to be given.
    pub(crate) fn fill(&mut self, call: &RawCall<'_>, unit: usize) -> usize {
        self.fill_by(call, |count| count * unit)
    }

    /// The same with a number for each count that is in proportion to it.
    pub(crate) fn fill_by(&mut self, call: &RawCall<'_>, number: impl Fn(usize) -> usize) -> usize {
        let list = |counts: &[usize], into: &mut Vec<c_int>, at: &mut Vec<c_int>| {
            into.clear();
            at.clear();
            let mut sum = 0;
            for count in counts {
                let count = number(*count);
                into.push(count as c_int);
                at.push(sum as c_int);
                sum += count;
            }
            sum
        };
        let sent = list(call.counts.send, &mut self.send, &mut self.send_at);
        sent.max(list(call.counts.recv, &mut self.recv, &mut self.recv_at))
    }
}

/// What MPI is given: the call's own buffers, or staging in their place.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<A: Api> {
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    /// In units of `datatype`, where the call has one count.
    pub(crate) count: usize,
    pub(crate) datatype: Datatype<A>,
    pub(crate) op: Option<Op<A>>,
    /// The source is in the destination already.
    pub(crate) in_place: bool,
}

impl<A: Api> Arguments<A> {
    /// Source and destination as MPI wants them.
    #[inline]
    pub(crate) fn buffers(&self, library: &Library<A>) -> (*const c_void, *mut c_void) {
        let src: *const c_void = if self.in_place {
            std::ptr::without_provenance(library.constants.in_place as usize)
        } else {
            self.src.cast()
        };
        (src, self.dst.cast())
    }
}

/// Runs the collective for a kind, or starts it when there is a place for its request. Returns MPI's code. Large calls are only run here:
/// `large` starts them.
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
    let (n, t) = (arguments.count as c_int, arguments.datatype);
    let (src, dst) = arguments.buffers(library);
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
            Some(OpKind::AllReduce) => either!(allreduce, iallreduce, src, dst, n, t, op, comm),
            Some(OpKind::Reduce) => either!(reduce, ireduce, src, dst, n, t, op, root, comm),
            Some(OpKind::ReduceScatter) => {
                either!(reduce_scatter_block, ireduce_scatter_block, src, dst, n, t, op, comm)
            }
            Some(OpKind::ReduceScatterV) => {
                either!(reduce_scatter, ireduce_scatter, src, dst, ints.send.as_ptr(), t, op, comm)
            }
            Some(OpKind::AllGather) => either!(allgather, iallgather, src, n, t, dst, n, t, comm),
            Some(OpKind::AllGatherV) => {
                let (counts, at) = (ints.recv.as_ptr(), ints.recv_at.as_ptr());
                either!(allgatherv, iallgatherv, src, n, t, dst, counts, at, t, comm)
            }
            Some(OpKind::AllToAll) => either!(alltoall, ialltoall, src, n, t, dst, n, t, comm),
            Some(OpKind::AllToAllV) => {
                let (send, send_at) = (ints.send.as_ptr(), ints.send_at.as_ptr());
                let (recv, recv_at) = (ints.recv.as_ptr(), ints.recv_at.as_ptr());
                either!(alltoallv, ialltoallv, src, send, send_at, t, dst, recv, recv_at, t, comm)
            }
            Some(OpKind::Broadcast) => either!(bcast, ibcast, dst, n, t, root, comm),
            Some(OpKind::Gather) => either!(gather, igather, src, n, t, dst, n, t, root, comm),
            Some(OpKind::GatherV) => {
                let (counts, at) = (ints.recv.as_ptr(), ints.recv_at.as_ptr());
                either!(gatherv, igatherv, src, n, t, dst, counts, at, t, root, comm)
            }
            // In place does not exist for the receiving side here: the root's own part is copied like any other.
            Some(OpKind::Scatter) => either!(scatter, iscatter, src, n, t, dst, n, t, root, comm),
            Some(OpKind::ScatterV) => {
                let (counts, at) = (ints.send.as_ptr(), ints.send_at.as_ptr());
                either!(scatterv, iscatterv, src, counts, at, t, dst, n, t, root, comm)
            }
            None => large::launch(library, comm, root as usize, way, ints, None),
            _ => either!(barrier, ibarrier, comm),
        }
    }
}
