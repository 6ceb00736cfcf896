//! One HTML file with everything: no script, nothing from elsewhere, for screens of any width and for paper.

use super::figures::{Figures, Panel};
use super::svg::{escape, style};
use super::{bars, heat, lines, tables};
use std::fmt::Write;

/// The whole file.
pub(super) fn html(figures: &Figures, panels: &[Panel<'_>]) -> String {
    let title = escape(&figures.title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{SHEET}\n{}\n</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n",
        style()
    );
    html += &tables::origins(&figures.origins);
    if !figures.remarks.is_empty() {
        html += "<section class=\"remarks\"><h2>Incomplete or remarkable</h2>\n<ul>\n";
        for remark in &figures.remarks {
            let _ = writeln!(html, "<li>{}</li>", escape(remark));
        }
        html += "</ul></section>\n";
    }
    html += &how_to_read(figures);
    let maps = heat::pictures(figures, panels, ROWS_OF_MAP);
    if !maps.is_empty() {
        html += "<section><h2>Ratios</h2>\n<div class=\"maps\">\n";
        for picture in maps {
            let _ = writeln!(html, "<figure class=\"scroll\">{}</figure>", picture.svg.inline(&picture.label));
        }
        html += "</div></section>\n";
    }
    if !figures.workloads.is_empty() {
        html += "<section><h2>Workloads</h2>\n<div class=\"panels\">\n";
        for picture in bars::panels(&figures.workloads) {
            let _ = writeln!(html, "<figure>{}</figure>", picture.svg.inline(&picture.label));
        }
        html += "</div></section>\n";
    }
    if !panels.is_empty() {
        html += "<section><h2>Time and bandwidth</h2>\n";
        for of_op in panels.chunk_by(|one, other| one.of.op == other.of.op) {
            let _ = write!(html, "<h3>{}</h3>\n<div class=\"panels\">\n", escape(&of_op[0].of.op));
            for picture in lines::pictures(&figures.names, of_op) {
                let _ = writeln!(html, "<figure>{}</figure>", picture.svg.inline(&picture.label));
            }
            html += "</div>\n";
        }
        html += "</section>\n";
    }
    html += "<section><h2>Numbers</h2>\n<p>Tables unfold at a touch, and are printed when they are unfolded.</p>\n";
    if !figures.workloads.is_empty() {
        html += &tables::workloads(figures);
    }
    html += &tables::cells(figures, panels);
    html + "</section>\n</main>\n</body>\n</html>\n"
}

/// Longer maps could not be read in print.
const ROWS_OF_MAP: usize = 30;

fn how_to_read(figures: &Figures) -> String {
    let mut points = Vec::new();
    if !figures.cells.is_empty() {
        points.push(
            "The time of a call is that of its slowest rank, all ranks released together; shown is the median over the calls. \
             Every result was checked. The upright bar behind a point is the 95 % interval of the median; where it is not to be \
             seen it is smaller than the point. A gap in a line was not measured.",
        );
        points.push(
            "Bus bandwidth is the share of the data that must cross a rank's link, by the time, as nccl-tests defines it; \
             it can be compared between operations and numbers of ranks. 1 GB/s is 1e9 bytes a second.",
        );
    }
    let names = figures.names.first().map(|name| escape(name)).unwrap_or_default();
    let ratios = format!(
        "A ratio is the time of the other by that of {names}: above 1 {names} is faster. \u{2248} says that 1 lies in the 95 % \
         interval: no difference was shown. {}",
        if figures.paired {
            "The contenders took turns, round by round; the ratio is the median of the rounds' ratios."
        } else {
            "The contenders were measured one after the other; the ratio is that of the medians, and its interval knows \
             nothing of what differs from run to run."
        }
    );
    if figures.has_ratios() {
        points.push(&ratios);
    }
    if !figures.workloads.is_empty() {
        points.push(
            "The bar of a workload is the time that a model spends in its calls alone, per token or step; computation, and what \
             it would hide, is left out.",
        );
    }
    points.iter().fold("<section><h2>How to read this</h2>\n<ul>\n".to_string(), |html, point| {
        html + &format!("<li>{point}</li>\n")
    }) + "</ul></section>\n"
}

const SHEET: &str = "*{box-sizing:border-box}
body{margin:0;background:#fff;color:#1d2125;font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:1000px;margin:0 auto;padding:16px}
@media (min-width:1500px){main{max-width:1460px}}
h1{font-size:1.5rem;line-height:1.25;margin:8px 0 16px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:28px 0 8px}
h3{font-size:1rem;margin:20px 0 8px}
.maps{display:flex;flex-wrap:wrap;gap:12px 24px;align-items:flex-start}
.maps figure{margin:0}
ul{padding-left:1.2em;max-width:75ch}
li{margin:4px 0;overflow-wrap:anywhere}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:12px;align-items:start}
figure{margin:0 0 12px}
.panels figure{border:1px solid #e3e6ea;border-radius:6px;margin:0}
.panels svg{display:block;width:100%;height:auto;max-width:480px;margin:0 auto}
.scroll{overflow-x:auto;max-width:100%}
.scroll svg{display:block}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
caption{text-align:left;color:#59636e;padding:4px 0}
th,td{padding:3px 10px 3px 0;text-align:right;white-space:nowrap;border-bottom:1px solid #e3e6ea}
th,.words{text-align:left}
thead th{text-align:right}
thead th:first-child,thead th:nth-child(2),thead .words{text-align:left}
tbody th[rowspan]{vertical-align:top}
tbody+tbody tr:first-child>*{border-top:1px solid #aab2ba}
thead th{font-weight:600}
tbody th{font-weight:500}
.quiet{color:#59636e}
.facts td,.facts th{text-align:left;vertical-align:top;white-space:normal;overflow-wrap:anywhere}
.facts th{white-space:nowrap;color:#59636e}
.facts td{min-width:16ch}
.remarks{border-left:4px solid #d55e00;padding:1px 0 1px 14px;margin:20px 0}
.remarks h2{margin-top:4px}
details{border-bottom:1px solid #e3e6ea;padding:6px 0}
summary{cursor:pointer}
@media screen and (prefers-color-scheme:dark){
body{background:#15181c;color:#e3e6ea}
th,td,details,.panels figure{border-color:#2c3238}
caption,.quiet,.facts th{color:#a2abb5}
}
@media print{
@page{margin:14mm}
body{font-size:11px}
main{max-width:none;padding:0}
h2,h3{break-after:avoid}
.panels{grid-template-columns:repeat(2,1fr)}
figure,tr,.remarks li{break-inside:avoid}
.scroll{overflow:visible}
.scroll svg{width:auto;height:auto;max-width:100%;max-height:240mm}
table{font-size:9px}
th,td{white-space:normal;padding-right:6px}
.maps{display:block}
.picture rect,.picture text{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}";

#[cfg(test)]
mod tests {
    use super::super::bars::tests::times;
    use super::super::figures::tests::{cell, figures};
    use super::*;

    fn sample() -> Figures {
        let evil = "<img src=x onerror=alert(1)>\"'&";
        let mut figures = figures(
            &["shm", evil],
            vec![
                cell("all_reduce", 2, 8, &[Some(1.0), Some(2.0)], 5.0),
                cell("all_reduce", 2, 64, &[Some(1.0), None], 5.0),
            ],
        );
        figures.title = format!("shm against {evil}");
        figures.remarks = vec![format!("{evil} failed")];
        figures.workloads = vec![times(evil, evil, &[(evil, 3.0)])];
        figures.origins[0].1.host = evil.into();
        figures.origins[0].1.arguments = vec!["bench".into(), evil.into()];
        figures.origins[0].1.settings.insert("RANKWISE_X".into(), evil.into());
        figures
    }

    #[test]
    fn foreign_text_is_escaped_everywhere() {
        let figures = sample();
        let html = html(&figures, &figures.panels());
        assert!(!html.contains("<img"), "{html}");
        assert!(html.matches("&lt;img src=x").count() > 8, "{html}");
        for tag in ["<svg", "<table", "<details", "<figure", "<section", "<ul", "<div", "<td", "<text", "<g"] {
            let open = html.matches(&format!("{tag} ")).count() + html.matches(&format!("{tag}>")).count();
            assert_eq!(open, html.matches(&format!("</{}>", &tag[1..])).count(), "{tag}");
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_nothing_runs() {
        let figures = sample();
        let html = html(&figures, &figures.panels());
        for foreign in ["http:", "https:", "//", "<script", "<link", "@import", "url(", "href=", "<img", "<iframe"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        assert!(html.contains("<meta name=\"viewport\"") && html.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn equal_figures_give_equal_files() {
        let figures = sample();
        assert_eq!(html(&figures, &figures.panels()), html(&figures, &figures.panels()));
    }

    #[test]
    fn only_what_is_there_is_explained() {
        let one = figures(&["shm"], vec![cell("all_reduce", 2, 8, &[Some(1.0)], 5.0)]);
        let html = html(&one, &one.panels());
        assert!(!html.contains("<h2>Ratios") && !html.contains("<h2>Workloads") && !html.contains("Incomplete"));
        assert!(!html.contains("A ratio is"));
        assert!(html.contains("<h2>Time and bandwidth</h2>"));
    }
}
