//! Ratios of times as a map of colours, with each ratio in its field.

use super::figures::{Figures, Panel, best_other, letter, ranks};
use super::lines::Picture;
use super::svg::{Svg, text_width};
use super::units::{self, shortened};
use crate::bench::comparison::Compared;
use crate::bench::interval::{Ratio, Verdict};
use std::collections::BTreeSet;

/// Whose ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// This one of the names.
    One(usize),
    /// In each field the fastest of all others.
    Best,
}

const TOP: f64 = 60.0;

/// Width of a colour in the key.
const KEY: f64 = 17.0;

/// Where a colour is full: a factor of four either way.
const FULL: f64 = 2.0;

/// From "the first is slower" to "the first is faster". Orange and blue are told apart by people who see few colours.
const COLORS: [(f64, [u8; 3]); 7] = [
    (-1.0, [0xb3, 0x58, 0x06]),
    (-0.6, [0xe6, 0x8a, 0x1e]),
    (-0.25, [0xfd, 0xc8, 0x85]),
    (0.0, [0xf4, 0xf4, 0xf1]),
    (0.25, [0xa9, 0xd0, 0xea]),
    (0.6, [0x4a, 0x98, 0xcb]),
    (1.0, [0x1a, 0x5b, 0xa6]),
];

/// A map for each other contender, and one for the best of them if there are several. Those with more rows are cut into
/// parts.
pub(super) fn pictures(figures: &Figures, panels: &[Panel<'_>], most_rows: usize) -> Vec<Picture> {
    let others: Vec<usize> = (1..figures.names.len()).filter(|other| known(figures, *other)).collect();
    let best = (others.len() > 1).then_some(Other::Best);
    let all = best.into_iter().chain(others.into_iter().map(Other::One));
    let mut pictures: Vec<Picture> = Vec::new();
    for other in all {
        let base = &figures.names[0];
        let measured = |panel: &&Panel<'_>| panel.cells.iter().any(|cell| ratio_of(cell, other).is_some());
        let parts = parts(panels.iter().filter(measured).collect(), most_rows);
        let (name, label) = match other {
            Other::One(i) => (figures.names[i].clone(), format!("{} against {base}: ratio of times", figures.names[i])),
            Other::Best => ("best".to_string(), format!("the fastest other against {base}: ratio of times")),
        };
        for (i, rows) in parts.iter().enumerate() {
            let part = if parts.len() > 1 { format!(" ({} of {})", i + 1, parts.len()) } else { String::new() };
            let svg = draw(figures, rows, other, &part);
            let slug = format!("heat-{name}");
            pictures.push(Picture { slug, label: format!("{label}{part}"), svg });
        }
    }
    pictures
}

/// Rows of one kind stay together where they fit.
fn parts<'a>(rows: Vec<&'a Panel<'a>>, most_rows: usize) -> Vec<Vec<&'a Panel<'a>>> {
    let mut parts: Vec<Vec<&Panel<'_>>> = Vec::new();
    for kind in rows.chunk_by(|one, other| one.kind == other.kind).flat_map(|kind| kind.chunks(most_rows)) {
        match parts.last_mut() {
            Some(part) if part.len() + kind.len() <= most_rows => part.extend(kind),
            _ => parts.push(kind.to_vec()),
        }
    }
    parts
}

/// The contender and its ratio to the first.
fn ratio_of(cell: &Compared, other: Other) -> Option<(usize, Ratio)> {
    match other {
        Other::One(i) => cell.ratios.get(i - 1).copied().flatten().map(|ratio| (i, ratio)),
        Other::Best => best_other(cell),
    }
}

fn known(figures: &Figures, other: usize) -> bool {
    figures.cells.iter().any(|cell| cell.ratios.get(other - 1).is_some_and(Option::is_some))
}

fn draw(figures: &Figures, rows: &[&Panel<'_>], other: Other, part: &str) -> Svg {
    let of = |cell: &Compared| ratio_of(cell, other);
    let sizes = |panel: &&Panel<'_>| panel.cells.iter().map(|cell| cell.cell.bytes).collect::<Vec<_>>();
    let sizes: Vec<u64> = rows.iter().flat_map(sizes).collect::<BTreeSet<_>>().into_iter().collect();
    let base = shortened(&figures.names[0], 30);
    let field = (if other == Other::Best { 62.0 } else { 54.0 }, 22.0);
    // Rows of one kind that differ in ranks have a heading, unless that would be one for each row.
    let grouped = rows.iter().any(|panel| panel.of.ranks != rows[0].of.ranks);
    let label = |panel: &Panel<'_>| if grouped { ranks(panel.of) } else { panel.kind.clone() };
    let left = 16.0 + rows.iter().map(|panel| text_width(&label(panel), 11.0)).fold(0.0, f64::max);
    let table_right = left + field.0 * sizes.len() as f64;

    let mut shared = figures.only_dtype().map(|dtype| format!(", {dtype}")).unwrap_or_default();
    if !grouped {
        shared += &rows.first().map(|panel| format!(", {}", ranks(panel.of))).unwrap_or_default();
    }
    let (title, how) = match other {
        Other::One(i) => {
            let name = shortened(&figures.names[i], 30);
            (format!("{name} against {base}{part}"), format!("time of {name} / time of {base}{shared}"))
        }
        Other::Best => (
            format!("the fastest other against {base}{part}"),
            format!("time of the fastest other / time of {base}{shared}"),
        ),
    };
    let mut svg = Svg::new(0.0, 0.0);
    svg.text("title", (8.0, 20.0), &title);
    svg.text("small quiet", (8.0, 36.0), &how);
    let head_right = 8.0 + text_width(&how, 11.0).max(text_width(&title, 13.0));

    let middle = |column: usize| left + field.0 * (column as f64 + 0.5);
    for (column, bytes) in sizes.iter().enumerate() {
        svg.text("small middle", (middle(column), TOP - 4.0), &units::bytes(*bytes));
    }
    let mut y = TOP + 2.0;
    for (i, panel) in rows.iter().enumerate() {
        if grouped && (i == 0 || rows[i - 1].kind != panel.kind) {
            svg.text("small bold", (8.0, y + 14.0), &panel.kind);
            y += 20.0;
        }
        svg.text("small end", (left - 6.0, y + 15.0), &label(panel));
        for (column, bytes) in sizes.iter().enumerate() {
            let place = [left + field.0 * column as f64 + 1.0, y + 1.0, field.0 - 2.0, field.1 - 2.0];
            let cell = panel.cells.iter().rev().find(|cell| cell.cell.bytes == *bytes);
            match cell.and_then(|cell| Some((cell, of(cell)?))) {
                Some((cell, (contender, ratio))) => {
                    let letter = (other == Other::Best).then(|| letter(contender));
                    field_of(&mut svg, place, figures, (cell, contender, ratio), letter);
                }
                None => svg.rect("empty", place, "", "not measured"),
            }
        }
        y += field.1;
    }
    y += 18.0;
    let right = color_key(&mut svg, (8.0, y), &base);
    y += 46.0;
    let verdicts = rows.iter().flat_map(|panel| &panel.cells).filter_map(|cell| Some(of(cell)?.1.verdict()));
    let verdicts: Vec<Verdict> = verdicts.collect();
    let mut below = Vec::new();
    for (verdict, line) in [
        (Verdict::Same, "\u{2248}  no difference shown: 1 lies in the 95 % interval"),
        (Verdict::Unknown, "?  too few values for an interval"),
    ] {
        if verdicts.contains(&verdict) {
            below.push(line.to_string());
        }
    }
    if other == Other::Best {
        let names = figures.names.iter().enumerate();
        below.extend(names.map(|(i, name)| format!("{}  {}", letter(i), shortened(name, 44))));
    }
    let mut widest = 0.0_f64;
    for line in &below {
        svg.text("small quiet", (8.0, y), line);
        widest = widest.max(8.0 + text_width(line, 11.0));
        y += 15.0;
    }
    let headings = rows.iter().map(|panel| 8.0 + text_width(&panel.kind, 12.0)).fold(0.0, f64::max);
    svg.width = [headings, table_right, head_right, right, widest].into_iter().fold(0.0, f64::max) + 10.0;
    svg.height = y;
    svg
}

fn field_of(
    svg: &mut Svg,
    field: [f64; 4],
    figures: &Figures,
    (cell, contender, ratio): (&Compared, usize, Ratio),
    letter: Option<char>,
) {
    let sign = match ratio.verdict() {
        Verdict::Same => "\u{2248} ",
        _ => "",
    };
    let mut text = format!("{sign}{}", units::ratio(ratio.value));
    if ratio.verdict() == Verdict::Unknown {
        text += " ?";
    }
    if let Some(letter) = letter {
        text += &format!(" {letter}");
    }
    let color = if ratio.verdict() == Verdict::Same { color(0.0) } else { color(ratio.value.log2() / FULL) };
    let (base, name) = (&figures.names[0], &figures.names[contender]);
    let time = |i: usize| cell.times_us[i].map_or("-".into(), units::time);
    let note = format!(
        "{base} {}, {name} {}; ratio {:.3}, 95 % interval {}",
        time(0),
        time(contender),
        ratio.value,
        ratio.interval_text()
    );
    let [red, green, blue] = color;
    svg.rect("field", field, &format!("fill:#{red:02x}{green:02x}{blue:02x}"), &note);
    let [x, y, width, height] = field;
    let class = if luminance(color) > 0.21 { "on-light" } else { "on-dark" };
    svg.text(&format!("small middle {class}"), (x + width / 2.0, y + height / 2.0 + 4.0), &text);
}

/// Draws the colours with their ratios; where that ends on the right.
fn color_key(svg: &mut Svg, (left, top): (f64, f64), base: &str) -> f64 {
    let base = shortened(base, 22);
    let (slower, faster) = (format!("{base} slower"), format!("{base} faster"));
    svg.text("small", (left, top + 11.0), &slower);
    let mut x = left + text_width(&slower, 11.0) + 4.0;
    for step in -4..=4 {
        let [red, green, blue] = color(f64::from(step) / 4.0);
        svg.rect("field", [x, top, KEY, 14.0], &format!("fill:#{red:02x}{green:02x}{blue:02x}"), "");
        if step % 2 == 0 {
            let label = ["1/4", "1/2", "1", "2", "4"][(step / 2 + 2) as usize];
            svg.text("small middle quiet", (x + KEY / 2.0, top + 27.0), label);
        }
        x += KEY;
    }
    svg.text("small", (x + 8.0, top + 11.0), &faster);
    x + 8.0 + text_width(&faster, 11.0)
}

/// From -1 to 1.
fn color(place: f64) -> [u8; 3] {
    let place = if place.is_nan() { 0.0 } else { place.clamp(-1.0, 1.0) };
    let above = COLORS.iter().position(|(at, _)| place <= *at).unwrap_or(COLORS.len() - 1).max(1);
    let ((from, low), (to, high)) = (COLORS[above - 1], COLORS[above]);
    let share = (place - from) / (to - from);
    std::array::from_fn(|i| (f64::from(low[i]) + (f64::from(high[i]) - f64::from(low[i])) * share).round() as u8)
}

/// How bright, from 0 to 1, as eyes see it.
fn luminance(color: [u8; 3]) -> f64 {
    let linear = color.map(|part| (f64::from(part) / 255.0).powf(2.2));
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{cell, figures};
    use super::*;

    fn drawn(names: &[&str], cells: Vec<Compared>) -> Vec<(String, String)> {
        let figures = figures(names, cells);
        let pictures = pictures(&figures, &figures.panels(), 99);
        pictures.into_iter().map(|picture| (picture.slug, picture.svg.inline(&picture.label))).collect()
    }

    /// Texts in fields and the colour before each, in order.
    fn fields(svg: &str) -> Vec<(String, String)> {
        let lines: Vec<&str> = svg.lines().collect();
        let text = |line: &str| line.split(">").nth(1).unwrap().split('<').next().unwrap().to_string();
        let fill = |line: &str| line.split("fill:").nth(1).unwrap()[..7].to_string();
        let pairs =
            lines.windows(2).filter(|pair| pair[0].starts_with("<rect class=\"field\"") && pair[1].contains("on-"));
        pairs.map(|pair| (fill(pair[0]), text(pair[1]))).collect()
    }

    #[test]
    fn fields_hold_the_ratio_and_its_colour() {
        let two = |bytes, other, spread| cell("all_reduce", 2, bytes, &[Some(2.0), other], spread);
        let cells =
            vec![two(8, Some(8.0), 5.0), two(64, Some(0.5), 5.0), two(512, Some(2.02), 5.0), two(4096, None, 5.0)];
        let pictures = drawn(&["shm", "mpi"], cells);
        assert_eq!((pictures.len(), pictures[0].0.as_str()), (1, "heat-mpi"));
        let svg = &pictures[0].1;
        let expected = [("#1a5ba6", "4.00"), ("#b35806", "0.25"), ("#f4f4f1", "\u{2248} 1.01")];
        assert_eq!(fields(svg), expected.map(|(fill, text)| (fill.to_string(), text.to_string())));
        assert_eq!(svg.matches("class=\"empty\"").count(), 1);
        for label in ["8 B", "64 B", "512 B", "4 KiB", "all_reduce sum", "time of mpi / time of shm, f32, 2 ranks"] {
            assert!(svg.contains(&format!(">{label}</text>")), "{label}: {svg}");
        }
        assert!(svg.contains("shm 2 us, mpi 8 us; ratio 4.000, 95 % interval 3.800..4.200"), "{svg}");
    }

    #[test]
    fn several_others_also_get_the_best_of_them() {
        let cells = vec![cell("all_reduce", 2, 8, &[Some(1.0), Some(3.0), Some(2.0), None], 1.0)];
        let pictures = drawn(&["shm", "mpi", "best", "ucx"], cells);
        let slugs: Vec<_> = pictures.iter().map(|(slug, _)| slug.as_str()).collect();
        assert_eq!(slugs, ["heat-best", "heat-mpi", "heat-best"]);
        assert_eq!(fields(&pictures[0].1)[0].1, "2.00 C");
        assert!(pictures[0].1.contains(">C  best</text>"));
    }

    #[test]
    fn long_maps_are_cut_between_operations() {
        let cells = ["all_reduce", "all_gather", "broadcast"]
            .into_iter()
            .flat_map(|op| [2, 4, 8].map(|ranks| cell(op, ranks, 8, &[Some(1.0), Some(2.0)], 1.0)))
            .collect();
        let figures = figures(&["shm", "mpi"], cells);
        let parts = |most| pictures(&figures, &figures.panels(), most);
        let labels: Vec<_> = parts(7).into_iter().map(|picture| picture.label).collect();
        let label = |part: &str| format!("mpi against shm: ratio of times ({part})");
        assert_eq!(labels, [label("1 of 2"), label("2 of 2")]);
        let fields =
            |most: usize| parts(most).iter().map(|picture| fields(&picture.svg.inline("")).len()).collect::<Vec<_>>();
        assert_eq!((fields(7), fields(2), fields(99)), (vec![6, 3], vec![2, 1, 2, 1, 2, 1], vec![9]));
    }

    #[test]
    fn too_few_values_are_marked() {
        let mut one = cell("all_reduce", 2, 8, &[Some(1.0), Some(3.0)], 1.0);
        one.ratios = vec![Some(Ratio { value: 3.0, interval: None })];
        assert_eq!(fields(&drawn(&["shm", "mpi"], vec![one])[0].1)[0].1, "3.00 ?");
        assert!(drawn(&["shm", "mpi"], vec![cell("all_reduce", 2, 8, &[Some(1.0), None], 1.0)]).is_empty());
    }

    #[test]
    fn text_can_be_read_on_every_colour() {
        for step in -100..=100 {
            let light = luminance(color(f64::from(step) / 100.0));
            // Contrast of WCAG 2 with nearly black or white text.
            let contrast = if light > 0.21 { (light + 0.05) / (0.015 + 0.05) } else { 1.05 / (light + 0.05) };
            assert!(contrast >= 3.9, "{step} {contrast}");
        }
    }
}
