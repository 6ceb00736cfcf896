//! A started call: its request, and everything that has to stay where it is until MPI has finished with it.

use crate::api::{Api, Request, Status};
use crate::channel::{Channel, DATA};
use crate::header::Header;
use crate::large::{self, OwnType};
use crate::native::{Arguments, Integers};
use crate::room::Room;
use crate::way::{self, After};
use rankwise_core::backend::RawCall;
use rankwise_core::{OpKind, Result};
use std::ffi::c_int;
use std::sync::Arc;

/// One call in MPI's hands. Dropped unfinished, it leaks what MPI may still use.
pub(crate) struct Flight<A: Api> {
    channel: Arc<Channel<A>>,
    request: Request<A>,
    /// Of a large call, which may be several of MPI.
    more: Vec<Request<A>>,
    /// What one of several said that could not be started; those before it have to finish first.
    failure: c_int,
    done: bool,
    /// Leaked when MPI keeps it. `None` only while it is dropped.
    kept: Option<Box<Kept>>,
    after: After,
    /// Of a receive: what it waits for.
    expected: Option<(Arguments<A>, Expected)>,
    /// The type of a large message.
    own_type: Option<OwnType<A>>,
    /// Check mode: what is said before a message, while it is not known.
    header: Option<Header<A>>,
    /// The same of a message that this rank sends, while it is under way.
    said: Option<Header<A>>,
    /// The result's place, when MPI writes into staging instead.
    deliver: Option<(*const u8, *mut u8, usize)>,
}

/// What MPI uses beside the caller's buffers.
#[derive(Default)]
struct Kept {
    room: Room,
    ints: Integers,
    src: Room,
    dst: Room,
}

#[derive(Clone, Copy)]
struct Expected {
    peer: usize,
    bytes: usize,
}

// SAFETY: the pointers are the caller's lent buffers and memory of its own; whoever holds the flight is the only one who
// uses them, as `RawCommunicator::start` demands.
unsafe impl<A: Api> Send for Flight<A> {}

impl<A: Api> Flight<A> {
    /// Starts a call. With `staged` MPI never sees the caller's buffers, so that the call can be given up.
    ///
    /// # Safety
    ///
    /// The buffers are valid and nobody else's until the flight has landed, or, staged, until it is given up.
    pub(crate) unsafe fn start(channel: &Arc<Channel<A>>, call: &RawCall<'_>, staged: bool) -> Result<Flight<A>> {
        let mut kept = Box::<Kept>::default();
        let mut call = *call;
        let mut deliver = None;
        if staged {
            // SAFETY: the caller's promise.
            deliver = unsafe { stage(&mut call, &mut kept) }?;
        }
        let mut flight = Flight {
            channel: channel.clone(),
            request: channel.library.api.request_null(),
            more: Vec::new(),
            failure: 0,
            own_type: None,
            done: false,
            kept: None,
            after: After::Nothing,
            expected: None,
            header: None,
            said: None,
            deliver,
        };
        // SAFETY: the caller's promise, or memory that the flight keeps.
        let code = unsafe {
            match call.kind {
                OpKind::Send | OpKind::Recv => flight.message(&call)?,
                _ => {
                    let place = (channel.size(), channel.me);
                    let Kept { room, ints, .. } = &mut *kept;
                    let way = way::decide(&channel.library, &call, place, channel.fixed(), room, ints)?;
                    flight.after = way.after;
                    if way.kind.is_none() {
                        let (library, more) = (&channel.library, &mut flight.more);
                        large::launch(library, channel.comm, call.root, &way, ints, Some(more))
                    } else {
                        channel.launch(&call, &way, ints, Some(&mut flight.request))
                    }
                }
            }
        };
        flight.kept = Some(kept);
        if code == 0 || !flight.more.is_empty() {
            flight.failure = code;
            return Ok(flight);
        }
        flight.done = true;
        Err(channel.failed(code))
    }

    /// # Safety
    ///
    /// As for [`Flight::start`].
    unsafe fn message(&mut self, call: &RawCall<'_>) -> Result<c_int> {
        if self.channel.spec.check {
            let header = Header::open(&self.channel, call)?;
            if call.kind == OpKind::Recv {
                self.header = Some(header);
                return Ok(0);
            }
            let tag = header.tag;
            self.said = Some(header);
            // SAFETY: the caller's promise.
            return unsafe { self.data(call, tag) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.data(call, DATA) }
    }

    /// # Safety
    ///
    /// As for [`Flight::start`].
    unsafe fn data(&mut self, call: &RawCall<'_>, tag: c_int) -> Result<c_int> {
        let channel = &self.channel;
        let (piece, own_type) = way::message(&channel.library, call)?;
        self.own_type = own_type;
        let count = piece.count as c_int;
        let (api, peer, request) = (&channel.library.api, call.root as c_int, &mut self.request);
        // SAFETY: the caller's promise.
        Ok(unsafe {
            if call.kind == OpKind::Send {
                api.isend(piece.src.cast(), count, piece.datatype, peer, tag, channel.comm, request)
            } else {
                let dst = piece.dst.cast();
                let code = api.irecv(dst, count, piece.datatype, peer, tag, channel.comm, request);
                self.expected = Some((piece, Expected { peer: call.root, bytes: call.dst.bytes }));
                code
            }
        })
    }

    /// Whether MPI has finished; then the result is in the caller's buffer.
    pub(crate) fn test(&mut self) -> Result<bool> {
        if self.done {
            return Ok(true);
        }
        if let Some(header) = &mut self.header {
            match header.poll(&self.channel) {
                Ok(None) => return Ok(false),
                Ok(Some((call, tag))) => {
                    self.header = None;
                    // SAFETY: the buffers are lent to this flight.
                    let code = unsafe { self.data(&call, tag) }?;
                    if code != 0 {
                        self.done = true;
                        return Err(self.channel.failed(code));
                    }
                }
                Err(error) => {
                    // No data is on its way into the buffer.
                    (self.header, self.done) = (None, true);
                    return Err(error);
                }
            }
        }
        if let Some(said) = &mut self.said {
            if !said.is_sent(&self.channel)? {
                return Ok(false);
            }
            self.said = None;
        }
        let mut status = Status::default();
        let mut flag = 0;
        while let Some(request) = self.more.last_mut() {
            // SAFETY: the request is ours and not finished.
            let code = unsafe { self.channel.library.api.test(request, &mut flag, &mut status) };
            if code == 0 && flag == 0 {
                return Ok(false);
            }
            if code != 0 {
                self.failure = code;
            }
            self.more.pop();
        }
        let code = match self.failure {
            // SAFETY: as above.
            0 => unsafe { self.channel.library.api.test(&mut self.request, &mut flag, &mut status) },
            failure => failure,
        };
        if code != 0 {
            // MPI has finished with a request that failed.
            self.done = true;
            return Err(self.channel.failed(code));
        }
        if flag == 0 {
            return Ok(false);
        }
        self.done = true;
        if let Some((piece, expected)) = self.expected.take() {
            self.channel.all_arrived(&status, &piece, expected.peer, expected.bytes)?;
        }
        // SAFETY: finished; the memory is kept.
        unsafe {
            self.after.finish(&mut Vec::new());
            if let Some((from, to, bytes)) = self.deliver.take() {
                std::ptr::copy_nonoverlapping(from, to, bytes);
            }
        }
        Ok(true)
    }

    /// Position of the member whose message is waited for.
    pub(crate) fn sender(&self) -> Option<usize> {
        self.expected.as_ref().map(|(_, expected)| expected.peer)
    }

    /// Whether MPI uses nothing of the caller's any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.done || self.header.is_some()
    }
}

/// Puts staging in the place of the caller's buffers; what is to be copied when it is over.
///
/// # Safety
///
/// The source is valid.
unsafe fn stage(call: &mut RawCall<'_>, kept: &mut Kept) -> Result<Option<(*const u8, *mut u8, usize)>> {
    let (src, dst) = (call.src, call.dst);
    if src.bytes > 0 {
        let staged = kept.src.of(src.bytes)?;
        // SAFETY: the caller's promise; the staging is as long and apart.
        unsafe { std::ptr::copy_nonoverlapping(src.ptr, staged, src.bytes) };
        call.src.ptr = staged;
    }
    if dst.bytes == 0 {
        return Ok(None);
    }
    let staged = kept.dst.of(dst.bytes)?;
    if call.kind == OpKind::Broadcast && src.bytes > 0 {
        // The root's data is both.
        call.dst.ptr = call.src.ptr;
        return Ok(None);
    }
    call.dst.ptr = staged;
    Ok(Some((staged.cast_const(), dst.ptr, dst.bytes)))
}

impl<A: Api> Drop for Flight<A> {
    fn drop(&mut self) {
        if !self.is_idle() {
            // MPI may still read and write it, and nothing tells when it stops.
            std::mem::forget(self.kept.take());
            self.channel.library.mark_broken();
        }
    }
}
