//! SVG text and the one style of all pictures.

use std::fmt::Write;

/// A picture being drawn, in pixels from its upper left corner.
#[derive(Clone, Debug, Default)]
pub(super) struct Svg {
    pub(super) width: f64,
    pub(super) height: f64,
    body: String,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(number);
        self.push(format_args!(r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#));
    }

    /// Straight through the points.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        self.push(format_args!(r#"<polyline class="{class}" points="{}"/>"#, points.join(" ")));
    }

    /// `style` is put there as it is; `note` is shown by a pointer that rests on it.
    pub(super) fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4], style: &str, note: &str) {
        let [x, y, width, height] = [x, y, width, height].map(number);
        let style = if style.is_empty() { String::new() } else { format!(r#" style="{style}""#) };
        let start = format!(r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"{style}"#);
        self.with_note(&start, "rect", note);
    }

    /// A sign whose shape tells series apart where colours do not.
    pub(super) fn marker(&mut self, series: usize, (x, y): (f64, f64), note: &str) {
        let class = format!("f{}", series % COLORS.len());
        let at = |dx: f64, dy: f64| format!("{},{}", number(x + dx), number(y + dy));
        let polygon = |corners: &[(f64, f64)]| {
            let corners: Vec<String> = corners.iter().map(|(dx, dy)| at(*dx, *dy)).collect();
            format!(r#"<polygon class="{class}" points="{}""#, corners.join(" "))
        };
        let (start, name) = match series % 4 {
            0 => (format!(r#"<circle class="{class}" cx="{}" cy="{}" r="3""#, number(x), number(y)), "circle"),
            1 => (polygon(&[(-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)]), "polygon"),
            2 => (polygon(&[(0.0, -3.8), (3.5, 2.6), (-3.5, 2.6)]), "polygon"),
            _ => (polygon(&[(0.0, -4.0), (4.0, 0.0), (0.0, 4.0), (-4.0, 0.0)]), "polygon"),
        };
        self.with_note(&start, name, note);
    }

    fn with_note(&mut self, start: &str, name: &str, note: &str) {
        match note {
            "" => self.push(format_args!("{start}/>")),
            note => self.push(format_args!("{start}><title>{}</title></{name}>", escape(note))),
        }
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let (x, y, text) = (number(x), number(y), escape(text));
        self.push(format_args!(r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#));
    }

    /// Another picture, at that point.
    pub(super) fn place(&mut self, (x, y): (f64, f64), other: &Svg) {
        let (x, y) = (number(x), number(y));
        self.push(format_args!("<g transform=\"translate({x} {y})\">\n{}</g>", other.body));
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{text}");
    }

    /// For an HTML file that has [`style`] already.
    pub(super) fn inline(&self, label: &str) -> String {
        let (width, height, label) = (number(self.width), number(self.height), escape(label));
        format!(
            "<svg class=\"picture\" role=\"img\" aria-label=\"{label}\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n{}</svg>\n",
            self.body
        )
    }

    /// As a file of its own.
    pub(super) fn standalone(&self, label: &str) -> String {
        let (width, height, label) = (number(self.width), number(self.height), escape(label));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"picture\" role=\"img\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<title>{label}</title>\n<style>{}</style>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n{}</svg>\n",
            style(),
            self.body
        )
    }
}

/// Colours of series and operations, on white and on black. The first six can be told apart by people who see few colours
/// (Okabe and Ito's set); shapes and dashes help beyond.
pub(super) const COLORS: [(&str, &str); 8] = [
    ("#0072b2", "#56a9e8"),
    ("#d55e00", "#ff8b45"),
    ("#009e73", "#2fcc9f"),
    ("#b8558f", "#e59bc8"),
    ("#d99000", "#f2b83d"),
    ("#3aa0dd", "#9ad4f7"),
    ("#555555", "#bdbdbd"),
    ("#7a3b2e", "#cf8f80"),
];

/// The class of a series' line. Dashes tell series apart where colours repeat.
pub(super) fn line_class(series: usize) -> String {
    let dashes = ["", " dashed", " dotted", " dashed"][series / COLORS.len() % 4];
    format!("series l{}{dashes}", series % COLORS.len())
}

/// The style sheet of all pictures.
pub(super) fn style() -> String {
    let mut light = String::from(
        ".picture{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px}\
         .picture text{fill:#1d2125}.picture .title{font-size:13px;font-weight:600}.picture .small{font-size:11px}\
         .picture .quiet{fill:#59636e}.picture .middle{text-anchor:middle}.picture .end{text-anchor:end}\
         .picture .bold{font-weight:600}\
         .paper{fill:#fff}.grid{stroke:#e3e6ea;stroke-width:1}.axis{stroke:#7d8790;stroke-width:1}\
         .series{fill:none;stroke-width:1.75;stroke-linejoin:round}.dashed{stroke-dasharray:6 3}\
         .dotted{stroke-dasharray:1.5 3}.whisker{stroke-width:5;stroke-opacity:.3}\
         .empty{fill:none;stroke:#e3e6ea}.tail{stroke:#59636e;stroke-width:1.25;fill:none}",
    );
    let mut dark = String::from(
        ".picture text{fill:#e3e6ea}.picture .quiet{fill:#a2abb5}.paper{fill:#15181c}.grid{stroke:#2c3238}\
         .axis{stroke:#7d8790}.empty{stroke:#2c3238}.tail{stroke:#a2abb5}",
    );
    for (i, (on_white, on_black)) in COLORS.iter().enumerate() {
        for (sheet, color) in [(&mut light, on_white), (&mut dark, on_black)] {
            let _ = write!(sheet, ".l{i}{{stroke:{color}}}.f{i}{{fill:{color}}}");
        }
    }
    // The cells of the heat map have colours of their own, and so has the text on them.
    let on_cells = ".picture .on-light{fill:#1d2125}.picture .on-dark{fill:#fff}";
    format!("{light}{on_cells}@media screen and (prefers-color-scheme:dark){{{dark}{on_cells}}}")
}

/// At most two digits behind the point.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// As text or as the value of an attribute. Characters that XML cannot hold become a replacement sign.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            '\t' | '\n' => safe.push(' '),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            // Marks that turn the direction of what follows.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// About how wide text is at that font size. Fonts differ; this is a wide one.
pub(super) fn text_width(text: &str, font_size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | '\'' | '|' | ' ' | '(' | ')' | '/' | 't' | 'f' | 'r' => 0.37,
        'm' | 'w' | 'M' | 'W' | '@' => 0.95,
        c if c.is_ascii_uppercase() => 0.7,
        c if (c as u32) < 0x2e80 => 0.61,
        _ => 1.05,
    };
    text.chars().map(em).sum::<f64>() * font_size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_text() {
        let mut svg = Svg::new(10.0, 10.0);
        let evil = "</text><script>x</script>\"'&\0\u{202e}";
        svg.text("small", (1.0, 2.0), evil);
        svg.rect("a", [0.0; 4], "", evil);
        for text in [svg.inline(evil), svg.standalone(evil)] {
            assert!(!text.contains("<script") && !text.contains('\0') && !text.contains('\u{202e}'), "{text}");
            assert!(text.contains("&lt;/text&gt;&lt;script&gt;x&lt;/script&gt;&quot;&#39;&amp;"), "{text}");
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([1.0, 0.127, -0.001, 100.0, 12.3456].map(number), ["1", "0.13", "0", "100", "12.35"]);
    }
}
