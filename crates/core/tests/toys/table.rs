//! A table where the members of a communicator meet: a row for each call, an entry in it for each member.

use super::exchange::{Descriptor, Exchange};
use super::{Fate, Key, Member, Parts, lock};
use rankwise_core::backend::Refusal;
use rankwise_core::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

type Rows = HashMap<Key, Row>;

#[derive(Default)]
pub(crate) struct Table {
    rows: Mutex<Rows>,
    changed: Condvar,
    pub(crate) fate: Fate,
}

#[derive(Default)]
struct Row {
    entries: HashMap<usize, Result<Entry>>,
    left: usize,
}

/// What a member brings: a copy for each position.
struct Entry {
    descriptor: Arc<Descriptor>,
    pieces: Vec<Vec<u8>>,
}

impl Table {
    /// Enters calls, with copies of their sources. Not blocking.
    ///
    /// # Safety
    ///
    /// The sources are lent until return.
    pub(crate) unsafe fn post(&self, member: &Member, parts: &Parts) {
        for (key, x) in parts {
            // SAFETY: the caller's promise.
            let pieces = (0..member.group.len()).map(|to| unsafe { x.outgoing(to) }).collect();
            let entry = Entry { descriptor: Arc::clone(&x.descriptor), pieces };
            lock(&self.rows).entry(*key).or_default().entries.insert(member.me, Ok(entry));
        }
        self.changed.notify_all();
    }

    /// Enters a refused call for all to see who meet it.
    pub(crate) fn reject(&self, member: &Member, refusal: &Refusal<'_>) {
        let (keys, meet) = member.refused(refusal);
        for key in keys {
            let mut rows = lock(&self.rows);
            rows.entry(key).or_default().entries.insert(member.me, Err(refusal.why.clone()));
            self.leave(&mut rows, key, meet.len());
        }
    }

    /// Delivers the parts that are complete, in order, and takes them out; true when all are. Until the moment given, waits
    /// for the others, and then breaks the communicator; without one only looks. After an error no part is left.
    ///
    /// # Safety
    ///
    /// The destinations of the parts are lent until they are taken out.
    pub(crate) unsafe fn finish(&self, member: &Member, parts: &mut Parts, until: Option<Instant>) -> Result<bool> {
        while let Some((key, x)) = parts.front() {
            let pieces = self.pieces(member, *key, x, until);
            if let Ok(None) = pieces {
                return Ok(false);
            }
            if let Ok(Some(pieces)) = &pieces {
                // SAFETY: the caller's promise.
                unsafe { x.deliver(pieces) };
            }
            parts.pop_front();
            pieces.inspect_err(|_| self.skip(parts))?;
        }
        Ok(true)
    }

    /// Goes without the results; what was copied stays for the others.
    pub(crate) fn skip(&self, parts: &mut Parts) {
        parts.drain(..).for_each(|(key, x)| self.leave(&mut lock(&self.rows), key, x.participants));
    }

    /// Breaks the communicator and wakes everybody.
    pub(crate) fn break_with(&self, error: Error) {
        self.fate.set(error);
        // Under the lock, or a waiter that has just looked at the fate would miss the wake.
        let _rows = lock(&self.rows);
        self.changed.notify_all();
    }

    fn leave(&self, rows: &mut Rows, key: Key, participants: usize) {
        let row = rows.entry(key).or_default();
        row.left += 1;
        if row.left == participants {
            rows.remove(&key);
        }
        self.changed.notify_all();
    }

    fn pieces(&self, member: &Member, key: Key, x: &Exchange, until: Option<Instant>) -> Result<Option<Vec<Vec<u8>>>> {
        let mut rows = lock(&self.rows);
        loop {
            let found = self.read(&mut rows, member, key, x)?;
            let Some(until) = until.filter(|_| found.is_none()) else { return Ok(found) };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let absent = |p: &&usize| !rows.get(&key).is_some_and(|row| row.entries.contains_key(p));
                let missing: Vec<usize> = x.peers.iter().filter(absent).copied().collect();
                return Err(self.broken(member, member.timeout(missing)));
            }
            rows = self.changed.wait_timeout(rows, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn read(&self, rows: &mut Rows, member: &Member, key: Key, x: &Exchange) -> Result<Option<Vec<Vec<u8>>>> {
        let row = rows.entry(key).or_default();
        if let Some((by, Err(why))) = row.entries.iter().find(|(_, entry)| entry.is_err()) {
            let error = member.peer_rejected(*by, why);
            self.leave(rows, key, x.participants);
            return Err(error);
        }
        let heard: Vec<&Entry> = x.peers.iter().filter_map(|p| row.entries.get(p)?.as_ref().ok()).collect();
        if heard.len() < x.peers.len() {
            return member.interrupted(&self.fate).map(|()| None);
        }
        let headers: Vec<_> = heard.iter().map(|e| (Arc::clone(&e.descriptor), e.pieces[member.me].len())).collect();
        if let Some(error) = x.disagreement(&headers, |p| member.group.global(p).unwrap_or(p)) {
            return Err(self.broken(member, error));
        }
        let pieces = heard.iter().map(|entry| entry.pieces[member.me].clone()).collect();
        self.leave(rows, key, x.participants);
        Ok(Some(pieces))
    }

    /// Breaks the communicator, with the lock held; the error of a call that was running.
    fn broken(&self, member: &Member, error: Error) -> Error {
        let cause = self.fate.set(error);
        self.changed.notify_all();
        member.interrupted(&self.fate).err().unwrap_or(cause)
    }
}
