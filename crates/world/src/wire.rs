//! Frames between a rank and the hub: little-endian, one packet each, at most 64 KiB, nothing nested, every length checked
//! against the bytes that are there before anything is allocated.
//!
//! A request is `type ticket fields`, a reply the same. Descriptors ride beside the packet, in the order of the flags that
//! announce them.

use crate::failure::{Cause, Failure};
use crate::store::{MAX_KEY, MAX_PAYLOAD, MAX_VALUE};
use crate::table::{Carried, Items, Reply, Request};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Largest frame in bytes.
pub(crate) const MAX_FRAME: usize = 64 << 10;
/// Most descriptors that ride beside one frame.
pub(crate) const MAX_FDS: usize = 64;
/// Most ranks of a job of processes: a group of all of them must fit a message to the launcher.
pub const MAX_RANKS: usize = 4096;
/// Longest description of an exchange; longer ones are cut.
pub(crate) const MAX_WHAT: usize = 512;
const MAX_TEXT: usize = 32 << 10;

/// A frame that does not follow the format; ends the connection.
#[derive(Debug)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Which rank of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

/// What a rank sends.
pub(crate) enum Frame {
    /// First frame of a connection: the rank holds its life lock from now on, and says which rank of how many it takes
    /// itself for.
    Hello {
        protocol: String,
        seat: Seat,
    },
    Request(Request),
    /// Last frame of a connection: the process ends in an orderly way.
    Goodbye,
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const SET: u8 = 2;
    pub(super) const GET: u8 = 3;
    pub(super) const WAIT: u8 = 4;
    pub(super) const ADD: u8 = 5;
    pub(super) const DELETE: u8 = 6;
    pub(super) const EXCHANGE: u8 = 7;
    pub(super) const CANCEL: u8 = 8;
    pub(super) const GOODBYE: u8 = 9;
    pub(super) const DONE: u8 = 65;
    pub(super) const VALUE: u8 = 66;
    pub(super) const NUMBER: u8 = 67;
    pub(super) const FLAG: u8 = 68;
    pub(super) const ITEMS: u8 = 69;
    pub(super) const FAILED: u8 = 70;
    pub(super) const SEAT: u8 = 71;
    pub(super) const CLOSING: u8 = 72;
    pub(super) const GONE: u8 = 73;
}

/// Encodes a request; the descriptor of an exchange goes beside it.
pub(crate) fn encode_request(ticket: u64, frame: &Frame) -> Vec<u8> {
    let start = |kind: u8| {
        let mut out = Vec::with_capacity(64);
        out.push(kind);
        out.extend_from_slice(&ticket.to_le_bytes());
        out
    };
    let keyed = |kind: u8, key: &str| {
        let mut out = start(kind);
        put_bytes(&mut out, key.as_bytes());
        out
    };
    match frame {
        Frame::Hello { protocol, seat } => {
            let mut out = keyed(kind::HELLO, protocol);
            put_seat(&mut out, *seat);
            out
        }
        Frame::Request(Request::Set { key, value }) => {
            let mut out = keyed(kind::SET, key);
            put_bytes(&mut out, value);
            out
        }
        Frame::Request(Request::Get { key }) => keyed(kind::GET, key),
        Frame::Request(Request::Wait { key }) => keyed(kind::WAIT, key),
        Frame::Request(Request::Add { key, delta }) => {
            let mut out = keyed(kind::ADD, key);
            out.extend_from_slice(&delta.to_le_bytes());
            out
        }
        Frame::Request(Request::Delete { key }) => keyed(kind::DELETE, key),
        Frame::Request(Request::Exchange { key, what, members, payload, carried }) => {
            let mut out = keyed(kind::EXCHANGE, key);
            put_bytes(&mut out, what.as_bytes());
            put_bytes(&mut out, payload);
            out.push(u8::from(matches!(carried, Carried::Fd(_))));
            out.extend_from_slice(&(members.len() as u32).to_le_bytes());
            members.iter().for_each(|member| out.extend_from_slice(&member.to_le_bytes()));
            out
        }
        Frame::Request(Request::Cancel { ticket: other }) => {
            let mut out = start(kind::CANCEL);
            out.extend_from_slice(&other.to_le_bytes());
            out
        }
        Frame::Goodbye => start(kind::GOODBYE),
    }
}

/// Decodes what a rank sent. `fds` are the descriptors that came beside it; they are closed unless the frame uses them.
pub(crate) fn decode_request(bytes: &[u8], mut fds: Vec<OwnedFd>) -> Result<(u64, Frame), Malformed> {
    let mut input = Input(bytes);
    let kind = input.u8()?;
    let ticket = input.u64()?;
    let request = match kind {
        kind::HELLO => {
            let frame = Frame::Hello { protocol: input.text(MAX_KEY)?, seat: input.seat()? };
            input.end()?;
            return Ok((ticket, frame));
        }
        kind::SET => Request::Set { key: input.text(MAX_KEY)?, value: input.bytes(MAX_VALUE)?.to_vec() },
        kind::GET => Request::Get { key: input.text(MAX_KEY)? },
        kind::WAIT => Request::Wait { key: input.text(MAX_KEY)? },
        kind::ADD => Request::Add { key: input.text(MAX_KEY)?, delta: input.u64()? as i64 },
        kind::DELETE => Request::Delete { key: input.text(MAX_KEY)? },
        kind::EXCHANGE => {
            let key = input.text(MAX_KEY)?;
            let what = input.text(MAX_WHAT)?;
            let payload = input.bytes(MAX_PAYLOAD)?.to_vec();
            let carried = match input.flag()? {
                true => Carried::Fd(Arc::new(fds.pop().ok_or(Malformed("an announced descriptor did not come"))?)),
                false => Carried::None,
            };
            let n = input.u32()? as usize;
            if n > MAX_RANKS {
                return Err(Malformed("a group is too large"));
            }
            let members = input.take(n * 4)?.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
            Request::Exchange { key, what, members: members.collect(), payload, carried }
        }
        kind::CANCEL => Request::Cancel { ticket: input.u64()? },
        kind::GOODBYE => {
            input.end()?;
            return Ok((ticket, Frame::Goodbye));
        }
        _ => return Err(Malformed("a request has an unknown type")),
    };
    input.end()?;
    if !fds.is_empty() {
        return Err(Malformed("a descriptor came that nothing announced"));
    }
    Ok((ticket, Frame::Request(request)))
}

/// A packet for a rank: a head of its own, a body and descriptors that several packets may share.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) fds: Arc<[Arc<OwnedFd>]>,
}

/// Encodes a reply that is not [`Reply::Items`].
pub(crate) fn encode_reply(ticket: u64, reply: &Reply) -> Packet {
    let (kind, body) = match reply {
        Reply::Done | Reply::Items(_) => (kind::DONE, Vec::new()),
        Reply::Value(None) => (kind::VALUE, vec![0]),
        Reply::Value(Some(value)) => {
            let mut body = vec![1];
            put_bytes(&mut body, value);
            (kind::VALUE, body)
        }
        Reply::Number(number) => (kind::NUMBER, number.to_le_bytes().to_vec()),
        Reply::Flag(flag) => (kind::FLAG, vec![u8::from(*flag)]),
        Reply::Failed(failure) => {
            let peers = &failure.peers[..failure.peers.len().min(MAX_RANKS)];
            let mut body = vec![failure.cause as u8];
            body.extend_from_slice(&(peers.len() as u32).to_le_bytes());
            peers.iter().for_each(|peer| body.extend_from_slice(&peer.to_le_bytes()));
            put_bytes(&mut body, cut(&failure.text, MAX_TEXT).as_bytes());
            (kind::FAILED, body)
        }
    };
    Packet { head: head(kind, ticket), body: body.into(), fds: Arc::new([]) }
}

fn head(kind: u8, ticket: u64) -> Vec<u8> {
    let mut head = vec![kind];
    head.extend_from_slice(&ticket.to_le_bytes());
    head
}

/// The answer to a hello: the seat that this connection belongs to. Whoever claimed another one has not joined.
pub(crate) fn encode_seat(ticket: u64, seat: Seat) -> Packet {
    let mut body = Vec::with_capacity(8);
    put_seat(&mut body, seat);
    Packet { head: head(kind::SEAT, ticket), body: body.into(), fds: Arc::new([]) }
}

/// The rank that serves this job ends in an orderly way; belongs to no request.
pub(crate) fn encode_closing() -> Packet {
    Packet { head: head(kind::CLOSING, 0), body: Arc::new([]), fds: Arc::new([]) }
}

/// A rank has ended; belongs to no request.
pub(crate) fn encode_gone(rank: u32) -> Packet {
    Packet { head: head(kind::GONE, 0), body: rank.to_le_bytes().as_slice().into(), fds: Arc::new([]) }
}

/// The items of an exchange in packets, encoded once for all receivers.
pub(crate) struct ItemPackets(Vec<Packet>);

impl ItemPackets {
    pub(crate) fn encode(items: &Items) -> ItemPackets {
        let mut packets = Vec::new();
        let mut at = 0;
        while at < items.len() {
            let mut body = Vec::new();
            let mut fds = Vec::new();
            let first = at;
            while let Some((payload, carried)) = items.get(at) {
                let has_fd = matches!(carried, Carried::Fd(_));
                if body.len() + payload.len() + 64 > MAX_FRAME || (has_fd && fds.len() == MAX_FDS) {
                    break;
                }
                if let Carried::Fd(fd) = carried {
                    fds.push(fd.clone());
                }
                body.push(u8::from(has_fd));
                put_bytes(&mut body, payload);
                at += 1;
            }
            let mut full = Vec::with_capacity(12 + body.len());
            for number in [items.len(), first, at - first] {
                full.extend_from_slice(&(number as u32).to_le_bytes());
            }
            full.extend_from_slice(&body);
            packets.push(Packet { head: Vec::new(), body: full.into(), fds: fds.into() });
        }
        ItemPackets(packets)
    }

    pub(crate) fn addressed(&self, ticket: u64) -> impl Iterator<Item = Packet> + '_ {
        self.0.iter().map(move |packet| Packet { head: head(kind::ITEMS, ticket), ..packet.clone() })
    }
}

/// What a rank receives: a whole reply, or a part of the items of an exchange.
pub(crate) enum Received {
    Whole(Reply),
    Seat(Seat),
    Closing,
    Gone(u32),
    Part { total: usize, first: usize, items: Vec<(Vec<u8>, Option<OwnedFd>)> },
}

pub(crate) fn decode_reply(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(u64, Received), Malformed> {
    let mut input = Input(bytes);
    let kind = input.u8()?;
    let ticket = input.u64()?;
    let mut fds = fds.into_iter();
    let received = match kind {
        kind::DONE => Received::Whole(Reply::Done),
        kind::VALUE => Received::Whole(Reply::Value(match input.flag()? {
            true => Some(input.bytes(MAX_VALUE)?.to_vec()),
            false => None,
        })),
        kind::NUMBER => Received::Whole(Reply::Number(input.u64()? as i64)),
        kind::FLAG => Received::Whole(Reply::Flag(input.flag()?)),
        kind::SEAT => Received::Seat(input.seat()?),
        kind::CLOSING => Received::Closing,
        kind::GONE => Received::Gone(input.u32()?),
        kind::FAILED => {
            let cause = Cause::from_code(input.u8()?).ok_or(Malformed("a failure has an unknown cause"))?;
            let n = input.u32()? as usize;
            if n > MAX_RANKS {
                return Err(Malformed("a failure names too many ranks"));
            }
            let peers = input.take(n * 4)?.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
            let peers = peers.collect();
            Received::Whole(Reply::Failed(Failure { cause, peers, text: input.text(MAX_TEXT)? }))
        }
        kind::ITEMS => {
            let [total, first, count] = [input.u32()? as usize, input.u32()? as usize, input.u32()? as usize];
            if total > MAX_RANKS || first > total || count > total - first || count == 0 {
                return Err(Malformed("items have impossible positions"));
            }
            let mut items = Vec::new();
            for _ in 0..count {
                let fd = match input.flag()? {
                    true => Some(fds.next().ok_or(Malformed("an announced descriptor did not come"))?),
                    false => None,
                };
                items.push((input.bytes(MAX_PAYLOAD)?.to_vec(), fd));
            }
            Received::Part { total, first, items }
        }
        _ => return Err(Malformed("a reply has an unknown type")),
    };
    input.end()?;
    Ok((ticket, received))
}

/// The longest prefix of at most `limit` bytes that is whole characters.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

pub(crate) fn put_seat(out: &mut Vec<u8>, seat: Seat) {
    out.extend_from_slice(&seat.rank.to_le_bytes());
    out.extend_from_slice(&seat.size.to_le_bytes());
}

/// What is left of a frame; every read checks that it is there.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Malformed("a frame is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn seat(&mut self) -> Result<Seat, Malformed> {
        Ok(Seat { rank: self.u32()?, size: self.u32()? })
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn bytes(&mut self, limit: usize) -> Result<&'a [u8], Malformed> {
        let n = self.u32()? as usize;
        if n > limit {
            return Err(Malformed("a field is too long"));
        }
        self.take(n)
    }

    pub(crate) fn text(&mut self, limit: usize) -> Result<String, Malformed> {
        std::str::from_utf8(self.bytes(limit)?).map(str::to_owned).map_err(|_| Malformed("a text is not UTF-8"))
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("a frame has bytes after its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange() -> Frame {
        Frame::Request(Request::Exchange {
            key: "key".into(),
            what: "wörds".into(),
            members: vec![3, 1, 2],
            payload: vec![9; 100],
            carried: Carried::None,
        })
    }

    #[test]
    fn requests_survive_the_wire() {
        let (ticket, frame) = decode_request(&encode_request(77, &exchange()), Vec::new()).unwrap();
        assert_eq!(ticket, 77);
        let Frame::Request(Request::Exchange { key, what, members, payload, .. }) = frame else { panic!() };
        assert_eq!((&key[..], &what[..], &members[..], payload), ("key", "wörds", &[3, 1, 2][..], vec![9; 100]));
    }

    #[test]
    fn every_prefix_and_every_flipped_byte_is_decoded_without_a_panic() {
        let failure = Failure { cause: Cause::Timeout, peers: vec![1, 2], text: "text".into() };
        let items: Items = (0..3).map(|i| (vec![i; 20], Carried::None)).collect();
        let mut frames = vec![encode_request(1, &exchange())];
        frames.push(encode_request(1, &Frame::Request(Request::Set { key: "k".into(), value: vec![1; 9] })));
        let seat = Seat { rank: 1, size: 2 };
        frames.push(encode_request(1, &Frame::Hello { protocol: "2".into(), seat }));
        frames.push(encode_request(1, &Frame::Goodbye));
        let packets = ItemPackets::encode(&items);
        for packet in packets.addressed(1).chain([
            encode_reply(1, &Reply::Failed(failure)),
            encode_seat(1, seat),
            encode_gone(1),
            encode_closing(),
        ]) {
            frames.push([&packet.head[..], &packet.body].concat());
        }
        for frame in frames {
            for end in 0..frame.len() {
                assert!(decode_request(&frame[..end], Vec::new()).is_err());
                assert!(decode_reply(&frame[..end], Vec::new()).is_err());
            }
            for at in 0..frame.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bad = frame.clone();
                    bad[at] = value;
                    let _ = decode_request(&bad, Vec::new());
                    let _ = decode_reply(&bad, Vec::new());
                }
            }
            let long = [&frame[..], &[0]].concat();
            assert!(decode_request(&long, Vec::new()).is_err());
            assert!(decode_reply(&long, Vec::new()).is_err());
        }
    }

    #[test]
    fn items_are_cut_into_frames_that_fit() {
        let items: Items = (0..200).map(|i| (vec![i as u8; MAX_PAYLOAD], Carried::None)).collect();
        let mut seen = 0;
        for packet in ItemPackets::encode(&items).addressed(5) {
            let bytes = [&packet.head[..], &packet.body].concat();
            assert!(bytes.len() <= MAX_FRAME);
            let Ok((5, Received::Part { total: 200, first, items })) = decode_reply(&bytes, Vec::new()) else {
                panic!()
            };
            assert_eq!(first, seen);
            assert!(items.iter().enumerate().all(|(i, (payload, _))| payload == &vec![(first + i) as u8; MAX_PAYLOAD]));
            seen += items.len();
        }
        assert_eq!(seen, 200);
    }
}
