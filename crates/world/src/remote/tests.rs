//! Ranks and attackers at the door of rank 0, all in this process.

use super::*;
use crate::handshake;
use crate::table::Request;
use crate::wire::{Frame, encode_request};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

const LONG: Duration = Duration::from_secs(60);
const KEY: &str = "test";

/// The same secret as often as it is needed.
struct Secret(PathBuf);

impl Secret {
    fn new() -> Secret {
        let path = std::env::temp_dir().join(format!("rankwise-secret-{:032x}", random_id()));
        Token::random().unwrap().write_new(&path).unwrap();
        Secret(path)
    }

    fn token(&self) -> Token {
        Token::read(&self.0).unwrap()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A job whose rank 0 listens, and has not answered the roll call yet.
struct Place {
    secret: Secret,
    size: usize,
    address: Address,
    hub: Hub,
    /// Rank 0's own.
    link: Link,
}

impl Place {
    fn open(size: usize) -> Place {
        let secret = Secret::new();
        let (listener, address) = tcp::listen_on(&["127.0.0.1:0".parse().unwrap()], None).unwrap();
        let way = host(listener, size, KEY, secret.token()).unwrap();
        let address = Address { host: address.ip().to_string(), port: address.port(), interface: None };
        Place { secret, size, address, hub: way.hub.unwrap(), link: way.link }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((self.address.host.as_str(), self.address.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    fn hello(&self, rank: usize) -> Hello {
        hello(Seat { rank: rank as u32, size: self.size as u32 }, KEY, Present::here().hash()).unwrap()
    }

    fn attempt(&self, hello: &Hello, token: &Token) -> std::result::Result<Answer, Failure> {
        let addresses = tcp::resolve(&self.address.host, self.address.port, &Deadline::after(LONG)).unwrap();
        let socket = tcp::connect_to(&addresses, None, LONG).unwrap().unwrap();
        attempt(socket, hello, token, LONG).map(|(_, answer)| answer)
    }

    fn join(&self, rank: usize) -> Result<Vec<u32>> {
        let deadline = Deadline::after(LONG);
        let circumstances =
            Circumstances { rank, size: self.size, source: "a test", key: KEY, place: "here", limit: LONG };
        let way = call(&self.address, &self.hello(rank), &self.secret.token(), &deadline, &circumstances)?;
        answer(way.link, rank, self.size)
    }

    /// All ranks come; the job is unharmed.
    fn complete(self) {
        let hosts: Vec<_> = thread::scope(|scope| {
            let place = &self;
            let others: Vec<_> = (1..self.size)
                .map(|rank| {
                    let small = thread::Builder::new().stack_size(256 << 10);
                    small.spawn_scoped(scope, move || place.join(rank)).unwrap()
                })
                .collect();
            others.into_iter().map(|other| other.join().unwrap()).collect()
        });
        for (i, result) in hosts.into_iter().enumerate() {
            assert_eq!(result.unwrap(), vec![0; self.size], "rank {}", i + 1);
        }
    }

    /// Rank 0's answer to the roll call, in a thread of its own; the place without it.
    fn with_rank_0(mut self) -> Place {
        let (size, spare) = (self.size, std::os::unix::net::UnixStream::pair().unwrap().0);
        let link = std::mem::replace(&mut self.link, Link::packets(spare.into()));
        thread::spawn(move || answer(link, 0, size).unwrap());
        self
    }
}

fn answer(link: Link, rank: usize, size: usize) -> Result<Vec<u32>> {
    let store = ProcessStore::connect(link, rank, size, Server::Remote(Departed::none_of(size)))?;
    let met = roll_call::answer_across(&store, Present::here(), rank, size, &Deadline::after(LONG))?;
    Ok(met.hosts)
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_le_bytes(), frame].concat()
}

/// Until the connection is closed, which must not take longer than a second or so.
fn dropped(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    said
}

#[test]
fn a_thousand_ranks_join() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if descriptors() < 4096 {
        println!("SKIPPED: RLIMIT_NOFILE is {}, a thousand ranks in one process need 4096", descriptors());
        return;
    }
    let started = Instant::now();
    Place::open(1001).with_rank_0().complete();
    println!("1,000 ranks joined in {:?}", started.elapsed());
}

#[test]
fn strangers_do_not_disturb() {
    let place = Place::open(3).with_rank_0();
    let started = Instant::now();
    let idle: Vec<TcpStream> = (0..500).map(|_| place.connect()).collect();
    let mut talking = Vec::new();
    for junk in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &u32::MAX.to_le_bytes(),
        &0_u32.to_le_bytes(),
        &[1, 2, 3],
        &framed(b"rankwise hello 1"),
        &framed(&[0xff; 1024]),
        &vec![0x41; 1 << 16],
    ] {
        let mut stream = place.connect();
        let _ = stream.write_all(junk);
        talking.push(stream);
    }
    // One byte now and then.
    let mut slow = place.connect();
    let dribble = thread::spawn(move || {
        let hello = framed(&[b'r'; 900]);
        for byte in hello {
            if slow.write_all(&[byte]).is_err() {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    });
    place.complete();
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
    assert!(dribble.join().unwrap(), "the slow one was heard out");
    for stream in talking.into_iter().chain(idle) {
        assert_eq!(dropped(stream), b"", "nothing is said to strangers");
    }
}

#[test]
fn those_without_the_token_are_refused_and_the_job_is_unharmed() {
    let place = Place::open(2).with_rank_0();
    let stranger = Token::random().unwrap();
    assert!(matches!(place.attempt(&place.hello(1), &stranger), Err(Failure::OtherToken)));
    // Goes on all the same: with a wrong proof, with half of a right one, and with one that was heard before.
    let hello = place.hello(1).encode();
    let token = place.secret.token();
    let challenge = |stream: &mut TcpStream| {
        stream.write_all(&framed(&hello)).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut frame).unwrap();
        Challenge::decode(&frame).unwrap()
    };
    let mut first = place.connect();
    let heard = challenge(&mut first);
    assert!(heard.is_genuine(&hello, &token));
    let right = heard.answer(&hello, &token);
    first.write_all(&framed(&heard.answer(&hello, &stranger))).unwrap();
    assert_eq!(dropped(first), b"");
    for proof in [&right[..], &right[..right.len() / 2], &[]] {
        let mut again = place.connect();
        let fresh = challenge(&mut again);
        assert!(!handshake::is_genuine(proof, &hello, &fresh.nonce, &token));
        let _ = again.write_all(&framed(proof));
        assert_eq!(dropped(again), b"", "{} bytes", proof.len());
    }
    place.complete();
}

#[test]
fn each_rank_comes_once_and_in_the_world() {
    let place = Place::open(3).with_rank_0();
    let token = place.secret.token();
    let deadline = Deadline::after(LONG);
    let here = Circumstances { rank: 1, size: 3, source: "a test", key: KEY, place: "here", limit: LONG };
    let first = call(&place.address, &place.hello(1), &token, &deadline, &here).unwrap();
    for rank in [0, 1] {
        let Ok(Answer::Taken { by, you }) = place.attempt(&place.hello(rank), &token) else { panic!("rank {rank}") };
        let me = format!("process {}", std::process::id());
        assert!(by.starts_with(&me) && you.starts_with(&me), "{by}, {you}");
    }
    assert!(matches!(place.attempt(&place.hello(3), &token), Err(Failure::Passing(_))));
    let other_job = hello(Seat { rank: 2, size: 3 }, "another", [0; 32]).unwrap();
    assert!(matches!(place.attempt(&other_job, &token), Ok(Answer::Refused { key, .. }) if key.contains("job key")));
    // The job is unharmed.
    let second = thread::scope(|scope| {
        let second = scope.spawn(|| place.join(2));
        assert_eq!(answer(first.link, 1, 3).unwrap(), [0; 3]);
        second.join().unwrap()
    });
    assert_eq!(second.unwrap(), [0; 3]);
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let place = Place::open(2);
    let deadline = Deadline::after(LONG);
    let here = Circumstances { rank: 1, size: 2, source: "a test", key: KEY, place: "here", limit: LONG };
    let link = call(&place.address, &place.hello(1), &place.secret.token(), &deadline, &here).unwrap().link;
    let seat = Seat { rank: 1, size: 2 };
    let mut bytes = framed(&encode_request(0, &Frame::Hello { protocol: PROTOCOL.into(), seat }));
    // More than rank 0 takes in one go, and less than it reads in one: nothing more comes that would wake it.
    const REQUESTS: u64 = 500;
    for ticket in 1..REQUESTS {
        bytes.extend(framed(&encode_request(ticket, &Frame::Request(Request::Add { key: "k".into(), delta: 1 }))));
    }
    assert_eq!(rustix::net::send(&link, &bytes, rustix::net::SendFlags::empty()).unwrap(), bytes.len());
    let mut buffer = PacketBuffer::new();
    let soon = Deadline::after(Duration::from_secs(20));
    for ticket in 0..REQUESTS {
        let frame = hear(&link, &mut buffer, &soon).unwrap_or_else(|_| panic!("request {ticket} is not answered"));
        assert_eq!(frame[1..9], ticket.to_le_bytes());
    }
}

#[test]
fn rank_0_says_when_no_other_host_can_reach_it() {
    assert!(listens_on(&"127.0.1.1:7".parse().unwrap()).contains("127.0.1.1:7, which other hosts cannot reach"));
    assert_eq!(listens_on(&"10.0.0.1:7".parse().unwrap()), "listening on 10.0.0.1:7");
}

#[test]
fn other_versions_and_settings_are_refused_on_both_sides() {
    let place = Place::open(2);
    let mut hello = place.hello(1);
    hello.greeting.version = "0.0.0".into();
    let Ok(Answer::Refused { key, here, there }) = place.attempt(&hello, &place.secret.token()) else { panic!() };
    assert_eq!((&key[..], &here[..], &there[..]), ("rankwise version", env!("CARGO_PKG_VERSION"), "0.0.0"));
    let refusal = place.hub.refusal().unwrap();
    assert_eq!((refusal.rank, &refusal.there[..]), (1, "0.0.0"));
    let error = answer(place.link, 0, 2).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PeerLost);
    assert!(error.message().contains("0.0.0"), "{error}");
}
