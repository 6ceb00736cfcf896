//! Time and bandwidth against size, both logarithmic, one line a contender.

use super::axis::Axis;
use super::figures::{Panel, bus_bandwidth};
use super::legend::{self, Sign};
use super::svg::{Svg, line_class};
use super::units;
use crate::bench::comparison::Compared;
use crate::bench::op::Op;

/// What is drawn upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    Time,
    BusBandwidth,
}

impl Quantity {
    /// For names of files.
    pub(super) fn slug(self) -> &'static str {
        match self {
            Quantity::Time => "time",
            Quantity::BusBandwidth => "busbw",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Quantity::Time => "time of a call (median, 95 % interval)",
            Quantity::BusBandwidth => "bus bandwidth",
        }
    }

    fn label(self, value: f64) -> String {
        match self {
            Quantity::Time => units::time(value),
            Quantity::BusBandwidth => units::bandwidth(value),
        }
    }

    /// The value for a time.
    fn of(self, cell: &Compared, us: f64) -> Option<f64> {
        match self {
            Quantity::Time => (us > 0.0 && us.is_finite()).then_some(us),
            Quantity::BusBandwidth => bus_bandwidth(&cell.cell, us),
        }
    }
}

/// What is drawn to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Across {
    Size,
    /// For what has no size.
    Ranks,
}

impl Across {
    fn value(self, cell: &Compared) -> u64 {
        match self {
            Across::Size => cell.cell.bytes,
            Across::Ranks => cell.cell.ranks as u64,
        }
    }
}

/// A finished picture.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    /// For the name of a file.
    pub(super) slug: String,
    /// In words.
    pub(super) label: String,
    pub(super) svg: Svg,
}

pub(super) const WIDTH: f64 = 360.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 14.0;
const PLOT_HEIGHT: f64 = 176.0;

/// The pictures of these panels: time and, where data moves, bandwidth. Barriers of several numbers of ranks share one.
pub(super) fn pictures(names: &[String], panels: &[Panel<'_>]) -> Vec<Picture> {
    let mut pictures = Vec::new();
    let sizeless = |panel: &&Panel<'_>| panel.of.op == Op::Barrier.name();
    for panel in panels.iter().filter(|panel| !sizeless(panel)) {
        for quantity in [Quantity::Time, Quantity::BusBandwidth] {
            let title = format!("{}: {}", panel.title, quantity.slug());
            let slug = format!("{}-{}", quantity.slug(), panel.slug);
            let svg = draw(&title, names, &panel.cells, quantity, Across::Size);
            pictures.extend(svg.map(|svg| Picture { slug, label: title, svg }));
        }
    }
    // The number of ranks is the axis here, and panels of one kind follow each other.
    let barriers: Vec<&Panel<'_>> = panels.iter().filter(sizeless).collect();
    for alike in barriers.chunk_by(|one, other| one.kind == other.kind) {
        let cells: Vec<&Compared> = alike.iter().flat_map(|panel| panel.cells.iter().copied()).collect();
        let of = alike[0];
        let title = format!("{}: time", of.kind);
        let slug = format!("time-{}", of.slug.replacen(&format!("-{}ranks", of.of.ranks), "", 1));
        let svg = draw(&title, names, &cells, Quantity::Time, Across::Ranks);
        pictures.extend(svg.map(|svg| Picture { slug, label: title, svg }));
    }
    pictures
}

/// None when there is no value.
fn draw(title: &str, names: &[String], cells: &[&Compared], quantity: Quantity, across: Across) -> Option<Svg> {
    let value = |cell: &Compared, us: Option<f64>| quantity.of(cell, us?);
    let interval = |cell: &Compared, series: usize| {
        let (low, high) = (*cell.intervals_us.get(series)?)?;
        Some((value(cell, Some(low))?, value(cell, Some(high))?))
    };
    let all = |series: usize| cells.iter().filter_map(move |cell| value(cell, cell.times_us[series]));
    let present: Vec<usize> = (0..names.len()).filter(|series| all(*series).next().is_some()).collect();
    if present.is_empty() {
        return None;
    }
    let mut values: Vec<f64> = present.iter().flat_map(|series| all(*series)).collect();
    let ends = cells.iter().flat_map(|cell| present.iter().filter_map(|series| interval(cell, *series)));
    values.extend(ends.flat_map(|(low, high)| [low, high]));

    let mut svg = Svg::new(WIDTH, 0.0);
    let mut top = 8.0;
    for line in wrapped(title) {
        top += 15.0;
        svg.text("title", (8.0, top), &line);
    }
    top += 6.0;
    let named = |series: usize| match present.contains(&series) {
        true => (series, names[series].clone()),
        false => (series, format!("{} (not measured)", names[series])),
    };
    let legend: Vec<_> = (0..names.len()).map(named).collect();
    top += legend::draw(&mut svg, top, 8.0, RIGHT, Sign::LineAndMarker, &legend);
    top += 18.0;
    svg.text("small quiet", (8.0, top), quantity.title());
    top += 15.0;
    let bottom = top + PLOT_HEIGHT;
    svg.height = bottom + 40.0;

    let places: Vec<u64> = cells.iter().map(|cell| across.value(cell)).collect();
    let label = match across {
        Across::Size => units::bytes,
        Across::Ranks => |ranks: u64| ranks.to_string(),
    };
    let x = Axis::of_sizes(&places, LEFT, RIGHT, label);
    let y = match quantity {
        Quantity::Time => Axis::of_values(&values, bottom, top, |us| Quantity::Time.label(us)),
        Quantity::BusBandwidth => Axis::of_values(&values, bottom, top, |gbs| Quantity::BusBandwidth.label(gbs)),
    };
    for tick in &x.ticks {
        svg.line("grid", (tick.at, top), (tick.at, bottom));
        svg.text("small middle", (tick.at, bottom + 15.0), &tick.label);
    }
    for tick in &y.ticks {
        svg.line("grid", (LEFT, tick.at), (RIGHT, tick.at));
        svg.text("small end", (LEFT - 6.0, tick.at + 4.0), &tick.label);
    }
    svg.path("axis series", &[(LEFT, top), (LEFT, bottom), (RIGHT, bottom)]);
    let below = if across == Across::Size { "size" } else { "ranks" };
    svg.text("small quiet middle", ((LEFT + RIGHT) / 2.0, bottom + 32.0), below);

    for series in present {
        let point = |cell: &&Compared| {
            let value = value(cell, cell.times_us[series])?;
            Some((x.at(across.value(cell) as f64), y.at(value)))
        };
        let points: Vec<Option<(f64, f64)>> = cells.iter().map(point).collect();
        for run in points.split(Option::is_none).filter(|run| run.len() > 1) {
            svg.path(&line_class(series), &run.iter().copied().flatten().collect::<Vec<_>>());
        }
        for (cell, point) in cells.iter().zip(&points) {
            let Some((px, py)) = *point else { continue };
            let mut note = format!("{}, {}: ", names[series], label(across.value(cell)));
            note += &value(cell, cell.times_us[series]).map_or(String::new(), |value| quantity.label(value));
            if let Some((low, high)) = interval(cell, series) {
                svg.line(&format!("whisker {}", line_class(series)), (px, y.at(low)), (px, y.at(high)));
                let (low, high) = if low <= high { (low, high) } else { (high, low) };
                note += &format!(" ({} to {})", quantity.label(low), quantity.label(high));
            }
            svg.marker(series, (px, py), &note);
        }
    }
    Some(svg)
}

/// In lines that fit the width.
fn wrapped(title: &str) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in title.split(' ') {
        let line = lines.last_mut().map(std::mem::take).unwrap_or_default();
        let longer = if line.is_empty() { word.to_string() } else { format!("{line} {word}") };
        let last = lines.len() - 1;
        if line.is_empty() || super::svg::text_width(&longer, 13.0) <= WIDTH - 16.0 {
            lines[last] = longer;
        } else {
            lines[last] = line;
            lines.push(word.to_string());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{cell, figures};
    use super::*;

    /// Centers of the circles, which are those of the first series.
    fn circles(svg: &str) -> Vec<(f64, f64)> {
        let number = |text: &str, name: &str| -> f64 {
            text.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        let circle = |line: &&str| line.starts_with("<circle") && line.contains("<title>");
        svg.lines().filter(circle).map(|line| (number(line, "cx"), number(line, "cy"))).collect()
    }

    fn drawn(names: &[&str], cells: Vec<Compared>) -> Vec<(String, String)> {
        let figures = figures(names, cells);
        pictures(&figures.names, &figures.panels())
            .into_iter()
            .map(|picture| (picture.slug, picture.svg.inline(&picture.label)))
            .collect()
    }

    #[test]
    fn values_land_where_they_should() {
        let at = |bytes, time| cell("all_reduce", 2, bytes, &[Some(time)], 0.0);
        let pictures = drawn(&["shm"], vec![at(1024, 1.0), at(4096, 4.0), at(65536, 64.0)]);
        let slugs: Vec<_> = pictures.iter().map(|(slug, _)| slug.as_str()).collect();
        assert_eq!(slugs, ["time-all_reduce-f32-2ranks", "busbw-all_reduce-f32-2ranks"]);
        // Sizes span 6 octaves with 4 % more at each end, so the first is at 0.24 / 6.48 of the width.
        let (width, height) = (RIGHT - LEFT, PLOT_HEIGHT);
        let x = |octaves: f64| LEFT + (0.24 + octaves) / 6.48 * width;
        // Title 15, legend 17 and gaps: the plot is from 79 down; times span 6 octaves with 6 % more at each end.
        let (top, pad) = (79.0, 0.36);
        let y = |octaves: f64| top + height - (pad + octaves) / (6.0 + 2.0 * pad) * height;
        let expected = [(x(0.0), y(0.0)), (x(2.0), y(2.0)), (x(6.0), y(6.0))];
        for ((x, y), (expected_x, expected_y)) in circles(&pictures[0].1).into_iter().zip(expected) {
            assert!(
                (x - expected_x).abs() < 0.01 && (y - expected_y).abs() < 0.01,
                "{x} {y}, {expected_x} {expected_y}"
            );
        }
        // Bandwidth is the same for all three: a level line.
        let level = circles(&pictures[1].1);
        assert_eq!(level.len(), 3);
        assert!(level.iter().all(|(_, y)| (y - level[0].1).abs() < 0.01), "{level:?}");
        assert!(pictures[1].1.contains("1.02 GB/s"), "{}", pictures[1].1);
    }

    #[test]
    fn a_contender_that_was_not_measured_leaves_a_gap() {
        let two = |bytes, other: Option<f64>| cell("all_reduce", 2, bytes, &[Some(1.0), other, None], 5.0);
        let cells = vec![two(8, Some(2.0)), two(16, Some(2.0)), two(32, None), two(64, Some(2.0)), two(128, Some(2.0))];
        let (_, svg) = &drawn(&["shm", "mpi", "ucx"], cells)[0];
        let lines = |series: usize| {
            svg.lines().filter(|line| line.starts_with(&format!("<polyline class=\"series l{series}\""))).count()
        };
        assert_eq!((lines(0), lines(1), lines(2)), (1, 2, 0), "{svg}");
        assert!(svg.contains("ucx (not measured)"), "{svg}");
        assert!(svg.contains("<title>mpi, 64 B: 2 us (1.9 us to 2.1 us)</title>"), "{svg}");
        assert!(!svg.contains("mpi, 32 B"));
    }

    #[test]
    fn barriers_are_drawn_against_ranks() {
        let mut cells: Vec<_> = [2, 4, 8].map(|ranks| cell("barrier", ranks, 0, &[Some(ranks as f64)], 1.0)).into();
        for cell in &mut cells {
            (cell.cell.dtype, cell.cell.redop) = ("none".into(), "none".into());
        }
        let pictures = drawn(&["shm"], cells);
        assert_eq!(pictures.len(), 1);
        assert_eq!((pictures[0].0.as_str(), circles(&pictures[0].1).len()), ("time-barrier", 3));
        assert!(pictures[0].1.contains(">ranks</text>"));
    }

    #[test]
    fn impossible_times_are_left_out() {
        let times = [f64::NAN, f64::INFINITY, 0.0, -1.0, 3.0];
        let cells = times.iter().zip(3..).map(|(time, power)| cell("all_reduce", 2, 1 << power, &[Some(*time)], 0.0));
        let pictures = drawn(&["shm"], cells.collect());
        assert_eq!(circles(&pictures[0].1).len(), 1);
        assert!(pictures.iter().all(|(_, svg)| !svg.contains("NaN") && !svg.contains("inf")), "{pictures:?}");
        assert!(drawn(&["shm"], vec![cell("all_reduce", 2, 8, &[None], 0.0)]).is_empty());
    }
}
