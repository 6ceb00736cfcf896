//! The promise as tables for `docs/backends.md`.

use super::Expectations;
use rankwise_core::{DType, Error, OpKind, ReduceOp, Result};
use std::fmt::Write;

/// The tables of a backend: the name between the marks, and the lines.
pub fn tables(expected: &Expectations) -> Vec<(String, String)> {
    let backend = &expected.backend;
    let mut all = Vec::new();
    if let Some(promise) = &expected.promise {
        let yes = |offered| if offered { "yes" } else { "no" };
        let mut table = String::from("| operation | offered |\n|---|---|\n");
        for kind in OpKind::DATA {
            let _ = writeln!(table, "| {kind} | {} |", yes(promise.operations.contains(kind.name())));
        }
        all.push((format!("promised: {backend} operations"), table));

        let names: Vec<&str> = DType::NUMERIC.iter().map(|dtype| dtype.name()).collect();
        let mut table = format!("| operator | {} |\n|{}\n", names.join(" | "), "---|".repeat(names.len() + 1));
        for op in ReduceOp::ALL {
            let cell = |dtype: &DType| if promise.reduces(op, *dtype) { "yes" } else { "-" };
            let cells: Vec<&str> = DType::NUMERIC.iter().map(cell).collect();
            let _ = writeln!(table, "| {} | {} |", op.name(), cells.join(" | "));
        }
        all.push((format!("promised: {backend} reductions"), table));

        let spaces: Vec<&str> =
            [("host", promise.host), ("cuda", promise.cuda)].iter().filter(|s| s.1).map(|s| s.0).collect();
        let moves = match promise.moves.len() {
            all if all == DType::NUMERIC.len() + 1 => "all types".to_string(),
            _ => promise.moves.iter().cloned().collect::<Vec<_>>().join(", "),
        };
        let mut table = String::from("| what | value |\n|---|---|\n");
        for (what, value) in [
            ("memory", spaces.join(", ")),
            ("movement", moves),
            ("determinism", (if promise.fixed { "fixed" } else { "same topology" }).into()),
            ("deadline", (if promise.enforced { "enforced" } else { "watched" }).into()),
            ("mismatches found and told", yes(promise.agreement).into()),
            ("start and scope", yes(promise.start).into()),
            ("alloc", yes(promise.alloc).into()),
            ("largest buffer", format!("{} bytes", promise.largest_buffer)),
        ] {
            let _ = writeln!(table, "| {what} | {value} |");
        }
        all.push((format!("promised: {backend} modes"), table));
    }
    let mut table = String::new();
    for deviation in &expected.deviations {
        let _ = writeln!(table, "- {}", deviation.describe());
    }
    if table.is_empty() {
        table.push_str("None.\n");
    }
    all.push((format!("known deviations: {backend}"), table));
    all
}

/// The document with the tables of a backend put between their marks, `<!-- NAME -->` and `<!-- end -->`.
///
/// `Config` when a mark is missing.
pub fn fill(document: &str, expected: &Expectations) -> Result<String> {
    let mut document = document.to_string();
    for (name, table) in tables(expected) {
        let mark = format!("<!-- {name} -->\n");
        let place = document.find(&mark).map(|at| at + mark.len());
        let end = place.and_then(|start| Some((start, start + document[start..].find("<!-- end -->")?)));
        let Some((start, end)) = end else {
            return Err(Error::config(format!("the document has no `{}` with an end; add it", mark.trim())));
        };
        document.replace_range(start..end, &table);
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_put_between_their_marks() {
        let text = "backend = \"x\"\n[promise]\noperations = [\"send\"]\nreductions = { sum = [\"f32\"] }\n\
                    [[deviation]]\ncase = \"AR-1\"\nranks = \"2\"\nreason = \"so\"";
        let expected = Expectations::parse("x.toml", text).unwrap();
        let names: Vec<String> = tables(&expected).into_iter().map(|(name, _)| name).collect();
        let page: String = names.iter().map(|name| format!("<!-- {name} -->\nold\n<!-- end -->\nkept\n")).collect();
        let filled = fill(&page, &expected).unwrap();
        assert!(filled.contains("| send | yes |\n| recv | no |\n<!-- end -->\nkept"), "{filled}");
        assert!(filled.contains("| sum | - | - |") && filled.contains("\n- AR-1 fails with 2 ranks: so"), "{filled}");
        assert_eq!(fill(&filled, &expected).unwrap(), filled);
        assert!(fill("", &expected).is_err());
    }
}
