//! Three toy backends of different natures run the same checks: the backend interface carries them all.

#![allow(unsafe_code)]

mod toys;

macro_rules! checks {
    ($($toy:ident: $($check:ident)*;)*) => {
        $(mod $toy {
            use crate::toys::{$toy::world, spi};
            $(#[test]
            fn $check() {
                spi::$check(world);
            })*
        })*
    };
    ($($check:ident)*) => { checks! { direct: $($check)*; transport: $($check)*; stream: $($check)*; } };
}

checks! {
    values
    groups_of_calls
    works_in_any_order
    work_dropped_unfinished
    rejection
    mismatch
    timeout
    abort
    cancel
    deadlines_of_works
    registration
}
