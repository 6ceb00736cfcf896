//! Any MPI with the standard ABI of MPI 5, found when the program runs: the build needs no MPI.

use crate::api::{
    Api, Builtin, Comm, Constants, Datatype, Errhandler, GroupOf, Handles, Message, Named, Op, Request, Status,
    UserFunction, functions,
};
use crate::driver::{MpiDriver, State};
use crate::end;
use crate::library;
use libloading::os::unix::{Library as Shared, RTLD_GLOBAL, RTLD_NOW};
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_world::{Driver, World};
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock};

/// The size that the standard gives `MPI_Status`.
const _: () = assert!(size_of::<Status>() >= 32);

type CopyAttribute =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
type DeleteAttribute = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut c_void) -> c_int;
type CommErrhandler = unsafe extern "C" fn(*mut usize, *mut c_int);

macro_rules! table {
    ($($mpi:ident $name:ident($($arg:ident: $type:ty),*);)*) => {
        /// The functions of the library that was found. It is never unloaded.
        #[derive(Clone, Copy)]
        pub(crate) struct Standard {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            op_create: unsafe extern "C" fn(UserFunction, c_int, *mut usize) -> c_int,
            comm_create_errhandler: unsafe extern "C" fn(CommErrhandler, *mut usize) -> c_int,
            comm_create_keyval: unsafe extern "C" fn(CopyAttribute, DeleteAttribute, *mut c_int, *mut c_void) -> c_int,
            comm_set_attr: unsafe extern "C" fn(usize, c_int, *mut c_void) -> c_int,
        }

        impl Standard {
            fn resolve(library: &Shared, from: &str) -> Result<Standard, Failure> {
                // SAFETY: the standard ABI gives each name its signature; the library stays loaded.
                unsafe {
                    Ok(Standard {
                        $($name: symbol(library, from, stringify!($mpi))?,)*
                        op_create: symbol(library, from, "MPI_Op_create")?,
                        comm_create_errhandler: symbol(library, from, "MPI_Comm_create_errhandler")?,
                        comm_create_keyval: symbol(library, from, "MPI_Comm_create_keyval")?,
                        comm_set_attr: symbol(library, from, "MPI_Comm_set_attr")?,
                    })
                }
            }
        }

        // SAFETY: each is the function of the standard with that name; the ABI fixes signatures and handles.
        unsafe impl Api for Standard {
            $(
                #[inline]
                unsafe fn $name(&self, $($arg: $type),*) -> c_int {
                    // SAFETY: the caller's promise.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*

            unsafe fn op_create(&self, function: UserFunction, commutes: c_int, op: *mut usize) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { (self.op_create)(function, commutes, op) }
            }
        }
    };
}
functions!(table);

/// Kept for every later question; errors can't be cloned.
type Failure = (ErrorKind, String);

/// # Safety
///
/// `T` is the type of the function `name`.
unsafe fn symbol<T: Copy>(library: &Shared, from: &str, name: &str) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<T>(name.as_bytes()) }.map(|found| *found).map_err(|error| {
        (
            ErrorKind::Unsupported {
                function: name.into(),
                needs: "an MPI with the standard ABI of MPI 5".into(),
                have: from.into(),
            },
            format!("{from} has no {name} ({error}); an MPI with the standard ABI of MPI 5 is needed"),
        )
    })
}

/// Leaves the code to the caller, as `MPI_ERRORS_RETURN` does.
unsafe extern "C" fn leave(_: *mut usize, _: *mut c_int) {}

/// Attributes of ours are never copied.
unsafe extern "C" fn no_copy(
    _: *mut c_void,
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

unsafe extern "C" fn finalizing(_: *mut c_void, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    end::close();
    0
}

impl Handles for Standard {
    type Comm = usize;
    type Group = usize;
    type Datatype = usize;
    type Op = usize;
    type Request = usize;
    type Message = usize;
    type Errhandler = usize;

    fn comm_world(&self) -> usize {
        0x101
    }

    fn comm_null(&self) -> usize {
        0x100
    }

    fn request_null(&self) -> usize {
        0x180
    }

    /// A handler of our own: MPICH 5 and Intel MPI give `MPI_ERRORS_RETURN` different values (0x143, 0x142), and the other's
    /// value aborts.
    fn errors_return(&self) -> usize {
        static HANDLER: OnceLock<usize> = OnceLock::new();
        *HANDLER.get_or_init(|| {
            let mut handler = 0x140;
            // SAFETY: the function reads none of its arguments, and the result is a place of ours.
            unsafe { (self.comm_create_errhandler)(leave, &mut handler) };
            handler
        })
    }

    fn named_datatype(&self, name: Named) -> usize {
        match name {
            Named::I8 => 0x240,
            Named::U8 => 0x241,
            Named::I16 => 0x248,
            Named::U16 => 0x249,
            Named::I32 => 0x250,
            Named::U32 => 0x251,
            Named::I64 => 0x258,
            Named::U64 => 0x259,
            Named::F32 => 0x210,
            Named::F64 => 0x214,
        }
    }

    fn builtin_op(&self, op: Builtin) -> usize {
        match op {
            Builtin::Sum => 0x21,
            Builtin::Prod => 0x24,
            Builtin::BAnd => 0x28,
            Builtin::BOr => 0x29,
            Builtin::BXor => 0x2a,
        }
    }

    fn on_finalize(&self) -> c_int {
        const MPI_COMM_SELF: usize = 0x102;
        let mut key = 0;
        // SAFETY: MPI is initialised; the functions live as long as the program.
        unsafe {
            match (self.comm_create_keyval)(no_copy, finalizing, &mut key, std::ptr::null_mut()) {
                0 => (self.comm_set_attr)(MPI_COMM_SELF, key, std::ptr::null_mut()),
                code => code,
            }
        }
    }

    fn constants(&self) -> Constants {
        Constants { in_place: 1, any_source: -1, thread_multiple: 4096, err_truncate: 15, longest_text: 8192 }
    }
}

/// The file of another MPI in this process: its functions would take the place of those that we load.
fn other_mpi() -> Option<String> {
    // SAFETY: asks the loader about a name; the text lives as long as the library that it names.
    unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"MPI_Init".as_ptr());
        let mut about: libc::Dl_info = std::mem::zeroed();
        if address.is_null() || libc::dladdr(address, &mut about) == 0 || about.dli_fname.is_null() {
            return None;
        }
        let file = CStr::from_ptr(about.dli_fname).to_string_lossy().into_owned();
        (!file.contains("mpi_abi")).then_some(file)
    }
}

fn open() -> Result<Standard, Failure> {
    if let Some(file) = other_mpi() {
        let why = format!("this process has the MPI {file} already; two can't share a process, use the backend mpi");
        return Err((ErrorKind::NoBackend, why));
    }
    let names: Vec<OsString> = match std::env::var_os("RANKWISE_MPI_LIBRARY") {
        Some(path) => vec![path],
        None => ["libmpi_abi.so.1", "libmpi_abi.so", "libmpi_abi.so.0"].map(OsString::from).to_vec(),
    };
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: an MPI library's initialisers ask nothing of us; what the variable names is the user's choice.
        match unsafe { Shared::open(Some(&name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => {
                let found = Standard::resolve(&library, &name.to_string_lossy());
                std::mem::forget(library);
                return found;
            }
            Err(error) => tried.push(format!("{}: {error}", name.to_string_lossy())),
        }
    }
    Err((
        ErrorKind::NoBackend,
        format!(
            "no MPI with the standard ABI was found; set RANKWISE_MPI_LIBRARY to its file. Tried {}",
            tried.join("; ")
        ),
    ))
}

fn find() -> Result<Standard> {
    static FOUND: OnceLock<Result<Standard, Failure>> = OnceLock::new();
    FOUND.get_or_init(open).as_ref().copied().map_err(|(kind, text)| Error::new(kind.clone(), text.clone()))
}

static STATE: Mutex<State<Standard>> = Mutex::new(State::new());

static MAKING: Mutex<()> = Mutex::new(());

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    library::end(&STATE, status);
}

static DRIVER: MpiDriver<Standard> = MpiDriver {
    name: "mpi-abi",
    description: "an MPI with the standard ABI, found at run time; ranks are started by its mpirun",
    find,
    state: &STATE,
    making: &MAKING,
    at_exit: || library::at_exit(at_exit),
};

/// The driver of an MPI with the standard ABI, found when the program runs.
pub fn abi_driver() -> &'static dyn Driver {
    &DRIVER
}

/// The world of the ranks of a communicator that the program has, in their order. Collective over them; blocks up to
/// `RANKWISE_JOIN_TIMEOUT`. The communicator is duplicated, and the duplicate kept until the process ends.
///
/// `InvalidArgument` for an intercommunicator, `Unsupported` when MPI was initialised with less than `MPI_THREAD_MULTIPLE`, and what
/// [`World::bootstrap`] says.
///
/// # Safety
///
/// The handle, as the standard ABI has it, is of a communicator that exists in the library that [`abi_driver`] finds.
pub unsafe fn abi_world_of_raw(communicator: usize) -> Result<World> {
    // SAFETY: the caller's promise.
    unsafe { DRIVER.world_of(communicator) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_and_names_itself() {
        let api = match find() {
            Ok(api) => api,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let (mut text, mut length) = (vec![0u8; 8192], 0);
        // SAFETY: may be called before MPI is initialised; the text has the room that the ABI asks for.
        let code = unsafe { api.get_library_version(text.as_mut_ptr().cast(), &mut length) };
        assert_eq!(code, 0);
        assert!(String::from_utf8_lossy(&text[..length as usize]).contains("MPI"));
    }
}
