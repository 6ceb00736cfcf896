//! Faults of started calls.

use super::Mutant;
use super::wrapped::Fault;
use crate::case::Need;
use std::sync::Arc;

const STARTED: &[Need] = &[Need::Nonblocking];

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("spoilt-work", "the first byte of what a started call gives is changed", &["NB"], || Arc::new(Spoilt))
        .needs(STARTED),
    Mutant::new("work-without-data", "a started call finishes, and its destination is as before", &["NB"], || {
        Arc::new(WithoutData)
    })
    .needs(STARTED),
];

struct Spoilt;

impl Fault for Spoilt {
    fn spoil_work(&self, _: &[u8], dst: &mut [u8]) {
        dst[0] ^= 1;
    }
}

struct WithoutData;

impl Fault for WithoutData {
    fn spoil_work(&self, before: &[u8], dst: &mut [u8]) {
        dst.copy_from_slice(before);
    }
}
