//! What a case is given: the world, the backend, fresh communicators, seeds, samples and delays.

use crate::case::{CaseResult, Failure, ensure};
use crate::expectations::{CallLog, Deviation, Promise};
use crate::operation::{Operation, verify};
use crate::random::{Random, label};
use crate::sample;
use crate::sizes;
use crate::values::Pattern;
use rankwise_core::{
    Backend, Capabilities, Communicator, Config, DType, Determinism, Error, ErrorKind, Group, OpKind, ReduceOp, Result,
};
use rankwise_world::{Attachment, Driver, World};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Deadline of a call inside a case, unless the case sets its own.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Deadline of joining, and of registering a group.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Deadline of meeting outside the backend.
const MEET_TIMEOUT: Duration = Duration::from_secs(15);

/// What lines about parts of cases that are not run begin with.
pub(crate) const SKIPPED: &str = "skipped: ";

/// What a rank did last, readable while it hangs.
#[derive(Clone, Default)]
pub struct LastCall(Arc<Mutex<String>>);

impl LastCall {
    /// Records what is called next.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// What was called last.
    pub fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Which job of the run this is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Seed of the run.
    pub seed: u64,
    /// Whether to run whole products.
    pub full: bool,
    /// Position of this world among those of the run, and their number.
    pub world: (usize, usize),
    /// Position of this mode among those of the run, and their number.
    pub mode: (usize, usize),
    /// What the backend has promised.
    pub promise: Option<Promise>,
    /// Deviations of calls that apply here, by position in the list of the backend.
    pub deviations: Vec<(usize, Deviation)>,
}

/// The surroundings of one case on one rank.
pub struct Ctx<'a> {
    /// The world.
    pub world: &'a World,
    /// How to join the backend again.
    pub driver: &'a dyn Driver,
    /// The joined backend; cases that poison or register groups use [`Ctx::fresh_backend`] instead.
    pub backend: &'a Backend,
    base: &'a mut Communicator,
    place: &'a Place,
    case: u64,
    calls: u64,
    /// Seeds given out for calls within each group.
    asked: HashMap<Group, u64>,
    meetings: u64,
    delays: Option<Random>,
    fixed: bool,
    last_call: LastCall,
    /// Deviating calls that were met.
    pub(crate) deviating: CallLog,
}

impl<'a> Ctx<'a> {
    /// The surroundings for the case with this id.
    pub fn new(
        world: &'a World,
        driver: &'a dyn Driver,
        backend: &'a Backend,
        base: &'a mut Communicator,
        place: &'a Place,
        case: &str,
        last_call: LastCall,
    ) -> Ctx<'a> {
        let case = label(case);
        let mut run = Random::labelled(place.seed, &[case, place.world.0 as u64, place.mode.0 as u64]);
        let delayed = run.next_u64().is_multiple_of(3);
        let delays = delayed.then(|| Random::labelled(place.seed, &[case, world.rank() as u64]));
        let fixed = backend.settings().determinism >= Determinism::Fixed;
        Ctx {
            world,
            driver,
            backend,
            base,
            place,
            case,
            calls: 0,
            asked: HashMap::new(),
            meetings: 0,
            delays,
            fixed,
            last_call,
            deviating: CallLog::default(),
        }
    }

    /// This rank's global rank.
    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.world.size()
    }

    /// The capability table of the backend's communicators.
    pub fn capabilities(&self) -> &Capabilities {
        self.base.capabilities()
    }

    /// What the backend has promised.
    pub fn promise(&self) -> Option<&Promise> {
        self.place.promise.as_ref()
    }

    /// The result of a call as it counts: where calls like it are known to deviate, a failure is noted, and `instead` is what
    /// it gave.
    pub(crate) fn judged<T>(
        &mut self,
        members: usize,
        o: &Operation,
        result: CaseResult<T>,
        instead: impl FnOnce() -> T,
    ) -> CaseResult<T> {
        // Groups of one use no engine.
        let Some(index) = CallLog::find(&self.place.deviations, o).filter(|_| members > 1) else { return result };
        self.deviating.tried.insert(index);
        result.or_else(|_| {
            self.deviating.went_wrong.insert(index);
            Ok(instead())
        })
    }

    /// Whether the run is a full one.
    pub fn is_full(&self) -> bool {
        self.place.full
    }

    /// Whether results must have the bits of the left fold in group order.
    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// A fresh communicator of the whole world. Collective.
    pub fn communicator(&mut self) -> CaseResult<Communicator> {
        self.note(|| "split of the base communicator".into());
        let key = i64::try_from(self.rank()).unwrap_or(i64::MAX);
        let mut comm =
            self.base.split(Some(0), key)?.ok_or_else(|| Failure::error("split gave nobody a part".into()))?;
        comm.set_timeout(CALL_TIMEOUT);
        Ok(comm)
    }

    /// The backend joined once more, with no group registered. Collective.
    pub fn fresh_backend(&mut self) -> CaseResult<Backend> {
        self.join(Config::new())
    }

    /// The backend joined once more with fixed determinism; from here on results are compared bit for bit.
    pub fn fixed_backend(&mut self) -> CaseResult<Backend> {
        self.fixed = true;
        self.join(Config::new().determinism(Determinism::Fixed))
    }

    /// The backend joined once more with these settings. Collective.
    pub fn join(&mut self, config: Config) -> CaseResult<Backend> {
        self.note(|| "join".into());
        Ok(join(self.world, self.driver, config)?)
    }

    /// Records what this rank does next, for the report of a hang.
    pub fn note(&self, text: impl FnOnce() -> String) {
        self.last_call.set(text());
    }

    /// Says on rank 0's standard error, from where the report takes it, which part of a case is not run here, and why.
    pub fn skip_part(&self, text: &str) {
        if self.rank() == 0 {
            eprintln!("{SKIPPED}{text}");
        }
    }

    /// In one run out of three: a short random pause, different on every rank (H6).
    pub fn pause(&mut self) {
        if let Some(random) = &mut self.delays {
            let micros = random.below(8).saturating_sub(4) * 150;
            if micros > 0 {
                std::thread::sleep(Duration::from_micros(micros as u64));
            }
        }
    }

    /// A seed that no other call of the case has, the same on all ranks if all ask equally often.
    pub fn next_seed(&mut self) -> u64 {
        self.calls += 1;
        Random::labelled(self.place.seed, &[self.case, self.calls]).next_u64()
    }

    /// The same on all members of a group that have asked equally often for it, whatever they do in other groups.
    pub fn seed_within(&mut self, group: &Group) -> u64 {
        let asked = self.asked.entry(group.clone()).or_default();
        *asked += 1;
        Random::labelled(self.place.seed, &[self.case, group.stable_hash(), *asked]).next_u64()
    }

    /// Random numbers that are the same on all ranks.
    pub fn shared_random(&mut self) -> Random {
        Random::new(self.next_seed())
    }

    /// The rows of a product of choices that this job has to run: all of them in a full run, else this job's part of a
    /// pairwise sample over the choices, the worlds and the modes (H4).
    pub fn sample(&mut self, lengths: &[usize]) -> Vec<Vec<usize>> {
        if self.place.full {
            return sample::product(lengths);
        }
        let (world, worlds) = self.place.world;
        let (mode, modes) = self.place.mode;
        let mut all = lengths.to_vec();
        all.extend([worlds, modes]);
        self.calls += 1;
        let mut random = Random::labelled(self.place.seed, &[self.case, self.calls]);
        let mut rows = sample::pairwise(&all, &mut random);
        rows.retain(|row| row[lengths.len()..] == [world, mode]);
        rows.iter_mut().for_each(|row| row.truncate(lengths.len()));
        rows
    }

    /// The counts to try, within what the length of the run allows (H3).
    pub fn sizes(&self) -> Vec<sizes::Size> {
        sizes::sizes(self.capabilities(), sizes::most_elements(self.size(), self.place.full))
    }

    /// The counts to try where a buffer holds that many elements for each rank.
    pub fn sizes_per_rank(&self) -> Vec<sizes::Size> {
        let most = sizes::most_elements(self.size(), self.place.full) / self.size();
        sizes::sizes(self.capabilities(), most.min(300_000))
    }

    /// Meets all ranks outside the backend: nobody returns before everybody has called. Gives what each brought.
    pub fn meet(&mut self, brought: &[u8]) -> CaseResult<Vec<Vec<u8>>> {
        self.meet_group(&Group::world(self.size()), brought)
    }

    /// [`Ctx::meet`] of the members of a group.
    pub fn meet_group(&mut self, group: &Group, brought: &[u8]) -> CaseResult<Vec<Vec<u8>>> {
        self.meetings += 1;
        let key = format!("conformance/{:x}/{}/{group}", self.case, self.meetings);
        let store = self.world.store();
        let met = store.exchange(&key, "conformance case", group, brought, Attachment::None, MEET_TIMEOUT)?;
        Ok(met.into_iter().map(|(bytes, _)| bytes).collect())
    }

    /// After an error: the communicator must still compute a known answer (H9).
    pub fn known_answer(&mut self, comm: &mut Communicator) -> CaseResult {
        let (kind, op) = (OpKind::AllReduce, ReduceOp::Sum);
        let operation = if comm.capabilities().has_kind(kind) && comm.capabilities().reduces(op).contains(DType::I32) {
            Operation::reducing(kind, DType::I32, op, 5)
        } else {
            Operation { count: 5, pattern: Pattern::Exact, ..Operation::new(OpKind::AllGather, DType::I32) }
        };
        // The communicator has worked before, so that it does not now is wrong, whatever it says.
        let wrong = |f: Failure| Failure { is_wrong_result: true, ..f.within("known answer after an error") };
        verify(self, comm, &operation).map_err(wrong)
    }

    /// After an error that poisons: later calls say so at once, and a fresh communicator works (H9).
    pub fn known_answer_elsewhere(&mut self, poisoned: &mut Communicator) -> CaseResult {
        self.note(|| "call on a poisoned communicator".into());
        let later = poisoned.barrier();
        let kind = later.as_ref().err().map(Error::kind);
        ensure!(kind == Some(&ErrorKind::Poisoned), "a call on a poisoned communicator gave {later:?}, not Poisoned");
        let cause = later.as_ref().err().and_then(|error| std::error::Error::source(error)?.downcast_ref::<Error>());
        let poisons = cause.is_some_and(|cause| cause.kind().poisons());
        ensure!(poisons, "the first cause behind Poisoned is {cause:?}, which does not poison");
        let mut fresh = self.communicator()?;
        self.known_answer(&mut fresh)
    }
}

/// Joins a backend for the suite.
pub fn join(world: &World, driver: &dyn Driver, config: Config) -> Result<Backend> {
    let config = config.timeout(CALL_TIMEOUT).join_timeout(JOIN_TIMEOUT);
    Ok(Backend::new(driver.join(world, &config)?, config.resolve()?))
}

/// An error of this kind that names these global ranks; `None` accepts any.
pub fn expect_error<T>(result: Result<T>, kind: &ErrorKind, peers: Option<&[usize]>) -> CaseResult<Error> {
    let wanted = kind.name();
    match result {
        Ok(_) => Err(Failure::wrong(format!("Ok instead of {wanted}"))),
        Err(error) if error.kind() != kind => {
            let is_wrong_result = is_statement(error.kind());
            Err(Failure { is_wrong_result, text: format!("not {wanted}: {error}") })
        }
        Err(error) => match peers {
            Some(peers) if peers != error.peers() => {
                Err(Failure::wrong(format!("names ranks {:?} instead of {peers:?}: {error}", error.peers())))
            }
            _ => Ok(error),
        },
    }
}

/// Whether an error says something about the calls of the ranks, which is wrong when another one was due. The others say that
/// something does not work here, or that the time was too short.
fn is_statement(kind: &ErrorKind) -> bool {
    use ErrorKind::{Aborted, Busy, Closed, Excluded, InvalidArgument, Mismatch, NotMember, PeerLeft, PeerRejected};
    use ErrorKind::{Poisoned, UnknownGroup};
    matches!(
        kind,
        InvalidArgument
            | UnknownGroup
            | NotMember
            | Busy
            | Closed
            | PeerRejected
            | Mismatch
            | PeerLeft
            | Excluded
            | Aborted
            | Poisoned
    )
}
