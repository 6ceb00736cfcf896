//! The table of cases: one file a family, plain functions, one line each in the family's list.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod alloc;
pub(crate) mod conditions;
mod determinism;
mod errors;
mod every_kind;
mod groups;
mod lent_memory;
mod mismatch;
mod nonblocking;
mod p2p;
mod reduce_scatter;
mod refused;
mod rooted;
mod sequence;
mod special_values;
mod table;
mod tensors;
mod thresholds;
mod time;
mod token;

use crate::case::Case;
pub(crate) use mismatch::root_cause;
use rankwise_core::DType;

/// The six types with rounding.
const FLOATS: [DType; 6] = [DType::F16, DType::BF16, DType::F32, DType::F64, DType::F8E4M3, DType::F8E5M2];

/// Every case, in the order they are run.
pub fn all() -> Vec<Case> {
    [
        all_reduce::CASES,
        thresholds::CASES,
        special_values::CASES,
        determinism::CASES,
        all_gather::CASES,
        reduce_scatter::CASES,
        all_to_all::CASES,
        token::CASES,
        rooted::CASES,
        p2p::CASES,
        tensors::CASES,
        groups::CASES,
        nonblocking::CASES,
        alloc::CASES,
        lent_memory::CASES,
        table::CASES,
        refused::CASES,
        errors::CASES,
        mismatch::CASES,
        time::CASES,
        sequence::CASES,
    ]
    .concat()
}

/// The case with this id.
pub fn find(id: &str) -> Option<Case> {
    all().into_iter().find(|case| case.id == id)
}

/// The cases whose id or title contains `pattern`, whatever the case of the letters.
pub fn matching(pattern: &str) -> Vec<Case> {
    let pattern = pattern.to_lowercase();
    let contains = |text: &str| text.to_lowercase().contains(&pattern);
    let exact: Vec<Case> = all().into_iter().filter(|case| case.id.to_lowercase() == pattern).collect();
    if !exact.is_empty() {
        return exact;
    }
    all().into_iter().filter(|case| contains(case.id) || contains(case.title)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_found() {
        let cases = all();
        for (i, case) in cases.iter().enumerate() {
            assert!(cases[..i].iter().all(|other| other.id != case.id), "{} twice", case.id);
            assert_eq!(find(case.id).map(|found| found.title), Some(case.title));
        }
        assert!(cases.len() >= 90, "{}", cases.len());
    }

    #[test]
    fn patterns_prefer_an_exact_id() {
        let id = all()[0].id;
        assert_eq!(matching(id).len(), 1);
        assert!(matching("all-reduce").len() > 5 && matching("no such thing").is_empty());
    }
}
