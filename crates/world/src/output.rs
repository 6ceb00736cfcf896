//! What ranks print: whole lines, read by a thread of its own so that a slow reader never delays the launcher.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Longest line that is kept together, in bytes; longer ones come in pieces.
pub const MAX_LINE: usize = 1 << 20;

/// Which of a rank's outputs a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line that a rank printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Global rank.
    pub rank: usize,
    /// Where it printed.
    pub stream: Stream,
    /// The bytes without the line's end; not necessarily UTF-8.
    pub text: Vec<u8>,
}

/// Takes lines on a thread of its own; may block. An error ends the job.
pub type Sink = Box<dyn FnMut(&Line) -> io::Result<()> + Send>;

/// What happens to the ranks' output.
#[derive(Default)]
pub enum Output {
    /// It goes where the launcher's goes, unchanged.
    #[default]
    Inherit,
    /// Every line is an event of the job.
    Lines,
    /// Every line goes to a function.
    Sink(Sink),
}

/// A pipe from a rank.
pub(crate) struct Source {
    pub(crate) rank: usize,
    pub(crate) stream: Stream,
    pub(crate) pipe: OwnedFd,
}

/// News from the reading thread; disconnected when it has ended.
pub(crate) enum News {
    Line(Line),
    /// The sink failed.
    Closed(io::Error),
}

/// The reading thread as the launcher sees it.
pub(crate) struct Reader {
    news: Receiver<News>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Readable when there is news.
    notify: OwnedFd,
    /// Written to make the thread look at `stop`.
    wake: OwnedFd,
    stop: AtomicBool,
}

impl Reader {
    pub(crate) fn start(sources: Vec<Source>, sink: Option<Sink>) -> io::Result<Reader> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared =
            Arc::new(Shared { notify: eventfd(0, flags)?, wake: eventfd(0, flags)?, stop: AtomicBool::new(false) });
        let (sender, news) = sync_channel(1024);
        let mut open = Vec::with_capacity(sources.len());
        for source in sources {
            rustix::io::ioctl_fionbio(&source.pipe, true)?;
            open.push(Partial { source, line: Vec::new() });
        }
        let pump = Pump { open, sink, sender, shared: shared.clone(), sink_failed: false };
        thread::Builder::new().name("rankwise-output".into()).spawn(move || pump.run())?;
        Ok(Reader { news, shared })
    }

    /// Readable when there is news.
    pub(crate) fn notified(&self) -> BorrowedFd<'_> {
        self.shared.notify.as_fd()
    }

    /// Takes all news without blocking.
    pub(crate) fn take(&self, mut each: impl FnMut(News)) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.notify, &mut count);
        self.news.try_iter().for_each(&mut each);
    }

    /// Takes the rest once all ranks have ended. Whoever still holds a pipe after `patience` is not listened to any more;
    /// a sink that blocks for longer than `patience` after that is left behind.
    pub(crate) fn finish(self, patience: Duration, mut each: impl FnMut(News)) {
        let mut until = Instant::now() + patience;
        loop {
            match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(news) => each(news),
                Err(RecvTimeoutError::Disconnected) => return,
                // Relaxed: the write to the eventfd orders it.
                Err(RecvTimeoutError::Timeout) if !self.shared.stop.swap(true, Ordering::Relaxed) => {
                    let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
                    until = Instant::now() + patience;
                }
                Err(RecvTimeoutError::Timeout) => return,
            }
        }
    }
}

struct Partial {
    source: Source,
    line: Vec<u8>,
}

struct Pump {
    open: Vec<Partial>,
    sink: Option<Sink>,
    sender: SyncSender<News>,
    shared: Arc<Shared>,
    sink_failed: bool,
}

impl Pump {
    fn run(mut self) {
        let mut buffer = vec![0; 64 << 10];
        while !self.open.is_empty() {
            let stopping = self.shared.stop.load(Ordering::Relaxed);
            let mut polled: Vec<PollFd<'_>> =
                self.open.iter().map(|partial| PollFd::new(&partial.source.pipe, PollFlags::IN)).collect();
            polled.push(PollFd::new(&self.shared.wake, PollFlags::IN));
            let limit = stopping.then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
            match poll(&mut polled, limit.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut count);
            // From the back, so that removal does not shift what is still to be looked at.
            for at in (0..self.open.len()).rev().filter(|at| ready[*at]) {
                if self.read(at, &mut buffer) {
                    let partial = self.open.swap_remove(at);
                    self.last_words(partial);
                }
            }
            if stopping {
                break;
            }
        }
        for partial in std::mem::take(&mut self.open) {
            self.last_words(partial);
        }
        let notify = self.shared.clone();
        drop(self);
        let _ = rustix::io::write(&notify.notify, &1_u64.to_ne_bytes());
    }

    /// Reads what is there, at most one buffer; true at the end of the pipe.
    fn read(&mut self, at: usize, buffer: &mut [u8]) -> bool {
        let partial = &mut self.open[at];
        let n = match rustix::io::read(&partial.source.pipe, &mut *buffer) {
            Ok(0) => return true,
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => return true,
        };
        let (rank, stream) = (partial.source.rank, partial.source.stream);
        for piece in buffer[..n].split_inclusive(|byte| *byte == b'\n') {
            let line = &mut self.open[at].line;
            line.extend_from_slice(piece);
            let ended = line.last() == Some(&b'\n');
            if ended {
                line.pop();
            }
            if ended || line.len() >= MAX_LINE {
                let text = std::mem::take(line);
                self.emit(Line { rank, stream, text });
            }
        }
        false
    }

    fn last_words(&mut self, partial: Partial) {
        if !partial.line.is_empty() {
            self.emit(Line { rank: partial.source.rank, stream: partial.source.stream, text: partial.line });
        }
    }

    fn emit(&mut self, line: Line) {
        let news = match &mut self.sink {
            None => News::Line(line),
            // Ranks must not block on a reader that is gone.
            Some(_) if self.sink_failed => return,
            Some(sink) => match sink(&line) {
                Ok(()) => return,
                Err(error) => {
                    self.sink_failed = true;
                    News::Closed(error)
                }
            },
        };
        // An error means that the job is over and nobody listens.
        let _ = self.sender.send(news);
        let _ = rustix::io::write(&self.shared.notify, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn lines(writes: &[&[u8]]) -> Vec<Vec<u8>> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let source = Source { rank: 3, stream: Stream::Stdout, pipe: read };
        let reader = Reader::start(vec![source], None).unwrap();
        for bytes in writes {
            rustix::io::write(&write, bytes).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        drop(write);
        let mut seen = Vec::new();
        reader.finish(Duration::from_secs(20), |news| match news {
            News::Line(line) => seen.push(line.text),
            News::Closed(error) => panic!("{error}"),
        });
        seen
    }

    #[test]
    fn lines_are_whole_and_nothing_is_lost() {
        assert_eq!(lines(&[b"ab", b"c\n\nd", b"\xff\n", b"end"]), [&b"abc"[..], b"", b"d\xff", b"end"]);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn a_held_pipe_does_not_hold_up_the_end() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let source = Source { rank: 0, stream: Stream::Stderr, pipe: read };
        let reader = Reader::start(vec![source], None).unwrap();
        rustix::io::write(&write, b"partial").unwrap();
        let mut seen = Vec::new();
        reader.finish(Duration::from_millis(100), |news| {
            if let News::Line(line) = news {
                seen.push(line.text);
            }
        });
        assert_eq!(seen, [b"partial"]);
    }
}
