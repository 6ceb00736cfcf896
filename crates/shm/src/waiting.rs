//! Driving an operation to its end: poll, pause, look for trouble.

use crate::comm::{Comm, MAIL};
use crate::ctl::{Poison, PoisonKind};
use crate::failure::{left_error, lost_error};
use crate::futex;
use crate::pause::{Pause, Step};
use rankwise_core::descriptor;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_world::PeerStatus;
use std::future::Future;
use std::hint::spin_loop;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Resolves when the condition holds. Which member it waits for is noted for the one who drives it.
pub(crate) struct Until<'a, F> {
    comm: &'a Comm,
    /// As in [`Comm::waiting`].
    waits_for: usize,
    pending: bool,
    condition: F,
}

impl<F: Fn() -> bool + Unpin> Future for Until<'_, F> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if (self.condition)() {
            if self.pending {
                self.comm.moves.fetch_add(1, Ordering::Relaxed);
            }
            return Poll::Ready(());
        }
        if !self.pending {
            for _ in 0..self.comm.burst.load(Ordering::Relaxed) {
                spin_loop();
                if (self.condition)() {
                    return Poll::Ready(());
                }
            }
            self.pending = true;
        }
        self.comm.waiting.store(self.waits_for, Ordering::Relaxed);
        Poll::Pending
    }
}

/// Trouble found while waiting.
enum Trouble {
    Adopted(usize, Poison),
    Left(usize),
    Lost(usize),
    /// With whom it waits for, as in [`Comm::waiting`].
    Deadline(Option<usize>),
}

impl Trouble {
    /// Whether it is what was found before; poison and the deadline don't go away.
    fn is_still(&self, before: &Trouble) -> bool {
        match (self, before) {
            (Trouble::Left(q) | Trouble::Lost(q), Trouble::Left(p) | Trouble::Lost(p)) => q == p,
            (Trouble::Left(_) | Trouble::Lost(_), _) => false,
            _ => true,
        }
    }
}

impl Comm {
    /// Waits for `member` to publish what makes `condition` true.
    #[inline]
    pub(crate) fn until<F: Fn() -> bool + Unpin>(&self, member: usize, condition: F) -> Until<'_, F> {
        Until { comm: self, waits_for: member, pending: false, condition }
    }

    /// As [`Comm::until`], for a send or receive.
    #[inline]
    pub(crate) fn until_mail<F: Fn() -> bool + Unpin>(&self, member: usize, condition: F) -> Until<'_, F> {
        Until { comm: self, waits_for: member | MAIL, pending: false, condition }
    }

    /// The member that the last polled operation waits for, if any.
    fn awaited(&self) -> Option<usize> {
        let member = self.waiting.load(Ordering::Relaxed) & !MAIL;
        (member < self.members()).then_some(member)
    }

    /// Runs an operation to its end on this thread.
    #[inline]
    pub(crate) fn drive(&self, operation: impl Future<Output = Result<()>>, deadline: Duration) -> Result<()> {
        let mut operation = pin!(operation);
        let mut context = Context::from_waker(Waker::noop());
        match operation.as_mut().poll(&mut context) {
            Poll::Ready(result) => result,
            Poll::Pending => self.wait_while(
                &mut || match operation.as_mut().poll(&mut context) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                },
                &|| vec![self.waiting.load(Ordering::Relaxed)],
                deadline,
            ),
        }
    }

    /// Calls `look` until it returns something, pausing in between; fails on poison, on leaving or death of a member among
    /// `awaited` (as in `Comm::waiting`), and at the deadline.
    pub(crate) fn wait_while(
        &self,
        look: &mut dyn FnMut() -> Option<Result<()>>,
        awaited: &dyn Fn() -> Vec<usize>,
        deadline: Duration,
    ) -> Result<()> {
        let mut pause = Pause::new(self.rules);
        let mut moves = self.moves.load(Ordering::Relaxed);
        loop {
            if let Some(result) = look() {
                return result;
            }
            let shared = self.rank.outstanding.any();
            if shared {
                self.rank.outstanding.progress(Some(self));
            }
            let now = self.moves.load(Ordering::Relaxed);
            if now != moves {
                moves = now;
                pause.progressed();
            }
            let (step, check) = pause.step();
            match step {
                Step::Spin => (0..8).for_each(|_| spin_loop()),
                Step::Yield => std::thread::yield_now(),
                Step::Sleep(limit) => {
                    let rest = deadline.saturating_sub(pause.began.elapsed());
                    // Other communicators may move without ringing this one's bells.
                    let limit = if shared { Duration::from_millis(1) } else { limit };
                    if let Some(result) = self.sleep(look, limit.min(rest)) {
                        return result;
                    }
                }
            }
            if check {
                let late = pause.began.elapsed() >= deadline;
                if let Some(error) = self.look_for_trouble(look, awaited, late, step, &pause)? {
                    return error;
                }
            }
        }
    }

    /// One look at peers, poison and, when `late`, the deadline. `Ok(Some(..))` when the wait ended after all.
    ///
    /// What is complete stays complete: a peer may have failed or left after doing its part. So after trouble is found the operation
    /// is looked at once more, and only trouble that is still in its way counts.
    fn look_for_trouble(
        &self,
        look: &mut dyn FnMut() -> Option<Result<()>>,
        awaited: &dyn Fn() -> Vec<usize>,
        late: bool,
        step: Step,
        pause: &Pause,
    ) -> Result<Option<Result<()>>> {
        let Some(found) = self.find_trouble(&awaited(), late, step) else { return Ok(None) };
        if let Some(result) = look() {
            return Ok(Some(result));
        }
        match self.find_trouble(&awaited(), late, step) {
            Some(trouble) if trouble.is_still(&found) => Err(self.raise(trouble, pause.began.elapsed())),
            _ => Ok(None),
        }
    }

    /// [`Comm::wait_while`] for those who only test: one look, no pause.
    pub(crate) fn test(
        &self,
        look: &mut dyn FnMut() -> Option<Result<()>>,
        awaited: &dyn Fn() -> Vec<usize>,
        pause: &Pause,
        deadline: Duration,
    ) -> Result<Option<Result<()>>> {
        let late = pause.began.elapsed() >= deadline;
        self.look_for_trouble(look, awaited, late, Step::Sleep(Duration::ZERO), pause)
    }

    /// One sleep on the bell of the member that is waited for.
    fn sleep(&self, look: &mut dyn FnMut() -> Option<Result<()>>, limit: Duration) -> Option<Result<()>> {
        let Some(member) = self.awaited() else {
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return None;
        };
        let bell = self.own().prepare_sleep(member, self.ctl(member));
        let result = look();
        if result.is_none()
            && self.awaited() == Some(member)
            && self.any_poison(self.waiting.load(Ordering::Relaxed) & MAIL != 0).is_none()
            && !self.ctl(member).has_left()
        {
            futex::wait(self.ctl(member).bell(), bell, limit);
        }
        self.own().finish_sleep();
        result
    }

    /// A poison that concerns what this rank is in. One of a later call does not, since its owner has completed this one;
    /// but an abort ends everything that is not complete, and sends and receives (`mail`) have no place in that order.
    fn any_poison(&self, mail: bool) -> Option<(usize, Poison)> {
        let seq = self.current_seq();
        (0..self.members())
            .filter_map(|q| Some((q, self.ctl(q).poisoned()?)))
            .find(|(_, poison)| mail || poison.kind == PoisonKind::Aborted || poison.concerns(seq))
    }

    fn find_trouble(&self, awaited: &[usize], late: bool, step: Step) -> Option<Trouble> {
        // What waits decides, not what was called last: started calls of both sorts may be in flight.
        let mail = awaited.iter().any(|waits_for| *waits_for != usize::MAX && waits_for & MAIL != 0);
        if let Some((member, poison)) = self.any_poison(mail) {
            return Some(Trouble::Adopted(member, poison));
        }
        // Asking the kernel takes a microsecond: not while spinning.
        let ask = late || matches!(step, Step::Sleep(_));
        let awaited_members = awaited.iter().map(|waits_for| waits_for & !MAIL);
        let gone = awaited_members.filter(|q| *q < self.members()).find_map(|q| self.is_gone(q, ask));
        // A collective needs every member, not only the one it looks at now.
        let seq = self.current_seq();
        let in_collective = ask && awaited.iter().any(|waits_for| waits_for & MAIL == 0);
        let missing = || self.others().filter(|q| !self.ctl(*q).has_posted(seq)).find_map(|q| self.is_gone(q, ask));
        gone.or_else(|| in_collective.then(missing).flatten())
            .or_else(|| late.then(|| Trouble::Deadline(awaited.first().copied())))
    }

    /// Whether a member has left, or `ask`ing the kernel, died.
    fn is_gone(&self, member: usize, ask: bool) -> Option<Trouble> {
        if member == self.me {
            return None;
        }
        if self.ctl(member).has_left() {
            return Some(Trouble::Left(member));
        }
        if !ask || self.rank.world.liveness().status(self.global(member)) != PeerStatus::Gone {
            return None;
        }
        // It may have left properly in between.
        Some(if self.ctl(member).has_left() { Trouble::Left(member) } else { Trouble::Lost(member) })
    }

    #[cold]
    fn raise(&self, trouble: Trouble, elapsed: Duration) -> Error {
        let (kind, culprit, error) = match trouble {
            Trouble::Adopted(member, poison) => self.adopted(member, poison),
            Trouble::Left(member) => {
                let rank = self.global(member);
                (PoisonKind::Left, rank, left_error(rank))
            }
            Trouble::Lost(member) => {
                let rank = self.global(member);
                (PoisonKind::Lost, rank, lost_error(rank))
            }
            Trouble::Deadline(waits_for) => self.timed_out(waits_for),
        };
        self.fail(kind, culprit, error.with_elapsed(elapsed))
    }

    fn mail_timed_out(&self, member: usize) -> (PoisonKind, usize, Error) {
        let rank = self.global(member);
        let (last, words) = self.ctl(member).last_posted();
        let seen = match last {
            0 => "it has called no collective yet".to_string(),
            last => format!("its last collective was call {last}, {}", descriptor::describe(words)),
        };
        let error = Error::new(
            ErrorKind::Timeout,
            format!(
                "rank {rank} has not taken part ({seen}): a send waits when the receiver's mailbox is full, a receive until \
                 the message comes; make both ranks call, in the same order, or raise the deadline"
            ),
        )
        .with_peers([rank]);
        (PoisonKind::Timeout, rank, error)
    }

    /// Names the members that have not arrived and what they were last seen doing.
    fn timed_out(&self, waits_for: Option<usize>) -> (PoisonKind, usize, Error) {
        let seq = self.current_seq();
        let awaited = waits_for.map(|member| member & !MAIL).filter(|member| *member < self.members());
        if let (Some(member), Some(true)) = (awaited, waits_for.map(|member| member & MAIL != 0)) {
            return self.mail_timed_out(member);
        }
        let mut missing: Vec<usize> = self.others().filter(|q| !self.ctl(*q).has_posted(seq)).collect();
        missing.sort_unstable();
        let arrived = missing.is_empty() || awaited.is_some_and(|member| !missing.contains(&member));
        if arrived {
            missing = awaited.into_iter().collect();
        }
        let seen = |q: &usize| {
            let (last, words) = self.ctl(*q).last_posted();
            let rank = self.global(*q);
            match last {
                0 => format!("rank {rank} has called nothing yet"),
                last if last >= seq => {
                    format!("rank {rank} is in call {last}, {}, but does not move", descriptor::describe(words))
                }
                last => format!("rank {rank} was last seen in call {last}, {}", descriptor::describe(words)),
            }
        };
        let few: Vec<String> = missing.iter().take(8).map(seen).collect();
        let more = missing.len().saturating_sub(few.len());
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let ranks: Vec<usize> = missing.iter().map(|q| self.global(*q)).collect();
        let what = if arrived { "stand still" } else { "have not arrived" };
        let error = Error::new(
            ErrorKind::Timeout,
            format!(
                "ranks {ranks:?} {what}: {}{more}; they are stopped, busy, or call something else: look at them, or raise the deadline",
                few.join("; ")
            ),
        )
        .with_peers(ranks.iter().copied());
        (PoisonKind::Timeout, ranks.first().copied().unwrap_or(self.global(self.me)), error)
    }
}
