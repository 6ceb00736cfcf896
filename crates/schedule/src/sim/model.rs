//! What the simulated hosts and their network are like.

use crate::plan::Cost;
use rankwise_core::{Error, Result};
use std::time::Duration;

/// Ranks at most: as many as a tag has senders.
pub const MAX_RANKS: usize = 1 << 16;

/// Hosts with one network card each, in racks with one uplink each. Bandwidths are in bytes a second; infinite is allowed.
///
/// A message between hosts passes the card of its host outwards, if racks differ the uplink of its rack outwards and that of the other
/// inwards, and the card of the other host inwards. Between two ranks of a host it passes neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Ranks 0 to this - 1 are on the first host, and so on.
    pub ranks_per_host: usize,
    /// Hosts of a rack, likewise. `usize::MAX`: one rack, no uplinks.
    pub hosts_per_rack: usize,
    /// From the first byte out of a host to the first byte into another of the same rack.
    pub latency: Duration,
    /// More, between racks.
    pub rack_latency: Duration,
    /// Of a network card, each way.
    pub bandwidth: f64,
    /// Of a rack's uplink, each way.
    pub uplink: f64,
    /// Time of a rank's processor for each message it sends.
    pub send_overhead: Duration,
    /// Time of a rank's processor for each message it receives.
    pub receive_overhead: Duration,
    /// Between two ranks of a host, instead of [`Model::latency`].
    pub host_latency: Duration,
    /// From a rank of a host to another, instead of the cards; each rank sends and receives at this speed at once.
    pub host_bandwidth: f64,
    /// Of local copies: bytes copied a second.
    pub copy: f64,
    /// Of reductions: bytes read a second, of all sources together.
    pub reduce: f64,
    /// A send of at most this many bytes ends at once; a longer one when the message has left the sender.
    pub eager: usize,
}

impl Default for Model {
    /// Eight ranks to a host, 16 hosts to a rack, 100 Gbit/s cards, uplinks as fast as all cards of a rack together.
    fn default() -> Model {
        Model {
            ranks_per_host: 8,
            hosts_per_rack: 16,
            latency: Duration::from_micros(2),
            rack_latency: Duration::from_micros(1),
            bandwidth: 12.5e9,
            uplink: 16.0 * 12.5e9,
            send_overhead: Duration::from_nanos(500),
            receive_overhead: Duration::from_nanos(500),
            host_latency: Duration::from_nanos(300),
            host_bandwidth: 10e9,
            copy: 10e9,
            reduce: 10e9,
            eager: 4096,
        }
    }
}

impl Model {
    /// A host for each rank and nothing shared: what textbooks count with. Local work takes no time.
    pub fn flat(latency: Duration, bandwidth: f64, overhead: Duration) -> Model {
        Model {
            ranks_per_host: 1,
            hosts_per_rack: usize::MAX,
            latency,
            rack_latency: Duration::ZERO,
            bandwidth,
            uplink: f64::INFINITY,
            send_overhead: overhead,
            receive_overhead: overhead,
            copy: f64::INFINITY,
            reduce: f64::INFINITY,
            ..Model::default()
        }
    }

    /// `Config` when a value makes no sense.
    pub fn check(&self, ranks: usize) -> Result<()> {
        let speeds = [self.bandwidth, self.uplink, self.host_bandwidth, self.copy, self.reduce];
        let times = [self.latency, self.rack_latency, self.send_overhead, self.receive_overhead, self.host_latency];
        let wrong = if ranks == 0 || ranks > MAX_RANKS {
            format!("{ranks} ranks can't be simulated; choose 1 to {MAX_RANKS}")
        } else if self.ranks_per_host == 0 || self.hosts_per_rack == 0 {
            "a host has a rank and a rack a host at least; choose 1 or more".into()
        } else if speeds.iter().any(|speed| speed.is_nan() || *speed < 1.0) {
            "a bandwidth is below one byte a second; choose a larger one".into()
        } else if times.iter().any(|time| *time > Duration::from_secs(1)) {
            "a latency or an overhead is longer than a second; choose a shorter one".into()
        } else {
            return Ok(());
        };
        Err(Error::config(wrong))
    }

    /// The host of a rank.
    pub fn host(&self, rank: usize) -> usize {
        rank / self.ranks_per_host
    }

    /// The rack of a rank.
    pub fn rack(&self, rank: usize) -> usize {
        self.host(rank) / self.hosts_per_rack
    }

    /// What the textbook formula gives for a plan's cost where nothing is shared and local work is free: rounds times the time of an empty message, the
    /// overhead of messages beyond one a round, and the bytes at the card's speed.
    ///
    /// The alpha-beta model of Hockney (1994) with the overheads of LogP (Culler et al. 1993).
    pub fn formula(&self, cost: Cost, elem_size: usize) -> Duration {
        let empty = self.send_overhead + self.latency + self.receive_overhead;
        let more = cost.messages.saturating_sub(cost.rounds) as f64;
        let seconds = cost.rounds as f64 * empty.as_secs_f64()
            + more * self.send_overhead.max(self.receive_overhead).as_secs_f64()
            + (cost.elements * elem_size) as f64 / self.bandwidth;
        Duration::from_secs_f64(seconds)
    }
}

/// In picoseconds, the unit of the clock: 2^64 of them are 213 days.
pub(super) fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000)
}

/// Picoseconds that bytes take at a speed.
pub(super) fn transfer(bytes: usize, speed: f64) -> u64 {
    // Saturates.
    (bytes as f64 * 1e12 / speed).round() as u64
}
