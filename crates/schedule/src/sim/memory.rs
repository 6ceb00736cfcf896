//! Memory whose copies and reductions take virtual time, with data or without.

#![allow(unsafe_code)]

use super::model::{Model, transfer};
use crate::memory::{HostMemory, Memory};
use crate::plan::{Fold, Region};
use crate::transport::Lent;
use rankwise_core::Result;
use rankwise_core::backend::RawCall;
use std::cell::Cell;
use std::rc::Rc;

/// When a rank's processor is free again, in picoseconds.
pub(super) type Processor = Rc<Cell<u64>>;

/// What a rank's plan works on.
#[derive(Debug, Default)]
pub(super) struct SimulatedMemory {
    processor: Processor,
    /// Bytes a second.
    copy: f64,
    reduce: f64,
    elem_size: usize,
    /// `None`: lengths only.
    data: Option<HostMemory>,
}

impl SimulatedMemory {
    /// # Safety
    ///
    /// With data: as [`HostMemory::arm`]. Without, the transport must not touch what is lent.
    pub(super) unsafe fn arm(
        &mut self,
        model: &Model,
        processor: &Processor,
        call: &RawCall<'_>,
        members: usize,
        scratch: usize,
        with_data: bool,
    ) -> Result<()> {
        self.processor = processor.clone();
        (self.copy, self.reduce, self.elem_size) = (model.copy, model.reduce, call.elem_size);
        if !with_data {
            self.data = None;
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.data.get_or_insert_default().arm(call, members, scratch) }
    }

    fn spend(&self, elements: usize, speed: f64) {
        let time = transfer(elements * self.elem_size, speed);
        self.processor.set(self.processor.get().saturating_add(time));
    }
}

// SAFETY: with data, that of the host memory; without, `arm` had the promise that nobody uses what is lent.
unsafe impl Memory for SimulatedMemory {
    fn lend(&mut self, region: Region) -> Lent {
        match &mut self.data {
            Some(data) => data.lend(region),
            None => Lent { ptr: std::ptr::dangling_mut(), bytes: region.len * self.elem_size },
        }
    }

    fn copy(&mut self, from: Region, to: Region) {
        if from != to {
            self.spend(to.len, self.copy);
        }
        if let Some(data) = &mut self.data {
            data.copy(from, to);
        }
    }

    fn reduce(&mut self, fold: Fold, from: &[Region], to: Region) {
        self.spend(from.len() * to.len, self.reduce);
        if let Some(data) = &mut self.data {
            data.reduce(fold, from, to);
        }
    }
}
