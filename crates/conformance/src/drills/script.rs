//! What the ranks of a drill do, and report.

use super::{Drill, Field, Scenario, named};
use crate::cases::root_cause;
use crate::clean;
use crate::ctx::join;
use crate::operation::{Buffers, Operation, inputs, perform};
use crate::oracle;
use crate::plan::{DrillPart, Record, monotonic_nanos};
use rankwise_core::{Backend, Communicator, Config, DType, Error, ErrorKind, Group, OpKind, ReduceOp, Result};
use rankwise_world::{Attachment, Driver, World};
use std::time::Duration;

/// Calls that every rank makes when nothing is to go wrong for good.
const COMPLETE_ROUNDS: usize = 4000;

/// Plays this rank's part; false when it could not.
pub(crate) fn play(world: &World, driver: &dyn Driver, part: &DrillPart) -> bool {
    let Some(drill) = named(&part.scenario) else { return false };
    let before = clean::own_holdings();
    let report = Reporter { rank: world.rank() };
    match part_of(world, driver, &drill, Duration::from_millis(part.timeout_ms), &report) {
        Ok(()) => {}
        Err(error) => {
            report.event("setup failed", None, error.to_string());
            return false;
        }
    }
    let after = clean::own_holdings();
    let kept = after.fds > before.fds || after.shared_mappings > before.shared_mappings;
    if kept {
        report.event("kept", None, format!("before {before:?}, after {after:?}"));
    }
    report.event("done", None, String::new());
    true
}

struct Reporter {
    rank: usize,
}

impl Reporter {
    fn event(&self, what: &str, error: Option<&Error>, detail: String) {
        Record::Event {
            rank: self.rank,
            what: what.into(),
            at: monotonic_nanos(),
            kind: error.map(|error| error.kind().name().into()),
            peers: error.map(|error| error.peers().to_vec()).unwrap_or_default(),
            detail,
        }
        .emit();
    }
}

fn part_of(world: &World, driver: &dyn Driver, drill: &Drill, timeout: Duration, report: &Reporter) -> Result<()> {
    let backend = join(world, driver, Config::new())?;
    let mut comm = backend.world()?;
    comm.set_timeout(timeout);
    if !comm.capabilities().has_kind(drill.kind) {
        report.event("not offered", None, drill.kind.to_string());
        return Ok(());
    }
    let all = Group::world(world.size());
    let call = Repeated::new(&comm, drill.kind);
    call.once(&mut comm, report)?;
    world.store().exchange("drill", "drill", &all, &[], Attachment::None, Duration::from_secs(30))?;
    report.event("ready", None, String::new());
    let is_victim = world.rank() == drill.victim;
    let result = match drill.scenario {
        Scenario::StopShort => (0..COMPLETE_ROUNDS).try_for_each(|_| call.once(&mut comm, report)),
        Scenario::KillOutside if is_victim => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        Scenario::Abort | Scenario::Panic | Scenario::Exit | Scenario::Leave if is_victim => {
            std::thread::sleep(Duration::from_millis(100));
            return victim(drill, comm, backend, report);
        }
        Scenario::Differ(field) => differing(&mut comm, field, is_victim, &call, report),
        _ => loop {
            if let Err(error) = call.once(&mut comm, report) {
                break Err(error);
            }
        },
    };
    match result {
        Ok(()) => report.event("completed", None, String::new()),
        Err(error) => {
            let at_hand = (error.kind() != &ErrorKind::Poisoned).then_some(error.clone());
            let first = at_hand.or_else(|| root_cause(&error).ok()).unwrap_or(error);
            report.event("error", Some(&first), first.to_string());
            let later = comm.barrier().err();
            report.event("later", later.as_ref(), String::new());
        }
    }
    Ok(())
}

fn victim(drill: &Drill, comm: Communicator, backend: Backend, report: &Reporter) -> Result<()> {
    match drill.scenario {
        Scenario::Abort => {
            let handle = comm.abort_handle();
            report.event("fault", None, String::new());
            let aborted = std::thread::spawn(move || handle.abort()).join();
            drop(comm);
            aborted.map_err(|_| Error::config("abort panicked"))
        }
        Scenario::Panic => {
            report.event("fault", None, String::new());
            panic!("this rank panics for a drill");
        }
        Scenario::Exit => {
            report.event("fault", None, String::new());
            std::process::exit(0);
        }
        _ => {
            report.event("fault", None, String::new());
            // The group's communicator lives as long as the backend or a handle of it.
            drop((comm, backend));
            std::thread::sleep(Duration::from_millis(600));
            Ok(())
        }
    }
}

/// One call that the victim makes differently, then a barrier for those that have not learned it.
fn differing(comm: &mut Communicator, field: Field, is_victim: bool, call: &Repeated, report: &Reporter) -> Result<()> {
    let mut floats = [1.0_f32; 8];
    let members = comm.size();
    report.event("fault", None, String::new());
    let first = match (field, is_victim) {
        (Field::Kind, true) => comm.all_gather(&[1.0_f32], &mut vec![0.0; members]),
        (Field::Dtype, true) => comm.all_reduce_in_place(&mut [1_i32; 8], ReduceOp::Sum),
        (Field::Op, true) => comm.all_reduce_in_place(&mut floats, ReduceOp::Max),
        (Field::Count, true) => comm.all_reduce_in_place(&mut floats[..4], ReduceOp::Sum),
        (Field::Counts, _) => {
            let mut counts = vec![2; members];
            if is_victim {
                let other = (comm.rank() + 1) % members;
                counts[other] = 5;
            }
            let total = counts.iter().sum();
            comm.all_gather_v(&[1_u8; 2], &mut vec![0; total], &counts)
        }
        (Field::Root, _) => comm.broadcast(&mut floats, if is_victim { members - 1 } else { 0 }),
        // The victim goes on to what comes after this call.
        (Field::Sequence, true) => Ok(()),
        _ => comm.all_reduce_in_place(&mut floats, ReduceOp::Sum),
    };
    first?;
    comm.barrier()?;
    // Nobody noticed: go on, so that it shows as a completed drill.
    call.once(comm, report)
}

/// One operation that is made again and again, with its inputs and its result.
struct Repeated {
    operation: Operation,
    input: Vec<u8>,
    want: Option<Vec<u8>>,
}

impl Repeated {
    fn new(comm: &Communicator, kind: OpKind) -> Repeated {
        let members = comm.size();
        let mut operation = Operation { count: 20_000, root: 1 % members, ..Operation::new(kind, DType::F32) };
        match kind {
            OpKind::AllGatherV | OpKind::ReduceScatterV | OpKind::GatherV | OpKind::ScatterV => {
                operation.counts = (0..members).map(|rank| 5000 * (rank + 1)).collect();
            }
            OpKind::AllToAllV => operation.counts = (0..members * members).map(|pair| 2000 * (pair % 4)).collect(),
            OpKind::Barrier => operation.count = 0,
            OpKind::Send | OpKind::Recv => {
                operation = Operation { count: 20_000, ..Operation::new(OpKind::AllGather, DType::F32) }
            }
            _ => {}
        }
        let inputs = inputs(&operation, 1, members);
        let me = comm.rank();
        let want = match kind {
            // A ring: what comes from the left neighbour.
            OpKind::Send | OpKind::Recv => Some(inputs[(me + members - 1) % members].clone()),
            _ => oracle::expected(&operation, &inputs, me),
        };
        operation.kind = kind;
        Repeated { operation, input: inputs.into_iter().nth(me).unwrap_or_default(), want }
    }

    fn once(&self, comm: &mut Communicator, report: &Reporter) -> Result<()> {
        let (me, members) = (comm.rank(), comm.size());
        let got = match self.operation.kind {
            OpKind::Send | OpKind::Recv => self.ring(comm)?,
            _ => {
                let mut buffers = Buffers::new(&self.operation, &self.input, me, members);
                perform(comm, &self.operation, &mut buffers.src, &mut buffers.dst)?;
                buffers.dst.bytes().to_vec()
            }
        };
        if self.want.as_ref().is_some_and(|want| *want != got) {
            report.event("wrong data", None, self.operation.kind.to_string());
        }
        Ok(())
    }

    fn ring(&self, comm: &mut Communicator) -> Result<Vec<u8>> {
        let (me, members) = (comm.rank(), comm.size());
        let (next, previous) = ((me + 1) % members, (me + members - 1) % members);
        let mut got = vec![0; self.input.len()];
        if me == 0 {
            comm.recv(&mut got, previous)?;
            comm.send(&self.input, next)?;
        } else {
            comm.send(&self.input, next)?;
            comm.recv(&mut got, previous)?;
        }
        Ok(got)
    }
}
