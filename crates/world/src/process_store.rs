//! The store of ranks that are processes: a client of the hub, which is in our launcher or in rank 0.
//!
//! Any thread may call; requests carry tickets, so a long wait of one thread never holds up another.

use crate::deadline::Deadline;
use crate::environment::{PROTOCOL, RANK, WORLD_SIZE};
use crate::line::{Line, Outcome, Server};
use crate::link::Link;
use crate::store::{Attachment, Store, check_exchange, check_key, check_value, forked};
use crate::table::{Reply, Request};
use crate::wire::{self, Frame, MAX_WHAT, Seat};
use rankwise_core::fork::Generation;
use rankwise_core::{Error, ErrorKind, Group, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long the server may take for an answer that needs nobody else.
const PROMPT: Duration = Duration::from_secs(10);
/// How long it may take to say who is missing, once a deadline has passed.
const DIAGNOSIS: Duration = Duration::from_secs(1);

pub(crate) struct ProcessStore {
    rank: usize,
    size: usize,
    line: Arc<Line>,
    next_ticket: AtomicU64,
    generation: Generation,
}

impl ProcessStore {
    /// Says hello to the hub, which knows whose end of a socket this is: `Refused` when it is not this rank's of a world of
    /// this size. The caller holds its life lock already.
    pub(crate) fn connect(link: Link, rank: usize, size: usize, server: Server) -> Result<ProcessStore> {
        let store = ProcessStore {
            rank,
            size,
            line: Arc::new(Line::new(link, rank, server)),
            next_ticket: AtomicU64::new(1),
            generation: Generation::current(),
        };
        let ours = Seat { rank: rank as u32, size: size as u32 };
        match store.call(&Frame::Hello { protocol: PROTOCOL.into(), seat: ours }, PROMPT)? {
            Outcome::Seat(theirs) if theirs == ours => Ok(store),
            Outcome::Seat(theirs) => Err(another_seat(ours, theirs).with_rank(rank)),
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    fn call(&self, frame: &Frame, limit: Duration) -> Result<Outcome> {
        if !self.generation.is_current() {
            return Err(forked());
        }
        let deadline = Deadline::after(limit);
        // Relaxed: only uniqueness matters.
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        self.line.open(ticket);
        let result = self.converse(ticket, frame, &deadline);
        self.line.close(ticket);
        result.map_err(|error| error.with_rank(self.rank).with_elapsed(deadline.elapsed()))
    }

    fn converse(&self, ticket: u64, frame: &Frame, deadline: &Deadline) -> Result<Outcome> {
        // A launcher that takes no packet within ten seconds is stuck, whatever the deadline.
        self.line.send(ticket, frame, &Deadline::after(PROMPT))?;
        if let Some(outcome) = self.line.receive(ticket, deadline)? {
            return Ok(outcome);
        }
        let patience = Deadline::after(DIAGNOSIS);
        let cancel = Frame::Request(Request::Cancel { ticket });
        let cancel_ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        self.line.send(cancel_ticket, &cancel, &patience)?;
        match self.line.receive(ticket, &patience)? {
            Some(outcome) => Ok(outcome),
            None => Err(self.line.silent()),
        }
    }

    fn ask(&self, request: Request, limit: Duration) -> Result<Reply> {
        match self.call(&Frame::Request(request), limit)? {
            Outcome::Reply(reply) => Ok(reply),
            Outcome::Items(_) | Outcome::Seat(_) => Err(unexpected()),
        }
    }
}

impl Store for ProcessStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.ask(Request::Set { key: key.into(), value: value.into() }, PROMPT).map(drop)
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        match self.ask(Request::Get { key: key.into() }, PROMPT)? {
            Reply::Value(value) => Ok(value),
            _ => Err(unexpected()),
        }
    }

    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        check_key(key)?;
        match self.ask(Request::Wait { key: key.into() }, deadline)? {
            Reply::Value(Some(value)) => Ok(value),
            _ => Err(unexpected()),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        check_key(key)?;
        match self.ask(Request::Add { key: key.into(), delta }, PROMPT)? {
            Reply::Number(sum) => Ok(sum),
            _ => Err(unexpected()),
        }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_key(key)?;
        match self.ask(Request::Delete { key: key.into() }, PROMPT)? {
            Reply::Flag(there) => Ok(there),
            _ => Err(unexpected()),
        }
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
        if matches!(attachment, Attachment::Local(_)) && members.len() > 1 {
            return Err(Error::invalid(
                "an object of this process cannot be sent to another; send bytes or a descriptor",
            ));
        }
        if matches!(attachment, Attachment::Fd(_)) && members.len() > 1 && !self.line.carries_descriptors() {
            let kind = ErrorKind::Unsupported {
                function: "sending a descriptor".into(),
                needs: "all ranks on one host".into(),
                have: "ranks on several hosts".into(),
            };
            return Err(Error::new(kind, "send bytes instead"));
        }
        if members.len() == 1 {
            return Ok(vec![(payload.to_vec(), attachment)]);
        }
        let request = Request::Exchange {
            key: key.into(),
            what: wire::cut(what, MAX_WHAT).into(),
            members: members.ranks().map(|rank| rank as u32).collect(),
            payload: payload.into(),
            carried: attachment.into(),
        };
        match self.call(&Frame::Request(request), deadline)? {
            Outcome::Items(items) if items.len() == members.len() => Ok(items
                .into_iter()
                .map(|(payload, fd)| (payload, fd.map_or(Attachment::None, Attachment::Fd)))
                .collect()),
            _ => Err(unexpected()),
        }
    }
}

fn another_seat(ours: Seat, theirs: Seat) -> Error {
    let (key, ours, theirs) = match ours.size == theirs.size {
        true => (RANK, ours.rank, theirs.rank),
        false => (WORLD_SIZE, ours.size, theirs.size),
    };
    let kind = ErrorKind::Refused { key: key.into(), ours: ours.to_string(), theirs: theirs.to_string() };
    let message = "the environment does not say what the launcher gave this process; leave the variables RANKWISE_* as \
                   `rankwise launch` sets them";
    Error::new(kind, message)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Closed, "the answer is to something else than was asked; are the versions the same?")
}
