//! Users can't invent buffers: the traits are sealed.

use rankwise_core::Buffer;

struct Mine;

unsafe impl Buffer for Mine {
    type Lent = ();
}

fn main() {}
