//! Packets with descriptors over a Unix socket.

use crate::wire::{MAX_FDS, MAX_FRAME};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Room for one packet.
pub(crate) struct PacketBuffer(Box<[u8]>);

/// A packet that came.
pub(crate) struct Arrived<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) fds: Vec<OwnedFd>,
    /// This process could not take all descriptors: its RLIMIT_NOFILE is used up.
    pub(crate) fds_lost: bool,
}

/// Why no packet came.
#[derive(Debug)]
pub(crate) enum ReceiveError {
    /// The other end is closed.
    Closed,
    /// Nothing there yet.
    WouldBlock,
    /// Longer than a frame may be.
    TooLong,
    Other(Errno),
}

impl PacketBuffer {
    pub(crate) fn new() -> PacketBuffer {
        PacketBuffer(vec![0; MAX_FRAME].into_boxed_slice())
    }

    /// Room for one frame.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Takes one packet without blocking.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> Result<Arrived<'_>, ReceiveError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut reset = false;
        let received = loop {
            match recvmsg(&socket, &mut [IoSliceMut::new(&mut self.0)], &mut ancillary, flags) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(ReceiveError::WouldBlock),
                // The other end closed without reading all: said once, before what it had sent.
                Err(Errno::CONNRESET) if !reset => reset = true,
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(ReceiveError::Closed),
                Err(errno) => return Err(ReceiveError::Other(errno)),
            }
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ReceiveError::TooLong);
        }
        // No frame is empty, so an empty read is the end.
        if received.bytes == 0 {
            return Err(ReceiveError::Closed);
        }
        let fds_lost = received.flags.contains(ReturnFlags::CTRUNC);
        Ok(Arrived { bytes: &self.0[..received.bytes], fds, fds_lost })
    }
}

/// Sends one packet without blocking. `AGAIN` when the socket is full.
pub(crate) fn send(socket: impl AsFd, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    let parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    loop {
        match sendmsg(&socket, &parts, &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
