//! [`Transport`] over tag matching.

use crate::discarded::Discarded;
use crate::library::{library, status_text};
use crate::meeting;
use crate::peer::{Peer, Watching};
use crate::request::{Request, Staging};
use crate::settings::{self, Transports};
use crate::word::UnderWay;
use crate::worker::Worker;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_schedule::{Envelope, Lent, Tag, Transport};
use rankwise_world::{PeerStatus, World};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use ucx_sys::*;

/// Every bit of a tag counts.
const WHOLE: u64 = u64::MAX;

/// After the death of a rank is known, what it had written before may still lie in a queue of ours, and UCX copies it into the memory of a
/// receive that was cancelled: measured up to 146 passes of progress and 6 MB, and in nine runs never after a pass that found nothing to do.
const EMPTY_PASSES: u64 = 32;
/// And how long that lasts at least.
const RATTLE: Duration = Duration::from_millis(20);

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(2);

/// The messages of one rank over UCX: a worker, and endpoints to the ranks that it has sent to.
///
/// One thread at a time may use it, which the compiler sees to (it is [`Send`], not `Sync`): whoever shares it puts a lock around it, and UCX
/// needs none of its own. Dropping it closes the endpoints, for at most two seconds, and is local.
pub struct UcxTransport {
    // Before the peers, to which its error handlers refer.
    pub(crate) worker: Worker,
    peers: Box<[Peer]>,
    /// What sends and receives are called with.
    pub(crate) sends: ucp_request_param_t,
    receives: ucp_request_param_t,
    world: World,
    began: Instant,
    /// Passes of progress that found nothing to do.
    empty_passes: Cell<u64>,
    pub(crate) spare: RefCell<Vec<Box<Staging>>>,
    pub(crate) discarded: Discarded,
    pub(crate) words: RefCell<Vec<UnderWay>>,
    /// All transports are known to leave memory alone once the process at the other end is gone.
    dead_peers_are_quiet: bool,
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
        let dead_peers_are_quiet = transports.are_local(settings::read("UCX_TLS").as_deref());
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
            Ok((worker, address)) => (Ok(worker), Ok((meeting::ours(library()?.version), address))),
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
        // SAFETY: zeros are valid in this structure of numbers and pointers.
        let mut sends: ucp_request_param_t = unsafe { zeroed() };
        // Else UCX looks up the kind of each buffer where it knows of devices.
        sends.op_attr_mask = ucp_op_attr_t::UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        sends.memory_type = ucs_memory_type::UCS_MEMORY_TYPE_HOST;
        // UCX 1.13 tells the length of what has arrived already only through a request.
        let mut receives = sends;
        receives.op_attr_mask |= ucp_op_attr_t::UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
        Ok(UcxTransport {
            peers: peers.collect(),
            worker,
            sends,
            receives,
            world: world.clone(),
            began: Instant::now(),
            empty_passes: Cell::new(0),
            spare: RefCell::default(),
            discarded: Discarded::default(),
            words: RefCell::default(),
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

    #[cold]
    fn broken(&self, rank: usize, status: ucs_status_t) -> Error {
        lost(rank, &format!("can't be reached any more: {}", status_text(self.worker.ucx, status)))
    }

    /// Null when the data was taken along.
    ///
    /// # Safety
    ///
    /// The memory is readable until the request is done.
    pub(crate) unsafe fn post_send(&self, peer: usize, tag: u64, from: *const u8, bytes: usize) -> Result<*mut c_void> {
        let endpoint = self.endpoint(peer)?;
        // SAFETY: an endpoint of this worker; the memory by the caller's promise.
        let request = unsafe { self.worker.ucx.ucp_tag_send_nbx(endpoint, from.cast(), bytes, tag, &self.sends) };
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
    pub(crate) unsafe fn post_receive(&self, tag: u64, into: *mut u8, bytes: usize) -> Posted {
        // SAFETY: the memory by the caller's promise.
        let mut request = unsafe {
            self.worker.ucx.ucp_tag_recv_nbx(self.worker.worker, into.cast(), bytes, tag, WHOLE, &self.receives)
        };
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
    pub(crate) fn ended(&self, peer: usize, status: ucs_status_t) -> Error {
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
    pub(crate) fn body_ended(&self, request: &mut Request, status: ucs_status_t, length: usize) {
        if status == ucs_status_t::UCS_ERR_CANCELED {
            self.discard_body(request);
        }
        if request.error.is_some() || (request.is_cancelled() && status != ucs_status_t::UCS_OK) {
            return;
        }
        let truncated = status == ucs_status_t::UCS_ERR_MESSAGE_TRUNCATED;
        let wrong_length =
            truncated || (status == ucs_status_t::UCS_OK && !request.sends && length != request.lent.bytes);
        if wrong_length {
            let sent = (!truncated).then_some(length as u64);
            request.error = Some(other_length(request.peer(), sent, request.lent.bytes));
        } else if status != ucs_status_t::UCS_OK {
            request.error = Some(self.ended(request.peer(), status));
        }
    }

    pub(crate) fn cancel_receive(&self, request: *mut c_void) {
        if !request.is_null() {
            // SAFETY: a request of this worker that has not been freed.
            unsafe { self.worker.ucx.ucp_request_cancel(self.worker.worker, request) };
        }
    }

    /// The end of one of UCX's requests: status, and the length of what arrived.
    #[inline]
    pub(crate) fn poll(&self, handle: &mut *mut c_void, sends: bool) -> Option<(ucs_status_t, usize)> {
        if handle.is_null() {
            return None;
        }
        let mut length = 0;
        // SAFETY: a request of this worker, freed only here and set to null then; receives have the info.
        unsafe {
            let status = if sends {
                self.worker.ucx.ucp_request_check_status(*handle)
            } else {
                let mut info = ucp_tag_recv_info_t { sender_tag: 0, length: 0 };
                let status = self.worker.ucx.ucp_tag_recv_request_test(*handle, &mut info);
                length = info.length;
                status
            };
            if status == ucs_status_t::UCS_INPROGRESS {
                return None;
            }
            self.worker.ucx.ucp_request_free(*handle);
            *handle = null_mut();
            Some((status, length))
        }
    }

    /// A cancelled message to a rank that is gone: UCX can't stop it, but nobody takes it any more.
    #[cold]
    fn give_up(&self, request: &mut Request) {
        let way = &self.peers[request.peer()];
        if way.broken().is_none() && self.world.liveness().status(request.peer()) == PeerStatus::Alive {
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
            Watching::Ours if self.dead_peers_are_quiet => {
                let (now, passes) = (self.now(), self.empty_passes.get());
                let (since, first) = *request.dead.get_or_insert((now, passes));
                if now >= since + RATTLE && passes >= first + EMPTY_PASSES {
                    std::mem::forget(request.staging.take());
                    request.body = null_mut();
                }
            }
            Watching::Ours => {}
        }
    }

    /// What the caller is told of a message that was just posted.
    #[inline]
    pub(crate) fn under_way(&self, mut request: Request) -> Result<Option<Request>> {
        if !request.is_done() {
            return Ok(Some(request));
        }
        request.error.take().map_or(Ok(None), Err)
    }
}

/// A receive that was posted.
pub(crate) enum Posted {
    UnderWay(*mut c_void),
    Ended(ucs_status_t, usize),
}

#[cold]
fn lost(rank: usize, what: &str) -> Error {
    Error::new(ErrorKind::PeerLost, format!("rank {rank} {what}; go on without it")).with_peers([rank])
}

#[cold]
pub(crate) fn other_length(peer: usize, sent: Option<u64>, expected: usize) -> Error {
    let sent = sent.map_or("another number of bytes".into(), |bytes| format!("{bytes} bytes"));
    let message = format!("rank {peer} sent {sent} where {expected} are expected; make both call with the same counts");
    Error::new(ErrorKind::Mismatch, message).with_peers([peer])
}

// SAFETY: lent memory is given to UCX, which touches it until the request is done; a request is reported as ended when UCX says that it is
// done, or when the other side is dead and UCX has found nothing more to do many times (`give_up`), which was measured, not promised by UCX. Payloads that came with a descriptor are copied into lent memory after
// their length was found to be that of the memory, while the request is not yet reported as ended.
unsafe impl Transport for UcxTransport {
    type Request = Request;

    fn near(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.near)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    #[inline]
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
        let mut request = Request::new(to.peer, true, tag, data);
        request.body = body;
        Ok(Some(request))
    }

    #[inline]
    unsafe fn receive(&self, from: Envelope, data: Lent) -> Result<Option<Request>> {
        let tag = Tag::pack(from.tag, from.peer as u16);
        if from.words.is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.receive_first(from, tag, data) };
        }
        let mut request = Request::new(from.peer, false, tag, data);
        // SAFETY: the caller's promise.
        match unsafe { self.post_receive(tag, data.ptr, data.bytes) } {
            Posted::UnderWay(body) => request.body = body,
            Posted::Ended(status, length) => self.body_ended(&mut request, status, length),
        }
        self.under_way(request)
    }

    #[inline]
    fn test(&self, request: &mut Request) -> Result<bool> {
        self.test_first(request);
        if let Some((status, length)) = self.poll(&mut request.body, request.sends) {
            self.body_ended(request, status, length);
        }
        if !request.is_done() && request.is_cancelled() {
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
        if !moved {
            self.empty_passes.set(self.empty_passes.get() + 1);
        }
        if self.discarded.any.get() { self.discard() || moved } else { moved }
    }

    fn cancel(&self, request: &mut Request) {
        request.cancelled = true;
        if !request.sends {
            self.cancel_receive(request.staging.as_ref().map_or(null_mut(), |staging| staging.head));
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
        let mut unanswered = Vec::new();
        let began = Instant::now();
        while !closing.is_empty() && began.elapsed() < CLOSING {
            if !self.worker.progress() {
                let (still, never): (Vec<_>, Vec<_>) = closing.into_iter().partition(|(rank, _)| answers(*rank));
                closing = still;
                unanswered.extend(never);
                std::thread::sleep(Duration::from_micros(50));
            }
            // SAFETY: requests of this worker, freed by the test that says they are done, and removed then.
            closing.retain(|(_, request)| unsafe { self.worker.test(*request) }.is_none());
        }
        // UCX 1.13 aborts when a worker is destroyed while the request of a close is neither done nor freed.
        let unfinished = unanswered.into_iter().chain(closing).map(|(_, request)| request);
        for request in unfinished.chain(self.discarded.under_way.take()) {
            // SAFETY: requests of this worker that were not freed before.
            unsafe { self.worker.ucx.ucp_request_free(request) };
        }
    }
}
