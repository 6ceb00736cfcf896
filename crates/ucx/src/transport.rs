//! [`Transport`] over tag matching.

use crate::library::{library, status_text};
use crate::meeting;
use crate::peer::{Peer, Watching};
use crate::request::{HEAD, Request, Staging, TOGETHER};
use crate::settings::Transports;
use crate::worker::Worker;
use rankwise_core::descriptor::Words;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_schedule::{Envelope, Lent, Tag, Transport, mismatch};
use rankwise_world::{PeerStatus, World};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use ucx_sys::*;

/// Every bit of a tag counts.
const WHOLE: u64 = u64::MAX;

/// The bits of a tag that [`Tag::pack`] gives to the communicator.
const COMMUNICATOR: u64 = 0xffff << 32;

/// How long a cancelled message to a dead rank may still be looked at by UCX: many passes of progress.
const RATTLE: Duration = Duration::from_millis(20);

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(2);

/// The messages of one rank over UCX: a worker, and endpoints to the ranks that it has sent to.
///
/// One thread at a time may use it, which the compiler sees to (it is [`Send`], not `Sync`): whoever shares it puts a lock around it, and UCX
/// needs none of its own. Dropping it closes the endpoints, for at most two seconds, and is local.
pub struct UcxTransport {
    // Before the peers, to which its error handlers refer.
    worker: Worker,
    peers: Box<[Peer]>,
    world: World,
    began: Instant,
    spare: RefCell<Vec<Box<Staging>>>,
    discarded: Discarded,
    /// All transports are known to leave memory alone once the process at the other end is gone.
    dead_peers_are_quiet: bool,
}

/// Messages of communicators that are given up.
#[derive(Default)]
struct Discarded {
    any: Cell<bool>,
    communicators: RefCell<Vec<u16>>,
    /// Requests that throw data away.
    under_way: RefCell<Vec<*mut c_void>>,
}

// SAFETY: UCX's handles belong to no thread (`UCS_THREAD_MODE_SERIALIZED`), and everything else is owned.
unsafe impl Send for UcxTransport {}

/// What a transport is made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long [`UcxTransport::join`] waits for the other ranks.
    pub deadline: Duration,
    /// Who watches the connections. None: UCX those to other hosts, we those on this one.
    pub watching: Option<Watching>,
    /// Lets UCX lock its worker in every call, which nothing here needs; for measurements.
    pub locks: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { deadline: Duration::from_secs(60), watching: None, locks: false }
    }
}

impl UcxTransport {
    /// Starts UCX and tells the other ranks its address. Collective over the world; a rank that fails tells the others why.
    ///
    /// `NoBackend` without UCX, `Unsupported` when it is too old, `Engine` with UCX's own words when it refuses its settings, `Refused` when
    /// the ranks' versions or `UCX_TLS` differ, `Timeout` or `PeerLost` as [`Store::exchange`](rankwise_world::Store::exchange).
    pub fn join(world: &World, options: Options) -> Result<UcxTransport> {
        let one_host = world.local_size() == world.size();
        let transports = Transports::from_env(one_host);
        let dead_peers_are_quiet = transports.0.iter().any(|(name, _)| *name == "NET_DEVICES");
        let started = library().and_then(|ucx| {
            if world.size() > 1 << 16 {
                let message =
                    format!("a world of {} ranks is too large for the ucx backend, at most 65536", world.size());
                return Err(Error::new(ErrorKind::CountTooLarge, message));
            }
            let threads = match options.locks {
                true => ucs_thread_mode_t::UCS_THREAD_MODE_MULTI,
                false => ucs_thread_mode_t::UCS_THREAD_MODE_SERIALIZED,
            };
            let worker = Worker::create(ucx, world.size(), world.local_size(), transports, threads)?;
            let address = worker.address()?;
            Ok((worker, address))
        });
        let (worker, mine) = match started {
            Ok((worker, address)) => (Ok(worker), Ok((meeting::settings(library()?.version), address))),
            Err(error) => (Err(error.clone()), Err(error)),
        };
        let addresses = meeting::exchange(world, mine, options.deadline);
        let worker = worker?;
        let here = world.host_of(world.rank());
        let peers = addresses?.into_iter().enumerate().map(|(rank, address)| {
            let near = world.host_of(rank) == here;
            let watching = options.watching.unwrap_or(if near { Watching::Ours } else { Watching::Ucx });
            Peer::new(address, watching, near)
        });
        Ok(UcxTransport {
            peers: peers.collect(),
            worker,
            world: world.clone(),
            began: Instant::now(),
            spare: RefCell::default(),
            discarded: Discarded::default(),
            dead_peers_are_quiet,
        })
    }

    /// The world it joins.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Whether a rank can't be reached any more: the kernel says that it is gone, or UCX that its connection has ended. Costs a microsecond or two.
    pub fn check(&self, rank: usize) -> Result<()> {
        if rank == self.world.rank() {
            return Ok(());
        }
        if self.world.liveness().status(rank) == PeerStatus::Gone {
            return Err(lost(rank, "has died or exited"));
        }
        match self.peers[rank].broken() {
            Some(status) => Err(self.broken(rank, status)),
            None => Ok(()),
        }
    }

    /// From now on what arrives for a communicator and is not received is thrown away. This lets ranks go that send to one which has given up.
    pub fn abandon(&self, communicator: u16) {
        self.discarded.communicators.borrow_mut().push(communicator);
        self.discarded.any.set(true);
    }

    /// Takes [`UcxTransport::abandon`] back, before the number is used again.
    pub fn adopt(&self, communicator: u16) {
        self.discarded.communicators.borrow_mut().retain(|abandoned| *abandoned != communicator);
    }

    #[cold]
    fn broken(&self, rank: usize, status: ucs_status_t) -> Error {
        lost(rank, &format!("can't be reached any more: {}", status_text(self.worker.ucx, status)))
    }

    fn parameters(&self) -> ucp_request_param_t {
        // SAFETY: zeros are valid in this structure of numbers and pointers.
        let mut param: ucp_request_param_t = unsafe { zeroed() };
        // Else UCX looks up the kind of each buffer where it knows of devices.
        param.op_attr_mask = ucp_op_attr_t::UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        param.memory_type = ucs_memory_type::UCS_MEMORY_TYPE_HOST;
        param
    }

    /// Null when the data was taken along.
    ///
    /// # Safety
    ///
    /// The memory is readable until the request is done.
    unsafe fn post_send(&self, peer: usize, tag: u64, from: *const u8, bytes: usize) -> Result<*mut c_void> {
        let endpoint = self.endpoint(peer)?;
        let param = self.parameters();
        // SAFETY: an endpoint of this worker; the memory by the caller's promise.
        let request = unsafe { self.worker.ucx.ucp_tag_send_nbx(endpoint, from.cast(), bytes, tag, &param) };
        if UCS_PTR_IS_ERR(request) {
            return Err(self.ended(peer, UCS_PTR_RAW_STATUS(request)));
        }
        Ok(request)
    }

    #[inline]
    fn endpoint(&self, peer: usize) -> Result<ucp_ep_h> {
        let way = &self.peers[peer];
        if way.broken().is_some() || way.is_closed() {
            return Err(self.broken(peer, way.broken().unwrap_or(ucs_status_t::UCS_ERR_NOT_CONNECTED)));
        }
        way.endpoint(&self.worker).map_err(|error| error.with_peers([peer]))
    }

    /// The request, or what has arrived already.
    ///
    /// # Safety
    ///
    /// The memory is writable until the request is done.
    unsafe fn post_receive(&self, tag: u64, into: *mut u8, bytes: usize) -> Posted {
        let mut param = self.parameters();
        // UCX 1.13 tells the length of what has arrived already only through a request.
        param.op_attr_mask |= ucp_op_attr_t::UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
        // SAFETY: the memory by the caller's promise.
        let mut request =
            unsafe { self.worker.ucx.ucp_tag_recv_nbx(self.worker.worker, into.cast(), bytes, tag, WHOLE, &param) };
        if !UCS_PTR_IS_PTR(request) {
            return Posted::Ended(UCS_PTR_RAW_STATUS(request), 0);
        }
        match self.poll(&mut request, false) {
            Some((status, length)) => Posted::Ended(status, length),
            None => Posted::UnderWay(request),
        }
    }

    /// What a status means for the rank at the other end; a receive that is too short is handled before.
    #[cold]
    fn ended(&self, peer: usize, status: ucs_status_t) -> Error {
        if self.world.liveness().status(peer) == PeerStatus::Gone {
            return lost(peer, "has died or exited");
        }
        match status {
            ucs_status_t::UCS_ERR_NO_MEMORY | ucs_status_t::UCS_ERR_INVALID_PARAM => {
                self.worker.failure("a message over UCX", status, &[]).with_peers([peer])
            }
            _ => self.broken(peer, status),
        }
    }

    /// Takes up a payload that has arrived behind no descriptor, or a message of its own.
    fn body_ended(&self, request: &mut Request, status: ucs_status_t, length: usize) {
        if status == ucs_status_t::UCS_ERR_CANCELED {
            self.discard_body(request);
        }
        if request.error.is_some() || (request.cancelled.is_some() && status != ucs_status_t::UCS_OK) {
            return;
        }
        let truncated = status == ucs_status_t::UCS_ERR_MESSAGE_TRUNCATED;
        let wrong_length =
            truncated || (status == ucs_status_t::UCS_OK && !request.sends && length != request.lent.bytes);
        if wrong_length {
            let sent = (!truncated).then_some(length as u64);
            request.error.get_or_insert_with(|| other_length(request.peer, sent, request.lent.bytes));
        } else if status != ucs_status_t::UCS_OK {
            let error = self.ended(request.peer, status);
            request.error.get_or_insert(error);
        }
    }

    /// Takes up the first message of a call, with its descriptor.
    fn head_ended(&self, request: &mut Request, status: ucs_status_t, length: usize) {
        let Some(staging) = request.staging.take() else { return };
        self.judge(request, &staging, status, length);
        self.spare.borrow_mut().push(staging);
    }

    fn judge(&self, request: &mut Request, staging: &Staging, status: ucs_status_t, length: usize) {
        if status != ucs_status_t::UCS_OK {
            if request.cancelled.is_none() {
                let error = match status {
                    ucs_status_t::UCS_ERR_MESSAGE_TRUNCATED => other_length(request.peer, None, request.lent.bytes),
                    _ => self.ended(request.peer, status),
                };
                self.fail(request, error, false);
            }
            return;
        }
        if request.sends {
            return;
        }
        if length < HEAD {
            return self.fail(request, other_length(request.peer, Some(length as u64), request.lent.bytes), false);
        }
        let (theirs, told) = staging.head();
        let body_follows = told > TOGETHER as u64;
        let ours = request.words.unwrap_or_default();
        let payload = length - HEAD;
        if theirs != ours {
            self.fail(request, mismatch(request.peer, theirs, ours), body_follows);
        } else if told != request.lent.bytes as u64 || (!body_follows && payload != request.lent.bytes) {
            self.fail(request, other_length(request.peer, Some(told), request.lent.bytes), body_follows);
        } else if !body_follows {
            // SAFETY: lent for writing and as long as the payload, which is within the staging memory.
            unsafe { std::ptr::copy_nonoverlapping(staging.bytes[HEAD..].as_ptr(), request.lent.ptr, payload) };
        }
    }

    /// Ends a receive with an error, once UCX has let go of its memory. A sender that waits to have its payload taken is let go.
    #[cold]
    fn fail(&self, request: &mut Request, error: Error, body_follows: bool) {
        request.error.get_or_insert(error);
        request.discards = body_follows;
        if request.body.is_null() {
            self.discard_body(request);
        } else {
            // Unless the payload is in the middle of arriving.
            self.cancel_receive(request.body);
        }
    }

    /// Takes the payload of another call out of the way, when it comes.
    #[cold]
    fn discard_body(&self, request: &mut Request) {
        if std::mem::take(&mut request.discards) {
            // SAFETY: no memory.
            if let Posted::UnderWay(body) = unsafe { self.post_receive(request.tag, null_mut(), 0) } {
                self.discarded.under_way.borrow_mut().push(body);
                self.discarded.any.set(true);
            }
        }
    }

    fn cancel_receive(&self, request: *mut c_void) {
        if !request.is_null() {
            // SAFETY: a request of this worker that has not been freed.
            unsafe { self.worker.ucx.ucp_request_cancel(self.worker.worker, request) };
        }
    }

    /// The end of one of UCX's requests: status, and the length of what arrived.
    #[inline]
    fn poll(&self, handle: &mut *mut c_void, sends: bool) -> Option<(ucs_status_t, usize)> {
        if handle.is_null() {
            return None;
        }
        let mut info = ucp_tag_recv_info_t { sender_tag: 0, length: 0 };
        // SAFETY: a request of this worker, freed only here and set to null then; receives have the info.
        unsafe {
            if !sends {
                let status = self.worker.ucx.ucp_tag_recv_request_test(*handle, &mut info);
                if status == ucs_status_t::UCS_INPROGRESS {
                    return None;
                }
            }
            let status = self.worker.test(*handle)?;
            *handle = null_mut();
            Some((status, info.length))
        }
    }

    /// A cancelled message to a rank that is gone: UCX can't stop it, but nobody takes it any more.
    #[cold]
    fn give_up(&self, request: &mut Request) {
        let Some(since) = request.cancelled else { return };
        let way = &self.peers[request.peer];
        if way.broken().is_none() && self.world.liveness().status(request.peer) == PeerStatus::Alive {
            return;
        }
        match way.watching {
            Watching::Ucx => {
                // All requests end with this.
                if let Some(closing) = way.close(&self.worker, true) {
                    self.discarded.under_way.borrow_mut().push(closing);
                    self.discarded.any.set(true);
                }
            }
            Watching::Ours if self.dead_peers_are_quiet && self.now() > since + RATTLE => {
                std::mem::forget(request.staging.take());
                (request.head, request.body) = (null_mut(), null_mut());
            }
            Watching::Ours => {}
        }
    }

    /// Throws away what has arrived for communicators that are given up.
    #[cold]
    fn discard(&self) -> bool {
        let mut under_way = self.discarded.under_way.borrow_mut();
        let communicators = self.discarded.communicators.borrow();
        // SAFETY: requests of this worker, freed by the test that says they are done, and removed then.
        under_way.retain(|request| unsafe { self.worker.test(*request) }.is_none());
        let mut moved = false;
        for communicator in communicators.iter() {
            let tag = u64::from(*communicator) << 32;
            loop {
                let mut info = ucp_tag_recv_info_t { sender_tag: 0, length: 0 };
                // SAFETY: the worker; the info is a place of ours.
                let message =
                    unsafe { self.worker.ucx.ucp_tag_probe_nb(self.worker.worker, tag, COMMUNICATOR, 1, &mut info) };
                if message.is_null() {
                    break;
                }
                moved = true;
                let param = self.parameters();
                // SAFETY: a message that was taken out of the queue, received once, into no memory.
                let request =
                    unsafe { self.worker.ucx.ucp_tag_msg_recv_nbx(self.worker.worker, null_mut(), 0, message, &param) };
                under_way.extend(UCS_PTR_IS_PTR(request).then_some(request));
            }
        }
        self.discarded.any.set(!communicators.is_empty() || !under_way.is_empty());
        moved
    }

    fn staging(&self) -> Box<Staging> {
        self.spare.borrow_mut().pop().unwrap_or_else(Staging::new)
    }

    /// The first message of a call.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    unsafe fn send_first(&self, to: Envelope, words: Words, tag: u64, data: Lent) -> Result<Option<Request>> {
        let mut request = Request::new(to.peer, true, tag, data, None);
        let mut staging = self.staging();
        staging.set_head(words, data.bytes);
        let together = data.bytes <= TOGETHER;
        let behind = if together { data.bytes } else { 0 };
        // SAFETY: readable by the caller's promise, and the staging memory has the room.
        unsafe { std::ptr::copy_nonoverlapping(data.ptr, staging.bytes[HEAD..].as_mut_ptr(), behind) };
        // SAFETY: the request keeps the staging memory until it is done.
        request.head = unsafe { self.post_send(to.peer, tag, staging.bytes.as_ptr(), HEAD + behind) }?;
        if request.head.is_null() {
            self.spare.borrow_mut().push(staging);
        } else {
            request.staging = Some(staging);
        }
        if !together {
            // SAFETY: the caller's promise.
            match unsafe { self.post_send(to.peer, tag, data.ptr, data.bytes) } {
                Ok(body) => request.body = body,
                // Told once the first message is done.
                Err(error) => request.error = Some(error),
            }
        }
        self.under_way(request)
    }

    /// As [`UcxTransport::send_first`], at the other end.
    ///
    /// # Safety
    ///
    /// As [`Transport::receive`].
    unsafe fn receive_first(&self, from: Envelope, tag: u64, data: Lent) -> Result<Option<Request>> {
        let mut request = Request::new(from.peer, false, tag, data, from.words);
        let mut staging = self.staging();
        let (memory, room) = (staging.bytes.as_mut_ptr(), staging.bytes.len());
        request.staging = Some(staging);
        // SAFETY: the request keeps the staging memory until it is done.
        match unsafe { self.post_receive(tag, memory, room) } {
            Posted::UnderWay(head) => request.head = head,
            Posted::Ended(status, length) => self.head_ended(&mut request, status, length),
        }
        if data.bytes > TOGETHER && request.error.is_none() {
            // SAFETY: the caller's promise.
            match unsafe { self.post_receive(tag, data.ptr, data.bytes) } {
                Posted::UnderWay(body) => request.body = body,
                Posted::Ended(status, length) => self.body_ended(&mut request, status, length),
            }
        }
        self.under_way(request)
    }

    /// What the caller is told of a message that was just posted.
    #[inline]
    fn under_way(&self, mut request: Request) -> Result<Option<Request>> {
        if !request.is_done() {
            return Ok(Some(request));
        }
        request.error.take().map_or(Ok(None), Err)
    }
}

/// A receive that was posted.
enum Posted {
    UnderWay(*mut c_void),
    Ended(ucs_status_t, usize),
}

#[cold]
fn lost(rank: usize, what: &str) -> Error {
    Error::new(ErrorKind::PeerLost, format!("rank {rank} {what}; go on without it")).with_peers([rank])
}

#[cold]
fn other_length(peer: usize, sent: Option<u64>, expected: usize) -> Error {
    let sent = sent.map_or("another number of bytes".into(), |bytes| format!("{bytes} bytes"));
    let message = format!("rank {peer} sent {sent} where {expected} are expected; make both call with the same counts");
    Error::new(ErrorKind::Mismatch, message).with_peers([peer])
}

// SAFETY: lent memory is given to UCX, which touches it until the request is done; a request is reported as ended when UCX says that it is
// done, or when nobody is left who could ask UCX for the data (`give_up`). Payloads that came with a descriptor are copied into lent memory after
// their length was found to be that of the memory, while the request is not yet reported as ended.
unsafe impl Transport for UcxTransport {
    type Request = Request;

    fn near(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.near)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    unsafe fn send(&self, to: Envelope, data: Lent) -> Result<Option<Request>> {
        let tag = to.tag.pack(self.world.rank() as u16);
        if let Some(words) = to.words {
            // SAFETY: the caller's promise.
            return unsafe { self.send_first(to, words, tag, data) };
        }
        // SAFETY: the caller's promise.
        let body = unsafe { self.post_send(to.peer, tag, data.ptr, data.bytes) }?;
        if body.is_null() {
            return Ok(None);
        }
        let mut request = Request::new(to.peer, true, tag, data, None);
        request.body = body;
        Ok(Some(request))
    }

    unsafe fn receive(&self, from: Envelope, data: Lent) -> Result<Option<Request>> {
        let tag = Tag::pack(from.tag, from.peer as u16);
        if from.words.is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.receive_first(from, tag, data) };
        }
        let mut request = Request::new(from.peer, false, tag, data, None);
        // SAFETY: the caller's promise.
        match unsafe { self.post_receive(tag, data.ptr, data.bytes) } {
            Posted::UnderWay(body) => request.body = body,
            Posted::Ended(status, length) => self.body_ended(&mut request, status, length),
        }
        self.under_way(request)
    }

    #[inline]
    fn test(&self, request: &mut Request) -> Result<bool> {
        if let Some((status, length)) = self.poll(&mut request.head, request.sends) {
            self.head_ended(request, status, length);
        }
        if let Some((status, length)) = self.poll(&mut request.body, request.sends) {
            self.body_ended(request, status, length);
        }
        if !request.is_done() && request.cancelled.is_some() {
            self.give_up(request);
        }
        if !request.is_done() {
            return Ok(false);
        }
        request.error.take().map_or(Ok(true), Err)
    }

    #[inline]
    fn progress(&self) -> bool {
        let moved = self.worker.progress();
        if self.discarded.any.get() { self.discard() || moved } else { moved }
    }

    fn cancel(&self, request: &mut Request) {
        request.cancelled.get_or_insert_with(|| self.now());
        if !request.sends {
            self.cancel_receive(request.head);
            self.cancel_receive(request.body);
        }
    }
}

impl Drop for UcxTransport {
    fn drop(&mut self) {
        // Connections that nobody answers are closed by destroying the worker.
        let answers = |rank: usize| self.check(rank).is_ok();
        let mut closing: Vec<_> = (0..self.peers.len())
            .filter_map(|rank| self.peers[rank].close(&self.worker, !answers(rank)).map(|request| (rank, request)))
            .collect();
        let began = Instant::now();
        while !closing.is_empty() && began.elapsed() < CLOSING {
            if !self.worker.progress() {
                closing.retain(|(rank, _)| answers(*rank));
                std::thread::sleep(Duration::from_micros(50));
            }
            // SAFETY: requests of this worker, freed by the test that says they are done, and removed then.
            closing.retain(|(_, request)| unsafe { self.worker.test(*request) }.is_none());
        }
    }
}
