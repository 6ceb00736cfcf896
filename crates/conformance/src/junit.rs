//! Results as JUnit XML, the format that CI systems read.
//!
//! The file is replaced as a whole while the run goes on, so that a run that is interrupted leaves a file that can be read
//! and says that it is not complete.

use crate::areas::area;
use crate::report::{CaseReport, Verdict};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file is written again at most this often.
const EVERY: Duration = Duration::from_millis(500);
/// The most characters of a message that stands in an attribute; the whole text stands in the element.
const MOST_MESSAGE: usize = 200;

/// The results of a run and where they go.
pub(crate) struct Junit {
    path: PathBuf,
    /// Name and value, for example of the seed.
    properties: Vec<(String, String)>,
    /// In the order in which they came: one for each backend, mode and number of ranks.
    suites: Vec<(String, Vec<CaseReport>)>,
    written: Instant,
    /// Whether the file lacks something.
    is_behind: bool,
}

impl Junit {
    /// Writes a file that says that nothing has run yet: what can't be written is known before anything runs.
    ///
    /// Only a regular file is replaced: for root the place of a device such as `/dev/null` could be taken just as well.
    pub(crate) fn create(path: &Path, properties: Vec<(String, String)>) -> io::Result<Junit> {
        if std::fs::metadata(path).is_ok_and(|known| !known.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it exists and is not a regular file"));
        }
        let junit =
            Junit { path: path.into(), properties, suites: Vec::new(), written: Instant::now(), is_behind: false };
        junit.write(false)?;
        Ok(junit)
    }

    /// One more result.
    pub(crate) fn add(&mut self, report: &CaseReport) -> io::Result<()> {
        let mode = report.mode.map_or("all modes", |mode| mode.name());
        let name = format!("{} {mode} {} ranks", report.backend, report.ranks);
        match self.suites.iter_mut().find(|(known, _)| *known == name) {
            Some((_, reports)) => reports.push(report.clone()),
            None => self.suites.push((name, vec![report.clone()])),
        }
        self.is_behind = true;
        if self.written.elapsed() < EVERY { Ok(()) } else { self.catch_up() }
    }

    /// Writes what the file lacks.
    pub(crate) fn catch_up(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_behind) {
            return Ok(());
        }
        self.written = Instant::now();
        self.write(false)
    }

    /// Writes the file for the last time.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.is_behind = false;
        self.write(true)
    }

    fn write(&self, complete: bool) -> io::Result<()> {
        let mut partial = self.path.clone().into_os_string();
        partial.push(".partial");
        std::fs::write(&partial, self.render(complete))?;
        std::fs::rename(&partial, &self.path)
    }

    fn render(&self, complete: bool) -> String {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let all = || self.suites.iter().flat_map(|(_, reports)| reports);
        let (mut total, ended) =
            (Totals::of(all()), Totals { tests: 1, errors: usize::from(!complete), ..Totals::ZERO });
        total.tests += ended.tests;
        total.errors += ended.errors;
        let _ = writeln!(xml, "<testsuites name=\"rankwise conformance\"{total}>");
        for (name, reports) in &self.suites {
            let _ = writeln!(xml, "  <testsuite name=\"{}\"{}>", escaped(name), Totals::of(reports.iter()));
            let _ = writeln!(xml, "    <properties>");
            for (name, value) in &self.properties {
                let _ = writeln!(xml, "      <property name=\"{}\" value=\"{}\"/>", escaped(name), escaped(value));
            }
            let _ = writeln!(xml, "    </properties>");
            reports.iter().for_each(|report| test_case(&mut xml, report));
            xml += "  </testsuite>\n";
        }
        let _ = writeln!(xml, "  <testsuite name=\"run\"{ended}>");
        xml += "    <testcase classname=\"run\" name=\"the run is complete\" time=\"0.000\"";
        xml += match complete {
            true => "/>\n",
            false => "><error message=\"the run ended, or was interrupted, before its last case\"/></testcase>\n",
        };
        xml += "  </testsuite>\n</testsuites>\n";
        xml
    }
}

fn test_case(xml: &mut String, report: &CaseReport) {
    let name = format!("{} {}", report.case, report.title);
    let _ = write!(
        xml,
        "    <testcase classname=\"{}.{}\" name=\"{}\" time=\"{:.3}\"",
        escaped(&report.backend),
        escaped(area(report)),
        escaped(&name),
        seconds(report)
    );
    let detail = escaped(&report.detail);
    let message = escaped(&report.detail.chars().take(MOST_MESSAGE).collect::<String>());
    let _ = match report.result {
        Verdict::Pass => writeln!(xml, "/>"),
        Verdict::Fail => {
            let kind = if report.wrong_result { "wrong result" } else { "error" };
            writeln!(xml, "><failure type=\"{kind}\" message=\"{message}\">{detail}</failure></testcase>")
        }
        Verdict::Known => writeln!(xml, "><skipped message=\"known deviation: {message}\"/></testcase>"),
        Verdict::Unsupported | Verdict::Inapplicable => {
            writeln!(xml, "><skipped message=\"{detail}\"/></testcase>")
        }
    };
}

fn seconds(report: &CaseReport) -> f64 {
    Duration::from_millis(report.millis).as_secs_f64()
}

/// The attributes of a suite.
#[derive(Clone, Copy)]
struct Totals {
    tests: usize,
    failures: usize,
    errors: usize,
    skipped: usize,
    seconds: f64,
}

impl Totals {
    const ZERO: Totals = Totals { tests: 0, failures: 0, errors: 0, skipped: 0, seconds: 0.0 };

    fn of<'r>(reports: impl Iterator<Item = &'r CaseReport>) -> Totals {
        reports.fold(Totals::ZERO, |total, report| Totals {
            tests: total.tests + 1,
            failures: total.failures + usize::from(report.result == Verdict::Fail),
            errors: 0,
            skipped: total.skipped + usize::from(!matches!(report.result, Verdict::Pass | Verdict::Fail)),
            seconds: total.seconds + seconds(report),
        })
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Totals { tests, failures, errors, skipped, seconds } = self;
        write!(f, " tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\"")?;
        write!(f, " time=\"{seconds:.3}\"")
    }
}

/// The text as it may stand in an attribute or an element; what XML can't hold at all, such as the escape characters of
/// colours, as `\x1b`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' | '\n' | '\r' => drop(write!(out, "&#{};", u32::from(c))),
            c if c < ' ' => drop(write!(out, "\\x{:02x}", u32::from(c))),
            '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => drop(write!(out, "\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;

    fn report(case: &str, result: Verdict, detail: &str) -> CaseReport {
        CaseReport {
            case: case.into(),
            title: "all-reduce: a <sum>".into(),
            backend: "shm".into(),
            mode: Some(Mode::Threads),
            ranks: 2,
            result,
            detail: detail.into(),
            wrong_result: true,
            millis: 1500,
        }
    }

    /// Names of the elements that are open at the end, and all that were begun; fails on what no parser takes.
    fn elements(xml: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        let body = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").unwrap();
        for piece in body.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').unwrap();
            assert!(!text.contains('>') && !text.contains('\u{1b}'), "{text}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
                continue;
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = tag.split(' ').next().unwrap().trim_end_matches('/').to_string();
            seen.push(name.clone());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
        seen
    }

    #[test]
    fn a_file_is_whole_at_every_moment_and_says_whether_the_run_is() {
        let path = std::env::temp_dir().join(format!("rankwise-junit-{}.xml", std::process::id()));
        let read = || std::fs::read_to_string(&path).unwrap();
        let mut junit = Junit::create(&path, vec![("seed".into(), "7".into())]).unwrap();
        assert!(read().contains("before its last case"));
        junit.written -= EVERY;
        junit.add(&report("AR-1", Verdict::Pass, "")).unwrap();
        assert!(read().contains("AR-1") && read().contains("tests=\"2\" failures=\"0\" errors=\"1\""), "{}", read());
        let text = "a & b < c > \"d\" 'e' \u{1b}[31m\u{0} \u{ffff}\nnext line ]]>";
        junit.add(&report("AR-2", Verdict::Fail, text)).unwrap();
        junit.catch_up().unwrap();
        assert!(read().contains("AR-2"), "{}", read());
        junit.add(&report("AR-3", Verdict::Unsupported, "not \"offered\"")).unwrap();
        junit.add(&report("AR-4", Verdict::Known, "issue <7>")).unwrap();
        junit.finish().unwrap();
        let xml = read();
        std::fs::remove_file(&path).unwrap();
        let seen = elements(&xml);
        let count = |name: &str| seen.iter().filter(|seen| *seen == name).count();
        assert_eq!((count("testsuite"), count("testcase"), count("failure"), count("skipped")), (2, 5, 1, 2), "{xml}");
        assert_eq!(count("error"), 0, "{xml}");
        assert!(xml.contains("a &amp; b &lt; c &gt; &quot;d&quot; &apos;e&apos; \\x1b[31m\\x00 \\u{ffff}&#10;next"));
        assert!(xml.contains("tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"2\" time=\"6.000\""), "{xml}");
        assert!(xml.contains("<property name=\"seed\" value=\"7\"/>"), "{xml}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_known_at_once() {
        assert!(Junit::create(Path::new("/no/such/folder/x.xml"), Vec::new()).is_err());
    }

    #[test]
    fn what_is_not_a_regular_file_is_not_replaced() {
        let folder = std::env::temp_dir().join(format!("rankwise-junit-folder-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        let refused = |path: &Path| Junit::create(path, Vec::new()).err().map(|error| error.kind());
        let of_both = [refused(&folder), refused(&folder.join("socket"))];
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(of_both, [Some(io::ErrorKind::InvalidInput); 2]);
    }
}
