//! What can be drawn, and how it falls apart into panels.

use crate::bench::args::once;
use crate::bench::comparison::Compared;
use crate::bench::contenders::Contenders;
use crate::bench::interval::Ratio;
use crate::bench::op::{Op, bandwidth};
use crate::bench::origin::Origin;
use crate::bench::report::Row;
use std::collections::BTreeSet;

/// Everything in the pictures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// For example `shm against mpi`.
    pub(crate) title: String,
    /// Where the figures are from, each with a label (a file, for example; empty when there is only one).
    pub(crate) origins: Vec<(String, Origin)>,
    /// The contenders; the first is what the others are compared with.
    pub(crate) names: Vec<String>,
    /// Each with a time for every name.
    pub(crate) cells: Vec<Compared>,
    /// The ratios are from rounds in which the contenders took turns.
    pub(crate) paired: bool,
    pub(crate) workloads: Vec<WorkloadTimes>,
    /// What failed or was skipped, and other things the reader should know.
    pub(crate) remarks: Vec<String>,
}

/// One workload on one backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WorkloadTimes {
    pub(crate) backend: String,
    pub(crate) workload: String,
    /// For example `batch=16`; may be empty.
    pub(crate) variant: String,
    /// What the times are for: `token`, `step`.
    pub(crate) unit: String,
    pub(crate) ranks: usize,
    /// Median and 99th percentile of a unit.
    pub(crate) total_us: f64,
    pub(crate) p99_us: f64,
    /// Median of each operation's part.
    pub(crate) by_op: Vec<(String, f64)>,
    /// Share of the calls by size, for example (`up to 4 KiB`, 0.98).
    pub(crate) by_size: Vec<(String, f64)>,
}

/// The cells that share everything but the size.
#[derive(Clone, Debug)]
pub(super) struct Panel<'a> {
    /// Any of the cells.
    pub(super) of: &'a Row,
    /// In words, for example `all_reduce f32 sum, 2 ranks`.
    pub(super) title: String,
    /// Without the number of ranks, and without the type when there is only one.
    pub(super) kind: String,
    /// For names of files, for example `all_reduce-f32-2ranks`.
    pub(super) slug: String,
    /// In order of size.
    pub(super) cells: Vec<&'a Compared>,
}

impl Figures {
    /// Those of one run or result file.
    pub(crate) fn of(contenders: Contenders, origin: Origin, remarks: Vec<String>) -> Figures {
        let Contenders { names, cells, paired } = contenders;
        let title = title(&names);
        Figures { title, origins: vec![(String::new(), origin)], names, cells, paired, workloads: Vec::new(), remarks }
    }

    /// Those of workloads.
    pub(crate) fn of_workloads(workloads: Vec<WorkloadTimes>, origin: Origin, remarks: Vec<String>) -> Figures {
        let title = "rankwise bench: workloads".into();
        Figures { title, origins: vec![(String::new(), origin)], workloads, remarks, ..Figures::default() }
    }

    /// Whether there is nothing to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.workloads.is_empty() && !self.cells.iter().any(|cell| cell.times_us.iter().any(Option::is_some))
    }

    /// The element type, when all cells that have one have the same.
    pub(super) fn only_dtype(&self) -> Option<&str> {
        let mut dtypes = self.cells.iter().map(|cell| cell.cell.dtype.as_str()).filter(|dtype| *dtype != "none");
        let first = dtypes.next()?;
        dtypes.all(|dtype| dtype == first).then_some(first)
    }

    /// One for each operation, type, operator, number of ranks and variant: operations in the order they were measured, and
    /// so on, ranks ascending.
    pub(super) fn panels(&self) -> Vec<Panel<'_>> {
        // In a comparison the backend of a cell is just that of the contender that met it first.
        let backends: BTreeSet<&str> = self.cells.iter().map(|cell| cell.cell.backend.as_str()).collect();
        let with_backend = backends.len() > 1 && !backends.iter().any(|name| self.names.iter().any(|n| n == name));
        let pins: BTreeSet<&str> = self.cells.iter().map(|cell| cell.cell.pin.as_str()).collect();
        let with_pin = pins.len() > 1;
        let only_dtype = self.only_dtype();
        let mut panels: Vec<Panel<'_>> = Vec::new();
        for cell in &self.cells {
            let (title, slug) = describe(&cell.cell, with_backend, with_pin);
            let mut kind = title.replacen(&format!(", {}", ranks(&cell.cell)), "", 1);
            if let Some(dtype) = only_dtype {
                kind = kind.replacen(&format!(" {dtype}"), "", 1);
            }
            match panels.iter_mut().find(|panel| panel.slug == slug) {
                Some(panel) => panel.cells.push(cell),
                None => panels.push(Panel { of: &cell.cell, title, kind, slug, cells: vec![cell] }),
            }
        }
        let order = |of: fn(&Row) -> &str| once(self.cells.iter().map(|cell| of(&cell.cell)).collect());
        let place = |order: &[&str], name: &str| order.iter().position(|other| *other == name);
        let (ops, dtypes) = (order(|row| &row.op), order(|row| &row.dtype));
        let kinds: Vec<String> = once(panels.iter().map(|panel| panel.kind.clone()).collect());
        panels.sort_by_key(|panel| {
            let (row, kind) = (panel.of, kinds.iter().position(|kind| *kind == panel.kind));
            (place(&ops, &row.op), place(&dtypes, &row.dtype), kind, row.ranks)
        });
        for panel in &mut panels {
            panel.cells.sort_by_key(|cell| cell.cell.bytes);
        }
        panels
    }

    /// Whether any contender has a ratio to the first.
    pub(super) fn has_ratios(&self) -> bool {
        self.cells.iter().any(|cell| cell.ratios.iter().any(Option::is_some))
    }
}

/// What was measured, in words.
pub(crate) fn title(names: &[String]) -> String {
    let named = match names {
        [] => String::new(),
        [one] => format!(": {one}"),
        [base, others @ ..] if others.len() <= 4 => format!(": {base} against {}", others.join(", ")),
        [base, others @ ..] => format!(": {base} against {} others", others.len()),
    };
    format!("rankwise bench{named}")
}

/// For example `2 ranks`.
pub(super) fn ranks(row: &Row) -> String {
    format!("{} rank{}", row.ranks, if row.ranks == 1 { "" } else { "s" })
}

/// What the cell is, without its size: in words, and for names of files.
fn describe(row: &Row, backend: bool, pin: bool) -> (String, String) {
    let (mut title, mut slug) = (row.op.clone(), row.op.clone());
    let said = |word: &str| !word.is_empty() && word != "none";
    if said(&row.dtype) {
        title += &format!(" {}", row.dtype);
        slug += &format!("-{}", row.dtype);
    }
    if said(&row.redop) {
        title += &format!(" {}", row.redop);
    }
    if said(&row.redop) && row.redop != "sum" {
        slug += &format!("-{}", row.redop);
    }
    title += &format!(", {}", ranks(row));
    slug += &format!("-{}ranks", row.ranks);
    for (holds, words, short) in [
        (row.in_place && row.op != Op::Broadcast.name(), "in place", "inplace"),
        (row.alloc, "alloc buffers", "alloc"),
        (!row.fresh, "warm sources", "warm"),
    ] {
        if holds {
            title += &format!(", {words}");
            slug += &format!("-{short}");
        }
    }
    if backend {
        title += &format!(", {}", row.backend);
        slug += &format!("-{}", row.backend);
    }
    if pin {
        title += &if said(&row.pin) { format!(", pinned to {}", row.pin) } else { ", not pinned".into() };
        slug += &format!("-pin-{}", row.pin);
    }
    (title, slug)
}

/// Bus bandwidth of a cell in GB/s; none where nothing moves between ranks.
pub(super) fn bus_bandwidth(row: &Row, us: f64) -> Option<f64> {
    let (_, bus) = bandwidth(Op::from_name(&row.op)?, row.ranks, row.bytes, us);
    (bus > 0.0 && bus.is_finite()).then_some(bus)
}

/// The ratio of the fastest other contender, and its number among the names.
pub(super) fn best_other(cell: &Compared) -> Option<(usize, Ratio)> {
    let known = cell.ratios.iter().enumerate().filter_map(|(i, ratio)| Some((i + 1, (*ratio)?)));
    known.min_by(|(_, one), (_, other)| one.value.total_cmp(&other.value))
}

/// How a contender is called where names are too long.
pub(super) fn letter(contender: usize) -> char {
    char::from(b'A' + (contender % 26) as u8)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::report::tests::row;

    /// A cell whose contenders take that long; each ratio has an interval of that many per cent on either side.
    pub(crate) fn cell(op: &str, ranks: usize, bytes: u64, times: &[Option<f64>], per_cent: f64) -> Compared {
        let spread = per_cent / 100.0;
        let around = |value: f64| (value * (1.0 - spread), value * (1.0 + spread));
        let ratio = |other: &Option<f64>| {
            let value = (*other)? / times[0]?;
            Some(Ratio { value, interval: Some(around(value)) })
        };
        Compared {
            cell: Row { op: op.into(), ranks, ..row(bytes, false) },
            times_us: times.to_vec(),
            intervals_us: times.iter().map(|time| time.map(around)).collect(),
            ratios: times[1..].iter().map(ratio).collect(),
        }
    }

    pub(crate) fn figures(names: &[&str], cells: Vec<Compared>) -> Figures {
        Figures {
            title: names.join(" against "),
            origins: vec![(String::new(), Origin::here())],
            names: names.iter().map(|name| name.to_string()).collect(),
            cells,
            paired: true,
            ..Figures::default()
        }
    }

    #[test]
    fn panels_share_all_but_the_size() {
        let one = |ranks, bytes| cell("all_reduce", ranks, bytes, &[Some(1.0)], 1.0);
        let mut warm = one(2, 8);
        warm.cell.fresh = false;
        warm.cell.redop = "max".into();
        let figures = figures(&["shm"], vec![one(2, 4096), one(2, 8), one(4, 8), warm]);
        let panels = figures.panels();
        let found: Vec<_> = panels.iter().map(|panel| (panel.title.as_str(), panel.slug.as_str())).collect();
        assert_eq!(
            found,
            [
                ("all_reduce f32 sum, 2 ranks", "all_reduce-f32-2ranks"),
                ("all_reduce f32 sum, 4 ranks", "all_reduce-f32-4ranks"),
                ("all_reduce f32 max, 2 ranks, warm sources", "all_reduce-f32-max-2ranks-warm"),
            ]
        );
        assert_eq!(panels[0].cells.iter().map(|cell| cell.cell.bytes).collect::<Vec<_>>(), [8, 4096]);
    }

    #[test]
    fn the_backend_tells_cells_apart_only_between_files() {
        let of = |backend: &str| {
            let mut cell = cell("all_reduce", 2, 8, &[Some(1.0), Some(2.0)], 1.0);
            cell.cell.backend = backend.into();
            cell
        };
        let cells = vec![of("shm"), of("mpi")];
        assert_eq!(figures(&["before.jsonl", "after.jsonl"], cells.clone()).panels().len(), 2);
        assert_eq!(figures(&["shm", "mpi"], cells).panels().len(), 1);
    }

    #[test]
    fn the_best_other_is_the_fastest_of_them() {
        let cell = cell("all_reduce", 2, 8, &[Some(2.0), None, Some(4.0), Some(3.0)], 1.0);
        let (contender, ratio) = best_other(&cell).unwrap();
        assert_eq!((contender, ratio.value, letter(contender)), (3, 1.5, 'D'));
    }
}
