//! The part of MPI that is used, as a trait: one implementation links an MPI at build time, one finds it at run time.

use std::ffi::{c_char, c_int, c_void};

/// What MPI's names stand for in one implementation. Handles may be pointers; MPI lets any thread use them.
pub(crate) trait Handles: Sized + Send + Sync + 'static {
    type Comm: Copy + PartialEq + 'static;
    type Group: Copy + 'static;
    type Datatype: Copy + 'static;
    type Op: Copy + 'static;
    type Request: Copy + PartialEq + 'static;
    type Message: Copy + 'static;
    type Errhandler: Copy + 'static;

    fn comm_world(&self) -> Self::Comm;
    fn comm_null(&self) -> Self::Comm;
    fn request_null(&self) -> Self::Request;
    fn errors_return(&self) -> Self::Errhandler;
    fn named_datatype(&self, name: Named) -> Self::Datatype;
    fn builtin_op(&self, op: Builtin) -> Self::Op;
    fn constants(&self) -> Constants;
    /// Has `end::close` called when MPI is finalized, by whomever: as the deletion of an attribute of `MPI_COMM_SELF`, which comes first there.
    /// Returns MPI's code.
    fn on_finalize(&self) -> c_int;
}

/// Types that MPI has a name for and that its own operators can be trusted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

/// Operators of MPI that keep the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    Sum,
    Prod,
    BAnd,
    BOr,
    BXor,
}

/// Integers that differ between implementations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    /// As a buffer address.
    pub(crate) in_place: isize,
    pub(crate) any_source: c_int,
    pub(crate) thread_multiple: c_int,
    /// The error class of a message that is longer than its receive.
    pub(crate) err_truncate: c_int,
    /// Bytes that a version or error text may take.
    pub(crate) longest_text: usize,
}

/// Room for any implementation's `MPI_Status`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct Status([u64; 8]);

/// A reduction of our own: source, destination, number of elements, type.
pub(crate) type UserFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut c_void);

pub(crate) type Comm<A> = <A as Handles>::Comm;
pub(crate) type GroupOf<A> = <A as Handles>::Group;
pub(crate) type Datatype<A> = <A as Handles>::Datatype;
pub(crate) type Op<A> = <A as Handles>::Op;
pub(crate) type Request<A> = <A as Handles>::Request;
pub(crate) type Message<A> = <A as Handles>::Message;
pub(crate) type Errhandler<A> = <A as Handles>::Errhandler;

/// Hands the list of functions to a macro: name in MPI, name here, arguments. All return an error code.
macro_rules! functions {
    ($then:ident) => {
        $then! {
            MPI_Init_thread init_thread(argc: *mut c_int, argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int);
            MPI_Initialized initialized(flag: *mut c_int);
            MPI_Finalized finalized(flag: *mut c_int);
            MPI_Finalize finalize();
            MPI_Query_thread query_thread(provided: *mut c_int);
            MPI_Get_library_version get_library_version(text: *mut c_char, length: *mut c_int);
            MPI_Error_string error_string(code: c_int, text: *mut c_char, length: *mut c_int);
            MPI_Error_class error_class(code: c_int, class: *mut c_int);
            MPI_Comm_rank comm_rank(comm: Comm<Self>, rank: *mut c_int);
            MPI_Comm_size comm_size(comm: Comm<Self>, size: *mut c_int);
            MPI_Comm_idup comm_idup(comm: Comm<Self>, dup: *mut Comm<Self>, request: *mut Request<Self>);
            MPI_Comm_test_inter comm_test_inter(comm: Comm<Self>, flag: *mut c_int);
            MPI_Comm_free comm_free(comm: *mut Comm<Self>);
            MPI_Comm_group comm_group(comm: Comm<Self>, group: *mut GroupOf<Self>);
            MPI_Comm_create_group comm_create_group(comm: Comm<Self>, group: GroupOf<Self>, tag: c_int, new: *mut Comm<Self>);
            MPI_Comm_set_errhandler comm_set_errhandler(comm: Comm<Self>, handler: Errhandler<Self>);
            MPI_Group_incl group_incl(group: GroupOf<Self>, n: c_int, ranks: *const c_int, new: *mut GroupOf<Self>);
            MPI_Group_free group_free(group: *mut GroupOf<Self>);
            MPI_Get_count get_count(status: *const Status, datatype: Datatype<Self>, count: *mut c_int);
            MPI_Type_contiguous type_contiguous(count: c_int, of: Datatype<Self>, new: *mut Datatype<Self>);
            MPI_Type_create_struct type_create_struct(count: c_int, lengths: *const c_int, places: *const isize, types: *const Datatype<Self>, new: *mut Datatype<Self>);
            MPI_Type_commit type_commit(datatype: *mut Datatype<Self>);
            MPI_Type_free type_free(datatype: *mut Datatype<Self>);
            MPI_Test test(request: *mut Request<Self>, flag: *mut c_int, status: *mut Status);
            MPI_Improbe improbe(source: c_int, tag: c_int, comm: Comm<Self>, flag: *mut c_int, message: *mut Message<Self>, status: *mut Status);
            MPI_Mrecv mrecv(buf: *mut c_void, count: c_int, datatype: Datatype<Self>, message: *mut Message<Self>, status: *mut Status);
            MPI_Send send(buf: *const c_void, count: c_int, datatype: Datatype<Self>, to: c_int, tag: c_int, comm: Comm<Self>);
            MPI_Recv recv(buf: *mut c_void, count: c_int, datatype: Datatype<Self>, from: c_int, tag: c_int, comm: Comm<Self>, status: *mut Status);
            MPI_Isend isend(buf: *const c_void, count: c_int, datatype: Datatype<Self>, to: c_int, tag: c_int, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Irecv irecv(buf: *mut c_void, count: c_int, datatype: Datatype<Self>, from: c_int, tag: c_int, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Barrier barrier(comm: Comm<Self>);
            MPI_Ibarrier ibarrier(comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Bcast bcast(buf: *mut c_void, count: c_int, datatype: Datatype<Self>, root: c_int, comm: Comm<Self>);
            MPI_Ibcast ibcast(buf: *mut c_void, count: c_int, datatype: Datatype<Self>, root: c_int, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Allreduce allreduce(src: *const c_void, dst: *mut c_void, count: c_int, datatype: Datatype<Self>, op: Op<Self>, comm: Comm<Self>);
            MPI_Iallreduce iallreduce(src: *const c_void, dst: *mut c_void, count: c_int, datatype: Datatype<Self>, op: Op<Self>, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Reduce reduce(src: *const c_void, dst: *mut c_void, count: c_int, datatype: Datatype<Self>, op: Op<Self>, root: c_int, comm: Comm<Self>);
            MPI_Ireduce ireduce(src: *const c_void, dst: *mut c_void, count: c_int, datatype: Datatype<Self>, op: Op<Self>, root: c_int, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Reduce_scatter_block reduce_scatter_block(src: *const c_void, dst: *mut c_void, count: c_int, datatype: Datatype<Self>, op: Op<Self>, comm: Comm<Self>);
            MPI_Ireduce_scatter_block ireduce_scatter_block(src: *const c_void, dst: *mut c_void, count: c_int, datatype: Datatype<Self>, op: Op<Self>, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Reduce_scatter reduce_scatter(src: *const c_void, dst: *mut c_void, counts: *const c_int, datatype: Datatype<Self>, op: Op<Self>, comm: Comm<Self>);
            MPI_Ireduce_scatter ireduce_scatter(src: *const c_void, dst: *mut c_void, counts: *const c_int, datatype: Datatype<Self>, op: Op<Self>, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Allgather allgather(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, each: c_int, into: Datatype<Self>, comm: Comm<Self>);
            MPI_Iallgather iallgather(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, each: c_int, into: Datatype<Self>, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Allgatherv allgatherv(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, counts: *const c_int, displacements: *const c_int, into: Datatype<Self>, comm: Comm<Self>);
            MPI_Iallgatherv iallgatherv(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, counts: *const c_int, displacements: *const c_int, into: Datatype<Self>, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Alltoall alltoall(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, each: c_int, into: Datatype<Self>, comm: Comm<Self>);
            MPI_Ialltoall ialltoall(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, each: c_int, into: Datatype<Self>, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Alltoallv alltoallv(src: *const c_void, counts: *const c_int, displacements: *const c_int, datatype: Datatype<Self>, dst: *mut c_void, into_counts: *const c_int, into_displacements: *const c_int, into: Datatype<Self>, comm: Comm<Self>);
            MPI_Ialltoallv ialltoallv(src: *const c_void, counts: *const c_int, displacements: *const c_int, datatype: Datatype<Self>, dst: *mut c_void, into_counts: *const c_int, into_displacements: *const c_int, into: Datatype<Self>, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Gather gather(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, each: c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>);
            MPI_Igather igather(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, each: c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Gatherv gatherv(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, counts: *const c_int, displacements: *const c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>);
            MPI_Igatherv igatherv(src: *const c_void, count: c_int, datatype: Datatype<Self>, dst: *mut c_void, counts: *const c_int, displacements: *const c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Scatter scatter(src: *const c_void, each: c_int, datatype: Datatype<Self>, dst: *mut c_void, count: c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>);
            MPI_Iscatter iscatter(src: *const c_void, each: c_int, datatype: Datatype<Self>, dst: *mut c_void, count: c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>, request: *mut Request<Self>);
            MPI_Scatterv scatterv(src: *const c_void, counts: *const c_int, displacements: *const c_int, datatype: Datatype<Self>, dst: *mut c_void, count: c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>);
            MPI_Iscatterv iscatterv(src: *const c_void, counts: *const c_int, displacements: *const c_int, datatype: Datatype<Self>, dst: *mut c_void, count: c_int, into: Datatype<Self>, root: c_int, comm: Comm<Self>, request: *mut Request<Self>);
        }
    };
}
pub(crate) use functions;

macro_rules! declare {
    ($($mpi:ident $name:ident($($arg:ident: $type:ty),*);)*) => {
        /// The functions of MPI. Their meaning, arguments and error codes are those of the MPI standard.
        ///
        /// # Safety
        ///
        /// Each function is the one of the standard that its name says, on the handles of this implementation.
        // MPI's own signatures.
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe trait Api: Handles {
            $(
                /// # Safety
                ///
                /// As the MPI standard says of the function.
                unsafe fn $name(&self, $($arg: $type),*) -> c_int;
            )*

            /// `MPI_Op_create`.
            ///
            /// # Safety
            ///
            /// `function` keeps to its arguments.
            unsafe fn op_create(&self, function: UserFunction, commutes: c_int, op: *mut Op<Self>) -> c_int;
        }
    };
}
functions!(declare);
