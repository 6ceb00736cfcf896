//! The functions of MPI 4 that count in 64 bits, where the library has them: found when the program runs, since bindings made at build
//! time may not know them.

use crate::api::{Api, Comm, Datatype, Handles, Op, Request};
use crate::library::Library;
use crate::way::Way;
use rankwise_core::OpKind;
use rankwise_core::backend::RawCall;
use std::ffi::{CStr, c_int, c_void};

type Count = i64;
type Src = *const c_void;
type Dst = *mut c_void;
type CountList = *const i64;
type PlaceList = *const isize;

macro_rules! wide {
    ($($blocking:ident $name:literal, $started:ident $other:literal ($($type:ty),*);)*) => {
        /// Each is the function of the standard with its name.
        pub(crate) struct Wide<A: Handles> {
            $(
                $blocking: unsafe extern "C" fn($($type),*) -> c_int,
                $started: unsafe extern "C" fn($($type,)* *mut Request<A>) -> c_int,
            )*
        }

        impl<A: Handles> Wide<A> {
            /// All of them, or none.
            ///
            /// # Safety
            ///
            /// The handles are those of the MPI in this process.
            pub(crate) unsafe fn find() -> Option<Wide<A>> {
                let home = file_of(symbol(c"MPI_Init_thread")?)?;
                let found = |name: &CStr| symbol(name).filter(|address| file_of(*address) == Some(home));
                $(
                    let $blocking = found($name)?;
                    let $started = found($other)?;
                )*
                // SAFETY: the standard gives each name its type, `MPI_Count` has 64 bits in all implementations, and `MPI_Aint` those of an
                // address.
                unsafe {
                    Some(Wide {
                        $(
                            $blocking: std::mem::transmute_copy(&$blocking),
                            $started: std::mem::transmute_copy(&$started),
                        )*
                    })
                }
            }
        }
    };
}

wide! {
    allreduce c"MPI_Allreduce_c", iallreduce c"MPI_Iallreduce_c" (Src, Dst, Count, Datatype<A>, Op<A>, Comm<A>);
    reduce c"MPI_Reduce_c", ireduce c"MPI_Ireduce_c" (Src, Dst, Count, Datatype<A>, Op<A>, c_int, Comm<A>);
    reduce_scatter_block c"MPI_Reduce_scatter_block_c", ireduce_scatter_block c"MPI_Ireduce_scatter_block_c"
        (Src, Dst, Count, Datatype<A>, Op<A>, Comm<A>);
    reduce_scatter c"MPI_Reduce_scatter_c", ireduce_scatter c"MPI_Ireduce_scatter_c"
        (Src, Dst, CountList, Datatype<A>, Op<A>, Comm<A>);
    allgather c"MPI_Allgather_c", iallgather c"MPI_Iallgather_c"
        (Src, Count, Datatype<A>, Dst, Count, Datatype<A>, Comm<A>);
    allgatherv c"MPI_Allgatherv_c", iallgatherv c"MPI_Iallgatherv_c"
        (Src, Count, Datatype<A>, Dst, CountList, PlaceList, Datatype<A>, Comm<A>);
    alltoall c"MPI_Alltoall_c", ialltoall c"MPI_Ialltoall_c"
        (Src, Count, Datatype<A>, Dst, Count, Datatype<A>, Comm<A>);
    alltoallv c"MPI_Alltoallv_c", ialltoallv c"MPI_Ialltoallv_c"
        (Src, CountList, PlaceList, Datatype<A>, Dst, CountList, PlaceList, Datatype<A>, Comm<A>);
    bcast c"MPI_Bcast_c", ibcast c"MPI_Ibcast_c" (Dst, Count, Datatype<A>, c_int, Comm<A>);
    gather c"MPI_Gather_c", igather c"MPI_Igather_c"
        (Src, Count, Datatype<A>, Dst, Count, Datatype<A>, c_int, Comm<A>);
    gatherv c"MPI_Gatherv_c", igatherv c"MPI_Igatherv_c"
        (Src, Count, Datatype<A>, Dst, CountList, PlaceList, Datatype<A>, c_int, Comm<A>);
    scatter c"MPI_Scatter_c", iscatter c"MPI_Iscatter_c"
        (Src, Count, Datatype<A>, Dst, Count, Datatype<A>, c_int, Comm<A>);
    scatterv c"MPI_Scatterv_c", iscatterv c"MPI_Iscatterv_c"
        (Src, CountList, PlaceList, Datatype<A>, Dst, Count, Datatype<A>, c_int, Comm<A>);
}

/// The address of a name, if anything in the process has it.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: asks the loader about a name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// Where the file that an address belongs to begins: functions of two libraries don't go together.
fn file_of(address: *mut c_void) -> Option<usize> {
    // SAFETY: the loader fills in what it knows about the address.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address, &mut about) != 0).then(|| about.dli_fbase.addr())
    }
}

/// Counts and displacements of the v-forms. They stay where they are until a started call has finished.
pub(crate) struct Lists {
    send: Vec<i64>,
    send_at: Vec<isize>,
    recv: Vec<i64>,
    recv_at: Vec<isize>,
}

impl Lists {
    /// The counts of a call, `unit` to an element.
    pub(crate) fn new(call: &RawCall<'_>, unit: usize) -> Lists {
        let list = |counts: &[usize]| {
            let places = counts.iter().scan(0, |sum, count| {
                let place = *sum;
                *sum += count * unit;
                Some(place as isize)
            });
            (counts.iter().map(|count| (count * unit) as i64).collect(), places.collect())
        };
        let ((send, send_at), (recv, recv_at)) = (list(call.counts.send), list(call.counts.recv));
        Lists { send, send_at, recv, recv_at }
    }
}

/// As `native::launch`, with the functions that count in 64 bits.
///
/// # Safety
///
/// As there.
pub(crate) unsafe fn launch<A: Api>(
    (library, wide): (&Library<A>, &Wide<A>),
    comm: Comm<A>,
    (kind, root): (OpKind, usize),
    way: &Way<A>,
    lists: &Lists,
    request: Option<&mut Request<A>>,
) -> c_int {
    let (n, t) = (way.arguments.count as Count, way.arguments.datatype);
    let (src, dst) = way.arguments.buffers(library);
    let op = way.arguments.op.unwrap_or_else(|| library.api.builtin_op(crate::api::Builtin::Sum));
    let root = root as c_int;
    let (send, send_at) = (lists.send.as_ptr(), lists.send_at.as_ptr());
    let (recv, recv_at) = (lists.recv.as_ptr(), lists.recv_at.as_ptr());
    macro_rules! either {
        ($blocking:ident, $started:ident, $($argument:expr),*) => {
            match request {
                None => (wide.$blocking)($($argument),*),
                Some(request) => (wide.$started)($($argument,)* request),
            }
        };
    }
    // SAFETY: the caller's promise; root and counts were checked above the backend.
    unsafe {
        match kind {
            OpKind::AllReduce => either!(allreduce, iallreduce, src, dst, n, t, op, comm),
            OpKind::Reduce => either!(reduce, ireduce, src, dst, n, t, op, root, comm),
            OpKind::ReduceScatter => either!(reduce_scatter_block, ireduce_scatter_block, src, dst, n, t, op, comm),
            OpKind::ReduceScatterV => either!(reduce_scatter, ireduce_scatter, src, dst, send, t, op, comm),
            OpKind::AllGather => either!(allgather, iallgather, src, n, t, dst, n, t, comm),
            OpKind::AllGatherV => either!(allgatherv, iallgatherv, src, n, t, dst, recv, recv_at, t, comm),
            OpKind::AllToAll => either!(alltoall, ialltoall, src, n, t, dst, n, t, comm),
            OpKind::AllToAllV => {
                either!(alltoallv, ialltoallv, src, send, send_at, t, dst, recv, recv_at, t, comm)
            }
            OpKind::Gather => either!(gather, igather, src, n, t, dst, n, t, root, comm),
            OpKind::GatherV => either!(gatherv, igatherv, src, n, t, dst, recv, recv_at, t, root, comm),
            OpKind::Scatter => either!(scatter, iscatter, src, n, t, dst, n, t, root, comm),
            OpKind::ScatterV => either!(scatterv, iscatterv, src, send, send_at, t, dst, n, t, root, comm),
            _ => either!(bcast, ibcast, dst, n, t, root, comm),
        }
    }
}
