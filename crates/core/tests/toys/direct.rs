//! A toy over direct memory: ranks publish what they bring in a table, and read each other there; they only pull.
//!
//! A source is staged by a copy, so that a started call needs no progress by its owner. A blocking call whose source lies
//! in a segment publishes the address instead, and writes its result and returns only when all have read.

use super::exchange::Exchange;
use super::segment::Segment;
use super::table::{Bytes, Table};
use super::{Key, Meeting, Member, Toy, ends, host_only, offers};
use rankwise_core::backend::{RawBackend, RawCall, RawCommunicator, RawSegment, RawWork};
use rankwise_core::{Determinism, Error, OpKind, Queue, Result};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The backends of a world of `n` ranks.
pub(crate) fn world(n: usize) -> Vec<Arc<dyn RawBackend>> {
    let meeting = Meeting::<Table>::new();
    let backend = |rank| Toy {
        name: "toy-direct",
        rank,
        size: n,
        capabilities: offers(Determinism::Fixed, true),
        meeting: Arc::clone(&meeting),
        make: Box::new(|member, table| Arc::new(Direct { member: Arc::new(member), table })),
    };
    (0..n).map(|rank| Arc::new(backend(rank)) as Arc<dyn RawBackend>).collect()
}

#[derive(Clone)]
struct Direct {
    member: Arc<Member>,
    table: Arc<Table>,
}

struct Work {
    direct: Direct,
    parts: VecDeque<(Key, Exchange)>,
    until: Instant,
}

impl Direct {
    fn post(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration, stage: bool) -> Result<Work> {
        host_only(queue)?;
        self.member.enter(&self.table.fate)?;
        let mut parts = VecDeque::new();
        for call in calls {
            let x = Exchange::new(call, self.member.me, self.member.group.len());
            let key = self.member.key(call.kind, call.root);
            let bytes = match x.src.segment {
                Some(_) if !stage => Bytes::Published(x.src.ptr),
                // SAFETY: the caller lends the source until `run` or `start` returns at least.
                _ => Bytes::Staged((0..x.out.len()).map(|to| unsafe { x.outgoing(to) }).collect()),
            };
            // SAFETY: what is published, `run` withdraws on an error and otherwise waits until all have left.
            unsafe { self.table.post(&self.member, key, &x, bytes) };
            parts.push_back((key, x));
        }
        Ok(Work { direct: self.clone(), parts, until: ends(deadline) })
    }
}

// SAFETY: sources are read in `post` or while published, destinations are written in `run`, `test` and `wait` only, all
// by threads of this rank.
unsafe impl RawCommunicator for Direct {
    toy_members!();

    unsafe fn run(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<()> {
        let Work { parts, until, .. } = self.post(calls, queue, deadline, false)?;
        let finish = |(key, x): &(Key, Exchange)| {
            let pieces = self.table.wait(&self.member, *key, x, until)?;
            if x.src.segment.is_some() {
                self.table.all_left(&self.member, *key, x, until)?;
            }
            // SAFETY: the destination is lent until return, and nobody reads the source any more.
            unsafe { x.deliver(&pieces) };
            Ok(())
        };
        parts.iter().try_for_each(finish).inspect_err(|_| {
            parts.iter().filter(|(_, x)| x.src.segment.is_some()).for_each(|(key, _)| {
                self.table.withdraw(&self.member, *key);
            });
        })
    }

    unsafe fn start(&self, calls: &[RawCall<'_>], queue: Queue, deadline: Duration) -> Result<Box<dyn RawWork>> {
        Ok(Box::new(self.post(calls, queue, deadline, true)?))
    }

    fn reject(&self, kind: OpKind, why: &Error, calls: usize) {
        self.table.reject(&self.member, kind, why, calls);
    }

    fn alloc(&self, bytes: usize, deadline: Duration) -> Result<Arc<dyn RawSegment>> {
        // SAFETY: the call lends no memory.
        unsafe { self.run(&[Member::agreement(OpKind::Alloc, bytes)], Queue::Host, deadline) }?;
        Ok(Arc::new(Segment::new(bytes)?))
    }

    fn abort(&self) {
        self.table.break_with(self.member.aborted());
    }
}

impl Work {
    fn finish(
        &mut self,
        mut next: impl FnMut(&Direct, Key, &Exchange) -> Result<Option<Vec<Vec<u8>>>>,
    ) -> Result<bool> {
        while let Some((key, x)) = self.parts.pop_front() {
            let Some(pieces) = next(&self.direct, key, &x)? else {
                self.parts.push_front((key, x));
                return Ok(false);
            };
            // SAFETY: the work is not idle, so its destinations are lent.
            unsafe { x.deliver(&pieces) };
        }
        Ok(true)
    }
}

impl RawWork for Work {
    fn test(&mut self) -> Result<bool> {
        self.finish(|direct, key, x| direct.table.poll(&direct.member, key, x))
    }

    fn wait(&mut self, deadline: Duration) -> Result<()> {
        let until = ends(deadline).min(self.until);
        self.finish(|direct, key, x| direct.table.wait(&direct.member, key, x, until).map(Some)).map(|_| ())
    }

    fn order(&mut self, queue: Queue) -> Result<()> {
        host_only(queue).and_then(|()| self.wait(Duration::MAX))
    }

    fn cancel(&mut self) -> bool {
        self.parts.drain(..).for_each(|(key, x)| self.direct.table.skip(key, &x));
        true
    }

    fn detach(mut self: Box<Self>, owned: Box<dyn Any + Send>) {
        self.cancel();
        drop(owned);
    }
}
