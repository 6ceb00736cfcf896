//! A shared reference to a communicator can't cross to another thread.

use rankwise_core::Communicator;

fn look(comm: &Communicator) {
    std::thread::scope(|s| {
        s.spawn(|| comm.size());
    });
}

fn main() {}
