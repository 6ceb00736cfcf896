//! Time against the number of ranks, a panel a size: for `rankwise simulate`.

use super::axis::Axis;
use super::legend::{self, Sign};
use super::svg::{Svg, line_class};
use super::units;

/// What a panel shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgainstRanks {
    pub(crate) title: String,
    /// Names of lines, and for each its points: ranks and microseconds.
    pub(crate) lines: Vec<(String, Vec<(u64, f64)>)>,
}

const WIDTH: f64 = 360.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 14.0;
const PLOT_HEIGHT: f64 = 200.0;
const COLUMNS: usize = 3;

/// A whole SVG file.
pub(crate) fn against_ranks(label: &str, panels: &[AgainstRanks]) -> String {
    let panels: Vec<Svg> = panels.iter().map(draw).collect();
    let columns = panels.len().clamp(1, COLUMNS);
    let mut svg = Svg::new(WIDTH * columns as f64, 0.0);
    for row in panels.chunks(columns) {
        for (column, panel) in row.iter().enumerate() {
            svg.place((WIDTH * column as f64, svg.height), panel);
        }
        svg.height += row.iter().map(|panel| panel.height).fold(0.0, f64::max);
    }
    svg.standalone(label)
}

fn draw(panel: &AgainstRanks) -> Svg {
    let mut svg = Svg::new(WIDTH, 0.0);
    svg.text("title", (8.0, 23.0), &units::shortened(&panel.title, 44));
    let names: Vec<(usize, String)> = panel.lines.iter().map(|(name, _)| name.clone()).enumerate().collect();
    let mut top = 30.0 + legend::draw(&mut svg, 30.0, 8.0, RIGHT, Sign::LineAndMarker, &names);
    top += 14.0;
    svg.text("small quiet", (8.0, top), "time of a call on the virtual clock");
    top += 14.0;
    let bottom = top + PLOT_HEIGHT;
    svg.height = bottom + 44.0;
    let points = || panel.lines.iter().flat_map(|(_, points)| points.iter().copied());
    let ranks: Vec<u64> = points().map(|(ranks, _)| ranks).collect();
    let times: Vec<f64> = points().map(|(_, us)| us).collect();
    let x = Axis::of_sizes(&ranks, LEFT, RIGHT, |ranks| ranks.to_string());
    let y = Axis::of_values(&times, bottom, top, units::time);
    for tick in &x.ticks {
        svg.line("grid", (tick.at, top), (tick.at, bottom));
        svg.text("small middle", (tick.at, bottom + 15.0), &tick.label);
    }
    for tick in &y.ticks {
        svg.line("grid", (LEFT, tick.at), (RIGHT, tick.at));
        svg.text("small end", (LEFT - 6.0, tick.at + 4.0), &tick.label);
    }
    svg.path("axis series", &[(LEFT, top), (LEFT, bottom), (RIGHT, bottom)]);
    svg.text("small quiet middle", ((LEFT + RIGHT) / 2.0, bottom + 32.0), "ranks");
    for (series, (name, points)) in panel.lines.iter().enumerate() {
        // What takes no time has no place on a logarithmic axis.
        let places: Vec<(f64, f64)> =
            points.iter().filter(|(_, us)| *us > 0.0).map(|(ranks, us)| (x.at(*ranks as f64), y.at(*us))).collect();
        if places.len() > 1 {
            svg.path(&line_class(series), &places);
        }
        for ((ranks, us), place) in points.iter().filter(|(_, us)| *us > 0.0).zip(&places) {
            svg.marker(series, *place, &format!("{name}, {ranks} ranks: {}", units::time(*us)));
        }
    }
    svg
}
