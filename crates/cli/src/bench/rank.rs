//! One rank of the benchmark: joins, measures every cell, and the first rank reports.

use super::args::{BenchArgs, Effort, Sweep};
use super::calls::Calls;
use super::cell::{Cell, Shares};
use super::clock::Clock;
use super::elem::{BenchElem, with_elem};
use super::measure::{Finding, measure};
use super::measured::{Measured, rounded};
use super::op::bandwidth;
use super::page::{Page, Team};
use super::report::{MARK, Message, RankFacts, Row};
use rankwise::{Backend, Communicator, Config, DType, Error, Group, MemorySpace, Result, World};
use rankwise_world::{Attachment, Placement};
use std::io::Write;
use std::ops::DerefMut;
use std::time::Duration;

/// Deadline of a call: far above the slowest one, below the patience of the barrier.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(120);
const MEETING_DEADLINE: Duration = Duration::from_secs(60);
/// Buffers begin on a page.
const ALIGNMENT: usize = 4096;

/// Runs this rank to its end.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let sweep = args.sweep().map_err(Error::invalid)?;
    let name = args.backend.first().map_or("", String::as_str);
    let world = rankwise::driver(name)?.world()?;
    let (mut team, ranks) = meet(&world, &sweep.effort)?;
    let result = measure_all(&world, name, &sweep, &mut team, ranks);
    if result.is_err() {
        team.fail();
    }
    result
}

/// Maps the first rank's page on all ranks.
pub(crate) fn meet(world: &World, effort: &Effort) -> Result<(Team, Vec<RankFacts>)> {
    let clock = Clock::calibrated();
    let (size, samples) = (world.size(), effort.most_iterations());
    let own = if world.rank() == 0 { Some(Page::create(size, samples)?) } else { None };
    let facts = RankFacts {
        rank: world.rank(),
        pid: std::process::id(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        cpus: allowed_cpus(),
    };
    let payload = serde_json::to_vec(&facts).map_err(|error| Error::config(error.to_string()))?;
    let attachment = match &own {
        Some(fd) if world.placement() != Placement::Solo => Attachment::Fd(
            fd.try_clone().map_err(|error| Error::config(format!("cannot duplicate a descriptor: {error}")))?,
        ),
        _ => Attachment::None,
    };
    let everyone = Group::world(size);
    let met = world.store().exchange(
        "bench/page",
        "the start of the benchmark",
        &everyone,
        &payload,
        attachment,
        MEETING_DEADLINE,
    )?;
    let mut ranks = Vec::new();
    let mut page = own;
    for (bytes, attachment) in met {
        ranks.extend(serde_json::from_slice::<RankFacts>(&bytes).ok());
        if let (None, Attachment::Fd(fd)) = (&page, attachment) {
            page = Some(fd);
        }
    }
    let page = page.ok_or_else(|| Error::config("rank 0 gave no page for the benchmark; start all ranks alike"))?;
    let page = Page::map(std::os::fd::AsFd::as_fd(&page), size, samples)?;
    Ok((Team::new(page, clock, world.rank(), size > world.cpus()), ranks))
}

fn measure_all(world: &World, name: &str, sweep: &Sweep, team: &mut Team, ranks: Vec<RankFacts>) -> Result<()> {
    let config = Config::new().backend(name).timeout(CALL_DEADLINE);
    let backend = rankwise::join(world, &config)?;
    let mut comm = backend.world()?;
    if team.is_first() {
        say(&Message::Ranks { ranks, clock: team.clock().describe() })?;
    }
    for cell in &sweep.cells {
        // Every rank decides alike: from the arguments and the capabilities, which are the same on all.
        match unsupported(&comm, cell) {
            Some(reason) if team.is_first() => say(&Message::Skipped { what: cell.describe(), reason })?,
            Some(_) => {}
            None => {
                if let Some(message) = measure_cell(&backend, &mut comm, cell, team, sweep.effort)? {
                    say(&message)?;
                }
            }
        }
    }
    comm.finalize()?;
    if team.is_first() { say(&Message::Done {}) } else { Ok(()) }
}

/// Why the cell cannot be measured.
pub(crate) fn unsupported(comm: &Communicator, cell: &Cell) -> Option<String> {
    if let Err(reason) = cell.count() {
        return Some(reason);
    }
    let capabilities = comm.capabilities();
    if cell.alloc && !capabilities.alloc() {
        return Some("this backend has no alloc".into());
    }
    let dtype = cell.dtype.unwrap_or(DType::U8);
    let refusal = |kind: &rankwise::OpKind| capabilities.check(*kind, dtype, cell.redop, MemorySpace::Host).err();
    if comm.size() == 1 && cell.op == super::op::Op::SendRecv {
        return Some("a world of one has nobody to send to".into());
    }
    cell.op.kinds().iter().find_map(refusal).map(|error| error.message().to_string())
}

fn measure_cell(
    backend: &Backend,
    comm: &mut Communicator,
    cell: &Cell,
    team: &mut Team,
    effort: Effort,
) -> Result<Option<Message>> {
    let dtype = cell.dtype.unwrap_or(DType::U8);
    let other = Err(Error::invalid(format!("{dtype} has no values to measure with")));
    let finding = with_elem!(dtype, measure_typed(comm, cell, team, effort), other)?;
    Ok(finding.map(|finding| {
        let (figures, wrong) = match finding {
            Finding::Measured(figures, wrong) => (figures, wrong),
            Finding::Slow(call_ms) => return Message::Slow { what: cell.describe(), call_ms },
        };
        let (algbw_gbs, busbw_gbs) = bandwidth(cell.op, comm.size(), cell.bytes, figures.p50_us);
        let row = Row {
            backend: backend.name().to_string(),
            op: cell.op.name().into(),
            dtype: cell.dtype.map_or("none", DType::name).into(),
            redop: cell.redop.map_or("none", |redop| redop.name()).into(),
            ranks: comm.size(),
            bytes: cell.bytes,
            count: cell.count().unwrap_or(0),
            root: if cell.op.has_root() { 0 } else { -1 },
            in_place: cell.in_place,
            alloc: cell.alloc,
            fresh: cell.fresh,
            pin: String::new(),
            iters: figures.iterations,
            min_us: rounded(figures.min_us),
            mean_us: rounded(figures.mean_us),
            p50_us: rounded(figures.p50_us),
            p99_us: rounded(figures.p99_us),
            algbw_gbs: rounded(algbw_gbs),
            busbw_gbs: rounded(busbw_gbs),
            wrong,
        };
        Message::Row(Box::new(Measured::new(row, &figures)))
    }))
}

fn measure_typed<T: BenchElem>(
    comm: &mut Communicator,
    cell: &Cell,
    team: &mut Team,
    effort: Effort,
) -> Result<Option<Finding>> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let count = cell.count().map_err(Error::invalid)?;
    let shares = cell.shares(rank, ranks, count);
    let words = |elements: usize| (elements * size_of::<T>()).div_ceil(size_of::<u64>());
    let source_len = if cell.in_place { 0 } else { shares.source_len };
    if cell.alloc {
        // Equal lengths on all ranks.
        let most =
            |len: fn(&Shares) -> usize| (0..ranks).map(|rank| len(&cell.shares(rank, ranks, count))).max().unwrap_or(0);
        let source_words = if cell.in_place { 0 } else { words(most(|shares| shares.source_len)) };
        let source = comm.alloc::<u64>(source_words)?;
        let dest = comm.alloc::<u64>(words(most(|shares| shares.dest_len)))?;
        return measure_with::<T>(comm, cell, &shares, source, dest, source_len, team, effort);
    }
    let source = AlignedWords::new(words(source_len))?;
    let dest = AlignedWords::new(words(shares.dest_len))?;
    measure_with::<T>(comm, cell, &shares, source, dest, source_len, team, effort)
}

#[allow(clippy::too_many_arguments)]
fn measure_with<T: BenchElem>(
    comm: &mut Communicator,
    cell: &Cell,
    shares: &Shares,
    mut source: impl DerefMut<Target = [u64]>,
    mut dest: impl DerefMut<Target = [u64]>,
    source_len: usize,
    team: &mut Team,
    effort: Effort,
) -> Result<Option<Finding>> {
    let source = &mut bytemuck::cast_slice_mut::<u64, T>(&mut source)[..source_len];
    let dest = &mut bytemuck::cast_slice_mut::<u64, T>(&mut dest)[..shares.dest_len];
    let mut calls = Calls::new(comm, cell, shares, source, dest);
    measure(team, &mut calls, cell.bytes, cell.fresh, effort)
}

/// Zeroed words that begin on a page.
pub(crate) struct AlignedWords {
    words: Vec<u64>,
    first: usize,
    len: usize,
}

impl AlignedWords {
    pub(crate) fn new(len: usize) -> Result<AlignedWords> {
        let need = len + ALIGNMENT / size_of::<u64>();
        let mut words = Vec::new();
        words.try_reserve_exact(need).map_err(|error| {
            let kind = rankwise::ErrorKind::NoMemory { need: need as u64 * 8, limit: 0 };
            Error::new(kind, "a buffer of the benchmark could not be allocated; use smaller sizes").with_source(error)
        })?;
        words.resize(need, 0_u64);
        let first = words.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT / size_of::<u64>());
        Ok(AlignedWords { words, first, len })
    }
}

impl std::ops::Deref for AlignedWords {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.words[self.first..self.first + self.len]
    }
}

impl DerefMut for AlignedWords {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.words[self.first..self.first + self.len]
    }
}

/// Tells the launcher.
pub(crate) fn say(message: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(message).map_err(|error| Error::config(error.to_string()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{text}").and_then(|()| out.flush()).map_err(|error| {
        Error::config(format!("the launcher of the benchmark does not listen any more: {error}")).with_source(error)
    })
}

/// For example `0` or `0-3,8`.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map_or("?", str::trim).to_string()
}
