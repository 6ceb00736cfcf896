//! Which message is for which receive, and places for thousands of them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// No place.
pub(super) const NONE: u32 = u32::MAX;

/// Values by number; numbers of removed ones are given out again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = Some(value);
            return index;
        }
        self.places.push(Some(value));
        (self.places.len() - 1) as u32
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut T {
        self.places[index as usize].as_mut().expect("a number that is in use")
    }

    pub(super) fn remove(&mut self, index: u32) -> T {
        self.free.push(index);
        self.places[index as usize].take().expect("a number that is in use")
    }
}

/// What a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Messages,
    Receives,
}

/// Numbers of messages without a receive or of receives without a message, by receiver and packed tag.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: HashMap<(u32, u64), Queue, BuildHasherDefault<Mix>>,
}

/// The first, and those behind it: there seldom are any.
#[derive(Debug)]
struct Queue {
    waiting: Waiting,
    first: u32,
    more: VecDeque<u32>,
}

impl Queues {
    /// The first of the other side that waits, or `None` and `index` waits.
    pub(super) fn meet(&mut self, receiver: u32, key: u64, comes: Waiting, index: u32) -> Option<u32> {
        match self.queues.entry((receiver, key)) {
            Entry::Vacant(place) => {
                place.insert(Queue { waiting: comes, first: index, more: VecDeque::new() });
                None
            }
            Entry::Occupied(mut place) if place.get().waiting == comes => {
                place.get_mut().more.push_back(index);
                None
            }
            Entry::Occupied(mut place) => {
                let first = place.get().first;
                match place.get_mut().more.pop_front() {
                    Some(second) => place.get_mut().first = second,
                    None => drop(place.remove()),
                }
                Some(first)
            }
        }
    }

    /// Takes out a receive that waits.
    pub(super) fn withdraw(&mut self, receiver: u32, key: u64, index: u32) {
        let Entry::Occupied(mut place) = self.queues.entry((receiver, key)) else { return };
        let queue = place.get_mut();
        if queue.waiting != Waiting::Receives {
            return;
        }
        if queue.first != index {
            queue.more.retain(|other| *other != index);
            return;
        }
        match queue.more.pop_front() {
            Some(second) => queue.first = second,
            None => drop(place.remove()),
        }
    }
}

/// Hashes numbers, the same in every run.
#[derive(Debug, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // The last steps of splitmix64.
        let z = (self.0 ^ value).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ z >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_come_first_served() {
        let mut queues = Queues::default();
        for index in 0..3 {
            assert_eq!(queues.meet(1, 5, Waiting::Receives, index), None);
        }
        assert_eq!(queues.meet(2, 5, Waiting::Messages, 9), None);
        queues.withdraw(1, 5, 0);
        assert_eq!(queues.meet(1, 5, Waiting::Messages, 7), Some(1));
        assert_eq!(queues.meet(1, 5, Waiting::Messages, 8), Some(2));
        assert_eq!(queues.meet(1, 5, Waiting::Messages, 6), None);
        queues.withdraw(1, 5, 6);
        assert_eq!(queues.meet(1, 5, Waiting::Receives, 4), Some(6));
        assert_eq!(queues.meet(2, 5, Waiting::Receives, 4), Some(9));
        assert!(queues.queues.is_empty());
    }

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::default();
        assert_eq!([slab.insert('a'), slab.insert('b')], [0, 1]);
        assert_eq!(slab.remove(0), 'a');
        assert_eq!(slab.insert('c'), 0);
        assert_eq!((*slab.get_mut(0), *slab.get_mut(1)), ('c', 'b'));
    }
}
