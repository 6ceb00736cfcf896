//! One operation as a description: how it is called through the typed interface, and the check of its result.

use crate::case::{CaseResult, Failure, ensure};
use crate::ctx::Ctx;
use crate::frame::{Frame, POISON};
use crate::number::{Number, decode, elem_size, is_nan};
use crate::oracle;
use crate::values::{Pattern, fill, show};
use rankwise_core::{Communicator, DType, Error, ErrorKind, OpKind, ReduceOp, Result};

/// The element that stands for every type without arithmetic.
pub type OpaqueElement = [u32; 3];

/// Runs a body with `T` standing for the Rust type of a numeric [`DType`].
macro_rules! with_elem {
    ($dtype:expr, $T:ident => $body:expr, else $other:expr) => {
        $crate::operation::with_elem!(@ $dtype, $T, $body, $other,
            I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, F32 f32, F64 f64,
            F16 half::f16, BF16 half::bf16, F8E4M3 float8::F8E4M3, F8E5M2 float8::F8E5M2)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $other:expr, $($tag:ident $type:ty),*) => {
        match $dtype {
            $(rankwise_core::DType::$tag => { type $T = $type; $body })*
            _ => $other,
        }
    };
}
pub(crate) use with_elem;

/// Which buffers come from collective allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// None.
    Heap,
    /// The source.
    AllocSource,
    /// The destination.
    AllocDestination,
    /// Both.
    AllocBoth,
}

/// What to call, on what, and with which values.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Kind of the call.
    pub kind: OpKind,
    /// Type of the elements.
    pub dtype: DType,
    /// Operator of a reducing kind.
    pub op: Option<ReduceOp>,
    /// Elements as the table at [`OpKind`] counts them; unused for the v-forms.
    pub count: usize,
    /// The v-forms: elements (or rows) per member; all-to-all: from each member to each, row by row.
    pub counts: Vec<usize>,
    /// Elements in a row; 1 except for the token forms.
    pub width: usize,
    /// Whether to use the token form of a v-kind.
    pub token: bool,
    /// Position of the root.
    pub root: usize,
    /// Whether to use the in-place form.
    pub in_place: bool,
    /// Distance of both bases from a 64-byte boundary, in elements.
    pub offset: usize,
    /// Where the buffers lie.
    pub memory: Memory,
    /// What the ranks contribute.
    pub pattern: Pattern,
}

impl Operation {
    /// A sum, or a movement, of nothing; set the fields that matter.
    pub fn new(kind: OpKind, dtype: DType) -> Operation {
        let op = kind.reduces().then_some(ReduceOp::Sum);
        Operation {
            kind,
            dtype,
            op,
            count: 0,
            counts: Vec::new(),
            width: 1,
            token: false,
            root: 0,
            in_place: false,
            offset: 0,
            memory: Memory::Heap,
            pattern: if kind.reduces() { Pattern::Exact } else { Pattern::Bits },
        }
    }

    /// A reducing operation with values for which the order does not matter.
    pub fn reducing(kind: OpKind, dtype: DType, op: ReduceOp, count: usize) -> Operation {
        Operation { op: Some(op), count, pattern: Pattern::exact_for(op), ..Operation::new(kind, dtype) }
    }

    fn own(&self, position: usize) -> usize {
        self.counts.get(position).map_or(0, |count| count * self.width)
    }

    fn total(&self) -> usize {
        self.counts.iter().sum::<usize>() * self.width
    }

    /// Elements in the source of the member at `position` of `members`.
    pub fn src_count(&self, position: usize, members: usize) -> usize {
        let at_root = position == self.root;
        match self.kind {
            OpKind::AllReduce | OpKind::AllGather | OpKind::Reduce | OpKind::Gather | OpKind::Broadcast => self.count,
            OpKind::ReduceScatter | OpKind::AllToAll => self.count * members,
            OpKind::Scatter if at_root => self.count * members,
            OpKind::AllGatherV | OpKind::GatherV => self.own(position),
            OpKind::ReduceScatterV => self.total(),
            OpKind::ScatterV if at_root => self.total(),
            OpKind::AllToAllV => self.counts[position * members..(position + 1) * members].iter().sum(),
            _ => 0,
        }
    }

    /// Elements in the destination of the member at `position` of `members`; poisoned where the kind has none.
    pub fn dst_count(&self, position: usize, members: usize) -> usize {
        match self.kind {
            OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Broadcast | OpKind::Reduce | OpKind::Scatter => {
                self.count
            }
            OpKind::AllGather | OpKind::AllToAll | OpKind::Gather => self.count * members,
            OpKind::AllGatherV | OpKind::GatherV => self.total(),
            OpKind::ReduceScatterV | OpKind::ScatterV => self.own(position),
            OpKind::AllToAllV => (0..members).map(|from| self.counts[from * members + position]).sum(),
            _ => 0,
        }
    }

    /// Where this member's slot begins in the buffer of all members, in elements.
    fn slot(&self, me: usize) -> usize {
        if self.counts.is_empty() { me * self.count } else { (0..me).map(|p| self.own(p)).sum() }
    }

    /// The description for a report.
    pub fn describe(&self, comm: &Communicator) -> String {
        let op = self.op.map(|op| format!(" {op}")).unwrap_or_default();
        let counts = match self.counts.len() {
            0 => format!("{} elements", self.count),
            1..=16 => format!("counts {:?} width {}", self.counts, self.width),
            many => format!("{many} counts"),
        };
        let form = if self.in_place { ", in place" } else { "" };
        format!(
            "{}{op} of {} {counts}{form}, offset {}, {:?}, root {}, {:?}, on {}",
            self.kind,
            self.dtype,
            self.offset,
            self.memory,
            self.root,
            self.pattern,
            comm.group()
        )
    }
}

/// Calls the operation through the typed interface.
pub fn perform(comm: &mut Communicator, o: &Operation, src: &mut Frame, dst: &mut Frame) -> Result<()> {
    if o.kind == OpKind::Barrier {
        return comm.barrier();
    }
    if o.kind.reduces() {
        let op = o.op.unwrap_or_default();
        return with_elem!(o.dtype, T => reduce_typed::<T>(comm, o, op, src, dst), else Err(no_such_type(o.dtype)));
    }
    with_elem!(o.dtype, T => move_typed::<T>(comm, o, src, dst), else move_typed::<OpaqueElement>(comm, o, src, dst))
}

fn no_such_type(dtype: DType) -> Error {
    Error::new(ErrorKind::UnsupportedDtype, format!("the typed interface has no arithmetic on {dtype}"))
}

fn reduce_typed<T: rankwise_core::Elem>(
    comm: &mut Communicator,
    o: &Operation,
    op: ReduceOp,
    src: &mut Frame,
    dst: &mut Frame,
) -> Result<()> {
    match (o.kind, o.in_place) {
        (OpKind::AllReduce, false) => comm.all_reduce::<T>(src.elements(), dst.elements_mut(), op),
        (OpKind::AllReduce, true) => comm.all_reduce_in_place::<T>(dst.elements_mut(), op),
        (OpKind::ReduceScatter, false) => comm.reduce_scatter::<T>(src.elements(), dst.elements_mut(), op),
        (OpKind::ReduceScatter, true) => comm.reduce_scatter_in_place::<T>(src.elements_mut(), op),
        (OpKind::Reduce, _) => {
            let out = (comm.rank() == o.root).then(|| dst.elements_mut());
            comm.reduce::<T>(src.elements(), out, op, o.root)
        }
        (_, _) if o.token => comm.token_reduce_scatter::<T>(src.elements(), dst.elements_mut(), o.width, &o.counts, op),
        _ => comm.reduce_scatter_v::<T>(src.elements(), dst.elements_mut(), &o.counts, op),
    }
}

fn move_typed<T: bytemuck::Pod + Send + Sync>(
    comm: &mut Communicator,
    o: &Operation,
    src: &mut Frame,
    dst: &mut Frame,
) -> Result<()> {
    let members = comm.size();
    let me = comm.rank();
    let at_root = me == o.root;
    match (o.kind, o.in_place) {
        (OpKind::AllGather, false) => comm.all_gather::<T>(src.elements(), dst.elements_mut()),
        (OpKind::AllGather, true) => comm.all_gather_in_place::<T>(dst.elements_mut()),
        (OpKind::AllToAll, _) => comm.all_to_all::<T>(src.elements(), dst.elements_mut()),
        (OpKind::Broadcast, _) => comm.broadcast::<T>(dst.elements_mut(), o.root),
        (OpKind::Gather, _) => {
            let out = at_root.then(|| dst.elements_mut());
            comm.gather::<T>(src.elements(), out, o.root)
        }
        (OpKind::Scatter, _) => comm.scatter::<T>(at_root.then(|| src.elements()), dst.elements_mut(), o.root),
        (OpKind::AllGatherV, _) if o.token => {
            comm.token_all_gather::<T>(src.elements(), dst.elements_mut(), o.width, &o.counts)
        }
        (OpKind::AllGatherV, _) => comm.all_gather_v::<T>(src.elements(), dst.elements_mut(), &o.counts),
        (OpKind::GatherV, _) => {
            let out = at_root.then(|| dst.elements_mut());
            comm.gather_v::<T>(src.elements(), out, &o.counts, o.root)
        }
        (OpKind::ScatterV, _) => {
            comm.scatter_v::<T>(at_root.then(|| src.elements()), dst.elements_mut(), &o.counts, o.root)
        }
        (OpKind::AllToAllV, _) => {
            let send: Vec<usize> = o.counts[me * members..(me + 1) * members].to_vec();
            let recv: Vec<usize> = (0..members).map(|from| o.counts[from * members + me]).collect();
            comm.all_to_all_v::<T>(src.elements(), &send, dst.elements_mut(), &recv)
        }
        (kind, _) => Err(Error::invalid(format!("the suite has no typed call for {kind}"))),
    }
}

/// The buffers of one call on this rank, filled and poisoned.
pub struct Buffers {
    /// Read by the call; written by reduce-scatter in place.
    pub src: Frame,
    /// Written by the call.
    pub dst: Frame,
}

impl Buffers {
    /// Heap buffers for this member, with its input in place.
    pub fn new(o: &Operation, input: &[u8], me: usize, members: usize) -> Buffers {
        let src = Frame::new(o.dtype, o.src_count(me, members), o.offset);
        let dst = Frame::new(o.dtype, o.dst_count(me, members), o.offset);
        Buffers { src, dst }.filled(o, input, me)
    }

    /// Buffers where [`Operation::memory`] says. Collective when it is not the heap.
    pub(crate) fn placed(comm: &mut Communicator, o: &Operation, input: &[u8]) -> Result<Buffers> {
        let (me, members) = (comm.rank(), comm.size());
        let mut place = |count: &dyn Fn(usize) -> usize, allocated: bool| -> Result<Frame> {
            if !allocated {
                return Ok(Frame::new(o.dtype, count(me), o.offset));
            }
            let most = (0..members).map(count).max().unwrap_or(0);
            let memory = comm.alloc::<u8>(Frame::storage_bytes(o.dtype, most, o.offset))?;
            Ok(Frame::within(Box::new(memory), o.dtype, count(me), o.offset))
        };
        let source = matches!(o.memory, Memory::AllocSource | Memory::AllocBoth);
        let src = place(&|p| o.src_count(p, members), source)?;
        let destination = matches!(o.memory, Memory::AllocDestination | Memory::AllocBoth);
        let dst = place(&|p| o.dst_count(p, members), destination)?;
        Ok(Buffers { src, dst }.filled(o, input, me))
    }

    fn filled(mut self, o: &Operation, input: &[u8], me: usize) -> Buffers {
        self.src.bytes_mut().copy_from_slice(input);
        let slot = o.slot(me) * elem_size(o.dtype);
        match (o.kind, o.in_place) {
            (OpKind::AllReduce, true) => self.dst.bytes_mut().copy_from_slice(input),
            (OpKind::AllGather, true) => self.dst.bytes_mut()[slot..slot + input.len()].copy_from_slice(input),
            (OpKind::Broadcast, _) if me == o.root => self.dst.bytes_mut().copy_from_slice(input),
            _ => {}
        }
        self
    }

    /// The frames must be whole, and a source that is not written must be as it was.
    pub fn check_surroundings(&self, o: &Operation, input: &[u8]) -> CaseResult {
        for (name, frame) in [("source", &self.src), ("destination", &self.dst)] {
            if let Some(what) = frame.broken_canary() {
                return Err(Failure::wrong(format!("{name}: {what}")));
            }
        }
        let written = o.kind == OpKind::ReduceScatter && o.in_place;
        ensure!(written || self.src.bytes() == input, "the source was changed");
        Ok(())
    }

    /// The destination must be as it was before the call.
    pub fn check_untouched(&self, o: &Operation, input: &[u8], me: usize) -> CaseResult {
        let fresh = Buffers {
            src: Frame::new(o.dtype, input.len() / elem_size(o.dtype), 0),
            dst: Frame::new(o.dtype, self.dst.bytes().len() / elem_size(o.dtype), 0),
        }
        .filled(o, input, me);
        ensure!(self.dst.bytes() == fresh.dst.bytes(), "the destination of a failed call was changed");
        self.check_surroundings(o, input)
    }
}

/// The contributions of all members.
pub fn inputs(o: &Operation, seed: u64, members: usize) -> Vec<Vec<u8>> {
    (0..members).map(|p| fill(o.pattern, o.dtype, seed, p, members, o.src_count(p, members))).collect()
}

/// Calls the operation and checks everything that can be seen of it on this rank.
pub fn verify(ctx: &mut Ctx<'_>, comm: &mut Communicator, o: &Operation) -> CaseResult {
    let inputs = inputs(o, ctx.seed_within(comm.group()), comm.size());
    verify_with(ctx, comm, o, &inputs).map(drop)
}

/// [`verify`] with these contributions; gives the result.
pub fn verify_with(
    ctx: &mut Ctx<'_>,
    comm: &mut Communicator,
    o: &Operation,
    inputs: &[Vec<u8>],
) -> CaseResult<Vec<u8>> {
    let me = comm.rank();
    ctx.note(|| o.describe(comm));
    ctx.pause();
    let called = Buffers::placed(comm, o, &inputs[me])
        .and_then(|mut buffers| perform(comm, o, &mut buffers.src, &mut buffers.dst).map(|()| buffers));
    let result = called
        .map_err(Failure::from)
        .and_then(|buffers| check_result(ctx, comm, o, inputs, &buffers))
        .map_err(|failure| failure.within(&o.describe(comm)));
    ctx.judged(comm.size(), o, result, || oracle::expected(o, inputs, me).unwrap_or_default())
}

/// The result of a call that returned `Ok`, against the oracle.
pub fn check_result(
    ctx: &Ctx<'_>,
    comm: &Communicator,
    o: &Operation,
    inputs: &[Vec<u8>],
    buffers: &Buffers,
) -> CaseResult<Vec<u8>> {
    let me = comm.rank();
    buffers.check_surroundings(o, &inputs[me])?;
    let result = result_of(o, me, buffers.src.bytes(), buffers.dst.bytes());
    judge(o, inputs, me, result, ctx.is_fixed())?;
    Ok(result.to_vec())
}

/// Where the result of the member at `me` lies in its buffers.
pub(crate) fn result_of<'b>(o: &Operation, me: usize, src: &'b [u8], dst: &'b [u8]) -> &'b [u8] {
    if o.kind != OpKind::ReduceScatter || !o.in_place {
        return dst;
    }
    let size = elem_size(o.dtype);
    &src[o.slot(me) * size..][..o.count * size]
}

/// The result of the member at `me`, against the oracle.
pub(crate) fn judge(o: &Operation, inputs: &[Vec<u8>], me: usize, result: &[u8], fixed: bool) -> CaseResult {
    match oracle::expected(o, inputs, me) {
        Some(want) => compare(o, result, &want, fixed, &|i| reordering(o, inputs, me, i)),
        None => {
            ensure!(result.iter().all(|byte| *byte == POISON), "the destination of a rank that has none was written");
            Ok(())
        }
    }
}

/// How far a sum of rounded terms may be from the fold when it is made in another order: `n` roundings of at most the sum of the magnitudes
/// (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). For the two types that engines add in their own precision.
fn reordering(o: &Operation, inputs: &[Vec<u8>], me: usize, element: usize) -> f64 {
    let epsilon = match o.dtype {
        DType::F32 => f64::from(f32::EPSILON),
        DType::F64 => f64::EPSILON,
        _ => return 0.0,
    };
    let size = elem_size(o.dtype);
    let without_signs = |input: &Vec<u8>| {
        let mut input = input.clone();
        input.iter_mut().skip(size - 1).step_by(size).for_each(|byte| *byte &= 0x7f);
        input
    };
    let mut magnitudes = o.clone();
    if let Some(ReduceOp::PreMulSum(factor)) = o.op {
        magnitudes.op = Some(ReduceOp::PreMulSum(factor.abs()));
    }
    let positive: Vec<Vec<u8>> = inputs.iter().map(without_signs).collect();
    let sum = oracle::expected(&magnitudes, &positive, me);
    let sum = sum.map_or(0.0, |sum| value(o.dtype, &sum[element * size..][..size]));
    inputs.len() as f64 * epsilon * sum
}

/// The value of an element of one of the two large types.
fn value(dtype: DType, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (DType::F32, [a, b, c, d]) => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
        (_, bytes) => bytes.try_into().map_or(f64::NAN, f64::from_le_bytes),
    }
}

/// Whether `got` is `want`. Movement: bit for bit. Reductions: any NaN for a NaN unless `fixed`; the mean and the scaled
/// sum within 2 units in the last place, or within what another order of the sum may give, unless `fixed`.
fn compare(o: &Operation, got: &[u8], want: &[u8], fixed: bool, reordering: &dyn Fn(usize) -> f64) -> CaseResult {
    ensure!(got.len() == want.len(), "{} bytes instead of {}", got.len(), want.len());
    if got == want {
        return Ok(());
    }
    let size = elem_size(o.dtype);
    let loose = o.kind.reduces() && o.dtype.is_float() && !fixed;
    let rounds = matches!(o.op, Some(ReduceOp::Avg | ReduceOp::PreMulSum(_)));
    let is_large = matches!(o.dtype, DType::F32 | DType::F64);
    let same = |i: usize| {
        let (a, b) = (&got[i * size..][..size], &want[i * size..][..size]);
        a == b
            || (loose && is_nan(o.dtype, a) && is_nan(o.dtype, b))
            || (loose && rounds && within_two_steps(o.dtype, a, b))
            || (loose && rounds && is_large && (value(o.dtype, a) - value(o.dtype, b)).abs() <= reordering(i))
    };
    let wrong: Vec<usize> = (0..got.len() / size).filter(|i| !same(*i)).collect();
    let Some(first) = wrong.first() else { return Ok(()) };
    Err(Failure::wrong(format!(
        "{} of {} elements are wrong, the first at {first}: {} instead of {}",
        wrong.len(),
        got.len() / size,
        show(o.dtype, &got[first * size..][..size]),
        show(o.dtype, &want[first * size..][..size]),
    )))
}

fn within_two_steps(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let bits = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        i64::from_le_bytes(wide)
    };
    let finite = |bytes: &[u8]| match decode(dtype, bytes) {
        Number::Single(v) => v.is_finite(),
        Number::Double(v) => v.is_finite(),
        Number::Int(_) => true,
    };
    finite(a) && finite(b) && bits(a).abs_diff(bits(b)) <= 2
}
