//! The contenders of one result file or sweep, side by side: its backends, and its placements where it has several.

use super::comparison::Compared;
use super::interval::{Ratio, Times};
use super::results::{Cell, Cells, Key};
use std::collections::{BTreeSet, HashMap};

/// Contenders of one run, cell by cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contenders {
    /// In the order they were measured; the first is what the others are compared with.
    pub(crate) names: Vec<String>,
    pub(crate) cells: Vec<Compared>,
    /// They took turns, round by round.
    pub(crate) paired: bool,
}

impl Contenders {
    /// Cells with wrong results are left out.
    pub(crate) fn of(cells: &Cells) -> Contenders {
        let right: Vec<&Cell> = cells.cells.iter().filter(|cell| cell.row.wrong == 0).collect();
        let paired = !right.is_empty() && right.iter().all(|cell| cell.rounds().next().is_some());
        // Rounds take turns within one placement, a sweep measures all placements of a cell.
        let pins: BTreeSet<&str> = right.iter().map(|cell| cell.row.pin.as_str()).collect();
        let by_pin = pins.len() > 1 && !paired;
        let name = |cell: &Cell| match (by_pin, cell.row.pin.as_str()) {
            (false, _) => cell.row.backend.clone(),
            (true, "none") => format!("{} not pinned", cell.row.backend),
            (true, pin) => format!("{} pinned to {pin}", cell.row.backend),
        };
        let mut names: Vec<String> = Vec::new();
        let mut rows: Vec<(Key, Vec<Option<&Cell>>)> = Vec::new();
        let mut positions: HashMap<Key, usize> = HashMap::new();
        for cell in right {
            let name = name(cell);
            let contender = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            let key = Key::without(&cell.row, true, !paired);
            let position = *positions.entry(key.clone()).or_insert_with(|| {
                rows.push((key, Vec::new()));
                rows.len() - 1
            });
            let row = &mut rows[position].1;
            row.resize(row.len().max(contender + 1), None);
            row[contender] = Some(cell);
        }
        let compare = |(_, mut row): (Key, Vec<Option<&Cell>>)| {
            row.resize(names.len(), None);
            let mut cell = row.iter().flatten().next()?.row.clone();
            cell.backend.clear();
            if !paired {
                cell.pin.clear();
            }
            let resolutions = row.iter().flatten().map(|cell| cell.times.resolution_us).filter(|step| *step > 0.0);
            let resolution_us = resolutions.reduce(f64::min).unwrap_or(0.0);
            let times = |cell: &Cell| match paired {
                true => Times { resolution_us, ..cell.times.clone() },
                false => cell.times.clone(),
            };
            let ratio = |other: &Option<&Cell>| match (row[0]?, (*other)?) {
                (base, other) if paired => paired_ratio(base, other, resolution_us),
                (base, other) => Ratio::independent(&base.times, &other.times),
            };
            Some(Compared {
                cell,
                times_us: row.iter().map(|cell| (*cell)?.times.median()).collect(),
                intervals_us: row.iter().map(|cell| times((*cell)?).interval()).collect(),
                ratios: row[1..].iter().map(ratio).collect(),
            })
        };
        let cells = rows.into_iter().filter_map(compare).collect();
        Contenders { names, cells, paired }
    }
}

fn paired_ratio(base: &Cell, other: &Cell, resolution_us: f64) -> Option<Ratio> {
    let others: HashMap<usize, f64> = other.rounds().collect();
    let pairs: Vec<_> = base.rounds().filter_map(|(round, base)| Some((base, *others.get(&round)?))).collect();
    Ratio::paired(&pairs, resolution_us)
}

#[cfg(test)]
mod tests {
    use super::super::measured::Measured;
    use super::super::results::tests::measured;
    use super::*;

    fn add(cells: &mut Cells, backend: &str, pin: &str, bytes: u64, round: Option<usize>, times: Vec<f64>) {
        let mut row = Measured { round, ..measured(bytes, times) };
        (row.row.backend, row.row.pin) = (backend.into(), pin.into());
        cells.add(row, 1).unwrap();
    }

    #[test]
    fn rounds_of_a_stored_comparison_make_pairs() {
        let mut cells = Cells::default();
        for round in 0..8 {
            let drift = 1.0 + round as f64;
            add(&mut cells, "shm", "cores", 8, Some(round), vec![drift]);
            if round != 3 {
                add(&mut cells, "mpi", "cores", 8, Some(round), vec![3.0 * drift]);
            }
        }
        add(&mut cells, "mpi", "cores", 16, Some(0), vec![1.0]);
        let found = Contenders::of(&cells);
        assert_eq!((found.names.as_slice(), found.paired), (&["shm".to_string(), "mpi".to_string()][..], true));
        let ratio = found.cells[0].ratios[0].unwrap();
        assert!((ratio.value - 3.0).abs() < 1e-9 && ratio.interval.is_some(), "{ratio:?}");
        assert_eq!(found.cells[0].times_us[0], Some(4.5));
        assert_eq!((&found.cells[1].times_us, &found.cells[1].ratios), (&vec![None, Some(1.0)], &vec![None]));
    }

    #[test]
    fn a_sweep_has_backends_and_placements() {
        let mut cells = Cells::default();
        for (backend, pin, time) in [("shm", "cores", 1.0), ("shm", "none", 2.0), ("mpi", "cores", 4.0)] {
            add(&mut cells, backend, pin, 8, None, vec![time; 20]);
        }
        let found = Contenders::of(&cells);
        assert_eq!(found.names, ["shm pinned to cores", "shm not pinned", "mpi pinned to cores"]);
        assert_eq!((found.cells.len(), found.paired), (1, false));
        assert_eq!(found.cells[0].ratios.iter().map(|ratio| ratio.unwrap().value).collect::<Vec<_>>(), [2.0, 4.0]);
    }

    #[test]
    fn wrong_results_are_left_out() {
        let mut cells = Cells::default();
        add(&mut cells, "shm", "cores", 8, None, vec![1.0]);
        cells.cells[0].row.wrong = 1;
        let found = Contenders::of(&cells);
        assert!(found.cells.is_empty() && found.names.is_empty() && !found.paired);
    }
}
