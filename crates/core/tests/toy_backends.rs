//! Three toy backends of different natures run the same checks: the backend interface carries them all.

#![allow(unsafe_code)]

mod toys;

macro_rules! checks {
    ($($toy:ident: $($layer:ident::$check:ident)*;)*) => {
        $(mod $toy {
            use crate::toys::{$toy::world, refusals, spi, typed};
            $(#[test]
            fn $check() {
                $layer::$check(world);
            })*
        })*
    };
    ($($layer:ident::$check:ident)*) => {
        checks! { direct: $($layer::$check)*; transport: $($layer::$check)*; stream: $($layer::$check)*; }
    };
}

checks! {
    spi::values
    spi::groups_of_calls
    spi::works_in_any_order
    spi::whatever_blocks_progresses
    spi::work_dropped_unfinished
    refusals::rejection
    refusals::rejection_of_several
    refusals::rejection_of_pairs
    refusals::mismatch
    refusals::mismatch_of_launches
    spi::timeout
    spi::abort
    spi::cancel
    spi::deadlines_of_works
    spi::registration
    typed::typed_values
    typed::typed_refusals
    typed::typed_refused_send
    typed::typed_works
    typed::typed_scope
    typed::typed_scope_panics
    typed::typed_timeout
    typed::typed_abort
    typed::typed_alloc
}

mod streams {
    use crate::toys::streams;

    #[test]
    fn a_call_returns_enqueued_and_finishes_in_stream_order() {
        streams::enqueued_is_not_finished();
    }

    #[test]
    fn order_makes_another_stream_wait_without_the_host() {
        streams::order_between_streams();
    }

    #[test]
    fn a_queued_work_is_cancelled_before_its_turn() {
        streams::cancelled_before_its_turn();
    }

    #[test]
    fn a_deadline_counts_from_the_start() {
        streams::late_for_its_turn();
    }

    #[test]
    fn finalize_waits_for_works_on_streams() {
        streams::goodbye_after_streams();
    }

    #[test]
    fn unknown_and_missing_streams_are_refused() {
        streams::refused();
    }
}
