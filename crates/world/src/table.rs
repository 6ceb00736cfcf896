//! What the store knows: values, and who waits for what. Pure state, no waiting and no input or output, so that the
//! hub of processes and the store of threads behave alike.

mod situation;

use crate::failure::{Cause, Failure, RankEnd};
use crate::store::{Attachment, MAX_STORE};
use situation::{plural, tuple};
use std::any::Any;
use std::collections::HashMap;
#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Most notes that a table keeps.
#[cfg(target_os = "linux")]
const MAX_NOTES: usize = 4;

/// An attachment on its way to several receivers.
#[derive(Clone, Default)]
pub(crate) enum Carried {
    #[default]
    None,
    #[cfg(unix)]
    Fd(Arc<OwnedFd>),
    Local(Arc<dyn Any + Send + Sync>),
}

impl From<Attachment> for Carried {
    fn from(attachment: Attachment) -> Carried {
        match attachment {
            Attachment::None => Carried::None,
            #[cfg(unix)]
            Attachment::Fd(fd) => Carried::Fd(Arc::new(fd)),
            Attachment::Local(object) => Carried::Local(object),
        }
    }
}

pub(crate) enum Request {
    Set {
        key: String,
        value: Vec<u8>,
    },
    Get {
        key: String,
    },
    Wait {
        key: String,
    },
    Add {
        key: String,
        delta: i64,
    },
    Delete {
        key: String,
    },
    Exchange {
        key: String,
        what: String,
        members: Vec<u32>,
        payload: Vec<u8>,
        carried: Carried,
    },
    /// Gives up on an earlier request; that one is answered with a timeout unless it has been answered already.
    Cancel {
        ticket: u64,
    },
}

/// What all members of an exchange receive, in group order.
pub(crate) type Items = Arc<[(Vec<u8>, Carried)]>;

#[derive(Clone)]
pub(crate) enum Reply {
    Done,
    Value(Option<Vec<u8>>),
    Number(i64),
    Flag(bool),
    Items(Items),
    Failed(Failure),
}

/// A reply to a request, addressed by rank and ticket.
pub(crate) struct Answer {
    pub(crate) rank: usize,
    pub(crate) ticket: u64,
    pub(crate) reply: Reply,
}

pub(crate) struct Table {
    values: HashMap<String, Vec<u8>>,
    bytes: usize,
    meetings: HashMap<String, Meeting>,
    waiting: HashMap<(usize, u64), Waiting>,
    ranks: Vec<RankRecord>,
    /// What else may explain that somebody is missing.
    notes: Vec<String>,
}

#[derive(Clone, Default)]
struct RankRecord {
    end: Option<RankEnd>,
    /// The last thing this rank gave up on: peers that time out a moment later still learn it.
    gave_up: Option<(String, Instant)>,
}

struct Meeting {
    members: Vec<u32>,
    arrived: Vec<Option<Arrival>>,
    missing: usize,
}

struct Arrival {
    ticket: u64,
    payload: Vec<u8>,
    carried: Carried,
}

struct Waiting {
    key: String,
    /// None: waits for the key to be set.
    exchange: Option<String>,
    since: Instant,
}

impl Table {
    pub(crate) fn new(size: usize) -> Table {
        Table {
            values: HashMap::new(),
            bytes: 0,
            meetings: HashMap::new(),
            waiting: HashMap::new(),
            ranks: vec![RankRecord::default(); size],
            notes: Vec::new(),
        }
    }

    /// Whether any request is unanswered.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds to what is said to those who give up waiting. The first few are kept; whether this one is.
    #[cfg(target_os = "linux")]
    pub(crate) fn note(&mut self, note: &str) -> bool {
        let kept = self.notes.len() < MAX_NOTES && !self.notes.iter().any(|known| known == note);
        if kept {
            self.notes.push(note.into());
        }
        kept
    }

    /// Whether this request waits for others at this key.
    #[cfg(target_os = "linux")]
    pub(crate) fn waits_at(&self, rank: usize, ticket: u64, key: &str) -> bool {
        self.waiting.get(&(rank, ticket)).is_some_and(|waiting| waiting.exchange.is_some() && waiting.key == key)
    }

    /// Answers all unanswered requests as if they had been given up.
    #[cfg(target_os = "linux")]
    pub(crate) fn cancel_all(&mut self, answers: &mut Vec<Answer>) {
        for (rank, ticket) in self.waiting.keys() {
            let Some(failure) = self.given_up(*rank, *ticket) else { continue };
            answers.push(Answer { rank: *rank, ticket: *ticket, reply: Reply::Failed(failure) });
        }
        self.waiting.clear();
        self.meetings.clear();
    }

    /// Takes a request of a rank; appends the answers it causes, of others too.
    pub(crate) fn handle(&mut self, rank: usize, ticket: u64, request: Request, answers: &mut Vec<Answer>) {
        let reply = match request {
            Request::Set { key, value } => self.set(key, value, answers),
            Request::Get { key } => Reply::Value(self.values.get(&key).cloned()),
            Request::Wait { key } => match self.wait(rank, ticket, key) {
                Some(reply) => reply,
                None => return,
            },
            Request::Add { key, delta } => self.add(key, delta, answers),
            Request::Delete { key } => Reply::Flag(self.remove(&key)),
            Request::Exchange { key, what, members, payload, carried } => {
                let arrival = Arrival { ticket, payload, carried };
                match self.exchange(rank, key, what, members, arrival, answers) {
                    Ok(()) => return,
                    Err(failure) => Reply::Failed(failure),
                }
            }
            Request::Cancel { ticket } => {
                self.cancel(rank, ticket, answers);
                return;
            }
        };
        answers.push(Answer { rank, ticket, reply });
    }

    /// Records the end of a rank and fails those who wait for it. Only the first end of a rank counts.
    pub(crate) fn rank_gone(&mut self, rank: usize, end: RankEnd, answers: &mut Vec<Answer>) {
        let Some(record) = self.ranks.get_mut(rank) else { return };
        if record.end.is_some() {
            return;
        }
        record.end = Some(end);
        self.waiting.retain(|(waiter, _), _| *waiter != rank);
        let dead: Vec<String> = self
            .meetings
            .iter()
            .filter(|(_, meeting)| meeting.members.contains(&(rank as u32)))
            .map(|(key, _)| key.clone())
            .collect();
        for key in dead {
            let Some(meeting) = self.meetings.remove(&key) else { continue };
            let what = self.waiting.values().find(|waiting| waiting.key == key).and_then(|w| w.exchange.clone());
            let failure = self.ended(rank, what.as_deref().unwrap_or("an exchange"));
            for (member, arrival) in meeting.members.iter().zip(meeting.arrived) {
                let Some(arrival) = arrival else { continue };
                let member = *member as usize;
                if member != rank {
                    self.waiting.remove(&(member, arrival.ticket));
                    answers.push(Answer {
                        rank: member,
                        ticket: arrival.ticket,
                        reply: Reply::Failed(failure.clone()),
                    });
                }
            }
        }
        let living: Vec<usize> = (0..self.ranks.len()).filter(|r| self.ranks[*r].end.is_none()).collect();
        if let [last] = living[..] {
            let stranded: Vec<_> = self
                .waiting
                .iter()
                .filter(|((waiter, _), waiting)| *waiter == last && waiting.exchange.is_none())
                .map(|(id, waiting)| (*id, waiting.key.clone()))
                .collect();
            for ((waiter, ticket), key) in stranded {
                self.waiting.remove(&(waiter, ticket));
                let failure = self.all_others_ended(&key);
                answers.push(Answer { rank: waiter, ticket, reply: Reply::Failed(failure) });
            }
        }
    }

    fn set(&mut self, key: String, value: Vec<u8>, answers: &mut Vec<Answer>) -> Reply {
        let old = self.values.get(&key).map_or(0, |old| old.len() + key.len());
        let bytes = self.bytes - old + key.len() + value.len();
        if bytes > MAX_STORE {
            let text = format!("the store is full at {MAX_STORE} bytes; delete keys that are no longer needed");
            return Reply::Failed(Failure { cause: Cause::Full, peers: Vec::new(), text });
        }
        self.bytes = bytes;
        let woken: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.exchange.is_none() && waiting.key == key)
            .map(|(id, _)| *id)
            .collect();
        for (rank, ticket) in woken {
            self.waiting.remove(&(rank, ticket));
            answers.push(Answer { rank, ticket, reply: Reply::Value(Some(value.clone())) });
        }
        self.values.insert(key, value);
        Reply::Done
    }

    fn wait(&mut self, rank: usize, ticket: u64, key: String) -> Option<Reply> {
        if let Some(value) = self.values.get(&key) {
            return Some(Reply::Value(Some(value.clone())));
        }
        let others_ended = self.ranks.iter().enumerate().all(|(other, record)| other == rank || record.end.is_some());
        if others_ended && self.ranks.len() > 1 {
            return Some(Reply::Failed(self.all_others_ended(&key)));
        }
        self.waiting.insert((rank, ticket), Waiting { key, exchange: None, since: Instant::now() });
        None
    }

    fn add(&mut self, key: String, delta: i64, answers: &mut Vec<Answer>) -> Reply {
        let old = match self.values.get(&key) {
            None => 0,
            Some(bytes) => match <[u8; 8]>::try_from(&bytes[..]) {
                Ok(bytes) => i64::from_le_bytes(bytes),
                Err(_) => {
                    let text = format!("key `{key}` holds {} bytes and is no counter", bytes.len());
                    return Reply::Failed(Failure::invalid(text));
                }
            },
        };
        let sum = old.wrapping_add(delta);
        match self.set(key, sum.to_le_bytes().to_vec(), answers) {
            Reply::Done => Reply::Number(sum),
            failed => failed,
        }
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.bytes -= key.len() + value.len();
        true
    }

    fn exchange(
        &mut self,
        rank: usize,
        key: String,
        what: String,
        members: Vec<u32>,
        arrival: Arrival,
        answers: &mut Vec<Answer>,
    ) -> Result<(), Failure> {
        let size = self.ranks.len();
        let mut distinct = members.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != members.len() || distinct.last().is_none_or(|last| *last as usize >= size) {
            return Err(Failure::invalid(format!("the members of `{what}` are no group of a world of {size}")));
        }
        let Some(position) = members.iter().position(|member| *member as usize == rank) else {
            return Err(Failure::invalid(format!("rank {rank} is not among the members of `{what}`")));
        };
        if let Some(gone) = members.iter().find(|member| self.ranks[**member as usize].end.is_some()) {
            return Err(self.ended(*gone as usize, &what));
        }
        let n = members.len();
        let meeting = self.meetings.entry(key.clone()).or_insert_with(|| Meeting {
            members: members.clone(),
            arrived: (0..n).map(|_| None).collect(),
            missing: n,
        });
        if meeting.members != members {
            return Err(Failure::invalid(format!(
                "`{what}` meets over {} at key `{key}`, where others meet over {}; use one key per group",
                tuple(&members),
                tuple(&meeting.members)
            )));
        }
        if meeting.arrived[position].is_some() {
            return Err(Failure::invalid(format!(
                "rank {rank} is already in an exchange at key `{key}` from another thread"
            )));
        }
        self.waiting
            .insert((rank, arrival.ticket), Waiting { key: key.clone(), exchange: Some(what), since: Instant::now() });
        meeting.arrived[position] = Some(arrival);
        meeting.missing -= 1;
        if meeting.missing > 0 {
            return Ok(());
        }
        let Some(meeting) = self.meetings.remove(&key) else { return Ok(()) };
        let mut tickets = Vec::with_capacity(n);
        let items: Items = meeting
            .arrived
            .into_iter()
            .flatten()
            .map(|arrival| {
                tickets.push(arrival.ticket);
                (arrival.payload, arrival.carried)
            })
            .collect();
        for (member, ticket) in meeting.members.iter().zip(tickets) {
            let rank = *member as usize;
            self.waiting.remove(&(rank, ticket));
            answers.push(Answer { rank, ticket, reply: Reply::Items(items.clone()) });
        }
        Ok(())
    }

    fn cancel(&mut self, rank: usize, ticket: u64, answers: &mut Vec<Answer>) {
        // Answered in the meantime: that answer is on its way.
        let Some(failure) = self.given_up(rank, ticket) else { return };
        answers.push(Answer { rank, ticket, reply: Reply::Failed(failure) });
        let Some(Waiting { key, exchange: Some(what), .. }) = self.waiting.remove(&(rank, ticket)) else { return };
        let mut over = String::new();
        if let Some(meeting) = self.meetings.get_mut(&key) {
            over = tuple(&meeting.members);
            for (_, arrived) in meeting.members.iter().zip(&mut meeting.arrived).filter(|(m, _)| **m as usize == rank) {
                *arrived = None;
                meeting.missing += 1;
            }
            if meeting.missing == meeting.members.len() {
                self.meetings.remove(&key);
            }
        }
        self.ranks[rank].gave_up = Some((format!("`{what}` over {over}"), Instant::now()));
    }

    /// What a rank hears that gives up waiting; `None` when nothing waits under that ticket.
    fn given_up(&self, rank: usize, ticket: u64) -> Option<Failure> {
        let waiting = self.waiting.get(&(rank, ticket))?;
        let Some(what) = &waiting.exchange else {
            let text = format!("nobody has set key `{}`;{}", waiting.key, self.situation(rank, &[]));
            return Some(Failure { cause: Cause::Timeout, peers: Vec::new(), text });
        };
        let mut missing = Vec::new();
        let mut over = String::new();
        if let Some(meeting) = self.meetings.get(&waiting.key) {
            over = tuple(&meeting.members);
            let absent = meeting.members.iter().zip(&meeting.arrived).filter(|(_, arrived)| arrived.is_none());
            missing.extend(absent.map(|(member, _)| *member).filter(|member| *member as usize != rank));
        }
        let text = format!(
            "`{what}` over {over}: rank{} {} not arrived;{}; check that all members do this, with the same tuple and in the same order",
            plural(&missing),
            if missing.len() == 1 { "has" } else { "have" },
            self.situation(rank, &missing)
        );
        Some(Failure { cause: Cause::Timeout, peers: missing, text })
    }
}
