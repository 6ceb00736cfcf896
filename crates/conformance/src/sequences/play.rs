//! One rank's part in a sequence: takes the steps in order and checks every result.

use super::digest::{Digest, Form, digest};
use super::flight::{Flight, ScopedFlight, as_buffers, start, start_in_scope};
use super::script::{ALL, Numbered, Script, Step};
use crate::case::{CaseResult, Failure, ensure};
use crate::cases::root_cause;
use crate::ctx::{Ctx, expect_error};
use crate::operation::{Buffers, Memory, Operation, check_result, inputs, judge, perform, result_of};
use crate::random::Random;
use crate::values::{Pattern, fill};
use rankwise_core::{Backend, Communicator, DType, ErrorKind, Group, OpKind, ReduceOp};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a rank has done.
#[derive(Debug, Default)]
pub(crate) struct Played {
    /// Calls left out because the capability table does not offer them.
    pub(crate) left_out: usize,
    /// With a form: what every call gave.
    pub(crate) digests: Vec<Digest>,
}

/// Takes this rank's part. `all` has the ranks of the script; `None` at a rank that has no part.
///
/// Without a form the first wrong result is the failure. With one, calls without effects on others are made in that form
/// and what they give is only recorded.
pub(crate) fn play(
    ctx: &mut Ctx<'_>,
    backend: &Backend,
    all: Option<Communicator>,
    script: &Script,
    form: Option<Form>,
    timeout: Duration,
) -> CaseResult<Played> {
    let Some(mut all) = all else { return Ok(Played::default()) };
    all.set_timeout(timeout);
    let comms = BTreeMap::from([(ALL, all)]);
    let (works, played) = (BTreeMap::new(), Played::default());
    let mut player = Player { ctx, backend, script, form, timeout, comms, works, played, step: 0 };
    for (i, step) in script.steps.iter().enumerate() {
        player.step = i;
        player.take(step).map_err(|failure| failure.within(&format!("step {}, {step}", i + 1)))?;
    }
    player.step = script.steps.len();
    let left: Vec<usize> = player.works.keys().copied().collect();
    player.wait(&left).map_err(|failure| failure.within("the works left at the end"))?;
    Ok(player.played)
}

/// The number of the step that a failure or a last call names, counted from 1.
pub(crate) fn named_step(text: &str) -> Option<usize> {
    let digits = text.split("step ").nth(1)?;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

struct Player<'p, 'a> {
    ctx: &'p mut Ctx<'a>,
    backend: &'p Backend,
    script: &'p Script,
    form: Option<Form>,
    /// Deadline of a call.
    timeout: Duration,
    comms: BTreeMap<usize, Communicator>,
    works: BTreeMap<usize, InFlight>,
    played: Played,
    step: usize,
}

struct InFlight {
    flight: Box<dyn Flight>,
    comm: usize,
    call: Numbered,
    me: usize,
    before: Buffers,
    inputs: Vec<Vec<u8>>,
}

impl Player<'_, '_> {
    fn take(&mut self, step: &Step) -> CaseResult {
        self.ctx.note(|| format!("step {}, {step}", self.step + 1));
        match step {
            Step::Split { new, of, positions } => {
                let Some(parent) = self.comms.get_mut(of) else { return Ok(()) };
                let at = positions.iter().position(|position| *position == parent.rank());
                let key = at.and_then(|at| i64::try_from(at).ok()).unwrap_or(0);
                let part = parent.split(at.map(|_| 0), key)?;
                let group = parent.group().clone();
                ensure!(part.is_some() == at.is_some(), "split gave a part to the wrong members");
                let wanted: Vec<usize> = positions.iter().filter_map(|position| group.global(*position)).collect();
                self.keep(*new, part, &wanted)?;
            }
            Step::Group { new, ranks } => {
                if ranks.contains(&self.ctx.rank()) {
                    let comm = self.backend.communicator(&Group::new(ranks.clone())?)?;
                    self.keep(*new, Some(comm), ranks)?;
                }
            }
            Step::Drop { comm } => {
                self.wait_on(*comm)?;
                self.comms.remove(comm);
            }
            Step::Call { comm, call } => self.call(*comm, call)?,
            Step::Start { work, comm, call } => self.start(*work, *comm, call)?,
            Step::Wait { works } => self.wait(works)?,
            Step::Scope { comm, calls } => self.scope(*comm, calls)?,
            Step::Message { comm, from, to, dtype, count, values } => {
                self.message(*comm, (*from, *to), *dtype, *count, *values)?;
            }
            Step::Refuse { comm, by } => self.refuse(*comm, *by)?,
            Step::Mismatch { comm, by } => {
                self.wait_on(*comm)?;
                self.mismatch(*comm, *by)?;
            }
            Step::Pause { rank, micros } => {
                if *rank == self.ctx.rank() {
                    std::thread::sleep(Duration::from_micros(*micros));
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, number: usize, comm: Option<Communicator>, wanted: &[usize]) -> CaseResult {
        let Some(mut comm) = comm else { return Ok(()) };
        let members: Vec<usize> = comm.group().ranks().collect();
        ensure!(members == wanted, "c{number} has the members {members:?} instead of {wanted:?}");
        comm.set_timeout(self.timeout);
        self.comms.insert(number, comm);
        Ok(())
    }

    fn values(&self, values: u64) -> u64 {
        Random::labelled(self.script.seed, &[values]).next_u64()
    }

    /// Whether the table offers the call; the same on all members.
    fn offers(&mut self, o: &Operation, started: bool) -> bool {
        let table = self.ctx.capabilities();
        let element = if o.kind.reduces() {
            table.reduces(o.op.unwrap_or_default()).contains(o.dtype)
        } else {
            o.kind == OpKind::Barrier || table.moves().contains(o.dtype)
        };
        let offered = table.has_kind(o.kind) && element && (table.nonblocking() || !started);
        self.count(offered)
    }

    fn count(&mut self, offered: bool) -> bool {
        self.played.left_out += usize::from(!offered);
        offered
    }

    /// The operation as this backend, and this form, can have it.
    fn fitted(&self, o: &Operation) -> Operation {
        let mut o = o.clone();
        if self.form == Some(Form::Allocated) {
            o.memory = Memory::AllocBoth;
        }
        if !self.ctx.capabilities().alloc() || o.kind == OpKind::Barrier {
            o.memory = Memory::Heap;
        }
        o
    }

    fn call(&mut self, number: usize, call: &Numbered) -> CaseResult {
        if !self.comms.contains_key(&number) || !self.offers(&call.operation, false) {
            return Ok(());
        }
        let seed = self.values(call.values);
        let o = self.fitted(&call.operation);
        let Some(comm) = self.comms.get_mut(&number) else { return Ok(()) };
        let (me, members) = (comm.rank(), comm.size());
        let inputs = inputs(&o, seed, members);
        self.ctx.pause();
        let startable = self.ctx.capabilities().nonblocking() && o.offset == 0;
        let result = match self.form {
            Some(Form::Started) if startable => {
                let before = Buffers::new(&o, &inputs[me], me, members);
                let (src, dst) = as_buffers(&o, start(comm, &o, &before)?.wait()?, &before);
                result_of(&o, me, &src, &dst).to_vec()
            }
            Some(Form::Pieces) if o.kind == OpKind::AllReduce && !o.in_place && o.count > 1 => {
                in_pieces(comm, &o, &inputs[me])?
            }
            form => {
                let mut buffers = Buffers::placed(comm, &o, &inputs[me])?;
                perform(comm, &o, &mut buffers.src, &mut buffers.dst)?;
                if form.is_none() {
                    check_result(self.ctx, comm, &o, &inputs, &buffers)?;
                    // The memory is this rank's again, and used for something else.
                    buffers.src.bytes_mut().fill(0x5A);
                    buffers.dst.bytes_mut().fill(0x5B);
                    return Ok(());
                }
                buffers.check_surroundings(&o, &inputs[me])?;
                result_of(&o, me, buffers.src.bytes(), buffers.dst.bytes()).to_vec()
            }
        };
        self.played.digests.push(digest(call.values, &o, &inputs, me, &result, self.ctx.is_fixed()));
        Ok(())
    }

    fn start(&mut self, work: usize, number: usize, call: &Numbered) -> CaseResult {
        if !self.comms.contains_key(&number) || !self.offers(&call.operation, true) {
            return Ok(());
        }
        let seed = self.values(call.values);
        let Some(comm) = self.comms.get_mut(&number) else { return Ok(()) };
        let o = &call.operation;
        let (me, members) = (comm.rank(), comm.size());
        let inputs = inputs(o, seed, members);
        let before = Buffers::new(o, &inputs[me], me, members);
        self.ctx.pause();
        let flight = start(comm, o, &before)?;
        self.works.insert(work, InFlight { flight, comm: number, call: call.clone(), me, before, inputs });
        Ok(())
    }

    fn wait_on(&mut self, comm: usize) -> CaseResult {
        let works: Vec<usize> = self.works.iter().filter(|(_, work)| work.comm == comm).map(|(key, _)| *key).collect();
        self.wait(&works)
    }

    /// Waits in an order of this rank's own.
    fn wait(&mut self, works: &[usize]) -> CaseResult {
        let first = works.first().copied().unwrap_or(0);
        let mut random = Random::labelled(self.script.seed, &[first as u64, self.ctx.rank() as u64]);
        let mut order = works.to_vec();
        random.shuffle(&mut order);
        for number in order {
            let Some(mut work) = self.works.remove(&number) else { continue };
            let o = &work.call.operation;
            let within = |failure: Failure| failure.within(&format!("w{number}, {}", work.call));
            if random.below(3) == 0 {
                work.flight.test().map_err(|error| within(error.into()))?;
            }
            let (src, dst) = work.flight.wait().map_err(|error| within(error.into()))?;
            let (src, dst) = as_buffers(o, (src, dst), &work.before);
            let is_source = !(o.kind == OpKind::ReduceScatter && o.in_place);
            ensure!(!is_source || src == work.inputs[work.me], "w{number}: the source was changed");
            judge(o, &work.inputs, work.me, result_of(o, work.me, &src, &dst), self.ctx.is_fixed()).map_err(within)?;
        }
        Ok(())
    }

    fn scope(&mut self, number: usize, calls: &[Numbered]) -> CaseResult {
        if !self.comms.contains_key(&number) {
            return Ok(());
        }
        let offered: Vec<&Numbered> = calls.iter().filter(|call| self.offers(&call.operation, true)).collect();
        let seeds: Vec<u64> = offered.iter().map(|call| self.values(call.values)).collect();
        let operations: Vec<Operation> = offered.iter().map(|call| self.fitted(&call.operation)).collect();
        let Some(comm) = self.comms.get_mut(&number) else { return Ok(()) };
        let (me, members) = (comm.rank(), comm.size());
        let all: Vec<Vec<Vec<u8>>> = operations.iter().zip(seeds).map(|(o, seed)| inputs(o, seed, members)).collect();
        let mut buffers = Vec::new();
        for (o, inputs) in operations.iter().zip(&all) {
            buffers.push(Buffers::placed(comm, o, &inputs[me])?);
        }
        let first = calls.first().map_or(0, |call| call.values);
        let mut random = Random::labelled(self.script.seed, &[first, self.ctx.rank() as u64]);
        self.ctx.pause();
        let lent = buffers.iter_mut();
        comm.scope(|scope| {
            let mut flights: Vec<Box<dyn ScopedFlight + '_>> = Vec::new();
            for (o, buffers) in operations.iter().zip(lent) {
                flights.push(start_in_scope(scope, o, (me, members), buffers)?);
            }
            random.shuffle(&mut flights);
            for mut flight in flights {
                // The scope waits for the others.
                match random.below(4) {
                    0 => drop(flight),
                    1 => drop(flight.test()?),
                    _ => flight.wait()?,
                }
            }
            Ok(())
        })?;
        for ((o, inputs), buffers) in operations.iter().zip(&all).zip(&buffers) {
            check_result(self.ctx, comm, o, inputs, buffers).map_err(|failure| failure.within(&o.describe(comm)))?;
        }
        Ok(())
    }

    fn message(
        &mut self,
        number: usize,
        (from, to): (usize, usize),
        dtype: DType,
        count: usize,
        values: u64,
    ) -> CaseResult {
        let seed = self.values(values);
        let table = self.ctx.capabilities();
        let offered = table.has_kind(OpKind::Send) && table.has_kind(OpKind::Recv) && table.moves().contains(dtype);
        let Some(comm) = self.comms.get_mut(&number) else { return Ok(()) };
        let (me, members) = (comm.rank(), comm.size());
        if offered && (me == from || me == to) {
            let data = fill(Pattern::Bits, dtype, seed, from, members, count);
            self.ctx.pause();
            if me == from {
                comm.send(&data, to)?;
            } else {
                let mut got = vec![crate::frame::POISON; data.len()];
                comm.recv(&mut got, from)?;
                let wrong = got.iter().zip(&data).position(|(got, want)| got != want);
                ensure!(wrong.is_none(), "the bytes of the message are wrong from {} on", wrong.unwrap_or(0));
            }
        }
        self.count(offered);
        Ok(())
    }

    fn has_small_sums(&mut self) -> bool {
        let table = self.ctx.capabilities();
        let both = [ReduceOp::Sum, ReduceOp::Max].iter().all(|op| table.reduces(*op).contains(DType::I32));
        let offered = table.has_kind(OpKind::AllReduce) && both;
        self.count(offered)
    }

    fn refuse(&mut self, number: usize, by: usize) -> CaseResult {
        if !self.comms.contains_key(&number) || !self.has_small_sums() {
            return Ok(());
        }
        let Some(comm) = self.comms.get_mut(&number) else { return Ok(()) };
        let mut sums = [7_i32; 4];
        let source = [1_i32; 4];
        if comm.rank() == by {
            let result = comm.all_reduce(&source[..3], &mut sums, ReduceOp::Sum);
            expect_error(result, &ErrorKind::InvalidArgument, None)?;
        } else {
            let odd = comm.group().global(by).unwrap_or(by);
            let result = comm.all_reduce(&source, &mut sums, ReduceOp::Sum);
            expect_error(result, &ErrorKind::PeerRejected, Some(&[odd]))?;
        }
        ensure!(sums == [7; 4], "a refused call wrote its destination");
        Ok(())
    }

    fn mismatch(&mut self, number: usize, by: usize) -> CaseResult {
        if !self.comms.contains_key(&number) || !self.has_small_sums() {
            return Ok(());
        }
        let Some(mut comm) = self.comms.remove(&number) else { return Ok(()) };
        let mut data = [comm.rank() as i32; 4];
        let op = if comm.rank() == by { ReduceOp::Max } else { ReduceOp::Sum };
        let first = comm.all_reduce_in_place(&mut data, op);
        ensure!(first.is_ok() || data == [comm.rank() as i32; 4], "a mismatched call changed its buffer");
        let error = match first.and_then(|()| comm.barrier()) {
            Err(error) if error.kind() == &ErrorKind::Poisoned => root_cause(&error)?,
            learned => expect_error(learned, &ErrorKind::Mismatch, None)?,
        };
        // Of two the first is taken for right.
        let odd = comm.group().global(if comm.size() == 2 { 1 } else { by });
        ensure!(error.peers().iter().copied().eq(odd), "names {:?} instead of {odd:?}: {error}", error.peers());
        expect_error(comm.barrier(), &ErrorKind::Poisoned, None).map(drop)
    }
}

/// The operation as two calls on the two halves of its elements.
fn in_pieces(comm: &mut Communicator, o: &Operation, input: &[u8]) -> CaseResult<Vec<u8>> {
    let mut result = Vec::new();
    let half = o.count / 2;
    let (first, second) = input.split_at(input.len() / o.count * half);
    for (count, input) in [(half, first), (o.count - half, second)] {
        let part = Operation { count, ..o.clone() };
        let mut buffers = Buffers::new(&part, input, comm.rank(), comm.size());
        perform(comm, &part, &mut buffers.src, &mut buffers.dst)?;
        buffers.check_surroundings(&part, input)?;
        result.extend_from_slice(buffers.dst.bytes());
    }
    Ok(result)
}
