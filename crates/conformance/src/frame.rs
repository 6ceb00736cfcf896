//! Buffers with canaries before and after and a poisoned inside (H2).

use crate::number::elem_size;
use bytemuck::Pod;
use rankwise_core::DType;
use std::ops::{Deref, DerefMut};

const CANARY: usize = 64;
const ALIGN: usize = 64;
/// What canaries and untouched outputs consist of.
pub(crate) const POISON: u8 = 0xA5;

/// Memory that a frame can lie in.
pub trait Storage: Deref<Target = [u8]> + DerefMut {}
impl<T: Deref<Target = [u8]> + DerefMut> Storage for T {}

/// A buffer of elements between two canaries.
pub struct Frame {
    storage: Box<dyn Storage>,
    start: usize,
    bytes: usize,
}

impl Frame {
    /// Bytes that a frame of `count` elements needs of its storage.
    pub fn storage_bytes(dtype: DType, count: usize, offset: usize) -> usize {
        ALIGN + 2 * CANARY + (count + offset) * elem_size(dtype)
    }

    /// A frame on the heap; its first element lies `offset` elements after a 64-byte boundary.
    pub fn new(dtype: DType, count: usize, offset: usize) -> Frame {
        Frame::within(Box::new(vec![0; Frame::storage_bytes(dtype, count, offset)]), dtype, count, offset)
    }

    /// A frame within given memory of at least [`Frame::storage_bytes`].
    pub fn within(mut storage: Box<dyn Storage>, dtype: DType, count: usize, offset: usize) -> Frame {
        storage.fill(POISON);
        let address = storage.as_ptr() as usize;
        let start = (address + CANARY).next_multiple_of(ALIGN) - address + offset * elem_size(dtype);
        Frame { storage, start, bytes: count * elem_size(dtype) }
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.bytes]
    }

    /// The elements as bytes, to be filled in.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.bytes]
    }

    /// The elements. Panics when `T` does not divide the length: the suite chose both.
    pub fn elements<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }

    /// The elements, to be written.
    pub fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// Where a byte outside the elements was overwritten, if any: its distance from the nearest end.
    pub fn broken_canary(&self) -> Option<String> {
        let end = self.start + self.bytes;
        let outside = |range: std::ops::Range<usize>| {
            self.storage[range.clone()].iter().position(|byte| *byte != POISON).map(|i| range.start + i)
        };
        if let Some(at) = outside(0..self.start) {
            return Some(format!("byte {} before the buffer was overwritten", self.start - at));
        }
        outside(end..self.storage.len()).map(|at| format!("byte {} after the buffer was overwritten", at - end + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_notice_a_byte_on_either_side() {
        let mut frame = Frame::new(DType::F32, 3, 1);
        assert_eq!(frame.bytes(), [POISON; 12]);
        assert_eq!(frame.elements::<f32>().as_ptr() as usize % 64, 4);
        assert_eq!(frame.broken_canary(), None);
        let end = frame.start + frame.bytes;
        frame.storage[end] = 0;
        assert!(frame.broken_canary().unwrap().contains("byte 1 after"));
        frame.storage[end] = POISON;
        let before = frame.start - 1;
        frame.storage[before] = 0;
        assert!(frame.broken_canary().unwrap().contains("byte 1 before"));
    }
}
