//! The MPI that the build found, through rsmpi.

use crate::api::{
    Api, Builtin, Comm, Constants, Datatype, Errhandler, GroupOf, Handles, Message, Named, Op, Request, Status,
    UserFunction, functions,
};
use crate::driver::{MpiDriver, State};
use crate::end;
use crate::library;
use mpi::ffi;
use rankwise_core::Result;
use rankwise_world::{Driver, World};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

/// Open MPI's handles are pointers, those of MPICH and its kin integers; rsmpi does not bind `MPI_IN_PLACE`, whose value goes
/// with that.
const IN_PLACE: isize = if size_of::<ffi::MPI_Comm>() == size_of::<usize>() { 1 } else { -1 };

const _: () = assert!(size_of::<ffi::MPI_Status>() <= size_of::<Status>());

/// The linked library.
pub(crate) struct Linked;

impl Handles for Linked {
    type Comm = ffi::MPI_Comm;
    type Group = ffi::MPI_Group;
    type Datatype = ffi::MPI_Datatype;
    type Op = ffi::MPI_Op;
    type Request = ffi::MPI_Request;
    type Message = ffi::MPI_Message;
    type Errhandler = ffi::MPI_Errhandler;

    fn comm_world(&self) -> ffi::MPI_Comm {
        // SAFETY: constants of rsmpi's C part, here and below.
        unsafe { ffi::RSMPI_COMM_WORLD }
    }

    fn comm_null(&self) -> ffi::MPI_Comm {
        // SAFETY: as above.
        unsafe { ffi::RSMPI_COMM_NULL }
    }

    fn request_null(&self) -> ffi::MPI_Request {
        // SAFETY: as above.
        unsafe { ffi::RSMPI_REQUEST_NULL }
    }

    fn errors_return(&self) -> ffi::MPI_Errhandler {
        // SAFETY: as above.
        unsafe { ffi::RSMPI_ERRORS_RETURN }
    }

    fn named_datatype(&self, name: Named) -> ffi::MPI_Datatype {
        // SAFETY: as above.
        unsafe {
            match name {
                Named::I8 => ffi::RSMPI_INT8_T,
                Named::U8 => ffi::RSMPI_UINT8_T,
                Named::I16 => ffi::RSMPI_INT16_T,
                Named::U16 => ffi::RSMPI_UINT16_T,
                Named::I32 => ffi::RSMPI_INT32_T,
                Named::U32 => ffi::RSMPI_UINT32_T,
                Named::I64 => ffi::RSMPI_INT64_T,
                Named::U64 => ffi::RSMPI_UINT64_T,
                Named::F32 => ffi::RSMPI_FLOAT,
                Named::F64 => ffi::RSMPI_DOUBLE,
            }
        }
    }

    fn builtin_op(&self, op: Builtin) -> ffi::MPI_Op {
        // SAFETY: as above.
        unsafe {
            match op {
                Builtin::Sum => ffi::RSMPI_SUM,
                Builtin::Prod => ffi::RSMPI_PROD,
                Builtin::BAnd => ffi::RSMPI_BAND,
                Builtin::BOr => ffi::RSMPI_BOR,
                Builtin::BXor => ffi::RSMPI_BXOR,
            }
        }
    }

    fn on_finalize(&self) -> c_int {
        let mut key = 0;
        // SAFETY: MPI is initialised; the functions live as long as the program.
        unsafe {
            match ffi::MPI_Comm_create_keyval(Some(no_copy), Some(finalizing), &mut key, std::ptr::null_mut()) {
                0 => ffi::MPI_Comm_set_attr(ffi::RSMPI_COMM_SELF, key, std::ptr::null_mut()),
                code => code,
            }
        }
    }

    fn constants(&self) -> Constants {
        // SAFETY: as above.
        unsafe {
            Constants {
                in_place: IN_PLACE,
                any_source: ffi::RSMPI_ANY_SOURCE,
                thread_multiple: ffi::RSMPI_THREAD_MULTIPLE,
                err_truncate: ffi::MPI_ERR_TRUNCATE as c_int,
                longest_text: ffi::RSMPI_MAX_LIBRARY_VERSION_STRING as usize,
            }
        }
    }
}

/// Attributes of ours are never copied.
unsafe extern "C" fn no_copy(
    _: ffi::MPI_Comm,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI gives a place for the answer.
    unsafe { *copied = 0 };
    0
}

unsafe extern "C" fn finalizing(_: ffi::MPI_Comm, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    end::close();
    0
}

macro_rules! forward {
    ($($mpi:ident $name:ident($($arg:ident: $type:ty),*);)*) => {
        // SAFETY: each is the function of the linked MPI; only pointers change their type.
        #[allow(clippy::unnecessary_cast)]
        unsafe impl Api for Linked {
            $(
                #[inline]
                unsafe fn $name(&self, $($arg: $type),*) -> c_int {
                    // SAFETY: the caller's promise.
                    unsafe { ffi::$mpi($($arg as _),*) }
                }
            )*

            unsafe fn op_create(&self, function: UserFunction, commutes: c_int, op: *mut ffi::MPI_Op) -> c_int {
                // SAFETY: the types differ in what the last argument points to; the caller's promise about the rest.
                unsafe {
                    let function = std::mem::transmute::<UserFunction, ffi::MPI_User_function>(function);
                    ffi::MPI_Op_create(function, commutes, op)
                }
            }
        }
    };
}
functions!(forward);

static STATE: Mutex<State<Linked>> = Mutex::new(State::new());

static MAKING: Mutex<()> = Mutex::new(());

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    library::end(&STATE, status);
}

static DRIVER: MpiDriver<Linked> = MpiDriver {
    name: "mpi",
    description: "the MPI this program was built with; ranks are started by its mpirun",
    find: || Ok(Linked),
    state: &STATE,
    making: &MAKING,
    at_exit: || library::at_exit(at_exit),
};

/// The driver of the MPI that this program was built with.
pub fn driver() -> &'static dyn Driver {
    &DRIVER
}

/// The world of the ranks of a communicator that the program has from rsmpi, in their order. Collective over them; blocks up to
/// `RANKWISE_JOIN_TIMEOUT`.
///
/// The communicator is duplicated, so what the program does with it, or when it frees it, is of no concern. The duplicate is kept until the
/// process ends. Backends of this world come from [`driver`]'s `join`.
///
/// `InvalidArgument` for an intercommunicator, `Unsupported` when MPI was initialised with less than `MPI_THREAD_MULTIPLE`, and what
/// [`World::bootstrap`] says.
pub fn world_of(communicator: &impl mpi::traits::Communicator) -> Result<World> {
    // SAFETY: rsmpi's communicators exist for as long as their values.
    unsafe { world_of_raw(communicator.as_raw()) }
}

/// The same for a communicator that the program has from elsewhere, such as C.
///
/// # Safety
///
/// The handle is of a communicator that exists.
pub unsafe fn world_of_raw(communicator: ffi::MPI_Comm) -> Result<World> {
    // SAFETY: the caller's promise.
    unsafe { DRIVER.world_of(communicator) }
}
