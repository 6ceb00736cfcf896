//! The numbers behind the pictures, and where they are from, as tables of an HTML file.

use super::figures::{Figures, Panel, bus_bandwidth};
use super::svg::escape;
use super::units;
use crate::bench::comparison::Compared;
use crate::bench::origin::Origin;
use crate::bench::report::microseconds;
use std::fmt::Write;

/// One folding table for each panel.
pub(super) fn cells(figures: &Figures, panels: &[Panel<'_>]) -> String {
    let (mut html, with_ratios) = (String::new(), figures.has_ratios());
    for panel in panels {
        let title = escape(&panel.title);
        let _ = write!(
            html,
            "<details><summary>{title}</summary><div class=\"scroll\"><table><caption>{title}: median times in us, bus bandwidth \
             in GB/s</caption>\n<thead><tr><th scope=\"col\">size</th>"
        );
        for column in ["contender", "time", "95 %", "busbw"] {
            let _ = write!(html, "<th scope=\"col\">{column}</th>");
        }
        if with_ratios {
            let _ =
                write!(html, "<th scope=\"col\">ratio</th><th scope=\"col\">95 %</th><th scope=\"col\">which is</th>");
        }
        html += "</tr></thead>\n";
        for cell in &panel.cells {
            let size = units::bytes(cell.cell.bytes);
            let _ = write!(html, "<tbody><tr><th scope=\"rowgroup\" rowspan=\"{}\">{size}</th>", figures.names.len());
            for (i, name) in figures.names.iter().enumerate() {
                html += if i > 0 { "<tr>" } else { "" };
                html += &row(cell, i, name, with_ratios);
            }
            html += "</tbody>\n";
        }
        html += "</table></div></details>\n";
    }
    html
}

/// One contender at one size, without the size.
fn row(cell: &Compared, contender: usize, name: &str, with_ratios: bool) -> String {
    let time = cell.times_us.get(contender).copied().flatten();
    let interval = cell.intervals_us.get(contender).copied().flatten();
    let bus = time.and_then(|us| bus_bandwidth(&cell.cell, us));
    let mut html = format!(
        "<th scope=\"row\">{}</th><td>{}</td><td class=\"quiet\">{}</td><td>{}</td>",
        escape(name),
        time.map_or("-".into(), microseconds),
        interval.map_or("-".into(), |(low, high)| format!("{}..{}", microseconds(low), microseconds(high))),
        bus.map_or("-".into(), |gbs| format!("{gbs:.3}")),
    );
    if with_ratios {
        let ratio = contender.checked_sub(1).and_then(|other| cell.ratios.get(other).copied().flatten());
        let _ = write!(
            html,
            "<td>{}</td><td class=\"quiet\">{}</td><td>{}</td>",
            ratio.map_or("-".into(), |ratio| format!("{:.3}", ratio.value)),
            ratio.map_or("-".into(), |ratio| ratio.interval_text()),
            ratio.map_or("-", |ratio| ratio.verdict().name()),
        );
    }
    html + "</tr>"
}

/// One folding table of the workloads.
pub(super) fn workloads(figures: &Figures) -> String {
    let mut html = String::from(
        "<details><summary>Workloads</summary><div class=\"scroll\"><table><caption>Time spent communicating per unit, in us\
         </caption>\n<thead><tr><th scope=\"col\">workload</th><th scope=\"col\">variant</th><th scope=\"col\" class=\"words\">backend</th>\
         <th scope=\"col\">ranks</th><th scope=\"col\" class=\"words\">unit</th><th scope=\"col\">median</th><th scope=\"col\">p99</th>\
         <th scope=\"col\" class=\"words\">by operation</th><th scope=\"col\" class=\"words\">calls by size</th></tr></thead>\n<tbody>",
    );
    for times in &figures.workloads {
        let by_op = times.by_op.iter().map(|(op, us)| format!("{op} {}", microseconds(*us)));
        let by_size = times.by_size.iter().map(|(size, share)| format!("{size} {:.1} %", share * 100.0));
        let variant = if times.variant.is_empty() { "-" } else { &times.variant };
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\">{}</th><td class=\"words\">{}</td><td class=\"words\">{}</td><td>{}</td><td class=\"words\">{}</td><td>{}</td><td>{}</td>\
             <td class=\"words\">{}</td><td class=\"words\">{}</td></tr>",
            escape(&times.workload),
            escape(variant),
            escape(&times.backend),
            times.ranks,
            escape(&times.unit),
            microseconds(times.total_us),
            microseconds(times.p99_us),
            escape(&by_op.collect::<Vec<_>>().join(", ")),
            escape(&by_size.collect::<Vec<_>>().join(", ")),
        );
    }
    html + "</tbody></table></div></details>\n"
}

/// Machine, versions, settings and command lines, a column for each origin.
pub(super) fn origins(origins: &[(String, Origin)]) -> String {
    let described: Vec<Vec<(&str, String)>> = origins.iter().map(|(_, origin)| fields(origin)).collect();
    let mut html = String::from("<div class=\"scroll\"><table class=\"facts\">");
    if origins.len() > 1 {
        html += "<thead><tr><th></th>";
        for (label, _) in origins {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escape(label));
        }
        html += "</tr></thead>";
    }
    html += "<tbody>\n";
    for row in 0..described.first().map_or(0, Vec::len) {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", described[0][row].0);
        for origin in &described {
            let _ = write!(html, "<td>{}</td>", escape(&origin[row].1));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

fn fields(origin: &Origin) -> Vec<(&'static str, String)> {
    let settings = origin.settings.iter().map(|(name, value)| format!("{name}={value}"));
    let settings = settings.collect::<Vec<_>>().join(" ");
    let libraries = origin.libraries.iter().map(|(name, version)| format!("{name} {version}"));
    let libraries = libraries.collect::<Vec<_>>().join(", ");
    let command: Vec<String> = origin.arguments.iter().map(|word| quoted(word)).collect();
    vec![
        ("date", origin.date.clone()),
        ("host", origin.host.clone()),
        ("processor", format!("{}, {} CPUs", origin.cpu, origin.cpus)),
        ("kernel", origin.kernel.clone()),
        ("tool", origin.tool.clone()),
        ("commit", origin.git.clone().unwrap_or_else(|| "unknown".into())),
        ("libraries", if libraries.is_empty() { "none".into() } else { libraries }),
        ("settings", if settings.is_empty() { "defaults".into() } else { settings }),
        ("command", format!("rankwise {}", command.join(" "))),
    ]
}

/// As a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=+@%#".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{cell, figures};
    use super::*;

    #[test]
    fn the_table_holds_times_bandwidth_and_ratios() {
        let figures = figures(&["a", "<b>"], vec![cell("all_reduce", 2, 4096, &[Some(2.0), Some(4.0)], 10.0)]);
        let html = cells(&figures, &figures.panels());
        let fields: Vec<&str> = html
            .split("<td")
            .skip(1)
            .map(|field| field.split('>').nth(1).unwrap().split('<').next().unwrap())
            .collect();
        let expected = [
            "2.000",
            "1.800..2.200",
            "2.048",
            "-",
            "-",
            "-", // The base has no ratio.
            "4.000",
            "3.600..4.400",
            "1.024",
            "2.000",
            "1.800..2.200",
            "slower",
        ];
        assert_eq!(fields, expected, "{html}");
        assert!(
            html.contains("<th scope=\"rowgroup\" rowspan=\"2\">4 KiB</th>")
                && html.contains("<th scope=\"row\">&lt;b&gt;</th>")
        );
    }

    #[test]
    fn each_origin_has_a_column() {
        let mut one = Origin::here();
        one.libraries.insert("ompi".into(), "5.0.11 <x>".into());
        one.settings.clear();
        let two = Origin { host: "elsewhere".into(), libraries: Default::default(), ..one.clone() };
        let html = origins(&[("a.jsonl".into(), one), ("b.jsonl".into(), two)]);
        assert!(html.contains("<th scope=\"col\">a.jsonl</th><th scope=\"col\">b.jsonl</th>"), "{html}");
        assert!(html.contains("<td>ompi 5.0.11 &lt;x&gt;</td><td>none</td>"), "{html}");
        assert!(html.contains("<td>elsewhere</td></tr>") && html.contains("<td>defaults</td>"), "{html}");
    }

    #[test]
    fn command_lines_can_be_repeated() {
        let words = ["bench", "--op", "a b", "it's", ""].map(quoted);
        assert_eq!(words, ["bench", "--op", "'a b'", "'it'\\''s'", "''"]);
    }
}
