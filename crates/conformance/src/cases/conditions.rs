//! Cases that not every engine can pass: what they rely on, beyond the kinds and types that a case names itself.

use rankwise_core::{Capabilities, DeadlineSupport};

/// Calls that don't fit together are found, and a refusal on one rank reaches the others without harm.
const AGREEMENT: &[&str] = &[
    "MM-*", "ER-1", "ER-2", "ER-3", "ER-4", "ER-5", "ER-6", "AR-41", "AG-57", "RS-67", "AA-74", "AA-80", "AA-81",
    "TK-85", "TK-86", "TK-87", "RT-99", "PP-102", "PP-103", "PP-106", "TN-32", "TN-40", "TN-55", "TN-57", "TN-67",
    "TN-73", "TN-94", "NB-133", "NB-135", "AL-6", "AL-8", "SQ-1", "TM-135", "TM-138", "LM-3",
];

/// A call is stopped at its deadline, or by an abort.
const STOPPED: &[&str] = &["TM-1", "TM-2", "TM-3", "TM-5", "TM-6", "TM-136", "TM-137", "TM-138", "NB-136", "LM-3"];

/// What of it a table does not have.
pub(crate) fn missing(id: &str, table: &Capabilities) -> Option<&'static str> {
    lacking(id, table.agreement(), table.deadline() == DeadlineSupport::Enforced)
}

/// The same from the two facts.
pub(crate) fn lacking(id: &str, agreement: bool, enforced: bool) -> Option<&'static str> {
    let listed = |list: &[&str]| {
        list.iter().any(|entry| match entry.strip_suffix('*') {
            Some(family) => id.starts_with(family),
            None => *entry == id,
        })
    };
    if !agreement && listed(AGREEMENT) {
        return Some("mismatches and refusals told to the peers");
    }
    if !enforced && listed(STOPPED) {
        return Some("calls stopped at their deadline");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn every_entry_is_a_case() {
        let ids: Vec<&str> = cases::all().into_iter().map(|case| case.id).collect();
        for entry in AGREEMENT.iter().chain(STOPPED) {
            let family = entry.trim_end_matches('*');
            assert!(
                ids.iter().any(|id| id == entry || family.len() < entry.len() && id.starts_with(family)),
                "{entry}"
            );
        }
    }

    #[test]
    fn a_table_without_agreement_misses_it() {
        let stops = Capabilities::none().with_deadline(DeadlineSupport::Enforced);
        assert!(missing("MM-35", &stops).is_some() && missing("TM-1", &stops).is_none());
        let tells = Capabilities::none().with_agreement(true);
        assert!(missing("TM-1", &tells).is_some() && missing("ER-1", &tells).is_none());
        assert!(missing("MM-35", &tells).is_none() && missing("AR-1", &Capabilities::none()).is_none());
    }
}
