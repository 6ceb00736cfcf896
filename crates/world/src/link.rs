//! One connection that carries frames: packets of a Unix socket, which bring descriptors, or a TCP stream, where each frame
//! follows its length.

use crate::not_inherited::NotInherited;
use crate::packet_socket::{self, Arrived, PacketBuffer, ReceiveError};
use crate::wire::MAX_FRAME;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the length before each frame of a stream.
pub(crate) const LENGTH: usize = 4;

pub(crate) struct Link {
    /// Before the socket, so that it ends first.
    _not_inherited: NotInherited,
    socket: OwnedFd,
    stream: Option<Stream>,
}

/// What a stream keeps between calls, at most one frame in each direction.
#[derive(Default)]
struct Stream {
    unsent: Mutex<Vec<u8>>,
    partial: Mutex<Vec<u8>>,
}

impl Link {
    /// A connected Unix packet socket.
    pub(crate) fn packets(socket: OwnedFd) -> Link {
        Link { _not_inherited: NotInherited::new(socket.as_fd()), socket, stream: None }
    }

    /// A connected TCP socket; `received` is what has come already.
    pub(crate) fn stream(socket: OwnedFd, received: Vec<u8>) -> Link {
        let stream = Some(Stream { partial: Mutex::new(received), ..Stream::default() });
        Link { _not_inherited: NotInherited::new(socket.as_fd()), socket, stream }
    }

    /// Takes one frame without blocking.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut PacketBuffer) -> Result<Arrived<'a>, ReceiveError> {
        let Some(stream) = &self.stream else { return buffer.receive(&self.socket) };
        let mut partial = locked(&stream.partial);
        let length = loop {
            if let Some(length) = announced(&partial)?.filter(|length| partial.len() >= LENGTH + length) {
                break length;
            }
            // At most one frame more than what is kept already, which is less than one.
            match recv(&self.socket, buffer.space(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ReceiveError::Closed),
                Ok((n, _)) => partial.extend_from_slice(&buffer.space()[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(ReceiveError::WouldBlock),
                Err(Errno::CONNRESET | Errno::PIPE | Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                    return Err(ReceiveError::Closed);
                }
                Err(errno) => return Err(ReceiveError::Other(errno)),
            }
        };
        let space = &mut buffer.space()[..length];
        space.copy_from_slice(&partial[LENGTH..LENGTH + length]);
        partial.drain(..LENGTH + length);
        Ok(Arrived { bytes: space, fds: Vec::new(), fds_lost: false })
    }

    /// Whether a frame has been read from the socket and not been taken, which waiting for the socket does not show.
    pub(crate) fn has_frame(&self) -> bool {
        let Some(stream) = &self.stream else { return false };
        let partial = locked(&stream.partial);
        match announced(&partial) {
            Ok(length) => length.is_some_and(|length| partial.len() >= LENGTH + length),
            Err(_) => true,
        }
    }

    /// Sends one frame without blocking. `AGAIN` when there is no room for it; `OPNOTSUPP` when a stream is to carry
    /// descriptors.
    pub(crate) fn send(&self, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let Some(stream) = &self.stream else { return packet_socket::send(&self.socket, parts, fds) };
        if !fds.is_empty() {
            return Err(Errno::OPNOTSUPP);
        }
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length == 0 || length > MAX_FRAME {
            return Err(Errno::MSGSIZE);
        }
        let mut unsent = locked(&stream.unsent);
        self.push_out(&mut unsent)?;
        unsent.extend_from_slice(&(length as u32).to_le_bytes());
        parts.iter().for_each(|part| unsent.extend_from_slice(part));
        match self.push_out(&mut unsent) {
            // The frame is ours now, whole or in part.
            Err(Errno::AGAIN) => Ok(()),
            other => other,
        }
    }

    /// Sends what an earlier frame left. `AGAIN` when there is still no room for all of it.
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        match &self.stream {
            Some(stream) => self.push_out(&mut locked(&stream.unsent)),
            None => Ok(()),
        }
    }

    /// Whether a frame is only partly sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| !locked(&stream.unsent).is_empty())
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    fn push_out(&self, unsent: &mut Vec<u8>) -> Result<(), Errno> {
        while !unsent.is_empty() {
            match send(&self.socket, unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => drop(unsent.drain(..n)),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The length of the frame that begins here, if enough has come to tell.
fn announced(bytes: &[u8]) -> Result<Option<usize>, ReceiveError> {
    let Some(length) = bytes.first_chunk::<LENGTH>() else { return Ok(None) };
    match u32::from_le_bytes(*length) as usize {
        0 => Err(ReceiveError::TooLong),
        length if length > MAX_FRAME => Err(ReceiveError::TooLong),
        length => Ok(Some(length)),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn streams() -> (Link, OwnedFd) {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        (Link::stream(a, Vec::new()), b)
    }

    #[test]
    fn frames_arrive_in_pieces_and_in_heaps() {
        let (link, other) = streams();
        let mut buffer = PacketBuffer::new();
        let frames = [vec![1; 1], vec![2; 300], vec![3; MAX_FRAME], vec![4; 7]];
        let bytes: Vec<u8> = frames.iter().flat_map(|f| [&(f.len() as u32).to_le_bytes()[..], f].concat()).collect();
        for step in [1, 1000, bytes.len()] {
            let mut seen = Vec::new();
            let mut write = bytes.chunks(if step == 1 { 97 } else { step });
            while seen.len() < frames.len() {
                match link.receive(&mut buffer) {
                    Ok(arrived) => seen.push(arrived.bytes.to_vec()),
                    Err(ReceiveError::WouldBlock) => {
                        rustix::io::write(&other, write.next().unwrap()).unwrap();
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert_eq!(seen, frames);
        }
        drop(other);
        assert!(matches!(link.receive(&mut buffer), Err(ReceiveError::Closed)));
    }

    #[test]
    fn absurd_lengths_are_refused_before_anything_is_kept() {
        for length in [0_u32, MAX_FRAME as u32 + 1, u32::MAX] {
            let (link, other) = streams();
            rustix::io::write(&other, &length.to_le_bytes()).unwrap();
            assert!(matches!(link.receive(&mut PacketBuffer::new()), Err(ReceiveError::TooLong)));
        }
    }

    #[test]
    fn a_slow_reader_gets_all_of_it() {
        let (link, other) = streams();
        let other = Link::stream(other, Vec::new());
        let mut buffer = PacketBuffer::new();
        let (mut sent, mut got) = (0_u32, 0_u32);
        while got < 200 {
            if sent < 200 && link.send(&[&sent.to_le_bytes(), &[7; 40_000]], &[]).is_ok() {
                sent += 1;
                continue;
            }
            match other.receive(&mut buffer) {
                Ok(arrived) => {
                    assert_eq!((arrived.bytes.len(), &arrived.bytes[..4]), (40_004, &got.to_le_bytes()[..]));
                    got += 1;
                }
                Err(ReceiveError::WouldBlock) => drop(link.flush()),
                Err(error) => panic!("{error:?}"),
            }
        }
        assert!(!link.has_unsent());
    }
}
