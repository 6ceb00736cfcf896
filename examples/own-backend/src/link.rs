//! Frames over a Unix socket, a thread for each direction, so that neither side ever waits for the other to read.

use crate::driver::MAX_BYTES;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long closing may take.
pub(crate) const CLOSING_TIME: Duration = Duration::from_millis(200);

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Say {
    /// Member: a call; `head` describes it, `data` is the source.
    Call = 1,
    /// Member: a call that was refused above; `data` says why.
    Refused = 2,
    /// Member: the deadline of its call has passed.
    Late = 3,
    /// Member: end this communicator.
    Abort = 4,
    /// Member: goodbye.
    Leave = 5,
    /// Hub: the sources of all members, each behind its length.
    Answer = 6,
    /// Hub: the member whose global rank is in `head` refused this call; `data` says why.
    PeerRefused = 7,
    /// Hub: the communicator has failed; `head` holds the kind and the global ranks, `data` the text.
    Failed = 8,
}

impl Say {
    fn from_tag(tag: u8) -> Option<Say> {
        use Say::*;
        [Call, Refused, Late, Abort, Leave, Answer, PeerRefused, Failed].into_iter().find(|say| *say as u8 == tag)
    }
}

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) say: Say,
    /// Sequence number of the call it is about.
    pub(crate) seq: u64,
    pub(crate) head: Arc<[u8]>,
    pub(crate) data: Arc<[u8]>,
}

impl Frame {
    pub(crate) fn new(say: Say, seq: u64, head: &[u8], data: &[u8]) -> Frame {
        Frame { say, seq, head: head.into(), data: data.into() }
    }

    fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut prefix = vec![self.say as u8];
        prefix.extend(self.seq.to_le_bytes());
        prefix.extend((self.head.len() as u64).to_le_bytes());
        prefix.extend((self.data.len() as u64).to_le_bytes());
        stream.write_all(&prefix)?;
        stream.write_all(&self.head)?;
        stream.write_all(&self.data)
    }

    fn read(stream: &mut impl Read, most: u64) -> io::Result<Frame> {
        let mut prefix = [0; 25];
        stream.read_exact(&mut prefix)?;
        let number = |at: usize| prefix[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (head, data) = (number(9), number(17));
        // A peer's lengths are looked at before anything is allocated.
        let say = Say::from_tag(prefix[0]).filter(|_| head <= 1 << 16 && data <= most);
        let say = say.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a frame"))?;
        let mut bytes = |length: u64| -> io::Result<Arc<[u8]>> {
            let mut bytes = vec![0; length as usize];
            stream.read_exact(&mut bytes)?;
            Ok(bytes.into())
        };
        Ok(Frame { say, seq: number(1), head: bytes(head)?, data: bytes(data)? })
    }
}

/// One end of a connection.
pub(crate) struct Link {
    /// Gone once the link is closing.
    outgoing: Option<Sender<Frame>>,
    writer: Option<JoinHandle<()>>,
    stream: UnixStream,
}

impl Link {
    /// Frames that arrive go to `take`, on a thread of its own; `None` is the end. At most `members` sources come in one.
    pub(crate) fn new(
        stream: UnixStream,
        members: usize,
        mut take: impl FnMut(Option<Frame>) + Send + 'static,
    ) -> io::Result<Link> {
        let most = (MAX_BYTES + 8).saturating_mul(members as u64);
        let (mut reading, mut writing) = (stream.try_clone()?, stream.try_clone()?);
        let (outgoing, queue) = channel::<Frame>();
        let writer = std::thread::Builder::new().name("star writes".into()).spawn(move || {
            // When the far end is gone the reader tells, so a failed write needs no word.
            let _ = queue.iter().try_for_each(|frame| frame.write(&mut writing));
        })?;
        std::thread::Builder::new().name("star reads".into()).spawn(move || {
            while let Ok(frame) = Frame::read(&mut reading, most) {
                take(Some(frame));
            }
            take(None);
        })?;
        Ok(Link { outgoing: Some(outgoing), writer: Some(writer), stream })
    }

    /// Hands a frame to the writer; never waits.
    pub(crate) fn send(&self, frame: Frame) {
        if let Some(outgoing) = &self.outgoing {
            let _ = outgoing.send(frame);
        }
    }

    /// Sends what is still to be sent, unless the far end has stopped reading, and closes.
    pub(crate) fn close(&mut self) {
        self.outgoing = None;
        // Bounded: a stopped far end must not hold this rank.
        let until = Instant::now() + CLOSING_TIME;
        while self.writer.as_ref().is_some_and(|writer| !writer.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Ends both threads, whatever they do.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_and_junk_is_refused() {
        let mut bytes = Vec::new();
        Frame::new(Say::Call, 7, b"head", &[1; 100]).write(&mut bytes).unwrap();
        let frame = Frame::read(&mut &bytes[..], 100).unwrap();
        assert_eq!((frame.say, frame.seq, &*frame.head, frame.data.len()), (Say::Call, 7, &b"head"[..], 100));
        assert!(Frame::read(&mut &bytes[..], 99).is_err(), "longer than allowed");
        assert!(Frame::read(&mut &bytes[..30], 100).is_err(), "cut off");
        assert!(Frame::read(&mut &[0xFF; 64][..], 100).is_err(), "junk");
    }
}
