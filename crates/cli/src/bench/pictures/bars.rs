//! Workloads: a bar for each variant and backend, split by operation, from zero.

use super::figures::WorkloadTimes;
use super::legend::{self, Sign, faded};
use super::lines::{Picture, WIDTH};
use super::svg::{COLORS, Svg, text_width};
use super::units::{self, shortened};

const LEFT: f64 = 8.0;
const RIGHT: f64 = WIDTH - 8.0;
/// A line of text and the bar below it.
const ROW: f64 = 38.0;
const BAR: f64 = 13.0;

/// A panel for each workload, all with the same colours.
pub(super) fn panels(workloads: &[WorkloadTimes]) -> Vec<Picture> {
    let mut ops: Vec<&str> = Vec::new();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for times in workloads {
        for (op, _) in &times.by_op {
            if !ops.contains(&op.as_str()) {
                ops.push(op);
            }
        }
        let name = (times.workload.as_str(), times.unit.as_str());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let panel = |(workload, unit): (&str, &str)| {
        let of = |times: &&WorkloadTimes| times.workload == workload && times.unit == unit;
        let rows: Vec<&WorkloadTimes> = workloads.iter().filter(of).collect();
        let label = format!("{workload}: time spent communicating per {unit}, by operation");
        Picture { slug: format!("workload-{workload}"), label, svg: draw(workload, unit, &rows, &ops) }
    };
    names.into_iter().map(panel).collect()
}

/// All panels in one picture, in two columns; none without workloads.
pub(super) fn all(workloads: &[WorkloadTimes]) -> Option<Picture> {
    let panels = panels(workloads);
    if panels.is_empty() {
        return None;
    }
    let columns = panels.len().min(2);
    let mut bottoms = vec![0.0_f64; columns];
    let mut svg = Svg::new(WIDTH * columns as f64 + 12.0 * (columns - 1) as f64, 0.0);
    for panel in &panels {
        let column = usize::from(columns == 2 && bottoms[1] < bottoms[0]);
        svg.place(((WIDTH + 12.0) * column as f64, bottoms[column]), &panel.svg);
        bottoms[column] += panel.svg.height;
    }
    svg.height = bottoms.into_iter().fold(0.0, f64::max);
    let label = "time spent communicating by workload and operation".into();
    Some(Picture { slug: "workloads".into(), label, svg })
}

fn draw(workload: &str, unit: &str, rows: &[&WorkloadTimes], ops: &[&str]) -> Svg {
    let mut svg = Svg::new(WIDTH, 0.0);
    svg.text("title", (LEFT, 23.0), &shortened(workload, 44));
    svg.text("small quiet", (LEFT, 39.0), &format!("communication per {unit}: median, line to the 99th percentile"));
    let used = |op: &&str| rows.iter().any(|times| times.by_op.iter().any(|(name, _)| name == op));
    let names: Vec<_> =
        ops.iter().enumerate().filter(|(_, op)| used(op)).map(|(i, op)| (i, (*op).to_string())).collect();
    let mut y = 45.0;
    y += legend::draw(&mut svg, y, LEFT, RIGHT, Sign::Box, &names) + 4.0;

    // A tail ten times the median would press the bars flat; it ends with an arrow instead.
    let positive = |us: f64| if us.is_finite() { us.max(0.0) } else { 0.0 };
    let longest = rows.iter().map(|times| positive(times.total_us)).fold(0.0, f64::max);
    let tails = rows.iter().map(|times| positive(times.p99_us)).fold(0.0, f64::max);
    let end = tails.clamp(longest, longest * 1.3).max(1e-9);
    let x = |us: f64| LEFT + positive(us) / end * (RIGHT - LEFT - 8.0);

    let mut variant = None;
    for times in rows {
        if variant.is_some() && variant != Some((&times.variant, times.ranks)) {
            y += 6.0;
        }
        variant = Some((&times.variant, times.ranks));
        let plural = if times.ranks == 1 { "" } else { "s" };
        let mut name = format!("{}, {} rank{plural}", shortened(&times.backend, 18), times.ranks);
        if !times.variant.is_empty() {
            name = format!("{}, {name}", shortened(&times.variant, 24));
        }
        let value = units::time(positive(times.total_us));
        let room = RIGHT - LEFT - text_width(&value, 12.0) - 12.0;
        let mut most = name.chars().count();
        while most > 4 && text_width(&shortened(&name, most), 11.0) > room {
            most -= 1;
        }
        svg.text("small", (LEFT, y + 13.0), &shortened(&name, most));
        svg.text("bold end", (RIGHT, y + 13.0), &value);
        let top = y + 18.0;
        let mut at = 0.0;
        // The medians of the parts need not add up to the median of the whole.
        let sum: f64 = times.by_op.iter().map(|(_, us)| positive(*us)).sum();
        let scale = if sum > 0.0 { positive(times.total_us) / sum } else { 0.0 };
        for (op, us) in &times.by_op {
            let index = ops.iter().position(|name| name == op).unwrap_or(0);
            let part = positive(*us) * scale;
            let note = format!("{op}: {}, {:.0} %", units::time(positive(*us)), 100.0 * positive(*us) / sum.max(1e-9));
            let field = [x(at), top, (x(at + part) - x(at)).max(0.0), BAR];
            svg.rect(&format!("f{}", index % COLORS.len()), field, faded(index), &note);
            at += part;
        }
        if times.p99_us.is_finite() && times.p99_us > times.total_us {
            let (middle, from) = (top + BAR / 2.0, x(times.total_us));
            if times.p99_us <= end {
                svg.line("tail", (from, middle), (x(times.p99_us), middle));
                svg.line("tail", (x(times.p99_us), middle - 4.0), (x(times.p99_us), middle + 4.0));
            } else {
                let tip = RIGHT - 1.0;
                svg.line("tail", (from, middle), (tip, middle));
                svg.path("tail", &[(tip - 4.0, middle - 4.0), (tip, middle), (tip - 4.0, middle + 4.0)]);
            }
        }
        y += ROW;
    }
    svg.height = y + 4.0;
    svg
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn times(backend: &str, variant: &str, parts: &[(&str, f64)]) -> WorkloadTimes {
        let total_us: f64 = parts.iter().map(|(_, us)| us).sum();
        WorkloadTimes {
            backend: backend.into(),
            workload: "llama3-8b-decode".into(),
            variant: variant.into(),
            unit: "token".into(),
            ranks: 2,
            total_us,
            p99_us: total_us * 1.1,
            by_op: parts.iter().map(|(op, us)| (op.to_string(), *us)).collect(),
            by_size: vec![("up to 64 KiB".into(), 0.98), ("larger".into(), 0.02)],
        }
    }

    #[test]
    fn bars_are_as_long_as_the_times() {
        let workloads = [
            times("shm", "batch=1", &[("all_reduce", 300.0), ("all_gather", 100.0)]),
            times("mpi", "batch=1", &[("all_reduce", 800.0)]),
        ];
        let panels = panels(&workloads);
        assert_eq!(panels.len(), 1);
        let svg = panels[0].svg.inline("");
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("<title>"))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        // The axis ends at the longest tail, 880.
        let full = RIGHT - LEFT - 8.0;
        for (width, expected) in widths.iter().zip([300.0, 100.0, 800.0]) {
            assert!((width - full * expected / 880.0).abs() < 0.02, "{widths:?}");
        }
        assert_eq!(widths.len(), 3);
        for text in ["batch=1, shm, 2 ranks", "400 us", "800 us", "all_gather", "communication per token"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }

    #[test]
    fn a_far_tail_does_not_flatten_the_bars() {
        let mut far = times("shm", "", &[("all_reduce", 100.0)]);
        far.p99_us = 1e6;
        let svg = panels(&[far])[0].svg.inline("");
        assert!(svg.contains("<polyline class=\"tail\""), "{svg}");
        assert!(svg.contains("width=\"258.46\""), "{svg}");
    }

    #[test]
    fn panels_share_one_picture() {
        let mut other = times("shm", "", &[("all_to_all", 5.0)]);
        other.workload = "deepseek-v3-moe".into();
        let workloads = [times("shm", "", &[("all_reduce", 5.0)]), other];
        let picture = all(&workloads).unwrap();
        assert_eq!((picture.slug.as_str(), picture.svg.width), ("workloads", 2.0 * WIDTH + 12.0));
        assert!(all(&[]).is_none());
    }
}
