//! The conformance suite of rankwise: every backend passes the same cases.
//!
//! It is for authors of backends and for those who choose one. It knows no backend: it takes [`Driver`]s, joins them in
//! jobs of real processes or of threads, and compares what the typed interface does with an oracle of its own. It does
//! not measure speed. It starts processes, so it is empty on systems other than Linux.
//!
//! - [`cases`] is the table of plain functions, one file a family; [`case`] says what a case is, [`ctx`] what it is given.
//! - [`operation`] calls one described operation and checks everything visible of it; `oracle`, `number`, `values`,
//!   `frame` and `sizes` give the expected result, the inputs, the canaries and the counts; `sample` the pairwise samples.
//! - [`runner`] plans jobs and judges them, `job` launches one and kills it when it hangs, `rank` is what runs in it; `foreign_job`
//!   runs the suite in a job of somebody else's.
//! - [`mutants`] are broken backends that must turn the suite red in its `self_test`; `drills` kill and stop ranks; [`clean`] looks for
//!   what is left behind; `expectations` holds what each backend has promised and where it
//!   is known to deviate; `arguments` is the whole `main` of a program for somebody else's backend.
//!
//! A program that offers the suite for its own backend:
//!
//! ```no_run
//! use rankwise_conformance::{Options, RankCommand, run, run_planned};
//! # fn driver() -> &'static dyn rankwise_world::Driver { loop {} }
//!
//! fn main() -> std::process::ExitCode {
//!     // The suite starts this program again for every rank.
//!     if let Some(code) = run_planned(&[driver()]) {
//!         return code;
//!     }
//!     let options = Options { backends: vec![driver().name().into()], ..Options::default() };
//!     let result = RankCommand::current(&[])
//!         .and_then(|command| run(&[driver()], &options, &command, &mut std::io::stdout()));
//!     match result {
//!         Ok(summary) if summary.failed == 0 => std::process::ExitCode::SUCCESS,
//!         Ok(_) => std::process::ExitCode::FAILURE,
//!         Err(error) => {
//!             eprintln!("{error}");
//!             std::process::ExitCode::from(2)
//!         }
//!     }
//! }
//! ```
//!
//! [`Driver`]: rankwise_world::Driver

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod areas;
mod arguments;
pub mod case;
pub mod cases;
pub mod clean;
pub mod ctx;
mod differential;
mod drills;
pub mod expectations;
mod foreign_job;
mod frame;
mod job;
mod junit;
pub mod mutants;
mod number;
pub mod operation;
mod oracle;
mod plan;
mod random;
mod rank;
mod refusal;
pub mod report;
pub mod runner;
mod sample;
mod self_test;
mod sequences;
mod sizes;
mod values;

pub use arguments::{rank_main, rank_main_expecting};
pub use expectations::Expectations;
pub use foreign_job::run_in_job;
pub use job::RankCommand;
pub use plan::Mode;
pub use rank::run_planned;
pub use report::{Format, Summary};
pub use runner::{Options, list, run};
