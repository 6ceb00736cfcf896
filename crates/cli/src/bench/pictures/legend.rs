//! Which sign belongs to which series, in rows that fit the width.

use super::svg::{COLORS, Svg, line_class, text_width};
use super::units::shortened;

/// What stands before a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    LineAndMarker,
    Box,
}

/// Height of a row.
const ROW: f64 = 17.0;
/// From the start of the sign to the start of the name.
const SIGN: f64 = 26.0;
const GAP: f64 = 12.0;

/// Draws the names and gives back the height they take. Each has its number among the series.
pub(super) fn draw(svg: &mut Svg, top: f64, left: f64, right: f64, sign: Sign, names: &[(usize, String)]) -> f64 {
    let (mut x, mut rows) = (left, 1);
    for (series, name) in names {
        let name = shortened(name, 44);
        let width = SIGN + text_width(&name, 11.0);
        if x > left && x + width > right {
            x = left;
            rows += 1;
        }
        let middle = top + f64::from(rows) * ROW - ROW / 2.0;
        match sign {
            Sign::LineAndMarker => {
                svg.line(&line_class(*series), (x, middle), (x + 20.0, middle));
                svg.marker(*series, (x + 10.0, middle), "");
            }
            Sign::Box => {
                let class = format!("f{}", series % COLORS.len());
                svg.rect(&class, [x + 6.0, middle - 5.0, 14.0, 10.0], faded(*series), "")
            }
        }
        svg.text("small", (x + SIGN, middle + 4.0), &name);
        x += width + GAP;
    }
    f64::from(rows) * ROW
}

/// The style of a filled area whose colour is used a second time.
pub(super) fn faded(series: usize) -> &'static str {
    if series / COLORS.len() % 2 == 1 { "fill-opacity:.45" } else { "" }
}
