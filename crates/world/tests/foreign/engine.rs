//! An engine that has brought its ranks together: they talk through files of a directory that all see.

use rankwise_core::{Error, ErrorKind, Result};
use rankwise_world::{Bootstrap, FRAME};
use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The directory.
pub(crate) const ENGINE: &str = "RANKWISE_TEST_ENGINE";

pub(crate) struct Files {
    directory: PathBuf,
    rank: usize,
    size: usize,
    round: Cell<usize>,
}

impl Files {
    pub(crate) fn of_environment() -> Option<Files> {
        let directory = std::env::var_os(ENGINE)?.into();
        let number = |name| std::env::var(name).unwrap().parse().unwrap();
        Some(Files { directory, rank: number("RANK"), size: number("WORLD_SIZE"), round: Cell::new(0) })
    }
}

impl Bootstrap for Files {
    fn source(&self) -> &'static str {
        "files"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, mine: &[u8; FRAME], limit: Duration) -> Result<Vec<[u8; FRAME]>> {
        let round = self.round.replace(self.round.get() + 1);
        let name = |rank| self.directory.join(format!("{round}-{rank}"));
        let unfinished = self.directory.join(format!("{round}-{}-unfinished", self.rank));
        std::fs::write(&unfinished, mine).unwrap();
        std::fs::rename(unfinished, name(self.rank)).unwrap();
        let until = Instant::now() + limit;
        let read = |rank| loop {
            match std::fs::read(name(rank)) {
                Ok(bytes) => return Ok(bytes.try_into().unwrap()),
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return Err(Error::new(ErrorKind::Timeout, "a file is missing").with_peers([rank])),
            }
        };
        (0..self.size).map(read).collect()
    }
}
