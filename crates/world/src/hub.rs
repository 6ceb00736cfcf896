//! The store's end of the sockets of all ranks: one thread, in the launcher, or in rank 0 where another launcher started
//! the job.
//!
//! It never blocks on a rank: replies queue up per rank, and a rank that does not read its replies is not read from.

mod guests;

use crate::door::Door;
use crate::environment::PROTOCOL;
use crate::failure::{Cause, Failure, RankEnd};
use crate::life::LifeFile;
use crate::limits::refused_by_system;
use crate::link::Link;
use crate::packet_socket::{PacketBuffer, ReceiveError};
use crate::remote_door::RemoteDoor;
use crate::roll_call;
use crate::table::{Answer, Reply, Request, Table};
use crate::wire::{self, Frame, ItemPackets, MAX_RANKS, Packet};
use rankwise_core::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) use guests::Arrival;

/// How long after a rank's end was noticed the launcher may still say how it ended.
const POSTMORTEM: Duration = Duration::from_millis(100);
/// How often the life locks are looked at while somebody waits. A shell around a rank keeps its socket open.
const LOOK: Duration = Duration::from_millis(50);
/// A rank with more unread replies than this is not read from.
const UNREAD: usize = 4 << 20;
/// Pause after the kernel refused to have more descriptors in flight.
const THROTTLE: Duration = Duration::from_millis(2);

/// Pause after the kernel could not wait.
const BREATH: Duration = Duration::from_millis(10);

/// Serves the store of one job until it is dropped.
pub(crate) struct Hub {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    wake: OwnedFd,
    inbox: Mutex<Inbox>,
    life: LifeFile,
    refusal: OnceLock<Refusal>,
}

/// A rank that was sent away because it differs: the values of the meeting place and of the rank.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) rank: usize,
    pub(crate) key: String,
    pub(crate) here: String,
    pub(crate) there: String,
}

#[derive(Default)]
struct Inbox {
    gone: Vec<(usize, RankEnd)>,
    stop: bool,
}

impl Hub {
    /// Starts the thread; returns the ranks' ends of the sockets too, to be inherited and then closed here.
    pub(crate) fn start(size: usize) -> Result<(Hub, Vec<OwnedFd>)> {
        check_size(size)?;
        let pairs = (0..size).map(|_| pair(size)).collect::<Result<Vec<_>>>()?;
        let (ours, theirs): (Vec<OwnedFd>, Vec<OwnedFd>) = pairs.into_iter().unzip();
        let seat = |socket| Seat { link: Some(Link::packets(socket)), ..Seat::default() };
        let seats = ours.into_iter().map(seat).collect();
        Ok((Hub::serve(seats, None)?, theirs))
    }

    /// Starts the thread within rank 0, for ranks that come through a door; returns rank 0's own end.
    pub(crate) fn open(size: usize, job: u128, entrance: Entrance) -> Result<(Hub, Link)> {
        check_size(size)?;
        let (ours, own) = pair(size)?;
        let mut seats: Vec<Seat> = (0..size).map(|_| Seat::default()).collect();
        let who = process(std::process::id());
        seats[HOST] = Seat { link: Some(Link::packets(ours)), who, ..Seat::default() };
        let remote = matches!(entrance, Entrance::Remote(_));
        Ok((Hub::serve(seats, Some(Host { job, remote, entrance: Some(entrance) }))?, Link::packets(own)))
    }

    fn serve(seats: Vec<Seat>, host: Option<Host>) -> Result<Hub> {
        let size = seats.len();
        let life = LifeFile::create(size).map_err(|errno| cannot_make("the life file", size, errno))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| cannot_make("an eventfd", size, errno))?;
        let shared = Arc::new(Shared { wake, inbox: Mutex::default(), life, refusal: OnceLock::new() });
        let server = Server { table: Table::new(size), seats, host, shared: shared.clone(), next_look: Instant::now() };
        let thread = thread::Builder::new()
            .name("rankwise-hub".into())
            .spawn(move || server.run())
            .map_err(|error| refused_by_system("start the thread that serves the store", size, error))?;
        Ok(Hub { shared, thread: Some(thread) })
    }

    /// The first rank that was sent away because it differs.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.shared.refusal.get()
    }

    /// The file that the ranks hold their life locks on; to be inherited.
    pub(crate) fn life(&self) -> BorrowedFd<'_> {
        self.shared.life.as_fd()
    }

    /// The same for a rank within this process.
    pub(crate) fn duplicate_life(&self) -> Result<OwnedFd> {
        self.shared.life.duplicate().map_err(|errno| cannot_make("a descriptor of the life file", 1, errno))
    }

    /// Says how a rank ended.
    pub(crate) fn rank_gone(&self, rank: usize, end: RankEnd) {
        self.shared.life.settle(rank);
        self.tell(|inbox| inbox.gone.push((rank, end)));
    }

    fn tell(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }
}

fn check_size(size: usize) -> Result<()> {
    if size == 0 || size > MAX_RANKS {
        return Err(Error::invalid(format!("a job has 1 to {MAX_RANKS} ranks on a host, not {size}")));
    }
    Ok(())
}

/// A socket for a rank: the hub's end and the rank's.
fn pair(size: usize) -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| cannot_make("a socket for every rank", size, errno))
}

fn cannot_make(what: &str, size: usize, errno: Errno) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE => {
            let have = crate::limits::descriptors();
            let need = crate::limits::descriptors_needed(size);
            let kind = ErrorKind::Limit { which: "RLIMIT_NOFILE".into(), have, need };
            Error::new(kind, "no descriptor is left to serve the ranks with; raise the limit (ulimit -n)")
        }
        errno => Error::config(format!("cannot make {what}")).with_source(errno),
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.tell(|inbox| inbox.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The hub's end of one rank's connection.
#[derive(Default)]
struct Seat {
    link: Option<Link>,
    /// The process that came as this rank.
    who: String,
    unsent: VecDeque<Packet>,
    unsent_bytes: usize,
    throttled: bool,
    joined: bool,
    /// Its end was noticed, and how it ended is not known yet.
    noticed: Option<Instant>,
    ended: bool,
}

/// The rank whose process serves the store, where no launcher of ours does.
pub(crate) const HOST: usize = 0;

/// How ranks come to a hub that did not start them.
pub(crate) enum Entrance {
    Local(Door),
    Remote(RemoteDoor),
}

/// What the hub is besides, when it is a thread of rank 0.
struct Host {
    job: u128,
    /// The ranks are on several hosts, so that only this hub knows who has ended.
    remote: bool,
    /// Until everybody is inside.
    entrance: Option<Entrance>,
}

struct Server {
    table: Table,
    seats: Vec<Seat>,
    host: Option<Host>,
    shared: Arc<Shared>,
    next_look: Instant,
}

impl Server {
    fn run(mut self) {
        if self.host.is_some() {
            crate::signals::leave_to_other_threads();
        }
        let mut buffer = PacketBuffer::new();
        loop {
            let readable = self.wait();
            let mut drain = [0; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut drain);
            for rank in readable {
                self.read(rank, &mut buffer);
            }
            let inbox = std::mem::take(&mut *self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner));
            if inbox.stop {
                let mut answers = Vec::new();
                self.table.cancel_all(&mut answers);
                self.deliver(answers);
                self.seats.iter_mut().for_each(Seat::flush);
                return;
            }
            for (rank, end) in inbox.gone {
                // What it said before it ended still counts.
                self.read(rank, &mut buffer);
                self.end(rank, end);
            }
            self.receive_guests(&mut buffer);
            self.look();
            self.seats.iter_mut().for_each(Seat::flush);
        }
    }

    /// Blocks until there is something to do; returns the ranks that have sent something.
    fn wait(&self) -> Vec<usize> {
        let mut polled = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let (mut ranks, mut buffered) = (Vec::new(), Vec::new());
        let now = Instant::now();
        let mut until: Option<Instant> = None;
        let mut by = |when: Instant| until = Some(until.map_or(when, |sooner| sooner.min(when)));
        for (rank, seat) in self.seats.iter().enumerate() {
            if let Some(noticed) = seat.noticed {
                by(noticed + self.post_mortem());
            }
            let Some(link) = &seat.link else { continue };
            let mut flags = PollFlags::empty();
            if seat.unsent_bytes < UNREAD {
                flags |= PollFlags::IN;
                if link.has_frame() {
                    by(now);
                    buffered.push(rank);
                }
            }
            if seat.throttled {
                by(now + THROTTLE);
            } else if !seat.unsent.is_empty() || link.has_unsent() {
                flags |= PollFlags::OUT;
            }
            polled.push(PollFd::new(link, flags));
            ranks.push(rank);
        }
        if self.table.has_waiting() {
            by(self.next_look.max(now));
        }
        let seats = polled.len();
        let until_guests = match self.host.as_ref().and_then(|host| host.entrance.as_ref()) {
            Some(Entrance::Local(door)) => door.poll(&mut polled),
            Some(Entrance::Remote(door)) => door.poll(&mut polled),
            None => None,
        };
        until_guests.into_iter().for_each(&mut by);
        let limit = until.map(|when| {
            let left = when.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        if let Err(errno) = poll(&mut polled, limit.as_ref()) {
            // Out of memory, say: that may pass, and must not keep a CPU busy until then.
            if errno != Errno::INTR {
                thread::sleep(BREATH);
            }
            return Vec::new();
        }
        let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let ready = polled[1..seats].iter().zip(ranks).filter(|(fd, _)| fd.revents().intersects(readable));
        ready.map(|(_, rank)| rank).chain(buffered).collect()
    }

    fn read(&mut self, rank: usize, buffer: &mut PacketBuffer) {
        // A bounded number, so that one busy rank does not starve the others.
        for _ in 0..64 {
            let seat = &mut self.seats[rank];
            let Some(link) = seat.link.take_if(|_| seat.unsent_bytes < UNREAD) else { return };
            let outcome = match link.receive(buffer) {
                Ok(arrived) if arrived.fds_lost => Ok(Err(arrived.bytes.get(1..9).map(<[u8]>::to_vec))),
                Ok(arrived) => match wire::decode_request(arrived.bytes, arrived.fds) {
                    Ok(request) => Ok(Ok(request)),
                    Err(wire::Malformed(what)) => Err(Some(format!("sent nonsense ({what})"))),
                },
                Err(ReceiveError::WouldBlock) => {
                    seat.link = Some(link);
                    return;
                }
                Err(ReceiveError::Closed) => Err(None),
                Err(ReceiveError::TooLong) => Err(Some("sent a packet that is too long".into())),
                Err(ReceiveError::Other(errno)) => Err(Some(format!("cannot be read from ({errno})"))),
            };
            match outcome {
                Ok(request) => {
                    seat.link = Some(link);
                    match request {
                        Ok((ticket, frame)) => self.take(rank, ticket, frame),
                        Err(ticket) => self.no_descriptor_left(rank, ticket),
                    }
                }
                Err(None) => {
                    seat.unsent.clear();
                    seat.noticed.get_or_insert_with(Instant::now);
                    return;
                }
                Err(Some(why)) => {
                    self.end(rank, RankEnd::Lost(why));
                    return;
                }
            }
        }
    }

    fn take(&mut self, rank: usize, ticket: u64, frame: Frame) {
        let size = self.seats.len() as u32;
        let seat = &mut self.seats[rank];
        match frame {
            Frame::Hello { protocol, seat: claimed } if protocol == PROTOCOL && !seat.joined => {
                let right = wire::Seat { rank: rank as u32, size };
                seat.push(wire::encode_seat(ticket, right));
                if claimed == right {
                    seat.joined = true;
                    self.shared.life.settle(rank);
                    return;
                }
                // The first packet of a connection fits; it is delivered although the socket is closed next.
                seat.flush();
                let wire::Seat { rank: as_rank, size: of } = claimed;
                self.end(rank, RankEnd::Lost(format!("was refused: it came as rank {as_rank} of {of}")));
            }
            Frame::Hello { .. } => self.end(rank, RankEnd::Lost("joined twice or in another version".into())),
            Frame::Goodbye => {
                if rank == HOST && self.host.is_some() {
                    self.close();
                }
                self.end(rank, RankEnd::Left);
            }
            Frame::Request(_) if !seat.joined => self.end(rank, RankEnd::Lost("did not join first".into())),
            Frame::Request(request) => {
                let mut answers = Vec::new();
                match request {
                    // Nobody can join any more, and all shall hear the same.
                    Request::Cancel { ticket } if self.table.waits_at(rank, ticket, roll_call::KEY) => {
                        self.table.cancel_all(&mut answers);
                    }
                    request => self.table.handle(rank, ticket, request, &mut answers),
                }
                self.deliver(answers);
            }
        }
    }

    fn post_mortem(&self) -> Duration {
        // Without our launcher nobody will say how a rank ended.
        if self.host.is_some() { Duration::ZERO } else { POSTMORTEM }
    }

    /// Tells everybody that this process ends in an orderly way.
    fn close(&mut self) {
        for seat in &mut self.seats {
            seat.push(wire::encode_closing());
            seat.flush();
        }
    }

    fn no_descriptor_left(&mut self, rank: usize, ticket: Option<Vec<u8>>) {
        let Some(ticket) = ticket.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes) else { return };
        let text = "the process that serves the store has no descriptor left for what was sent; raise the limit (ulimit -n) before launching";
        let failure = Failure { cause: Cause::Descriptors, peers: Vec::new(), text: text.into() };
        self.seats[rank].push(wire::encode_reply(ticket, &Reply::Failed(failure)));
    }

    fn deliver(&mut self, answers: Vec<Answer>) {
        // All members of an exchange are answered in one go: encode the items once.
        let mut items: Option<(*const (Vec<u8>, crate::table::Carried), ItemPackets)> = None;
        for answer in answers {
            let seat = &mut self.seats[answer.rank];
            match &answer.reply {
                Reply::Items(list) => {
                    let same = list.as_ptr();
                    if items.as_ref().is_none_or(|(known, _)| *known != same) {
                        items = Some((same, ItemPackets::encode(list)));
                    }
                    if let Some((_, packets)) = &items {
                        packets.addressed(answer.ticket).for_each(|packet| seat.push(packet));
                    }
                }
                reply => seat.push(wire::encode_reply(answer.ticket, reply)),
            }
        }
    }

    /// Finds deaths that nobody has told.
    fn look(&mut self) {
        let now = Instant::now();
        for rank in 0..self.seats.len() {
            if self.seats[rank].noticed.is_some_and(|noticed| now >= noticed + self.post_mortem()) {
                self.end(rank, RankEnd::Lost("died, or left the job by running another program".into()));
            }
        }
        if now < self.next_look || !self.table.has_waiting() {
            return;
        }
        self.next_look = now + LOOK;
        let remote = self.host.as_ref().is_some_and(|host| host.remote);
        for rank in 0..self.seats.len() {
            // The kernel does not report a process its own lock.
            let own = rank == HOST && self.host.is_some();
            let seat = &mut self.seats[rank];
            if !own
                && !remote
                && seat.joined
                && !seat.ended
                && seat.noticed.is_none()
                && !self.shared.life.is_held(rank)
            {
                seat.noticed = Some(now);
            }
        }
    }

    fn end(&mut self, rank: usize, end: RankEnd) {
        let seat = &mut self.seats[rank];
        let (joined, who) = (seat.joined, std::mem::take(&mut seat.who));
        let ended = std::mem::replace(seat, Seat { ended: true, joined, who, ..Seat::default() }).ended;
        self.shared.life.settle(rank);
        let mut answers = Vec::new();
        self.table.rank_gone(rank, end, &mut answers);
        self.deliver(answers);
        if !ended && self.host.as_ref().is_some_and(|host| host.remote) {
            self.seats.iter_mut().for_each(|seat| seat.push(wire::encode_gone(rank as u32)));
        }
    }
}

/// A process of this host, for people.
pub(crate) fn process(pid: u32) -> String {
    format!("process {pid}")
}

impl Seat {
    fn is_free(&self) -> bool {
        self.link.is_none() && !self.joined && !self.ended
    }

    fn push(&mut self, packet: Packet) {
        if self.link.is_some() {
            self.unsent_bytes += packet.head.len() + packet.body.len();
            self.unsent.push_back(packet);
        }
    }

    fn flush(&mut self) {
        self.throttled = false;
        let Some(link) = &self.link else { return };
        if link.flush() == Err(Errno::AGAIN) {
            return;
        }
        while let Some(packet) = self.unsent.front() {
            let fds: Vec<BorrowedFd<'_>> = packet.fds.iter().map(|fd| fd.as_fd()).collect();
            match link.send(&[&packet.head, &packet.body], &fds) {
                Ok(()) => {
                    self.unsent_bytes -= packet.head.len() + packet.body.len();
                    self.unsent.pop_front();
                }
                Err(Errno::TOOMANYREFS) => {
                    self.throttled = true;
                    return;
                }
                Err(Errno::AGAIN) => return,
                // Its death is noticed by reading.
                Err(_) => {
                    self.unsent.clear();
                    self.unsent_bytes = 0;
                    return;
                }
            }
        }
    }
}
