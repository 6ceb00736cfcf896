//! A backend for the tests of the suite itself: ranks are threads, every call is a meeting at one table.
//!
//! It offers little (sum and maximum of two types, no point-to-point, nothing in flight), so that the suite's handling of what
//! is not offered is tested too.

use rankwise_core::backend::{CommSpec, RawBackend, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{
    Capabilities, Config, DType, DTypeSet, DeadlineSupport, Determinism, Error, ErrorKind, Group, MemorySpace, OpKind,
    Queue, ReduceOp, Result,
};
use rankwise_world::{Attachment, Driver, Placement, ProbeReport, World};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The driver; joins worlds of threads only.
pub(crate) struct Reference(pub(crate) Fault);

/// What goes wrong: at the member at position 1 in an all-to-all with counts, or in joining as a mutant.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    Nothing,
    Hang,
    Panic,
    /// The mutants of this backend can't be joined.
    Mutants,
    /// Its peers don't hear of a refusal, and its table says so.
    Mute,
}

impl Driver for Reference {
    fn name(&self) -> &'static str {
        match self.0 {
            Fault::Nothing => "reference",
            Fault::Hang => "hanging",
            Fault::Panic => "panicking",
            Fault::Mutants => "unmutable",
            Fault::Mute => "mute",
        }
    }

    fn description(&self) -> &'static str {
        "ranks of one process that meet at a table"
    }

    fn probe(&self, _: &World) -> Result<ProbeReport> {
        Ok(ProbeReport::default())
    }

    fn join(&self, world: &World, _: &Config) -> Result<Arc<dyn RawBackend>> {
        if world.placement() == Placement::Processes && world.size() > 1 {
            return Err(Error::new(ErrorKind::NoBackend, "the reference backend joins threads only"));
        }
        let plan = std::env::var("RANKWISE_CONFORMANCE_PLAN").unwrap_or_default();
        if self.0 == Fault::Mutants && plan.contains("\"mutant\":\"") {
            return Err(Error::new(ErrorKind::NoBackend, "mutants are not joined"));
        }
        Ok(Arc::new(Joined { world: world.clone(), fault: self.0 }))
    }
}

struct Joined {
    world: World,
    fault: Fault,
}

impl Fault {
    fn table(self) -> Capabilities {
        match self {
            Fault::Mute => table_of_capabilities().with_agreement(false).with_deadline(DeadlineSupport::Watched),
            _ => table_of_capabilities(),
        }
    }
}

fn table_of_capabilities() -> Capabilities {
    let kinds: Vec<OpKind> =
        OpKind::DATA.into_iter().filter(|kind| !matches!(kind, OpKind::Send | OpKind::Recv)).collect();
    let types = DTypeSet::of(&[DType::F32, DType::I32]);
    Capabilities::none()
        .with_kinds(&kinds)
        .with_reduce(ReduceOp::Sum, types)
        .with_reduce(ReduceOp::Max, types)
        .with_moves(DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits()))
        .with_spaces(true, false)
        .with_deadline(DeadlineSupport::Enforced)
        .with_agreement(true)
        .with_threshold("made up", 300)
}

// SAFETY: as for the communicator.
unsafe impl RawBackend for Joined {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn world_size(&self) -> usize {
        self.world.size()
    }

    fn capabilities(&self) -> Capabilities {
        self.fault.table()
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        if spec.determinism > Determinism::SameTopology {
            return Err(Error::new(ErrorKind::UnsupportedMode, "the reference backend has no fixed determinism"));
        }
        let members = spec.group.len();
        let mine: Arc<Table> = Arc::new(Table::new(members));
        let key = format!("reference/{}/{}", spec.group, spec.tag);
        let what = format!("group {}", spec.group);
        let brought = Attachment::Local(mine);
        let met = self.world.store().exchange(&key, &what, &spec.group, &[], brought, deadline)?;
        let Some((_, Attachment::Local(table))) = met.into_iter().next() else {
            return Err(Error::config("the first member brought no table"));
        };
        let table = table.downcast::<Table>().map_err(|_| Error::config("the first member brought something else"))?;
        let position = spec.group.position(self.world.rank()).unwrap_or(0);
        let capabilities = self.fault.table();
        Ok(Arc::new(Seat {
            table,
            group: spec.group.clone(),
            position,
            sequence: AtomicU64::new(0),
            capabilities,
            fault: self.fault,
        }))
    }
}

struct Table {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    rounds: HashMap<u64, Round>,
    left: Vec<bool>,
    poison: Option<Error>,
}

struct Round {
    brought: Vec<Option<Brought>>,
    taken: usize,
}

#[derive(Clone)]
struct Brought {
    descriptor: String,
    sources: Vec<Vec<u8>>,
    refused: bool,
}

impl Table {
    fn new(members: usize) -> Table {
        Table { state: Mutex::new(State { left: vec![false; members], ..State::default() }), changed: Condvar::new() }
    }
}

struct Seat {
    table: Arc<Table>,
    group: Group,
    position: usize,
    sequence: AtomicU64,
    capabilities: Capabilities,
    fault: Fault,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Ok(mut state) = self.table.state.lock() {
            state.left[self.position] = true;
            self.table.changed.notify_all();
        }
    }
}

impl Seat {
    fn global(&self, positions: impl IntoIterator<Item = usize>) -> Vec<usize> {
        positions.into_iter().filter_map(|position| self.group.global(position)).collect()
    }

    fn bring(&self, state: &mut State, brought: Brought) -> u64 {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let members = self.group.len();
        let round = state.rounds.entry(sequence).or_insert_with(|| Round { brought: vec![None; members], taken: 0 });
        round.brought[self.position] = Some(brought);
        self.table.changed.notify_all();
        sequence
    }

    fn take(&self, state: &mut State, sequence: u64) {
        let Some(round) = state.rounds.get_mut(&sequence) else { return };
        round.taken += 1;
        if round.taken == self.group.len() {
            state.rounds.remove(&sequence);
        }
    }

    /// Brings what this rank has and waits until all have brought theirs.
    fn meet(&self, descriptor: String, sources: Vec<Vec<u8>>, deadline: Duration) -> Result<Vec<Vec<Vec<u8>>>> {
        let start = Instant::now();
        let mut state = self.table.state.lock().unwrap();
        if let Some(first) = &state.poison {
            return Err(Error::new(ErrorKind::Poisoned, "an earlier call failed").with_source(first.clone()));
        }
        let sequence = self.bring(&mut state, Brought { descriptor, sources, refused: false });
        loop {
            let arrived: Vec<bool> = state.rounds[&sequence].brought.iter().map(Option::is_some).collect();
            if arrived.iter().all(|here| *here) {
                break;
            }
            let absent = || (0..self.group.len()).filter(|position| !arrived[*position]);
            let gone: Vec<usize> = absent().filter(|position| state.left[*position]).collect();
            let error = if let Some(first) = &state.poison {
                let is_first_hand = matches!(first.kind(), ErrorKind::Aborted);
                let kind = if is_first_hand { ErrorKind::Aborted } else { ErrorKind::Poisoned };
                Error::new(kind, "the call was ended").with_peers(first.peers().to_vec()).with_source(first.clone())
            } else if !gone.is_empty() {
                Error::new(ErrorKind::PeerLeft, format!("ranks {gone:?} left")).with_peers(self.global(gone))
            } else if start.elapsed() >= deadline {
                let missing = self.global(absent());
                Error::new(ErrorKind::Timeout, format!("ranks {missing:?} are missing"))
                    .with_peers(missing)
                    .with_sequence(sequence)
            } else {
                let rest = deadline.saturating_sub(start.elapsed()).min(Duration::from_millis(50));
                state = self.table.changed.wait_timeout(state, rest).unwrap().0;
                continue;
            };
            state.poison.get_or_insert(error.clone());
            self.table.changed.notify_all();
            return Err(error);
        }
        let all: Vec<Brought> = state.rounds[&sequence].brought.iter().flatten().cloned().collect();
        self.take(&mut state, sequence);
        let refusing = self.global((0..all.len()).filter(|position| all[*position].refused));
        if !refusing.is_empty() {
            let text = format!("rank {refusing:?} refused its call").replace(['[', ']'], "");
            return Err(Error::new(ErrorKind::PeerRejected, text).with_peers(refusing));
        }
        let mut usual = &all[0].descriptor;
        let votes = |text: &String| all.iter().filter(|brought| brought.descriptor == *text).count();
        for brought in &all {
            if votes(&brought.descriptor) > votes(usual) {
                usual = &brought.descriptor;
            }
        }
        let odd = self.global((0..all.len()).filter(|position| all[*position].descriptor != *usual));
        if !odd.is_empty() {
            let error = Error::new(ErrorKind::Mismatch, format!("ranks {odd:?} called differently")).with_peers(odd);
            state.poison.get_or_insert(error.clone());
            return Err(error);
        }
        Ok(all.into_iter().map(|brought| brought.sources).collect())
    }
}

// SAFETY: buffers are touched only inside `run`, within their lengths, and nobody reads another rank's memory: the
// sources are copied.
unsafe impl RawCommunicator for Seat {
    fn group(&self) -> &Group {
        &self.group
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        if self.position == 1 && calls.iter().any(|call| call.kind == OpKind::AllToAllV) {
            match self.fault {
                Fault::Nothing | Fault::Mutants | Fault::Mute => {}
                Fault::Hang => loop {
                    std::thread::sleep(Duration::from_secs(1));
                },
                Fault::Panic => panic!("a backend must not"),
            }
        }
        let describe = |call: &RawCall<'_>| {
            let all_to_all = call.kind == OpKind::AllToAllV;
            let counts = if all_to_all { String::new() } else { format!("{:?}", call.counts) };
            format!(
                "{:?} {:?} {} {:?} {} {counts} {} {}",
                call.kind, call.dtype, call.elem_size, call.op, call.count, call.root, call.tag
            )
        };
        let descriptor = calls.iter().map(describe).collect::<Vec<_>>().join("; ");
        // The counts of an all-to-all travel with the data, to be compared pair by pair.
        let source = |call: &RawCall<'_>| {
            // SAFETY: the caller promises that the buffers are valid.
            let data = unsafe { std::slice::from_raw_parts(call.src.ptr, call.src.bytes) }.to_vec();
            let in_place = call.kind == OpKind::Broadcast && self.position == call.root && data.is_empty();
            // SAFETY: as above.
            if in_place { unsafe { std::slice::from_raw_parts(call.dst.ptr, call.dst.bytes) }.to_vec() } else { data }
        };
        let mut brought: Vec<Vec<u8>> = calls.iter().map(source).collect();
        for call in calls {
            brought.push(call.counts.send.iter().chain(call.counts.recv).flat_map(|c| c.to_le_bytes()).collect());
        }
        let met = self.meet(descriptor, brought, deadline)?;
        for (i, call) in calls.iter().enumerate() {
            let sources: Vec<&[u8]> = met.iter().map(|sources| &sources[i][..]).collect();
            let counts: Vec<&[u8]> = met.iter().map(|sources| &sources[calls.len() + i][..]).collect();
            let Some(result) = self.result(call, &sources, &counts)? else { continue };
            // SAFETY: the destination is valid for writes; it has the length of the result.
            let dst = unsafe { std::slice::from_raw_parts_mut(call.dst.ptr, call.dst.bytes) };
            dst.copy_from_slice(&result);
        }
        Ok(())
    }

    unsafe fn start(&self, _: &[RawCall<'_>], _: Queue, _: Duration) -> Result<Box<dyn RawWork>> {
        Err(Error::new(ErrorKind::UnsupportedMode, "the reference backend has nothing in flight"))
    }

    fn reject(&self, _: &Refusal<'_>) {
        if self.fault == Fault::Mute {
            return;
        }
        let mut state = self.table.state.lock().unwrap();
        if state.poison.is_some() {
            return;
        }
        let sequence =
            self.bring(&mut state, Brought { descriptor: String::new(), sources: Vec::new(), refused: true });
        self.take(&mut state, sequence);
    }

    fn alloc(&self, _: usize, _: MemorySpace, _: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(Error::new(ErrorKind::UnsupportedMode, "the reference backend has no collective memory"))
    }

    fn shrink(&self, _: Duration) -> Result<Arc<dyn RawCommunicator>> {
        Err(Error::new(ErrorKind::UnsupportedOp, "the reference backend does not shrink"))
    }

    fn abort(&self) {
        let mut state = self.table.state.lock().unwrap();
        let error = Error::new(ErrorKind::Aborted, "aborted").with_peers(self.group.global(self.position));
        state.poison.get_or_insert(error);
        self.table.changed.notify_all();
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        self.meet("finalize".into(), Vec::new(), deadline).map(drop)
    }
}

impl Seat {
    fn result(&self, call: &RawCall<'_>, sources: &[&[u8]], counts: &[&[u8]]) -> Result<Option<Vec<u8>>> {
        let (me, size) = (self.position, call.elem_size);
        let part = call.count * size;
        let count_at = |from: usize, index: usize| {
            usize::from_le_bytes(counts[from][index * 8..index * 8 + 8].try_into().unwrap_or_default())
        };
        let own = |lengths: &[usize]| {
            let before: usize = lengths[..me].iter().sum();
            before * size..(before + lengths[me]) * size
        };
        Ok(Some(match call.kind {
            OpKind::Barrier => return Ok(None),
            OpKind::AllReduce => fold(call, sources),
            OpKind::ReduceScatter => fold(call, sources)[me * part..(me + 1) * part].to_vec(),
            OpKind::ReduceScatterV => fold(call, sources)[own(call.counts.send)].to_vec(),
            OpKind::AllGather | OpKind::AllGatherV => sources.concat(),
            OpKind::Broadcast => sources[call.root].to_vec(),
            OpKind::Scatter => sources[call.root][me * part..(me + 1) * part].to_vec(),
            OpKind::ScatterV => sources[call.root][own(call.counts.send)].to_vec(),
            OpKind::AllToAll => sources.iter().flat_map(|s| s[me * part..(me + 1) * part].to_vec()).collect(),
            OpKind::AllToAllV => {
                let members = self.group.len();
                for pair in 0..members * members {
                    let (from, to) = (pair / members, pair % members);
                    if count_at(from, to) != count_at(to, members + from) {
                        let error = Error::new(ErrorKind::Mismatch, format!("{from} and {to} disagree"))
                            .with_peers(self.global([from]));
                        self.table.state.lock().unwrap().poison.get_or_insert(error.clone());
                        return Err(error);
                    }
                }
                let range = |from: usize| {
                    let before: usize = (0..me).map(|to| count_at(from, to)).sum();
                    before * size..(before + count_at(from, me)) * size
                };
                sources.iter().enumerate().flat_map(|(from, source)| source[range(from)].to_vec()).collect()
            }
            _ if me != call.root => return Ok(None),
            OpKind::Reduce => fold(call, sources),
            _ => sources.concat(),
        }))
    }
}

fn fold(call: &RawCall<'_>, sources: &[&[u8]]) -> Vec<u8> {
    let largest = call.op == Some(ReduceOp::Max);
    let mut out = sources[0].to_vec();
    for source in &sources[1..] {
        for (a, b) in out.chunks_exact_mut(4).zip(source.chunks_exact(4)) {
            let bytes = ([a[0], a[1], a[2], a[3]], [b[0], b[1], b[2], b[3]]);
            let result = if call.dtype == DType::I32 {
                let (x, y) = (i32::from_ne_bytes(bytes.0), i32::from_ne_bytes(bytes.1));
                if largest { x.max(y) } else { x.wrapping_add(y) }.to_ne_bytes()
            } else {
                let (x, y) = (f32::from_ne_bytes(bytes.0), f32::from_ne_bytes(bytes.1));
                let above = if x == y { x.is_sign_positive() } else { x > y };
                let most = if y.is_nan() || (!x.is_nan() && above) { x } else { y };
                if largest { most } else { x + y }.to_ne_bytes()
            };
            a.copy_from_slice(&result);
        }
    }
    out
}
