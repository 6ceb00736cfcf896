//! A call as steps over wires: step k sends to the k-th next member and receives from the k-th previous one.
//!
//! A message leaves its source some time after it was posted, and only when the sender makes progress, as rendezvous
//! transports do; messages overtake each other.

use super::exchange::{Descriptor, Exchange};
use super::{Fate, Key, Member, lock};
use rankwise_core::Result;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Message = Result<(Arc<Descriptor>, Vec<u8>)>;

/// The wires of one communicator: messages by call, sender and receiver.
#[derive(Default)]
pub(crate) struct Wires {
    pub(crate) arrived: Mutex<HashMap<(Key, usize, usize), Message>>,
    pub(crate) fate: Fate,
}

/// One call under way.
pub(crate) struct Steps {
    pub(crate) key: Key,
    pub(crate) x: Exchange,
    /// When the message of the current step leaves; `None` when it has left.
    pub(crate) sends_at: Option<Instant>,
    pub(crate) heard: Vec<(Arc<Descriptor>, Vec<u8>)>,
}

/// A delay that differs from message to message, so that they overtake each other.
pub(crate) fn departure(from: usize, to: usize) -> Option<Instant> {
    static SALT: AtomicU64 = AtomicU64::new(1);
    let salt = SALT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    Some(Instant::now() + Duration::from_micros((salt + 31 * from as u64 + 7 * to as u64) % 200))
}

impl Steps {
    /// The peers of the current step: to whom, and from whom.
    pub(crate) fn pair(&self, me: usize) -> (usize, usize) {
        let (n, k) = (self.x.peers.len(), self.heard.len());
        if n < self.x.participants { (self.x.peers[0], self.x.peers[0]) } else { ((me + k) % n, (me + n - k) % n) }
    }

    /// Goes on as far as it can; true when the result is delivered. Not blocking. An error is final.
    ///
    /// Only while the call's memory is lent: the engine drops the steps of an idle work.
    pub(crate) fn advance(&mut self, member: &Member, wires: &Wires) -> Result<bool> {
        let me = member.me;
        while self.heard.len() < self.x.peers.len() {
            let (to, from) = self.pair(me);
            let mut arrived = lock(&wires.arrived);
            if self.sends_at.is_some_and(|at| Instant::now() >= at) {
                // SAFETY: the flight is in the engine's list, so its memory is lent.
                let message = unsafe { self.x.outgoing(to) };
                arrived.insert((self.key, me, to), Ok((Arc::clone(&self.x.descriptor), message)));
                self.sends_at = None;
            }
            for peer in &self.x.peers {
                if let Some(Err(why)) = arrived.get(&(self.key, *peer, me)) {
                    return Err(member.peer_rejected(*peer, why));
                }
            }
            if self.sends_at.is_some() || !arrived.contains_key(&(self.key, from, me)) {
                return Ok(false);
            }
            self.heard.extend(arrived.remove(&(self.key, from, me)).and_then(Result::ok));
            self.sends_at = departure(me, to);
        }
        // The folding order is the group's, not that of arrival.
        let (n, all) = (self.heard.len(), std::mem::take(&mut self.heard));
        let mut ordered: Vec<_> = all.into_iter().enumerate().map(|(k, m)| ((me + n - k) % n, m)).collect();
        ordered.sort_by_key(|(position, _)| *position);
        let headers: Vec<_> = ordered.iter().map(|(_, (d, bytes))| (Arc::clone(d), bytes.len())).collect();
        let rank_of = |p| member.group.global(p).unwrap_or(p);
        if let Some(error) = self.x.disagreement(&headers, rank_of) {
            return Err(wires.fate.set(error));
        }
        // SAFETY: as above.
        unsafe { self.x.deliver(&ordered.into_iter().map(|(_, (_, bytes))| bytes).collect::<Vec<_>>()) };
        Ok(true)
    }
}
