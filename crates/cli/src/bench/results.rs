//! Result files: one JSON object a line, first the origin, then a cell each.

use super::interval::{Times, block_medians, resolution};
use super::measured::Measured;
use super::origin::{Origin, SCHEMA};
use super::report::Row;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;

/// Longest line that is read.
const LONGEST_LINE: u64 = 1 << 20;

/// A result file being written. Each line goes out at once, so that an interruption keeps what was measured.
pub(crate) struct Writer {
    file: File,
    path: String,
}

impl Writer {
    /// Replaces the file and writes its first line.
    pub(crate) fn create(path: &str, origin: &Origin) -> Result<Writer, String> {
        let file = File::create(path).map_err(|error| format!("{path}: cannot be written: {error}"))?;
        let mut writer = Writer { file, path: path.into() };
        writer.line(serde_json::to_string(origin))?;
        Ok(writer)
    }

    /// A cell, or a workload's row.
    pub(crate) fn write(&mut self, row: &impl serde::Serialize) -> Result<(), String> {
        self.line(serde_json::to_string(row))
    }

    fn line(&mut self, text: serde_json::Result<String>) -> Result<(), String> {
        let written =
            text.map_err(std::io::Error::other).and_then(|text| self.file.write_all(format!("{text}\n").as_bytes()));
        written.map_err(|error| {
            format!("{}: cannot be written: {error}; free space or choose another --output", self.path)
        })
    }
}

/// Whether both paths are one file.
pub(crate) fn same_file(one: &str, other: &str) -> bool {
    let identity = |path| std::fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    identity(one).is_some_and(|id| identity(other) == Some(id))
}

/// What makes two rows the same cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Empty where the comparison is about it.
    pub(crate) backend: String,
    /// Likewise.
    pub(crate) pin: String,
    op: String,
    dtype: String,
    redop: String,
    ranks: usize,
    bytes: u64,
    in_place: bool,
    alloc: bool,
    fresh: bool,
}

impl Key {
    pub(crate) fn of(row: &Row) -> Key {
        Key {
            backend: row.backend.clone(),
            pin: row.pin.clone(),
            op: row.op.clone(),
            dtype: row.dtype.clone(),
            redop: row.redop.clone(),
            ranks: row.ranks,
            bytes: row.bytes,
            in_place: row.in_place,
            alloc: row.alloc,
            fresh: row.fresh,
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for word in [&self.backend, &self.op, &self.dtype, &self.redop] {
            if !word.is_empty() && word != "none" {
                write!(f, "{word} ")?;
            }
        }
        write!(f, "{} bytes, {} ranks", self.bytes, self.ranks)?;
        for (word, said) in [("in place", self.in_place), ("alloc", self.alloc), ("warm", !self.fresh)] {
            if said {
                write!(f, ", {word}")?;
            }
        }
        match self.pin.as_str() {
            "" => Ok(()),
            "none" => write!(f, ", not pinned"),
            pin => write!(f, ", pinned to {pin}"),
        }
    }
}

/// One cell of a run. Its times are the medians of the rounds of a comparison, or of consecutive blocks of iterations.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) row: Row,
    pub(crate) times: Times,
    rounds: Vec<Option<usize>>,
    line: usize,
}

impl Cell {
    /// The rounds of a comparison with the median of each; nothing of an ordinary sweep.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = (usize, f64)> {
        self.rounds.iter().zip(&self.times.medians_us).filter_map(|(round, median)| Some(((*round)?, *median)))
    }
}

/// All cells of a run, in the order they were measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    pub(crate) cells: Vec<Cell>,
    positions: HashMap<Key, usize>,
    /// Cells of a comparison with a wrong result in some round, which are left out.
    spoilt: HashSet<Key>,
}

impl Cells {
    pub(crate) fn get(&self, key: &Key) -> Option<&Cell> {
        self.positions.get(key).map(|position| &self.cells[*position])
    }

    /// How many cells are left out because a round of them had a wrong result.
    pub(crate) fn left_out(&self) -> usize {
        self.spoilt.len()
    }

    fn spoil(&mut self, key: Key) {
        self.cells.retain(|cell| Key::of(&cell.row) != key);
        self.positions = self.cells.iter().enumerate().map(|(i, cell)| (Key::of(&cell.row), i)).collect();
        self.spoilt.insert(key);
    }

    /// Adds a row, which `line` of the file holds. A round with a wrong result takes the other rounds of its cell with it.
    pub(crate) fn add(&mut self, measured: Measured, line: usize) -> Result<(), String> {
        if measured.round.is_some() && measured.row.wrong > 0 {
            self.spoil(Key::of(&measured.row));
        }
        if self.spoilt.contains(&Key::of(&measured.row)) {
            return Ok(());
        }
        let medians = match measured.round {
            Some(_) => vec![measured.row.p50_us],
            None => block_medians(&measured.samples_us),
        };
        let resolution_us = resolution(&measured.samples_us);
        let key = Key::of(&measured.row);
        let Some(position) = self.positions.get(&key) else {
            self.positions.insert(key, self.cells.len());
            let times = Times { medians_us: medians, resolution_us };
            self.cells.push(Cell { row: measured.row, times, rounds: vec![measured.round], line });
            return Ok(());
        };
        let cell = &mut self.cells[*position];
        if measured.round.is_none() || cell.rounds.contains(&measured.round) || cell.rounds.contains(&None) {
            return Err(format!("repeats the cell of line {}: {key}", cell.line));
        }
        cell.times.medians_us.extend(medians);
        // All alike says nothing about the clock.
        cell.times.resolution_us = match (cell.times.resolution_us, resolution_us) {
            (known, 0.0) => known,
            (0.0, found) => found,
            (known, found) => known.min(found),
        };
        cell.rounds.push(measured.round);
        Ok(())
    }

    /// Leaves backend, pinning or both out of what makes cells the same; there is one each.
    pub(crate) fn without(&self, backend: bool, pin: bool) -> Cells {
        let mut cells = Cells { positions: HashMap::new(), ..self.clone() };
        for (position, cell) in self.cells.iter().enumerate() {
            cells.positions.insert(Key::without(&cell.row, backend, pin), position);
        }
        cells
    }
}

impl Key {
    /// Without backend, pinning or both.
    pub(crate) fn without(row: &Row, backend: bool, pin: bool) -> Key {
        let mut key = Key::of(row);
        if backend {
            key.backend.clear();
        }
        if pin {
            key.pin.clear();
        }
        key
    }
}

/// A result file that was read.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) path: String,
    pub(crate) origin: Origin,
    pub(crate) cells: Cells,
}

impl Results {
    /// Reads a file; the error names file and line.
    pub(crate) fn read(path: &str) -> Result<Results, String> {
        let unreadable = |error: std::io::Error| format!("{path}: cannot be read: {error}");
        let mut reader = BufReader::new(File::open(path).map_err(unreadable)?);
        let mut number = 0;
        let mut origin: Option<Origin> = None;
        let mut cells = Cells::default();
        loop {
            let mut line = Vec::new();
            number += 1;
            if reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
                break;
            }
            let at = |what: String| format!("{path}:{number}: {what}");
            if line.len() as u64 > LONGEST_LINE {
                return Err(at(
                    "is longer than a line of results can be; is this a file of `rankwise bench --output`?".into(),
                ));
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            if origin.is_none() {
                origin = Some(read_origin(&line).map_err(at)?);
                continue;
            }
            let measured = read_row(&line).map_err(at)?;
            cells.add(measured, number).map_err(at)?;
        }
        let origin = origin.ok_or_else(|| format!("{path}:1: is empty; results begin with a header line"))?;
        Ok(Results { path: path.into(), origin, cells })
    }
}

fn read_origin(line: &[u8]) -> Result<Origin, String> {
    let no_header = "is no header of results; write the file with `rankwise bench --output`";
    let value: serde_json::Value = serde_json::from_slice(line).map_err(|error| format!("{no_header} ({error})"))?;
    match value["schema"].as_u64() {
        Some(SCHEMA) => serde_json::from_value(value).map_err(|error| format!("the header is damaged: {error}")),
        Some(other) => Err(format!(
            "has schema version {other}, and this program reads {SCHEMA}; measure again or use the version that wrote it"
        )),
        None => Err(no_header.into()),
    }
}

fn read_row(line: &[u8]) -> Result<Measured, String> {
    let value: serde_json::Value =
        serde_json::from_slice(line).map_err(|error| format!("is no JSON, or cut off ({error}); remove the line"))?;
    if value.get("schema").is_some() {
        return Err("is a second header; put one run in each file".into());
    }
    if value.get("workload").is_some() {
        return Err("is a workload's row, and only operations can be compared cell by cell".into());
    }
    let measured: Measured = serde_json::from_value(value).map_err(|error| format!("is no row of results: {error}"))?;
    let times = [measured.row.p50_us].into_iter().chain(measured.samples_us.iter().copied());
    match () {
        () if measured.samples_us.is_empty() => Err("has no samples_us".into()),
        () if times.into_iter().any(|time| time < 0.0) => Err("has a time below 0".into()),
        () if measured.row.wrong > 0 && measured.round.is_none() => {
            Err(format!("was measured with {} wrong elements, so its times mean nothing", measured.row.wrong))
        }
        () => Ok(measured),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn measured(bytes: u64, samples_us: Vec<f64>) -> Measured {
        let row = Row { p50_us: samples_us[0], ..super::super::report::tests::row(bytes, false) };
        Measured { row, max_us: 9.0, round: None, sample_step: 1, samples_us }
    }

    fn file(name: &str, lines: &[String]) -> (String, impl Drop) {
        struct Remove(String);
        impl Drop for Remove {
            fn drop(&mut self) {
                let _ = std::fs::remove_file(&self.0);
            }
        }
        let path = std::env::temp_dir().join(format!("rankwise-{}-{name}.jsonl", std::process::id()));
        let path = path.to_string_lossy().into_owned();
        std::fs::write(&path, lines.join("\n")).unwrap();
        (path.clone(), Remove(path))
    }

    fn json(value: &impl serde::Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }

    #[test]
    fn a_file_reads_back() {
        let (path, _remove) = file("back", &[]);
        let origin = Origin::here();
        let mut writer = Writer::create(&path, &origin).unwrap();
        writer.write(&measured(8, vec![2.0, 1.0, 3.0])).unwrap();
        for round in 0..2 {
            writer.write(&Measured { round: Some(round), ..measured(16, vec![4.0 + round as f64]) }).unwrap();
        }
        let read = Results::read(&path).unwrap();
        assert_eq!(read.origin, origin);
        let medians: Vec<_> = read.cells.cells.iter().map(|cell| cell.times.medians_us.clone()).collect();
        assert_eq!(medians, [vec![2.0, 1.0, 3.0], vec![4.0, 5.0]]);
        let key = Key::of(&measured(16, vec![1.0]).row);
        assert_eq!(read.cells.get(&key).unwrap().row.bytes, 16);
        assert_eq!(key.to_string(), "shm all_reduce f32 sum 16 bytes, 2 ranks, pinned to cores");
        assert!(same_file(&path, &path) && !same_file(&path, "/dev/null") && !same_file(&path, "nowhere"));
    }

    #[test]
    fn a_wrong_round_takes_its_cell_out_of_the_file() {
        let round = |bytes, round, wrong| {
            let measured = measured(bytes, vec![1.0]);
            Measured { round: Some(round), row: Row { wrong, ..measured.row }, ..measured }
        };
        let rows = [round(8, 0, 0), round(16, 0, 0), round(8, 1, 4), round(16, 1, 0), round(8, 2, 0)];
        let lines: Vec<_> = [json(&Origin::here())].into_iter().chain(rows.iter().map(json)).collect();
        let (path, _remove) = file("wrong-round", &lines);
        let cells = Results::read(&path).unwrap().cells;
        let (left, gone) = (Key::of(&rows[1].row), Key::of(&rows[0].row));
        assert_eq!((cells.cells.len(), cells.left_out()), (1, 1));
        assert_eq!(cells.get(&left).unwrap().times.medians_us, [1.0, 1.0]);
        assert!(cells.get(&gone).is_none());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let origin = json(&Origin::here());
        let row = json(&measured(8, vec![1.0]));
        let older = origin.replace("\"schema\":1", "\"schema\":7");
        let wrong = json(&Measured { row: Row { wrong: 3, ..measured(8, vec![1.0]).row }, ..measured(8, vec![1.0]) });
        for (lines, line, named) in [
            (vec![], 1, "is empty"),
            (vec![older], 1, "schema version 7"),
            (vec![row.clone()], 1, "no header"),
            (vec!["x".to_string()], 1, "no header"),
            (vec!["{\"schema\":1}".to_string()], 1, "damaged"),
            (vec![origin.clone(), row.clone(), row[..40].to_string()], 3, "cut off"),
            (vec![origin.clone(), row.clone(), origin.clone()], 3, "second header"),
            (vec![origin.clone(), row.clone(), String::new(), row.clone()], 4, "repeats the cell of line 2"),
            (vec![origin.clone(), "{}".to_string()], 2, "missing field"),
            (vec![origin.clone(), "{\"workload\":\"mine\"}".to_string()], 2, "a workload's row"),
            (vec![origin.clone(), row.replace("[1.0]", "[]")], 2, "samples_us"),
            (vec![origin.clone(), row.replace("[1.0]", "[-1.0]")], 2, "below 0"),
            (vec![origin.clone(), wrong], 2, "3 wrong elements"),
            (vec![origin, "9".repeat(2 << 20)], 2, "longer"),
        ] {
            let (path, _remove) = file("wrong", &lines);
            let error = Results::read(&path).unwrap_err();
            assert!(error.starts_with(&format!("{path}:{line}: ")) && error.contains(named), "{error}");
        }
        for path in ["/nowhere/at.all", "/"] {
            let error = Results::read(path).unwrap_err();
            assert!(error.starts_with(&format!("{path}: cannot be read")), "{error}");
        }
    }
}
