//! Deliberately broken backends, made by putting a fault between a real one and the suite. Each must turn a case red.
//!
//! `wrapped` is the layer between; the other files hold the faults, a family each, as rows of one table.

#![allow(unsafe_code)]

mod agreement;
mod arithmetic;
mod groups;
mod in_flight;
mod memory;
mod placement;
mod stale;
mod tables;
mod thresholds;
mod waiting;
mod wrapped;

use crate::case::Need;
use rankwise_core::Capabilities;
use rankwise_world::Driver;
use std::sync::Arc;
use wrapped::{Fault, MutantDriver};

/// One broken backend.
#[derive(Clone, Copy)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What it does wrong.
    pub fault: &'static str,
    /// Cases, and whole families of them, that have to notice it; others would only wait for their deadlines.
    pub noticed_by: &'static [&'static str],
    /// The smallest world in which it does anything wrong.
    pub least_ranks: usize,
    /// What the backend must offer for the fault to have a place.
    pub needs: &'static [Need],
    /// Number of thresholds in the capability table without which there is no place either.
    pub least_thresholds: usize,
    make: fn() -> Arc<dyn Fault>,
}

impl Mutant {
    const fn new(
        name: &'static str,
        fault: &'static str,
        noticed_by: &'static [&'static str],
        make: fn() -> Arc<dyn Fault>,
    ) -> Mutant {
        Mutant { name, fault, noticed_by, least_ranks: 2, needs: &[], least_thresholds: 0, make }
    }

    const fn ranks(mut self, least: usize) -> Mutant {
        self.least_ranks = least;
        self
    }

    const fn needs(mut self, needs: &'static [Need]) -> Mutant {
        self.needs = needs;
        self
    }

    const fn thresholds(mut self, least: usize) -> Mutant {
        self.least_thresholds = least;
        self
    }

    /// Whether the case with this id has to notice it, or is of a family that has to.
    pub fn concerns(&self, case: &str) -> bool {
        let family = case.split('-').next().unwrap_or("");
        self.noticed_by.iter().any(|named| *named == case || *named == family)
    }

    /// Why it can't be told from the backend as it is, if so.
    pub fn inapplicable(&self, capabilities: &Capabilities) -> Option<String> {
        if let Some(need) = self.needs.iter().find(|need| !need.is_met(capabilities)) {
            return Some(format!("needs {need}, which the capability table does not offer"));
        }
        let thresholds = capabilities.thresholds().len();
        (thresholds < self.least_thresholds)
            .then(|| format!("needs {} thresholds in the capability table, not {thresholds}", self.least_thresholds))
    }
}

/// Every mutant, in the order they are run.
pub fn all() -> Vec<Mutant> {
    [
        arithmetic::MUTANTS,
        placement::MUTANTS,
        thresholds::MUTANTS,
        stale::MUTANTS,
        memory::MUTANTS,
        in_flight::MUTANTS,
        agreement::MUTANTS,
        groups::MUTANTS,
        tables::MUTANTS,
        waiting::MUTANTS,
    ]
    .concat()
}

/// The driver with the fault of this name put around it; `None` when there is no such mutant.
pub fn mutate<'a>(inner: &'a dyn Driver, name: &str) -> Option<Box<dyn Driver + 'a>> {
    let mutant = all().into_iter().find(|mutant| mutant.name == name)?;
    Some(Box::new(MutantDriver { inner, mutant }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn names_are_unique_and_the_cases_that_notice_exist() {
        let mutants = all();
        for (i, mutant) in mutants.iter().enumerate() {
            assert!(mutants[..i].iter().all(|other| other.name != mutant.name), "{} twice", mutant.name);
            assert!(mutant.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            for named in mutant.noticed_by {
                let exists =
                    cases::all().iter().any(|case| case.id == *named || case.id.split('-').next() == Some(named));
                assert!(exists, "{}: there is no case {named}", mutant.name);
            }
        }
        assert!(mutants.len() >= 18, "{}", mutants.len());
    }
}
