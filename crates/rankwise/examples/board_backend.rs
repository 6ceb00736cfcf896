//! A complete backend in one file: ranks that are threads meet on a board behind a mutex.
//!
//! `docs/adding-a-backend.md` walks through it. It joins, checks that calls agree, keeps deadlines, tells peers of refused
//! arguments, of failure, of death and of leaving; it is slow, and offers only what its capability table says.
//!
//! ```sh
//! cargo run -p rankwise --example board_backend
//! ```

use rankwise_core::backend::{CommSpec, RawBackend, RawCall, RawCommunicator, RawSegment, RawWork, Refusal};
use rankwise_core::{
    Capabilities, Config, DType, DTypeSet, DeadlineSupport, Determinism, Error, ErrorKind, Group, MemorySpace, OpKind,
    Queue, ReduceOp, Result,
};
use rankwise_world::{Attachment, Driver, PeerStatus, Placement, ProbeReport, World};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

// 1. The driver: found by name, probed, joined.

struct BoardDriver;

impl Driver for BoardDriver {
    fn name(&self) -> &'static str {
        "board"
    }

    fn description(&self) -> &'static str {
        "ranks that are threads of one process, through a mutex"
    }

    fn probe(&self, world: &World) -> Result<ProbeReport> {
        match world.placement() {
            Placement::Processes => Err(Error::new(
                ErrorKind::NoBackend,
                "board reaches the threads of one process only; choose a backend that reaches processes",
            )),
            _ => Ok(ProbeReport::default().with("reach", "threads")),
        }
    }

    fn join(&self, world: &World, _: &Config) -> Result<Arc<dyn RawBackend>> {
        self.probe(world)?;
        Ok(Arc::new(BoardBackend { world: world.clone() }))
    }
}

// 2. The backend: one joined rank, which makes communicators.

struct BoardBackend {
    world: World,
}

fn table() -> Capabilities {
    Capabilities::none()
        .with_kinds(&[OpKind::AllReduce, OpKind::AllGather, OpKind::Broadcast, OpKind::Barrier])
        .with_reduce(ReduceOp::Sum, DTypeSet::of(&[DType::F32]))
        .with_moves(DTypeSet::from_bits(DTypeSet::NUMERIC.bits() | DTypeSet::of(&[DType::Opaque]).bits()))
        .with_spaces(true, false)
        .with_determinism(Determinism::Fixed)
        .with_deadline(DeadlineSupport::Enforced)
        .with_nonblocking(false, false)
        .with_max_bytes(1 << 30)
}

// SAFETY: the communicators it makes keep the promises of `RawCommunicator`; see there.
unsafe impl RawBackend for BoardBackend {
    fn name(&self) -> &'static str {
        "board"
    }

    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn world_size(&self) -> usize {
        self.world.size()
    }

    fn capabilities(&self) -> Capabilities {
        table()
    }

    fn communicator(&self, spec: &CommSpec, deadline: Duration) -> Result<Arc<dyn RawCommunicator>> {
        let group = &spec.group;
        let me = group.position(self.rank()).ok_or_else(|| Error::new(ErrorKind::NotMember, "not a member"))?;
        // Everybody offers a board, all use that of the first member. The key tells communicators of equal members apart;
        // the members' tables would travel in the payload if they could differ.
        let (key, what) = (format!("board/{:x}/{group}", spec.tag), format!("group {group}"));
        let mine = Attachment::Local(Arc::new(Board::default()));
        let offers = self.world.store().exchange(&key, &what, group, &[], mine, deadline)?;
        let Some((_, Attachment::Local(board))) = offers.into_iter().next() else {
            return Err(Error::config("the first member offered no board; are all ranks threads of one process?"));
        };
        let board =
            board.downcast().map_err(|_| Error::config("another kind of object came; are the versions equal?"))?;
        let (world, group) = (self.world.clone(), group.clone());
        Ok(Arc::new(BoardComm {
            world,
            group,
            me,
            board,
            table: table(),
            calls: AtomicU64::new(0),
            told: AtomicBool::new(false),
        }))
    }
}

// 3. What the members share.

/// What must be equal on all members.
#[derive(Clone, Debug, PartialEq)]
struct Descriptor(OpKind, DType, usize, Option<ReduceOp>, usize, usize, u32);

#[derive(Clone)]
enum Post {
    Called(Descriptor, Arc<[u8]>),
    Rejected(String),
}

#[derive(Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By sequence number: what each member posted, and how many members are done with the call.
    rounds: HashMap<u64, (HashMap<usize, Post>, usize)>,
    /// Members that finalized or dropped their communicator.
    left: Vec<usize>,
    /// The first failure; never replaced.
    cause: Option<Error>,
}

struct BoardComm {
    world: World,
    group: Group,
    me: usize,
    board: Arc<Board>,
    table: Capabilities,
    /// Calls so far: the sequence number of the last one.
    calls: AtomicU64,
    /// Whether this rank has returned the cause once; later calls are `Poisoned`.
    told: AtomicBool,
}

impl BoardComm {
    fn state(&self) -> MutexGuard<'_, State> {
        self.board.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn global(&self, position: usize) -> usize {
        self.group.global(position).unwrap_or(position)
    }

    fn post(&self, post: Post) -> u64 {
        // Relaxed: one thread at a time issues calls.
        let seq = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.state().rounds.entry(seq).or_default().0.insert(self.me, post);
        self.board.changed.notify_all();
        seq
    }

    /// Done with a call; the last one clears it away.
    fn done(&self, state: &mut State, seq: u64) {
        let Some(round) = state.rounds.get_mut(&seq) else { return };
        round.1 += 1;
        if round.1 == self.group.len() {
            state.rounds.remove(&seq);
        }
    }

    /// Records a failure, wakes everybody, returns the cause that counts.
    fn fail(&self, state: &mut State, error: Error) -> Error {
        let cause = state.cause.get_or_insert(error).clone();
        self.told.store(true, Ordering::Relaxed);
        self.board.changed.notify_all();
        cause
    }

    /// Refuses calls on a communicator that has failed: the cause first, then `Poisoned`.
    fn check_usable(&self) -> Result<()> {
        let Some(cause) = self.state().cause.clone() else { return Ok(()) };
        if !self.told.swap(true, Ordering::Relaxed) {
            return Err(cause);
        }
        Err(Error::new(ErrorKind::Poisoned, "an earlier call failed; make a new communicator").with_source(cause))
    }

    /// Waits for every member's post of `seq`; returns the sources in group order.
    fn meet(&self, seq: u64, mine: &Descriptor, deadline: Duration) -> Result<Vec<Arc<[u8]>>> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            let posts = state.rounds.entry(seq).or_default().0.clone();
            let rejected = posts.iter().find_map(|(q, post)| match post {
                Post::Rejected(why) => Some((self.global(*q), why)),
                Post::Called(..) => None,
            });
            if let Some((rank, why)) = rejected {
                self.done(&mut state, seq);
                let text = format!("rank {rank} refused its own arguments ({why}); correct them there and call again");
                return Err(Error::new(ErrorKind::PeerRejected, text).with_peers([rank]));
            }
            let called: Vec<_> = (0..self.group.len())
                .map_while(|q| match posts.get(&q) {
                    Some(Post::Called(descriptor, bytes)) => Some((descriptor, bytes)),
                    _ => None,
                })
                .collect();
            if called.len() == self.group.len() {
                // What is complete stays complete: this comes before the look at failures.
                if let Some(error) = self.disagreement(&called) {
                    return Err(self.fail(&mut state, error));
                }
                self.done(&mut state, seq);
                return Ok(called.into_iter().map(|(_, bytes)| bytes.clone()).collect());
            }
            if let Some(cause) = state.cause.clone() {
                return Err(self.fail(&mut state, cause));
            }
            let missing: Vec<usize> = (0..self.group.len()).filter(|q| !posts.contains_key(q)).collect();
            if let Some(error) = self.trouble(&state, &missing, mine, began.elapsed() >= deadline) {
                return Err(self.fail(&mut state, error.with_elapsed(began.elapsed())));
            }
            // Bounded, since a rank that dies wakes nobody.
            let rest = deadline.saturating_sub(began.elapsed()).min(Duration::from_millis(25));
            state = self.board.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The majority is right; on a tie the side of the lowest member.
    fn disagreement(&self, called: &[(&Descriptor, &Arc<[u8]>)]) -> Option<Error> {
        let votes = |d: &Descriptor| called.iter().filter(|(other, _)| *other == d).count();
        let right = called.iter().rev().max_by_key(|(d, _)| votes(d))?.0;
        let odd: Vec<usize> =
            (0..).zip(called).filter(|(_, (d, _))| *d != right).map(|(q, _)| self.global(q)).collect();
        if odd.is_empty() {
            return None;
        }
        let text = format!("ranks {odd:?} called something else than {right:?}; make the calls equal");
        Some(Error::new(ErrorKind::Mismatch, text).with_peers(odd))
    }

    fn trouble(&self, state: &State, missing: &[usize], mine: &Descriptor, late: bool) -> Option<Error> {
        for (q, rank) in missing.iter().map(|q| (q, self.global(*q))) {
            if state.left.contains(q) {
                let text = format!("rank {rank} left before this call; make it take part, or stop calling it");
                return Some(Error::new(ErrorKind::PeerLeft, text).with_peers([rank]));
            }
            if self.world.liveness().status(rank) == PeerStatus::Gone {
                let text = format!("rank {rank} died; look at its output, then start again");
                return Some(Error::new(ErrorKind::PeerLost, text).with_peers([rank]));
            }
        }
        late.then(|| {
            let missing: Vec<usize> = missing.iter().map(|q| self.global(*q)).collect();
            let text = format!("ranks {missing:?} have not come to {mine:?}; look at what they do");
            Error::new(ErrorKind::Timeout, text).with_peers(missing)
        })
    }

    fn leave(&self) {
        self.state().left.push(self.me);
        self.board.changed.notify_all();
    }
}

impl Drop for BoardComm {
    fn drop(&mut self) {
        self.leave();
    }
}

// 4. The communicator: calls that were checked above.

fn unsupported(function: &str) -> Error {
    let kind =
        ErrorKind::Unsupported { function: function.into(), needs: "another backend".into(), have: "board".into() };
    Error::new(kind, "board is for learning")
}

// SAFETY: `run` reads `src` and writes `dst` within their lengths, on the calling thread, and keeps no pointer: what peers
// read is a copy. Nothing is started and no segment is handed out.
unsafe impl RawCommunicator for BoardComm {
    fn group(&self) -> &Group {
        &self.group
    }

    fn capabilities(&self) -> &Capabilities {
        &self.table
    }

    unsafe fn run(&self, calls: &[RawCall<'_>], deadline: Duration) -> Result<()> {
        self.check_usable()?;
        for call in calls {
            // SAFETY: the caller lends `src` until return; an absent one is dangling and empty.
            let source: Arc<[u8]> = unsafe { std::slice::from_raw_parts(call.src.ptr, call.src.bytes) }.into();
            let mine = Descriptor(call.kind, call.dtype, call.elem_size, call.op, call.count, call.root, call.tag);
            let seq = self.post(Post::Called(mine.clone(), source));
            let sources = self.meet(seq, &mine, deadline).map_err(|error| error.with_sequence(seq))?;
            let result = match call.kind {
                OpKind::AllReduce => sum(&sources),
                OpKind::AllGather => sources.concat(),
                OpKind::Broadcast => sources[call.root].to_vec(),
                _ => Vec::new(),
            };
            debug_assert_eq!(result.len(), call.dst.bytes);
            // SAFETY: `dst` is lent until return and has the size of the table at `OpKind`.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), call.dst.ptr, call.dst.bytes.min(result.len())) };
        }
        Ok(())
    }

    unsafe fn start(&self, _: &[RawCall<'_>], _: Queue, _: Duration) -> Result<Box<dyn RawWork>> {
        // The table says so, and the layer above refuses; reached by nobody.
        Err(Error::new(ErrorKind::UnsupportedMode, "board can't start calls without waiting; use the blocking form"))
    }

    fn reject(&self, refusal: &Refusal<'_>) {
        for _ in 0..refusal.calls {
            let seq = self.post(Post::Rejected(refusal.why.message().into()));
            self.done(&mut self.state(), seq);
        }
    }

    fn alloc(&self, _: usize, _: MemorySpace, _: Duration) -> Result<Arc<dyn RawSegment>> {
        Err(unsupported("alloc"))
    }

    fn shrink(&self, _: Duration) -> Result<Arc<dyn RawCommunicator>> {
        Err(unsupported("shrink"))
    }

    fn abort(&self) {
        let rank = self.global(self.me);
        let text = format!("rank {rank} aborted this communicator; make a new one to go on");
        let error = Error::new(ErrorKind::Aborted, text).with_peers([rank]);
        self.state().cause.get_or_insert(error);
        self.board.changed.notify_all();
    }

    fn finalize(&self, deadline: Duration) -> Result<()> {
        self.check_usable()?;
        let goodbye = Descriptor(OpKind::Finalize, DType::U8, 1, None, 0, 0, 0);
        let seq = self.post(Post::Called(goodbye.clone(), Arc::default()));
        self.meet(seq, &goodbye, deadline)?;
        self.leave();
        Ok(())
    }
}

/// Left fold in group order, and one NaN for all: the table promises `Determinism::Fixed`.
fn sum(sources: &[Arc<[u8]>]) -> Vec<u8> {
    let value = |bytes: &[u8; 4]| f32::from_ne_bytes(*bytes);
    let mut sum: Vec<f32> = sources[0].as_chunks().0.iter().map(value).collect();
    for source in &sources[1..] {
        sum.iter_mut().zip(source.as_chunks().0).for_each(|(sum, bytes)| *sum += value(bytes));
    }
    let canonical = |sum: f32| if sum.is_nan() { f32::NAN } else { sum };
    sum.into_iter().map(canonical).flat_map(f32::to_ne_bytes).collect()
}

// 5. It runs.

fn main() -> Result<()> {
    let ranks: Vec<Result<()>> = World::threads(3, |world| {
        let config = Config::new().timeout(Duration::from_secs(20));
        let backend = rankwise_core::Backend::new(BoardDriver.join(&world, &config)?, config.resolve()?);
        let mut comm = backend.world()?;
        let me = comm.rank();

        let mut sum = [me as f32, 1.0];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [3.0, 3.0]);
        let mut all = [0_u16; 3];
        comm.all_gather(&[me as u16 * 10], &mut all)?;
        assert_eq!(all, [0, 10, 20]);
        let mut pair = comm.split(Some(me as u64 / 2), 0)?.expect("a colour was given");
        assert_eq!(pair.size(), if me == 2 { 1 } else { 2 });
        pair.barrier()?;

        // Refused on every rank from the same table, before anything moves.
        let error = comm.all_reduce(&[1_i32], &mut [0], ReduceOp::Sum).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::UnsupportedDtype);

        // A wrong argument on one rank: the others learn whose, and the communicator stays usable.
        let result = comm.broadcast(&mut [0_u8], if me == 1 { 9 } else { 0 });
        let expected = if me == 1 { ErrorKind::InvalidArgument } else { ErrorKind::PeerRejected };
        assert_eq!(result.unwrap_err().kind(), &expected);
        comm.barrier()?;

        // Different calls: everybody learns who is odd, nothing is written, the communicator is over.
        let mut untouched = [7_u32; 2];
        let error = comm.broadcast(&mut untouched[..if me == 2 { 1 } else { 2 }], 0).unwrap_err();
        assert_eq!((error.kind(), error.peers(), untouched), (&ErrorKind::Mismatch, &[2][..], [7, 7]));
        assert_eq!(comm.barrier().unwrap_err().kind(), &ErrorKind::Poisoned);
        Ok(())
    })?;
    ranks.into_iter().collect::<Result<()>>()?;
    println!("values, refusals and a mismatch between three ranks: as they should be");
    Ok(())
}
