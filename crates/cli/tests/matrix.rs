//! docs/backends.md shows what the backends have promised.
#![cfg(target_os = "linux")]

use rankwise_conformance::expectations::{Expectations, fill};
use std::path::Path;

#[test]
fn the_page_shows_every_promise() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backends.md");
    let page = std::fs::read_to_string(path).unwrap();
    for expected in Expectations::built_in().unwrap() {
        let filled = fill(&page, &expected).unwrap();
        let backend = &expected.backend;
        assert!(filled == page, "run `rankwise conformance --backend {backend} --matrix docs/backends.md`");
    }
}
