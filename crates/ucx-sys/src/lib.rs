//! UCX's UCP, as raw functions that are found when the program runs. Building needs no UCX.
//!
//! | file | holds |
//! |---|---|
//! | `layout.rs`, `functions.rs` | what bindgen makes of UCX 1.13's headers; `generate` writes them anew |
//! | `find.rs` | [`find`]: opens the library, checks its version and that no function is missing |
//! | `macros.rs` | the macros and inline functions of the headers, by hand |
//!
//! It has the functions that a message layer with tag matching needs, no more. Structures are those of 1.13; later versions read
//! only the fields that the mask names, so they serve 1.13 and all later 1.x. `ucp_init` is an inline function: call
//! `ucp_init_version(1, 13, ..)`.
//!
//! ```
//! match ucx_sys::find(None) {
//!     Ok(ucx) => println!("{} is UCX {}.{}.{}", ucx.library.display(), ucx.version.0, ucx.version.1, ucx.version.2),
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod find;
#[rustfmt::skip]
#[allow(missing_docs, unsafe_op_in_unsafe_fn, non_camel_case_types, clippy::missing_safety_doc, clippy::too_many_arguments)]
mod functions;
#[allow(missing_docs, non_camel_case_types)]
mod layout;
mod macros;

pub use find::{Attempt, LogHandler, NotFound, OLDEST, Ucx, find};
pub use functions::Functions;
pub use layout::*;
pub use macros::{UCP_DT_BYTE, UCS_PTR_IS_ERR, UCS_PTR_IS_PTR, UCS_PTR_RAW_STATUS, ucp_dt_make_contig};
