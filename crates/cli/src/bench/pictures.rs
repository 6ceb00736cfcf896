//! `--html` and `--svg`: what was measured, as pictures.
//!
//! `figures` is what can be drawn. `lines` draws time and bandwidth against size, `heat` the ratios, `bars` the workloads,
//! each with the elements and style of `svg`; `axis` and `units` place and name values, `legend` names series. `files` is the
//! command line and the files, `sheet` the HTML file around the pictures and `tables` the numbers in it.
//!
//! Everything is written by hand into SVG with style classes, so that a picture follows the reader's light or dark scheme;
//! nothing depends on the time or on chance, so equal figures give equal files.

mod axis;
mod bars;
mod figures;
mod files;
mod heat;
mod legend;
mod lines;
mod ranks;
mod sheet;
mod svg;
mod tables;
mod units;

pub(crate) use figures::{Figures, WorkloadTimes, title};
pub(crate) use files::PictureFiles;
pub(crate) use ranks::{AgainstRanks, against_ranks};
