//! The links that messages pass, and when each is free.

use super::model::{Model, picoseconds, transfer};

/// When each link is free again, in picoseconds.
#[derive(Debug)]
pub(super) struct Links {
    /// Cards of hosts outwards, inwards, uplinks of racks outwards, inwards, ranks outwards and inwards within their host.
    free: Vec<u64>,
    hosts: usize,
    racks: usize,
    ranks: usize,
}

/// A link on the way of a message.
struct Hop {
    link: usize,
    speed: f64,
    /// From the link before, in picoseconds.
    latency: u64,
}

/// Where a message is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passage {
    hop: u8,
    /// When the last byte gets to the next link.
    last: u64,
}

/// What happens to a message when its first byte has got to a link.
pub(super) struct Passed {
    /// When the link has taken the last byte.
    pub(super) taken: u64,
    /// When the first byte is at the next link; `None` if this was the last.
    pub(super) next: Option<u64>,
}

impl Links {
    pub(super) fn new(model: &Model, ranks: usize) -> Links {
        let (hosts, racks) = (model.host(ranks - 1) + 1, model.rack(ranks - 1) + 1);
        Links { free: vec![0; 2 * (hosts + racks + ranks)], hosts, racks, ranks }
    }

    /// Lets a message whose first byte is at its next link pass it. A link works through what passes in the order in which it comes; bytes go on as they come.
    pub(super) fn pass(
        &mut self,
        model: &Model,
        (from, to): (usize, usize),
        bytes: usize,
        now: u64,
        passage: &mut Passage,
    ) -> Passed {
        let hop = self.hop(model, from, to, passage.hop);
        let time = transfer(bytes, hop.speed);
        let taken = now.max(self.free[hop.link]).saturating_add(time);
        self.free[hop.link] = taken;
        passage.hop += 1;
        // A fast link takes its share of the work while the message comes slowly: only work that is behind then makes it wait.
        let alone = passage.last.max(now.saturating_add(time));
        let last = passage.last.max(taken);
        let waited = last - alone;
        let next = (passage.hop < hops(model, from, to)).then(|| self.hop(model, from, to, passage.hop).latency);
        passage.last = last.saturating_add(next.unwrap_or(0));
        Passed { taken: last, next: next.map(|latency| now.saturating_add(waited).saturating_add(latency)) }
    }

    fn hop(&self, model: &Model, from: usize, to: usize, index: u8) -> Hop {
        let (uplinks, within) = (2 * self.hosts, 2 * (self.hosts + self.racks));
        let hop = |link, speed, latency| Hop { link, speed, latency: picoseconds(latency) };
        let zero = std::time::Duration::ZERO;
        match (hops(model, from, to), index) {
            (2, 0) if model.host(from) == model.host(to) => hop(within + from, model.host_bandwidth, zero),
            (2, _) if model.host(from) == model.host(to) => {
                hop(within + self.ranks + to, model.host_bandwidth, model.host_latency)
            }
            (_, 0) => hop(model.host(from), model.bandwidth, zero),
            (4, 1) => hop(uplinks + model.rack(from), model.uplink, zero),
            (4, 2) => hop(uplinks + self.racks + model.rack(to), model.uplink, model.rack_latency),
            _ => hop(self.hosts + model.host(to), model.bandwidth, model.latency),
        }
    }
}

fn hops(model: &Model, from: usize, to: usize) -> u8 {
    if model.rack(from) == model.rack(to) { 2 } else { 4 }
}
