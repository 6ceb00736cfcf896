//! What is said to those who wait in vain: who is missing, who has ended, and what everybody else waits for.

use super::{Table, Waiting};
use crate::failure::{Cause, Failure, RankEnd};
use rankwise_core::Group;
use std::fmt::Write;

impl Table {
    /// What the ranks are waiting for at this moment: the missing ones first, at most sixteen.
    pub(super) fn situation(&self, asking: usize, missing: &[u32]) -> String {
        let first = missing.iter().map(|rank| *rank as usize);
        let rest = (0..self.ranks.len()).filter(|r| *r != asking && !missing.contains(&(*r as u32)));
        let mut text = String::from(" at this moment");
        let mut listed = 0;
        let mut left_out = 0;
        for rank in first.chain(rest) {
            let doing = self.doing(rank);
            let idle = doing.is_none();
            if listed == 16 || (idle && !missing.is_empty() && !missing.contains(&(rank as u32))) {
                left_out += usize::from(!idle);
                continue;
            }
            let doing = doing.unwrap_or_else(|| "waits for nothing here".into());
            let _ = write!(text, "{} rank {rank} {doing}", if listed == 0 { "" } else { "," });
            listed += 1;
        }
        if listed == 0 {
            text.push_str(" no other rank waits for anything");
        }
        if left_out > 0 {
            let _ = write!(text, ", {left_out} more wait");
        }
        for note in &self.notes {
            let _ = write!(text, "; {note}");
        }
        text
    }

    fn doing(&self, rank: usize) -> Option<String> {
        let record = &self.ranks[rank];
        match &record.end {
            Some(RankEnd::Left) => return Some("has exited".into()),
            Some(RankEnd::Lost(how)) => return Some(how.clone()),
            None => {}
        }
        let mut waits: Vec<&Waiting> =
            self.waiting.iter().filter(|((waiter, _), _)| *waiter == rank).map(|(_, waiting)| waiting).collect();
        waits.sort_by_key(|waiting| waiting.since);
        let mut parts: Vec<String> = waits
            .iter()
            .take(4)
            .map(|waiting| {
                let seconds = waiting.since.elapsed().as_secs_f64();
                match &waiting.exchange {
                    None => format!("waits for key `{}` (for {seconds:.1} s)", waiting.key),
                    Some(what) => {
                        let over = self.meetings.get(&waiting.key).map_or(String::new(), |m| tuple(&m.members));
                        format!("waits for `{what}` over {over} (key `{}`, for {seconds:.1} s)", waiting.key)
                    }
                }
            })
            .collect();
        if waits.len() > 4 {
            parts.push(format!("{} more", waits.len() - 4));
        }
        if let Some((what, when)) = &record.gave_up {
            parts.push(format!("gave up on {what} {:.1} s ago", when.elapsed().as_secs_f64()));
        }
        (!parts.is_empty()).then(|| parts.join(" and "))
    }

    pub(super) fn ended(&self, rank: usize, what: &str) -> Failure {
        let record = &self.ranks[rank];
        let (cause, how) = match &record.end {
            Some(RankEnd::Lost(how)) => (Cause::Lost, how.as_str()),
            _ => (Cause::Left, "exited"),
        };
        // Often the odd one: it waited for something else until its own deadline, and its program ended on that error.
        let before =
            record.gave_up.as_ref().map_or(String::new(), |(other, _)| format!(", after giving up on {other},"));
        let text = format!("rank {rank} {how}{before} before `{what}` was complete; look at its output");
        Failure { cause, peers: vec![rank as u32], text }
    }

    pub(super) fn all_others_ended(&self, key: &str) -> Failure {
        let peers: Vec<u32> =
            (0..self.ranks.len()).filter(|r| self.ranks[*r].end.is_some()).map(|r| r as u32).collect();
        let text = format!("every other rank is gone, so nobody can set key `{key}`; look at their output");
        Failure { cause: Cause::Lost, peers, text }
    }
}

pub(super) fn tuple(members: &[u32]) -> String {
    Group::new(members.iter().map(|rank| *rank as usize)).map_or_else(|_| "()".into(), |group| group.to_string())
}

pub(super) fn plural(ranks: &[u32]) -> String {
    let mut text = String::from(if ranks.len() == 1 { "" } else { "s" });
    for (i, rank) in ranks.iter().take(16).enumerate() {
        let _ = write!(text, "{} {rank}", if i == 0 { "" } else { "," });
    }
    if ranks.len() > 16 {
        let _ = write!(text, " and {} more", ranks.len() - 16);
    }
    text
}
