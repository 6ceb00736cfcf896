//! One communicator can't be used by two threads at a time.

use rankwise_core::Communicator;

fn share(comm: &mut Communicator) {
    std::thread::scope(|s| {
        s.spawn(|| comm.barrier());
        s.spawn(|| comm.barrier());
    });
}

fn main() {}
