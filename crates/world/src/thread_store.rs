//! The store of ranks that are threads of one process, and of a rank alone.

use crate::deadline::Deadline;
use crate::failure::RankEnd;
use crate::store::{Attachment, Store, check_exchange, check_key, check_value, forked};
use crate::table::{Answer, Carried, Reply, Request, Table};
use rankwise_core::fork::Generation;
use rankwise_core::{Error, ErrorKind, Group, Result};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One rank's handle of the shared table.
pub(crate) struct ThreadStore {
    rank: usize,
    size: usize,
    meeting_place: Arc<MeetingPlace>,
    generation: Generation,
}

/// What the threads share.
pub(crate) struct MeetingPlace {
    state: Mutex<State>,
    answered: Condvar,
}

struct State {
    table: Table,
    replies: HashMap<(usize, u64), Reply>,
    next_ticket: u64,
}

impl MeetingPlace {
    pub(crate) fn new(size: usize) -> Arc<MeetingPlace> {
        let state = State { table: Table::new(size), replies: HashMap::new(), next_ticket: 0 };
        Arc::new(MeetingPlace { state: Mutex::new(state), answered: Condvar::new() })
    }

    pub(crate) fn rank_gone(&self, rank: usize, end: RankEnd) {
        let mut state = self.lock();
        let mut answers = Vec::new();
        state.table.rank_gone(rank, end, &mut answers);
        self.deliver(&mut state, answers);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of a user runs under the lock, and a table left by a panic is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, state: &mut State, answers: Vec<Answer>) {
        if !answers.is_empty() {
            state.replies.extend(answers.into_iter().map(|answer| ((answer.rank, answer.ticket), answer.reply)));
            self.answered.notify_all();
        }
    }
}

impl ThreadStore {
    pub(crate) fn new(rank: usize, size: usize, meeting_place: Arc<MeetingPlace>) -> ThreadStore {
        ThreadStore { rank, size, meeting_place, generation: Generation::current() }
    }

    fn call(&self, request: Request, limit: Duration) -> Result<Reply> {
        // The lock may have been held by a thread that does not exist here.
        if !self.generation.is_current() {
            return Err(forked());
        }
        let deadline = Deadline::after(limit);
        let place = &*self.meeting_place;
        let mut state = place.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let mut answers = Vec::new();
        state.table.handle(self.rank, ticket, request, &mut answers);
        place.deliver(&mut state, answers);
        let mut given_up = false;
        loop {
            if let Some(reply) = state.replies.remove(&(self.rank, ticket)) {
                return match reply {
                    Reply::Failed(failure) => Err(failure.into_error(self.rank).with_elapsed(deadline.elapsed())),
                    reply => Ok(reply),
                };
            }
            let left = deadline.remaining();
            if left.is_zero() {
                if given_up {
                    // Only when this rank was declared gone while one of its threads still called.
                    return Err(Error::new(ErrorKind::Closed, format!("rank {} has already returned", self.rank)));
                }
                given_up = true;
                let mut answers = Vec::new();
                state.table.handle(self.rank, ticket, Request::Cancel { ticket }, &mut answers);
                place.deliver(&mut state, answers);
                continue;
            }
            state = place.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask(&self, request: Request) -> Result<Reply> {
        self.call(request, Duration::from_secs(10))
    }
}

impl Store for ThreadStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.ask(Request::Set { key: key.into(), value: value.into() }).map(drop)
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        match self.ask(Request::Get { key: key.into() })? {
            Reply::Value(value) => Ok(value),
            _ => Ok(None),
        }
    }

    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        check_key(key)?;
        match self.call(Request::Wait { key: key.into() }, deadline)? {
            Reply::Value(value) => Ok(value.unwrap_or_default()),
            _ => Ok(Vec::new()),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        check_key(key)?;
        match self.ask(Request::Add { key: key.into(), delta })? {
            Reply::Number(sum) => Ok(sum),
            _ => Ok(0),
        }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_key(key)?;
        Ok(matches!(self.ask(Request::Delete { key: key.into() })?, Reply::Flag(true)))
    }

    fn exchange(
        &self,
        key: &str,
        what: &str,
        members: &Group,
        payload: &[u8],
        attachment: Attachment,
        deadline: Duration,
    ) -> Result<Vec<(Vec<u8>, Attachment)>> {
        check_exchange(key, members, payload, self.rank, self.size)?;
        if members.len() == 1 {
            return Ok(vec![(payload.to_vec(), attachment)]);
        }
        let request = Request::Exchange {
            key: key.into(),
            what: what.into(),
            members: members.ranks().map(|rank| rank as u32).collect(),
            payload: payload.into(),
            carried: attachment.into(),
        };
        let Reply::Items(items) = self.call(request, deadline)? else { return Ok(Vec::new()) };
        items
            .iter()
            .map(|(payload, carried)| {
                let attachment = match carried {
                    Carried::None => Attachment::None,
                    #[cfg(unix)]
                    Carried::Fd(fd) => Attachment::Fd(
                        fd.try_clone().map_err(|error| crate::limits::out_of_descriptors().with_source(error))?,
                    ),
                    Carried::Local(object) => Attachment::Local(object.clone()),
                };
                Ok((payload.clone(), attachment))
            })
            .collect()
    }
}
