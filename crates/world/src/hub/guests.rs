//! Letting ranks in that another launcher started: each once, and only those that fit.

use super::{Entrance, Host, Refusal, Seat, Server};
use crate::environment::{PROTOCOL, PROTOCOL_VERSION, WORLD_SIZE};
use crate::failure::RankEnd;
use crate::greeting::{Answer, Greeting};
use crate::link::Link;
use crate::packet_socket::PacketBuffer;
use std::os::fd::{AsFd, BorrowedFd};

/// A process that has greeted and may be a rank.
pub(crate) struct Arrival {
    pub(crate) link: Link,
    /// Which process, for people.
    pub(crate) who: String,
    pub(crate) greeting: Greeting,
}

impl Server {
    /// Lets in those who have greeted, and closes the door behind the last.
    pub(super) fn receive_guests(&mut self, buffer: &mut PacketBuffer) {
        let mut notes = Vec::new();
        let arrivals = match self.host.as_mut().and_then(|host| host.entrance.as_mut()) {
            Some(Entrance::Local(door)) => door.arrivals(buffer),
            Some(Entrance::Remote(door)) => door.arrivals(&mut notes),
            None => return,
        };
        for note in notes {
            self.note(&note);
        }
        for arrival in arrivals {
            self.receive_guest(arrival);
        }
        if self.seats.iter().all(|seat| seat.joined || seat.ended)
            && let Some(host) = &mut self.host
        {
            host.entrance = None;
        }
    }

    /// Tells those who wait in vain, and the log; who knocks again and again must not fill either.
    fn note(&mut self, note: &str) {
        if self.table.note(note) {
            tracing::warn!("{note}");
        }
    }

    fn receive_guest(&mut self, arrival: Arrival) {
        let Arrival { link, who, greeting } = arrival;
        let send = |answer: Answer, fds: &[BorrowedFd<'_>]| {
            // The first frame of a connection fits. Who does not get it comes again.
            link.send(&[&answer.encode()], fds)
        };
        let size = self.seats.len();
        let rank = greeting.seat.rank as usize;
        let pairs = [
            (PROTOCOL_VERSION, PROTOCOL.to_string(), greeting.protocol),
            ("rankwise version", env!("CARGO_PKG_VERSION").to_string(), greeting.version),
            (WORLD_SIZE, size.to_string(), greeting.seat.size.to_string()),
        ];
        if let Some((key, here, there)) = pairs.into_iter().find(|(_, here, there)| here != there) {
            let why = format!("{who} came as rank {rank} and was refused ({key}: ours {here}, theirs {there})");
            let free = self.seats.get(rank).is_some_and(|seat| seat.is_free());
            if free {
                let (key, here, there) = (key.to_string(), here.clone(), there.clone());
                let _ = self.shared.refusal.set(Refusal { rank, key, here, there });
            }
            let _ = send(Answer::Refused { key: key.into(), here, there }, &[]);
            match free {
                true => {
                    tracing::warn!("{why}");
                    self.end(rank, RankEnd::Lost(format!("was refused: {why}")));
                }
                false => self.note(&why),
            }
            return;
        }
        let Some(seat) = self.seats.get(rank) else {
            let why = format!("{who} came as rank {rank} of {size}, which does not exist");
            self.note(&why);
            return;
        };
        if !seat.is_free() {
            let why = format!("{} and {who} both came as rank {rank}; the second was refused", seat.who);
            let _ = send(Answer::Taken { by: seat.who.clone(), you: who }, &[]);
            self.note(&why);
            return;
        }
        let Some(Host { job, .. }) = self.host else { return };
        // The life file itself and not a duplicate: closing any descriptor of it would drop this process's own lock.
        let life = [self.shared.life.as_fd()];
        let fds = if link.is_stream() { &[][..] } else { &life };
        if send(Answer::Welcome { job }, fds).is_ok() {
            self.seats[rank] = Seat { link: Some(link), who, ..Seat::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::door::Door;
    use crate::environment::PROTOCOL;
    use crate::greeting::{Answer, Greeting};
    use crate::hub::{Entrance, Hub};
    use crate::link::Link;
    use crate::packet_socket::{self, PacketBuffer, ReceiveError};
    use crate::wire::Seat;
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
    };
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    const SIZE: u32 = 3;

    struct Place {
        hub: Hub,
        address: SocketAddrUnix,
        _own: Link,
    }

    fn socket() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    impl Place {
        fn open() -> Place {
            let listener = socket();
            // The kernel makes the name up.
            bind(&listener, &SocketAddrUnix::new_unnamed()).unwrap();
            listen(&listener, 100).unwrap();
            let address = SocketAddrUnix::try_from(getsockname(&listener).unwrap()).unwrap();
            let (hub, _own) = Hub::open(SIZE as usize, 7, Entrance::Local(Door::new(listener))).unwrap();
            Place { hub, address, _own }
        }

        fn come(&self) -> OwnedFd {
            let socket = socket();
            connect(&socket, &self.address).unwrap();
            socket
        }

        fn greet(&self, bytes: &[u8]) -> OwnedFd {
            let socket = self.come();
            packet_socket::send(&socket, &[bytes], &[]).unwrap();
            socket
        }
    }

    /// What comes, or `None` when the connection is closed.
    fn hear(socket: &OwnedFd) -> Option<Answer> {
        let started = Instant::now();
        let mut buffer = PacketBuffer::new();
        loop {
            match buffer.receive(socket) {
                Ok(packet) => return Some(Answer::decode(packet.bytes).unwrap()),
                Err(ReceiveError::Closed) => return None,
                Err(ReceiveError::WouldBlock) => assert!(started.elapsed() < Duration::from_secs(30), "no answer"),
                Err(error) => panic!("{error:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn greeting(rank: u32) -> Greeting {
        let seat = Seat { rank, size: SIZE };
        Greeting { protocol: PROTOCOL.into(), version: env!("CARGO_PKG_VERSION").into(), seat }
    }

    #[test]
    fn each_rank_comes_once() {
        let place = Place::open();
        let _first = place.greet(&greeting(1).encode());
        assert_eq!(hear(&_first), Some(Answer::Welcome { job: 7 }));
        let me = format!("process {}", std::process::id());
        let taken = || Some(Answer::Taken { by: me.clone(), you: me.clone() });
        assert_eq!(hear(&place.greet(&greeting(1).encode())), taken());
        assert_eq!(hear(&place.greet(&greeting(0).encode())), taken());
        assert_eq!(hear(&place.greet(&greeting(SIZE).encode())), None);
        assert!(place.hub.refusal().is_none());
    }

    #[test]
    fn other_versions_are_refused_with_both_values() {
        let other = |change: fn(&mut Greeting)| {
            let mut greeting = greeting(2);
            change(&mut greeting);
            greeting.encode()
        };
        for (bytes, key, here) in [
            (other(|greeting| greeting.protocol = "0".into()), "RANKWISE_PROTOCOL", PROTOCOL),
            (other(|greeting| greeting.version = "0".into()), "rankwise version", env!("CARGO_PKG_VERSION")),
            (other(|greeting| greeting.seat.size = 0), "RANKWISE_WORLD_SIZE", "3"),
        ] {
            let place = Place::open();
            let heard = hear(&place.greet(&bytes));
            let expected = Answer::Refused { key: key.into(), here: here.into(), there: "0".into() };
            assert_eq!(heard, Some(expected));
            let refusal = place.hub.refusal().unwrap();
            assert_eq!((refusal.rank, &refusal.key[..], &refusal.there[..]), (2, key, "0"));
        }
    }

    #[test]
    fn who_does_not_greet_is_dropped_within_a_second_or_so() {
        let place = Place::open();
        let started = Instant::now();
        let silent: Vec<OwnedFd> = (0..70).map(|_| place.come()).collect();
        assert_eq!(hear(&place.greet(b"GET / HTTP/1.1\r\n\r\n")), None);
        // A full anteroom holds nobody up.
        assert_eq!(hear(&place.greet(&greeting(1).encode())), Some(Answer::Welcome { job: 7 }));
        assert!(silent.iter().all(|socket| hear(socket).is_none()));
        assert!(started.elapsed() >= Duration::from_millis(900), "a slow rank has a second");
    }
}
