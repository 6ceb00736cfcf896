//! What a rank does while nothing moves: spin, yield, sleep, and look whether the others are still there.

use crate::request::Request;
use crate::transport::UcxTransport;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_schedule::Transport;
use std::time::{Duration, Instant};

/// Passes without yielding where each rank has a processor of its own.
const SPINS: u32 = 2000;

/// Idle for longer, a rank sleeps between two looks, a little longer each time.
const DROWSY: Duration = Duration::from_millis(2);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// How often it is looked whether the others are there.
const ROUND_OF_LOOKS: Duration = Duration::from_millis(10);

/// One wait. The times are counted from its making.
pub struct Watch {
    peers: Vec<usize>,
    began: Instant,
    deadline: Duration,
    spins: u32,
    idle_since: Instant,
    looked: Instant,
    sleep: Duration,
}

impl Watch {
    /// Over these global ranks, for at most `deadline`.
    pub fn new(transport: &UcxTransport, peers: impl IntoIterator<Item = usize>, deadline: Duration) -> Watch {
        let world = transport.world();
        let now = Instant::now();
        Watch {
            peers: peers.into_iter().filter(|peer| *peer != world.rank()).collect(),
            began: now,
            deadline,
            spins: if world.cpus() >= world.local_size() { SPINS } else { 1 },
            idle_since: now,
            looked: now,
            sleep: Duration::ZERO,
        }
    }

    /// To be called after each pass in which nothing moved, with the number of such passes in a row. Spins, yields or sleeps at most a millisecond.
    ///
    /// `PeerLost` names a rank that is gone, at most 12 ms late; `Timeout`, when the deadline has passed.
    pub fn pause(&mut self, transport: &UcxTransport, fruitless: u32) -> Result<()> {
        if fruitless <= self.spins {
            std::hint::spin_loop();
            return Ok(());
        }
        let now = Instant::now();
        if fruitless == self.spins + 1 {
            (self.idle_since, self.sleep) = (now, Duration::ZERO);
        }
        if now - self.idle_since < DROWSY {
            std::thread::yield_now();
        } else {
            self.sleep = (self.sleep + Duration::from_micros(10)).min(LONGEST_SLEEP);
            std::thread::sleep(self.sleep);
        }
        if now - self.looked >= ROUND_OF_LOOKS {
            self.looked = now;
            self.peers.iter().try_for_each(|peer| transport.check(*peer))?;
            if now - self.began >= self.deadline {
                let waited = format!("nothing came from ranks {:?} within {:?}", self.peers, self.deadline);
                let message = format!("{waited}; see what they do, or give the call more time");
                return Err(Error::new(ErrorKind::Timeout, message).with_peers(self.peers.iter().copied()));
            }
        }
        Ok(())
    }
}

impl UcxTransport {
    /// Waits until a message has ended, moving all. On trouble the message is cancelled; the second trouble ends the wait, and the memory stays
    /// lent, which [`Stuck`] says.
    pub fn wait(&self, mut request: Request, mut watch: Watch) -> std::result::Result<(), Stuck> {
        let mut fruitless = 0;
        let mut first: Option<Error> = None;
        loop {
            match self.test(&mut request) {
                Ok(true) => return first.map_or(Ok(()), |error| Err(Stuck { error, still_lent: false })),
                Ok(false) => {}
                Err(error) => return Err(Stuck { error: first.unwrap_or(error), still_lent: false }),
            }
            if self.progress() {
                fruitless = 0;
                continue;
            }
            fruitless = u32::saturating_add(fruitless, 1);
            if let Err(error) = watch.pause(self, fruitless) {
                match first {
                    None => {
                        self.cancel(&mut request);
                        first = Some(error);
                        // As long again for what can't be stopped, at most a second.
                        (watch.began, watch.deadline) = (Instant::now(), watch.deadline.min(Duration::from_secs(1)));
                        watch.peers.clear();
                    }
                    Some(error) => return Err(Stuck { error, still_lent: true }),
                }
            }
        }
    }
}

/// A wait that ended in an error.
#[derive(Debug)]
pub struct Stuck {
    /// What went wrong.
    pub error: Error,
    /// UCX may still touch the memory: it must live as long as the transport.
    pub still_lent: bool,
}
