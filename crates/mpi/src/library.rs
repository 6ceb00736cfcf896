//! The MPI of this process: started once, asked who we are, ended at exit.

use crate::api::{Api, Constants, Datatype, Named, Op, Status};
use crate::base::Base;
use crate::channel::Channel;
use crate::driver::State;
use crate::large;
use crate::operators;
use crate::wide::Wide;
use rankwise_core::{DType, Error, ErrorKind, ReduceOp, Result, Settings};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Which driver of this crate has started MPI in this process: two libraries can't share one.
static IN_USE: Mutex<Option<&'static str>> = Mutex::new(None);

/// An initialised MPI library.
pub(crate) struct Library<A: Api> {
    pub(crate) api: A,
    /// What the library says of itself, its first line.
    pub(crate) version: String,
    pub(crate) constants: Constants,
    named: [Datatype<A>; 10],
    /// Our own reductions, by type and operator.
    operators: Vec<Option<Op<A>>>,
    /// The most that a count may be for the functions that take an `int`.
    pub(crate) most: usize,
    /// Those that count in 64 bits.
    pub(crate) wide: Option<Wide<A>>,
    /// A communicator broke while calls were in it.
    broken: AtomicBool,
    /// The process that started it; a forked child has it too, and must leave it alone.
    process: u32,
    /// Communicators with calls that wait for their members.
    pub(crate) pending: Mutex<Vec<Weak<Channel<A>>>>,
}

// SAFETY: handles are names that any thread may use (the thread level is MPI_THREAD_MULTIPLE).
unsafe impl<A: Api> Send for Library<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Library<A> {}

/// How long MPI may take to end after a communicator broke.
const PATIENCE: Duration = Duration::from_secs(5);

/// What MPI is asked to return.
fn zeroed() -> c_int {
    0
}

impl<A: Api> Library<A> {
    /// Starts MPI, or joins the one that the program has started. Collective over MPI's world: a start that does not come back within the
    /// join timeout is reported, and ends the process if the settings say so.
    ///
    /// `Unsupported` when its thread level is below `MPI_THREAD_MULTIPLE`; `NoBackend` when it has been finalized, or this
    /// process uses another MPI already.
    pub(crate) fn start(api: A, driver: &'static str, settings: &Settings) -> Result<Library<A>> {
        {
            let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(other) = in_use.filter(|other| *other != driver) {
                return Err(Error::new(
                    ErrorKind::NoBackend,
                    format!(
                        "this process runs MPI through the backend {other}; two MPI libraries can't share a process, choose one"
                    ),
                ));
            }
            *in_use = Some(driver);
        }
        let constants = api.constants();
        let version = version(&api, &constants);
        initialise(&api, &constants, &version, settings)?;
        // The program may end MPI itself.
        let code = api.on_finalize();
        succeeded(&api, &constants, &version, code)?;
        let named = [
            Named::I8,
            Named::U8,
            Named::I16,
            Named::U16,
            Named::I32,
            Named::U32,
            Named::I64,
            Named::U64,
            Named::F32,
            Named::F64,
        ]
        .map(|name| api.named_datatype(name));
        let operators = operators::create(&api).map_err(|code| engine_error(&api, &constants, &version, code))?;
        Ok(Library {
            most: large::most()?,
            // SAFETY: the handles are those of the one MPI here.
            wide: unsafe { Wide::find() },
            broken: AtomicBool::new(false),
            process: std::process::id(),
            pending: Mutex::default(),
            api,
            version,
            constants,
            named,
            operators,
        })
    }

    /// Nothing for success, else MPI's own words.
    #[inline]
    pub(crate) fn succeeded(&self, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.failure(code)) }
    }

    #[cold]
    pub(crate) fn failure(&self, code: c_int) -> Error {
        engine_error(&self.api, &self.constants, &self.version, code)
    }

    pub(crate) fn class(&self, code: c_int) -> c_int {
        let mut class = code;
        // SAFETY: asks about a code.
        unsafe { self.api.error_class(code, &mut class) };
        class
    }

    #[inline]
    pub(crate) fn named(&self, name: Named) -> Datatype<A> {
        self.named[name as usize]
    }

    /// MPI's name for elements of this type; those of 8 and 16 bits that it has none for are integers of that size.
    #[inline]
    pub(crate) fn datatype(&self, dtype: DType) -> Datatype<A> {
        self.named(match dtype {
            DType::I8 => Named::I8,
            DType::I16 => Named::I16,
            DType::U16 | DType::F16 | DType::BF16 => Named::U16,
            DType::I32 => Named::I32,
            DType::U32 => Named::U32,
            DType::I64 => Named::I64,
            DType::U64 => Named::U64,
            DType::F32 => Named::F32,
            DType::F64 => Named::F64,
            _ => Named::U8,
        })
    }

    /// What combines two elements: MPI's own operator where it keeps the contract, else ours.
    #[inline]
    pub(crate) fn operator(&self, dtype: DType, op: ReduceOp) -> Option<Op<A>> {
        match operators::builtin(dtype, op) {
            Some(builtin) => Some(self.api.builtin_op(builtin)),
            None => self.operators.get(operators::index(dtype, op)).copied().flatten(),
        }
    }

    pub(crate) fn mark_broken(&self) {
        // Relaxed: read at exit, after everything.
        self.broken.store(true, Ordering::Relaxed);
    }

    /// At the end of the process: says goodbye to MPI, unless the process has failed: then its launcher ends the others, which MPI's goodbye
    /// would wait for.
    pub(crate) fn end(&self, bases: &[&Base<A>], status: c_int) {
        let mut flag = zeroed();
        if status != 0 || self.process != std::process::id() {
            return;
        }
        // SAFETY: may be called at any time after initialisation.
        unsafe { self.api.finalized(&mut flag) };
        // Another thread that is in MPI while the process ends would be there at the same time.
        if flag != 0 {
            return;
        }
        crate::end::close();
        if !crate::end::is_deserted() {
            return;
        }
        if self.broken.load(Ordering::Relaxed) {
            // A call that was given up, or a peer that is gone, may hold MPI up for ever.
            let watch = std::thread::Builder::new().spawn(move || {
                std::thread::sleep(PATIENCE);
                // SAFETY: ends the process.
                unsafe { libc::_exit(status) }
            });
            if watch.is_err() {
                return;
            }
        }
        crate::end::leave_all();
        // MPI's goodbye waits for all ranks anyway. This one takes in what they have said, which MPICH else complains about.
        let begun = Instant::now();
        while bases.iter().any(|base| !base.has_left()) && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        // SAFETY: initialised by this crate, and not finalised.
        unsafe { self.api.finalize() };
    }
}

/// Makes `end` run at exit, when MPI is ours to end.
fn initialise<A: Api>(api: &A, constants: &Constants, version: &str, settings: &Settings) -> Result<()> {
    let (mut initialised, mut finalised, mut provided) = (zeroed(), zeroed(), zeroed());
    // SAFETY: both may be called at any time.
    unsafe {
        api.initialized(&mut initialised);
        api.finalized(&mut finalised);
    }
    if finalised != 0 {
        return Err(Error::new(
            ErrorKind::NoBackend,
            "MPI has been finalized in this process and can't be started again; join before MPI_Finalize",
        ));
    }
    if initialised == 0 {
        // SAFETY: not initialised; MPI may be started without the program's arguments.
        let init = || unsafe { api.init_thread(null_mut(), null_mut(), constants.thread_multiple, &mut provided) };
        let code = crate::watch::starting(
            "MPI_Init_thread",
            "so some rank of the job has not started MPI (RANKWISE_JOIN_TIMEOUT gives it more time)",
            settings.join_timeout,
            settings.on_stuck,
            init,
        );
        succeeded(api, constants, version, code)?;
        OURS.store(true, Ordering::Relaxed);
    } else {
        // SAFETY: initialised.
        let code = unsafe { api.query_thread(&mut provided) };
        succeeded(api, constants, version, code)?;
    }
    if provided < constants.thread_multiple {
        return Err(Error::new(
            ErrorKind::Unsupported {
                function: "MPI calls from several threads".into(),
                needs: "MPI_THREAD_MULTIPLE".into(),
                have: format!("thread level {provided} of {version}"),
            },
            "initialise MPI with MPI_Init_thread(MPI_THREAD_MULTIPLE), or let rankwise initialise it",
        ));
    }
    Ok(())
}

/// Whether this crate has initialised MPI.
static OURS: AtomicBool = AtomicBool::new(false);

/// Whether this crate has initialised MPI, and so ends it.
pub(crate) fn is_ours() -> bool {
    OURS.load(Ordering::Relaxed)
}

pub(crate) fn version<A: Api>(api: &A, constants: &Constants) -> String {
    let mut text = vec![0_u8; constants.longest_text + 1];
    let mut length = zeroed();
    // SAFETY: may be called before initialisation; the text has the room that the library asks for.
    unsafe { api.get_library_version(text.as_mut_ptr().cast::<c_char>(), &mut length) };
    let text = &text[..(length.max(0) as usize).min(text.len())];
    let text = String::from_utf8_lossy(text);
    let line = text.trim_matches(['\0', '\n', ' ']).lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or("an MPI without a version").split(", ").take(2).collect::<Vec<_>>().join(", ")
}

fn succeeded<A: Api>(api: &A, constants: &Constants, version: &str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(engine_error(api, constants, version, code)) }
}

#[cold]
fn engine_error<A: Api>(api: &A, constants: &Constants, version: &str, code: c_int) -> Error {
    let mut text = vec![0_u8; constants.longest_text + 1];
    let mut length = zeroed();
    // SAFETY: the text has the room that the library asks for.
    unsafe { api.error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    let text = String::from_utf8_lossy(&text[..(length.max(0) as usize).min(text.len())]);
    let text = text.trim_matches(['\0', '\n', ' ']).to_string();
    let message = format!("MPI failed: {text}");
    Error::new(ErrorKind::Engine { library: version.into(), code: i64::from(code), text }, message)
}

/// The number of elements that arrived; nothing when that is no whole number.
pub(crate) fn arrived<A: Api>(library: &Library<A>, status: &Status, datatype: Datatype<A>) -> Option<usize> {
    let mut count = zeroed();
    // SAFETY: the status of a finished receive.
    unsafe { library.api.get_count(status, datatype, &mut count) };
    usize::try_from(count).ok()
}

/// Runs a function with the exit code when the process ends by `exit` or by returning from `main`.
pub(crate) fn at_exit(end: extern "C" fn(c_int, *mut std::ffi::c_void)) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn on_exit(end: extern "C" fn(c_int, *mut std::ffi::c_void), argument: *mut std::ffi::c_void) -> c_int;
        }
        // SAFETY: the function is of the program and takes what it is given.
        unsafe { on_exit(end, null_mut()) };
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = end;
}

/// Ends MPI if this crate has started it.
pub(crate) fn end<A: Api>(state: &Mutex<State<A>>, status: c_int) {
    // Not waited for: a thread that holds it is starting MPI.
    if let Ok(state) = state.try_lock()
        && let Some(library) = &state.library
    {
        let bases: Vec<&Base<A>> = state.bases().collect();
        library.end(&bases, status);
    }
}
