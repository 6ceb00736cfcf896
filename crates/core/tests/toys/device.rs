//! The device of one rank: streams, a worker thread each, that do what is put on them in order.

use super::lock;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// The streams of one rank.
#[derive(Default)]
pub(crate) struct Device(Mutex<Vec<Sender<Job>>>);

impl Device {
    /// A new stream's handle.
    pub(crate) fn stream(&self) -> u64 {
        let (sender, jobs) = channel::<Job>();
        std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        let mut streams = lock(&self.0);
        streams.push(sender);
        streams.len() as u64 - 1
    }

    pub(crate) fn has(&self, stream: u64) -> bool {
        stream < lock(&self.0).len() as u64
    }

    /// Puts a kernel of the user on a stream; false when there is no such stream.
    pub(crate) fn enqueue(&self, stream: u64, job: impl FnOnce() + Send + 'static) -> bool {
        lock(&self.0).get(stream as usize).is_some_and(|jobs| jobs.send(Box::new(job)).is_ok())
    }

    /// Waits on the host for what is on a stream now.
    pub(crate) fn synchronize(&self, stream: u64) {
        let (sender, done) = channel();
        assert!(self.enqueue(stream, move || sender.send(()).expect("somebody waits")), "no such stream");
        done.recv_timeout(Duration::from_secs(60)).expect("the stream is stuck");
    }
}
