//! What a rank does about failures: its own, those it hears of, and ranks that go.

use crate::channel::Channel;
use crate::core::Core;
use crate::job::Stage;
use crate::spoken::{self, Failure, Saying};
use crate::word::Word;
use rankwise_core::descriptor::{self, Words};
use rankwise_core::{Error, ErrorKind, Group, Result};
use rankwise_schedule::mismatch;
use rankwise_world::{Attachment, PeerStatus};
use std::time::Duration;

/// How long the others may take to say what they have called.
const DISPUTE: Duration = Duration::from_millis(250);
/// How long they may take to say how far they are.
const QUERY: Duration = Duration::from_millis(80);
/// How long a call may take before the others are asked whether they make the same one, and half of how often then.
const PATIENCE: Duration = Duration::from_millis(50);
/// How often it is looked whether the others are there.
const ROUND_OF_LOOKS: Duration = Duration::from_millis(10);
/// How long what a rank sent before it went may take to be taken in.
const LAST_MESSAGES: Duration = Duration::from_millis(5);
/// How long the store may take to say how a rank ended.
const ENDING: Duration = Duration::from_millis(300);

impl Core {
    /// A call has failed by itself.
    pub(crate) fn failed(&mut self, id: usize, error: Error) {
        let Some(job) = self.job(id) else { return };
        let (number, pair) = (job.channel, job.is_of_a_pair());
        match error.kind() {
            ErrorKind::PeerRejected => self.end(id, Err(error)),
            ErrorKind::Mismatch if !pair => self.disagree(id, Some(error)),
            ErrorKind::PeerLost => {
                let rank = error.peers().first().copied().unwrap_or(usize::MAX);
                let error = self.ending(rank);
                self.break_with(id, number, error);
            }
            _ => self.break_with(id, number, error),
        }
    }

    /// A call ends, and its communicator with it.
    pub(crate) fn break_with(&mut self, id: usize, number: u16, error: Error) {
        self.fail(number, error.clone(), true);
        if self.job(id).is_some_and(|job| !matches!(job.stage, Stage::Ended(_))) {
            self.end(id, Err(error));
        }
    }

    /// The members have called different things, this rank with a job that has failed or not begun.
    pub(crate) fn disagree(&mut self, id: usize, error: Option<Error>) {
        let Some(job) = self.job(id) else { return };
        let (number, sequence, words) = (job.channel, job.sequence, job.words);
        let until = self.now() + DISPUTE;
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let me = channel.me;
        channel.note(sequence, me, words);
        let rejected = channel.notes[&sequence].iter().flatten().any(|words| descriptor::refusal(*words).is_some());
        let others = channel.others();
        if !rejected {
            self.say(number, &others, Saying::Dispute, sequence, words);
        }
        let error = error.unwrap_or_else(|| Error::new(ErrorKind::Mismatch, "the ranks called different things"));
        if let Some(job) = self.jobs[id].as_mut() {
            job.stage = Stage::Asking { error, until: until.min(job.deadline) };
        }
        self.resolve(id);
    }

    /// What all descriptors that are known say together.
    fn verdict(&self, number: u16, sequence: u64) -> Option<(Error, bool)> {
        let channel = self.channels.get(&number)?;
        let notes = channel.notes.get(&sequence)?;
        let known: Vec<Words> = notes.iter().flatten().copied().collect();
        let votes = |words: &Words| known.iter().filter(|other| *other == words).count();
        // Who has not said anything has not refused.
        let called = known.iter().filter(|words| descriptor::refusal(**words).is_none());
        let usual = called.rev().max_by_key(|words| votes(words)).copied()?;
        let all: Vec<Words> = notes.iter().map(|words| words.unwrap_or(usual)).collect();
        let differ = all.iter().any(|words| *words != all[0]);
        differ.then(|| (descriptor::verdict(&channel.spec.group, channel.me, &all), known.len() == all.len()))
    }

    /// Ends a call that is asked around about, if enough is known.
    fn resolve(&mut self, id: usize) {
        let Some(job) = self.job(id) else { return };
        let Stage::Asking { error, until } = &job.stage else { return };
        let (number, sequence, late) = (job.channel, job.sequence, self.now() >= *until);
        let error = error.clone();
        if error.kind() == &ErrorKind::Timeout {
            return self.resolve_late(id, error, late);
        }
        let found = self.verdict(number, sequence);
        if let Some((verdict, _)) = found.as_ref().filter(|(error, _)| error.kind() == &ErrorKind::PeerRejected) {
            let verdict = verdict.clone();
            self.throw_away(number, sequence);
            return self.end(id, Err(verdict));
        }
        let error = match found {
            Some((verdict, whole)) if whole || late => verdict,
            _ if late => error,
            // Counts that differ pair by pair show in no descriptor.
            None if self.all_agree(number, sequence) => error,
            _ => return,
        };
        if let Some(channel) = self.channels.get_mut(&number)
            && channel.dispute.is_some_and(|(old, _)| old == sequence)
        {
            channel.dispute = None;
            self.fail(number, error, true);
            if let Some(channel) = self.channels.get_mut(&number) {
                channel.told = false;
            }
            return self.end(id, Ok(()));
        }
        self.break_with(id, number, error);
    }

    fn all_agree(&self, number: u16, sequence: u64) -> bool {
        let notes = self.channels.get(&number).and_then(|channel| channel.notes.get(&sequence));
        notes.is_some_and(|notes| notes.iter().all(Option::is_some))
    }

    fn resolve_late(&mut self, id: usize, error: Error, late: bool) {
        let Some(job) = self.job(id) else { return };
        let (number, sequence) = (job.channel, job.sequence);
        let Some(channel) = self.channels.get(&number) else { return };
        let seen = |member: usize| channel.seen[member];
        let others = || (0..channel.spec.group.len()).filter(|member| *member != channel.me);
        if !late && others().any(|member| seen(member).is_none()) {
            return;
        }
        let missing: Vec<usize> =
            others().filter(|member| seen(*member).is_none_or(|(begun, _)| begun < sequence)).collect();
        let said = |member: &usize| {
            let rank = channel.global(*member);
            match seen(*member) {
                None => format!("rank {rank} has not arrived and does not answer"),
                Some((0, _)) => format!("rank {rank} has not arrived; it has made no call on this group yet"),
                Some((begun, words)) => {
                    format!(
                        "rank {rank} has not arrived; its last call was {} (call {begun})",
                        descriptor::describe(words)
                    )
                }
            }
        };
        let error = if missing.is_empty() {
            error
        } else {
            let texts: Vec<String> = missing.iter().take(8).map(said).collect();
            let message = format!("{}; does it still compute, or is it stuck?", texts.join("; "));
            Error::new(ErrorKind::Timeout, message).with_peers(missing.iter().map(|member| channel.global(*member)))
        };
        self.break_with(id, number, error);
    }

    /// A communicator is at its end: all its calls fail, and later ones.
    pub(crate) fn fail(&mut self, number: u16, error: Error, tell: bool) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if channel.cause.is_some() {
            channel.told |= tell;
            return;
        }
        channel.cause = Some(error.clone());
        // Who tells has returned it to its own call.
        channel.told = tell;
        let (others, begun, rank) = (channel.others(), channel.begun, channel.global(channel.me));
        channel.queue.clear();
        for id in 0..self.jobs.len() {
            let Some(job) = self.job(id).filter(|job| job.channel == number) else { continue };
            match job.stage {
                Stage::Queued | Stage::Running(_) => {}
                _ => continue,
            }
            self.halt(id, &error);
            self.end(id, Err(error.clone()));
            if let Some(channel) = self.channels.get_mut(&number) {
                channel.told = true;
            }
        }
        if tell {
            let culprit = error.peers().first().copied().unwrap_or(rank);
            let what = Saying::Failed(Failure::of(error.kind()), culprit);
            self.say(number, &others, what, begun, [0; 3]);
        }
        self.transport().abandon(number);
    }

    /// How a rank ended that is not there any more.
    fn ending(&mut self, rank: usize) -> Error {
        let world = self.transport().world().clone();
        self.asked += 1;
        let key = format!("ucx/end/{}/{rank}/{}", world.rank(), self.asked);
        let said = Group::new([world.rank(), rank])
            .and_then(|both| world.store().exchange(&key, "how a rank ended", &both, &[], Attachment::None, ENDING));
        match said {
            Err(error) if error.kind() == &ErrorKind::PeerLeft => spoken::left(rank),
            _ => spoken::lost(rank),
        }
    }

    /// Words, deadlines, and ranks that have gone: to be called now and then by all who wait.
    pub(crate) fn look(&mut self) {
        while let Some(word) = self.transport().heard() {
            self.hear(word);
        }
        self.settle();
        let now = self.now();
        for id in 0..self.jobs.len() {
            let Some(job) = self.job(id) else { continue };
            match job.stage {
                Stage::Asking { .. } => self.resolve(id),
                Stage::Running(_) | Stage::Queued if now >= job.deadline => self.expire(id),
                Stage::Running(_) if !job.is_of_a_pair() && now >= job.asked + PATIENCE => self.ask(id),
                _ => {}
            }
        }
        self.resolve_disputes(now);
        if now - self.looked >= ROUND_OF_LOOKS {
            self.looked = now;
            self.look_for_the_living(now);
        }
        self.apply_departures(now);
        self.retire();
    }

    /// A call takes long: do the others make the same one?
    fn ask(&mut self, id: usize) {
        let now = self.now();
        let Some(job) = self.jobs[id].as_mut() else { return };
        job.asked = now + PATIENCE;
        let (number, sequence) = (job.channel, job.sequence);
        let others = self.channels.get(&number).map_or(Vec::new(), Channel::others);
        self.say(number, &others, Saying::Query, sequence, [0; 3]);
    }

    /// A call that is done: whether members have made another one, or did in an earlier call. Then it waits for what they say.
    pub(crate) fn dispute_of(&mut self, number: u16, sequence: u64, id: usize) -> bool {
        let now = self.now();
        while let Some((peer, old, words)) = self.transport().leftover(number, sequence) {
            let refused = self.lingering.contains(&(number, old));
            self.lingering.push((number, old));
            let Some(channel) = self.channels.get_mut(&number).filter(|_| !refused) else { continue };
            let Some(member) = channel.spec.group.position(peer) else { continue };
            let Some(own) = channel.own_words(old).filter(|own| *own != words) else { continue };
            let (me, others) = (channel.me, channel.others());
            channel.note(old, member, words);
            channel.note(old, me, own);
            let until = now + DISPUTE;
            channel.dispute.get_or_insert((old, until));
            self.say(number, &others, Saying::Dispute, old, own);
        }
        let dispute = self.channels.get(&number).and_then(|channel| channel.dispute);
        let Some((old, until)) = dispute else { return false };
        // Of this call: its own result is good, and the next call tells. It waits all the same, so that the others learn of it.
        if old < sequence
            && let Some(channel) = self.channels.get_mut(&number)
        {
            channel.dispute = None;
        }
        if let Some(job) = self.jobs[id].as_mut() {
            let error = Error::new(ErrorKind::Mismatch, "the ranks called different things");
            job.sequence = old;
            job.stage = Stage::Asking { error, until };
        }
        self.resolve(id);
        true
    }

    /// The deadline of a job has passed.
    pub(crate) fn expire(&mut self, id: usize) {
        let Some(job) = self.job(id) else { return };
        let (number, sequence, pair) = (job.channel, job.sequence, job.is_of_a_pair());
        let queued = matches!(job.stage, Stage::Queued);
        let partner = job.partner();
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if queued {
            let error = Error::new(ErrorKind::Timeout, "calls before it on this communicator have not ended");
            return self.break_with(id, number, error);
        }
        if let Some(rank) = partner.filter(|_| pair).map(|member| channel.global(member)) {
            let text = format!("rank {rank} has not come for this message; does it still compute, or is it stuck?");
            let error = Error::new(ErrorKind::Timeout, text).with_peers([rank]);
            self.halt(id, &error);
            return self.break_with(id, number, error);
        }
        channel.seen.iter_mut().for_each(|seen| *seen = None);
        let others = channel.others();
        let error = Error::new(
            ErrorKind::Timeout,
            "all members have arrived, but their messages have not; give the call more time, or look at the network",
        )
        .with_peers(others.iter().copied());
        self.halt(id, &error);
        self.say(number, &others, Saying::Query, sequence, [0; 3]);
        let until = self.now() + QUERY;
        if let Some(job) = self.jobs[id].as_mut() {
            job.stage = Stage::Asking { error, until };
        }
    }

    fn resolve_disputes(&mut self, now: Duration) {
        let due = |(number, channel): (&u16, &Channel)| {
            let (sequence, until) = channel.dispute.filter(|_| channel.cause.is_none())?;
            Some((*number, sequence, now >= until))
        };
        let disputes: Vec<_> = self.channels.iter().filter_map(due).collect();
        for (number, sequence, late) in disputes {
            match self.verdict(number, sequence) {
                Some((error, whole)) if whole || late => self.fail(number, error, false),
                None if late || self.all_agree(number, sequence) => {
                    let error = Error::new(ErrorKind::Mismatch, "the ranks called different things, see their errors");
                    self.fail(number, error, false);
                }
                _ => {}
            }
        }
    }

    fn look_for_the_living(&mut self, now: Duration) {
        let mut gone = Vec::new();
        for channel in self.channels.values().filter(|channel| channel.cause.is_none()) {
            for (member, rank) in channel.spec.group.ranks().enumerate() {
                let unknown = member != channel.me && channel.gone[member].is_none() && !gone.contains(&rank);
                if unknown && self.transport().check(rank).is_err() {
                    gone.push(rank);
                }
            }
        }
        for rank in gone {
            let error = match self.transport().world().liveness().status(rank) {
                PeerStatus::Gone => self.ending(rank),
                PeerStatus::Alive => spoken::lost(rank),
            };
            for channel in self.channels.values_mut() {
                if let Some(member) = channel.spec.group.position(rank) {
                    channel.gone[member].get_or_insert((0, now, error.clone()));
                }
            }
        }
    }

    /// Calls fail that a rank will not take part in any more.
    fn apply_departures(&mut self, now: Duration) {
        let mut failing: Vec<(u16, Error)> = Vec::new();
        for (number, channel) in self.channels.iter().filter(|(_, channel)| channel.cause.is_none()) {
            for (member, gone) in channel.gone.iter().enumerate() {
                let Some((begun, since, error)) = gone else { continue };
                if now < *since + LAST_MESSAGES {
                    continue;
                }
                let missed = self.jobs.iter().flatten().any(|job| {
                    let waits = matches!(job.stage, Stage::Running(_)) && job.channel == *number;
                    waits && job.partner().map_or(job.sequence > *begun, |partner| partner == member)
                });
                if missed || error.kind() == &ErrorKind::PeerLost {
                    failing.push((*number, error.clone()));
                    break;
                }
            }
        }
        for (number, error) in failing {
            self.fail(number, error, false);
        }
    }

    /// Takes up what another rank has said.
    pub(crate) fn hear(&mut self, word: Word) {
        let Some((number, what, sequence, words)) = spoken::read(&word) else { return };
        let (peer, now) = (word.peer, self.now());
        let Some(channel) = self.channels.get_mut(&number) else {
            match (self.retired.get_mut(&number), what) {
                (Some(staying), Saying::Left) => {
                    staying.retain(|rank| *rank != peer);
                    if staying.is_empty() {
                        self.retired.remove(&number);
                        self.transport().adopt(number);
                    }
                }
                (Some(_), _) => {}
                (None, _) => self.early.push(word),
            }
            return;
        };
        let Some(member) = channel.spec.group.position(peer) else { return };
        match what {
            Saying::Left => {
                let error = spoken::left(peer);
                let gone = &mut channel.gone[member];
                if gone.as_ref().is_none_or(|(_, _, error)| error.kind() == &ErrorKind::PeerLeft) {
                    *gone = Some((sequence, now, error));
                }
            }
            Saying::Query => {
                let begun = channel.begun;
                let known = if begun < sequence { Some(channel.last_words()) } else { channel.own_words(sequence) };
                self.say(number, &[peer], Saying::Seen, begun, known.unwrap_or([0; 3]));
            }
            Saying::Seen => {
                channel.seen[member] = Some((sequence, words));
                let odd = self.jobs.iter().flatten().find(|job| {
                    let waits = job.channel == number && !job.is_of_a_pair() && !matches!(job.stage, Stage::Ended(_));
                    waits && job.sequence > 0 && job.sequence <= sequence && words != [0; 3] && words != job.words
                });
                if let Some(call) = odd.map(|job| job.sequence) {
                    self.hear_of_a_call(number, member, call, words);
                }
            }
            Saying::RefusedReceive => {
                channel.refused_receives.push((member, sequence, words));
                let running = self.jobs.iter().position(|job| {
                    job.as_ref().is_some_and(|job| {
                        job.channel == number
                            && job.kind == rankwise_core::OpKind::Send
                            && job.sequence == sequence
                            && job.partner() == Some(member)
                            && matches!(job.stage, Stage::Running(_))
                    })
                });
                if let Some((id, job)) = running.and_then(|id| Some((id, self.job(id)?))) {
                    let error = mismatch(peer, words, job.words);
                    self.halt(id, &error);
                    self.end(id, Err(error));
                }
            }
            Saying::Failed(how, culprit) => {
                let error = how.error(peer, culprit, self.transport().world().rank());
                let known = self.channels.get(&number).is_some_and(|channel| channel.spec.group.contains(culprit));
                let error = if known { error } else { Failure::Aborted.error(peer, peer, usize::MAX) };
                for job in self.jobs.iter_mut().flatten().filter(|job| job.channel == number) {
                    if let Stage::Asking { until, .. } = &mut job.stage {
                        *until = (*until).min(now + QUERY);
                    }
                }
                let asking = self
                    .jobs
                    .iter()
                    .flatten()
                    .any(|job| job.channel == number && matches!(job.stage, Stage::Asking { .. }));
                if !asking {
                    self.fail(number, error, false);
                }
            }
            Saying::Dispute | Saying::Refused => self.hear_of_a_call(number, member, sequence, words),
        }
    }

    fn hear_of_a_call(&mut self, number: u16, member: usize, sequence: u64, words: Words) {
        let now = self.now();
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.note(sequence, member, words);
        if sequence > channel.begun {
            return;
        }
        let current = self.jobs.iter().position(|job| {
            job.as_ref().is_some_and(|job| job.channel == number && !job.is_of_a_pair() && job.sequence == sequence)
        });
        if let Some(id) = current {
            match self.job(id).map(|job| &job.stage) {
                Some(Stage::Running(_)) => {
                    let error = Error::new(ErrorKind::Mismatch, "the ranks called different things");
                    self.halt(id, &error);
                    return self.disagree(id, None);
                }
                Some(Stage::Asking { .. }) => return self.resolve(id),
                _ => {}
            }
        }
        // This rank has passed the call already, which needed nothing from the odd one.
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if descriptor::refusal(words).is_some() || channel.cause.is_some() || channel.dispute.is_some() {
            return;
        }
        channel.dispute = Some((sequence, now + DISPUTE));
        if let Some(own) = channel.own_words(sequence) {
            let (me, others) = (channel.me, channel.others());
            channel.note(sequence, me, own);
            self.say(number, &others, Saying::Dispute, sequence, own);
        }
    }

    /// Whether calls may still be made.
    pub(crate) fn usable(&mut self, number: u16) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "the communicator is closed; make a new one");
        self.channels.get_mut(&number).map_or_else(|| Err(closed()), |channel| channel.usable())
    }

    /// Leaves the communicators that no handle and no call is left of.
    pub(crate) fn retire(&mut self) {
        let dropped: Vec<u16> =
            self.channels.iter().filter(|(_, channel)| channel.dropped).map(|(number, _)| *number).collect();
        for number in dropped {
            let busy = self.jobs.iter().flatten().any(|job| job.channel == number && !job.is_idle());
            if !busy {
                self.leave(number);
                if let Some(channel) = self.channels.remove(&number) {
                    let staying: Vec<usize> = (0..channel.spec.group.len())
                        .filter(|member| *member != channel.me && channel.gone[*member].is_none())
                        .map(|member| channel.global(member))
                        .collect();
                    if staying.is_empty() {
                        self.transport().adopt(number);
                    } else {
                        self.transport().abandon(number);
                        self.retired.insert(number, staying);
                    }
                }
            }
        }
    }

    /// Tells the members of a communicator that this rank leaves it.
    pub(crate) fn leave(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if !std::mem::replace(&mut channel.closed, true) {
            let (others, begun) = (channel.others(), channel.begun);
            self.say(number, &others, Saying::Left, begun, [0; 3]);
        }
    }
}
