//! A table where the members of a communicator meet: a row for each call, an entry in it for each member.

use super::exchange::{Descriptor, Exchange};
use super::{Fate, Key, Member, lock};
use rankwise_core::{Error, OpKind, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
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

struct Entry {
    descriptor: Arc<Descriptor>,
    ranges: Vec<Range<usize>>,
    bytes: Bytes,
}

/// What a member brings.
pub(crate) enum Bytes {
    /// Copies, one for each position.
    Staged(Vec<Vec<u8>>),
    /// The address of its source.
    Published(*const u8),
}

// SAFETY: a published address is read only under the table's lock while the entry is in it, and its rank takes the entry
// out, or has seen everybody read, before its call returns (`Table::post` asks for it).
unsafe impl Send for Bytes {}

impl Table {
    /// Enters a call. Not blocking.
    ///
    /// # Safety
    ///
    /// The source is lent; a published one until [`Table::all_left`] returned `Ok` or [`Table::withdraw`] was called.
    pub(crate) unsafe fn post(&self, member: &Member, key: Key, x: &Exchange, bytes: Bytes) {
        let entry = Entry { descriptor: Arc::clone(&x.descriptor), ranges: x.out.clone(), bytes };
        lock(&self.rows).entry(key).or_default().entries.insert(member.me, Ok(entry));
        self.changed.notify_all();
    }

    /// Enters a refused call for all to see.
    pub(crate) fn reject(&self, member: &Member, kind: OpKind, why: &Error, calls: usize) {
        for key in member.rejected_keys(kind, calls) {
            let mut rows = lock(&self.rows);
            rows.entry(key).or_default().entries.insert(member.me, Err(why.clone()));
            self.leave(&mut rows, key, member.group.len());
        }
    }

    /// What all brought, once all have come. Not blocking.
    pub(crate) fn poll(&self, member: &Member, key: Key, x: &Exchange) -> Result<Option<Vec<Vec<u8>>>> {
        self.read(&mut lock(&self.rows), member, key, x)
    }

    /// What all brought; breaks the communicator at the deadline.
    pub(crate) fn wait(&self, member: &Member, key: Key, x: &Exchange, until: Instant) -> Result<Vec<Vec<u8>>> {
        self.block(member, key, x, until, |rows| self.read(rows, member, key, x))
    }

    /// Waits until all have read.
    pub(crate) fn all_left(&self, member: &Member, key: Key, x: &Exchange, until: Instant) -> Result<()> {
        self.block(member, key, x, until, |rows| match rows.contains_key(&key) {
            true => member.interrupted(&self.fate).map(|()| None),
            false => Ok(Some(())),
        })
    }

    /// Takes this member's entry out: nobody reads its source after return.
    pub(crate) fn withdraw(&self, member: &Member, key: Key) {
        if let Some(row) = lock(&self.rows).get_mut(&key) {
            row.entries.remove(&member.me);
        }
    }

    /// Goes without the result; what was staged stays for the others.
    pub(crate) fn skip(&self, key: Key, x: &Exchange) {
        self.leave(&mut lock(&self.rows), key, x.participants);
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
        let headers: Vec<_> = heard.iter().map(|e| (Arc::clone(&e.descriptor), e.ranges[member.me].len())).collect();
        if let Some(error) = x.disagreement(&headers, |p| member.group.global(p).unwrap_or(p)) {
            return Err(self.broken(member, error));
        }
        let copy = |entry: &&Entry| match &entry.bytes {
            Bytes::Staged(pieces) => pieces[member.me].clone(),
            Bytes::Published(ptr) => {
                let range = &entry.ranges[member.me];
                // SAFETY: under the table's lock with the entry in it; see `Bytes`.
                unsafe { std::slice::from_raw_parts(ptr.add(range.start), range.len()) }.to_vec()
            }
        };
        let pieces = heard.iter().map(copy).collect();
        self.leave(rows, key, x.participants);
        Ok(Some(pieces))
    }

    /// Breaks the communicator, with the lock held; the error of a call that was running.
    fn broken(&self, member: &Member, error: Error) -> Error {
        let cause = self.fate.set(error);
        self.changed.notify_all();
        member.interrupted(&self.fate).err().unwrap_or(cause)
    }

    fn block<T>(
        &self,
        member: &Member,
        key: Key,
        x: &Exchange,
        until: Instant,
        mut ready: impl FnMut(&mut Rows) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut rows: MutexGuard<'_, Rows> = lock(&self.rows);
        loop {
            if let Some(value) = ready(&mut rows)? {
                return Ok(value);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let here = |p: &&usize| !rows.get(&key).is_some_and(|row| row.entries.contains_key(p));
                let missing: Vec<usize> = x.peers.iter().filter(here).copied().collect();
                return Err(self.broken(member, member.timeout(missing)));
            }
            rows = self.changed.wait_timeout(rows, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}
