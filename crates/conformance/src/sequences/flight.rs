//! An [`Operation`] started instead of run: on buffers that the work owns, or borrowed within a scope.

use crate::number::elem_size;
use crate::operation::{Buffers, OpaqueElement, Operation, with_elem};
use bytemuck::Pod;
use rankwise_core::{
    Buffer, Call, Communicator, Dest, Elem, Error, InPlace, OpKind, Result, Scope, ScopedWork, Source, Work, WorkError,
};

/// A work of whatever types.
pub(crate) trait Flight {
    /// Whether it has finished.
    fn test(&mut self) -> Result<bool>;

    /// Waits; gives the source, which is empty where the operation has none of its own, and the destination.
    fn wait(self: Box<Self>) -> Result<(Vec<u8>, Vec<u8>)>;
}

/// A work within a scope, whose buffers stay where they are.
pub(crate) trait ScopedFlight {
    fn test(&mut self) -> Result<bool>;
    fn wait(self: Box<Self>) -> Result<()>;
}

impl<S: Buffer, D: Buffer> ScopedFlight for ScopedWork<'_, S, D> {
    fn test(&mut self) -> Result<bool> {
        ScopedWork::test(self)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        ScopedWork::wait(*self).map(drop).map_err(WorkError::into_error)
    }
}

impl<T: Pod + Send> Flight for Work<Option<Vec<T>>, Option<Vec<T>>> {
    fn test(&mut self) -> Result<bool> {
        Work::test(self)
    }

    fn wait(self: Box<Self>) -> Result<(Vec<u8>, Vec<u8>)> {
        let (src, dst) = self.wait_both().map_err(WorkError::into_error)?;
        Ok((into_bytes(src.unwrap_or_default()), into_bytes(dst.unwrap_or_default())))
    }
}

impl<T: Pod + Send> Flight for Work<InPlace, Vec<T>> {
    fn test(&mut self) -> Result<bool> {
        Work::test(self)
    }

    fn wait(self: Box<Self>) -> Result<(Vec<u8>, Vec<u8>)> {
        let (_, buffer) = self.wait_both().map_err(WorkError::into_error)?;
        Ok((Vec::new(), into_bytes(buffer)))
    }
}

impl Flight for Work<rankwise_core::Absent, rankwise_core::Absent> {
    fn test(&mut self) -> Result<bool> {
        Work::test(self)
    }

    fn wait(self: Box<Self>) -> Result<(Vec<u8>, Vec<u8>)> {
        self.wait_both().map(|_| Default::default()).map_err(WorkError::into_error)
    }
}

fn into_bytes<T: Pod>(elements: Vec<T>) -> Vec<u8> {
    bytemuck::cast_slice(&elements).to_vec()
}

/// Whether the operation has one buffer only.
fn has_one_buffer(o: &Operation) -> bool {
    o.in_place || o.kind == OpKind::Broadcast
}

/// The counts of this member: to whom, from whom.
fn own_counts(o: &Operation, me: usize, members: usize) -> (Vec<usize>, Vec<usize>) {
    match o.kind {
        OpKind::AllToAllV => (
            o.counts[me * members..(me + 1) * members].to_vec(),
            (0..members).map(|from| o.counts[from * members + me]).collect(),
        ),
        _ => (o.counts.clone(), o.counts.clone()),
    }
}

fn not_offered(o: &Operation) -> Error {
    Error::invalid(format!("the suite has no started form of {}", o.kind))
}

fn reducing<'c, T: Elem, S: Source<T>, D: Dest<T>>(
    o: &Operation,
    counts: &'c [usize],
    src: S,
    dst: D,
) -> Result<Call<'c, S, D>> {
    let op = o.op.unwrap_or_default();
    Ok(match o.kind {
        OpKind::AllReduce => Call::all_reduce::<T>(src, dst, op),
        OpKind::ReduceScatter => Call::reduce_scatter::<T>(src, dst, op),
        OpKind::Reduce => Call::reduce::<T>(src, dst, op, o.root),
        OpKind::ReduceScatterV if o.token => Call::token_reduce_scatter::<T>(src, dst, o.width, counts, op),
        OpKind::ReduceScatterV => Call::reduce_scatter_v::<T>(src, dst, counts, op),
        _ => return Err(not_offered(o)),
    })
}

fn moving<'c, T: Pod, S: Source<T>, D: Dest<T>>(
    o: &Operation,
    (send, recv): (&'c [usize], &'c [usize]),
    src: S,
    dst: D,
) -> Result<Call<'c, S, D>> {
    Ok(match o.kind {
        OpKind::AllGather => Call::all_gather::<T>(src, dst),
        OpKind::AllToAll => Call::all_to_all::<T>(src, dst),
        OpKind::Gather => Call::gather::<T>(src, dst, o.root),
        OpKind::Scatter => Call::scatter::<T>(src, dst, o.root),
        OpKind::AllGatherV if o.token => Call::token_all_gather::<T>(src, dst, o.width, recv),
        OpKind::AllGatherV => Call::all_gather_v::<T>(src, dst, recv),
        OpKind::GatherV => Call::gather_v::<T>(src, dst, recv, o.root),
        OpKind::ScatterV => Call::scatter_v::<T>(src, dst, send, o.root),
        OpKind::AllToAllV => Call::all_to_all_v::<T>(src, send, dst, recv),
        _ => return Err(not_offered(o)),
    })
}

fn reducing_in_place<T: Elem, D: Dest<T>>(o: &Operation, buffer: D) -> Result<Call<'static, InPlace, D>> {
    let op = o.op.unwrap_or_default();
    match o.kind {
        OpKind::AllReduce => Ok(Call::all_reduce_in_place::<T>(buffer, op)),
        OpKind::ReduceScatter => Ok(Call::reduce_scatter_in_place::<T>(buffer, op)),
        _ => Err(not_offered(o)),
    }
}

fn moving_in_place<T: Pod, D: Dest<T>>(o: &Operation, buffer: D) -> Result<Call<'static, InPlace, D>> {
    match o.kind {
        OpKind::AllGather => Ok(Call::all_gather_in_place::<T>(buffer)),
        OpKind::Broadcast => Ok(Call::broadcast::<T>(buffer, o.root)),
        _ => Err(not_offered(o)),
    }
}

/// Whether this member has a source, and a destination, of its own.
fn sides(o: &Operation, me: usize) -> (bool, bool) {
    let at_root = me == o.root;
    match o.kind {
        OpKind::Reduce | OpKind::Gather | OpKind::GatherV => (true, at_root),
        OpKind::Scatter | OpKind::ScatterV => (at_root, true),
        _ => (true, true),
    }
}

/// Starts the operation with a copy of these buffers.
pub(crate) fn start(comm: &mut Communicator, o: &Operation, buffers: &Buffers) -> Result<Box<dyn Flight>> {
    if o.kind == OpKind::Barrier {
        return Ok(Box::new(comm.start(Call::barrier())?));
    }
    if o.kind.reduces() {
        return with_elem!(o.dtype, T => start_reducing::<T>(comm, o, buffers), else Err(not_offered(o)));
    }
    with_elem!(o.dtype, T => start_moving::<T>(comm, o, buffers), else start_moving::<OpaqueElement>(comm, o, buffers))
}

/// The one buffer of an operation in place: where [`Buffers`] has its input.
fn single<T: Pod>(o: &Operation, buffers: &Buffers) -> Vec<T> {
    let frame = if o.kind == OpKind::ReduceScatter { &buffers.src } else { &buffers.dst };
    frame.elements().to_vec()
}

fn start_reducing<T: Elem>(comm: &mut Communicator, o: &Operation, buffers: &Buffers) -> Result<Box<dyn Flight>> {
    if has_one_buffer(o) {
        return Ok(Box::new(comm.start(reducing_in_place::<T, _>(o, single::<T>(o, buffers))?)?));
    }
    let (src, dst) = sides(o, comm.rank());
    let src = src.then(|| buffers.src.elements::<T>().to_vec());
    let dst = dst.then(|| buffers.dst.elements::<T>().to_vec());
    Ok(Box::new(comm.start(reducing::<T, _, _>(o, &o.counts, src, dst)?)?))
}

fn start_moving<T: Pod + Send>(comm: &mut Communicator, o: &Operation, buffers: &Buffers) -> Result<Box<dyn Flight>> {
    if has_one_buffer(o) {
        return Ok(Box::new(comm.start(moving_in_place::<T, _>(o, single::<T>(o, buffers))?)?));
    }
    let (send, recv) = own_counts(o, comm.rank(), comm.size());
    let (src, dst) = sides(o, comm.rank());
    let src = src.then(|| buffers.src.elements::<T>().to_vec());
    let dst = dst.then(|| buffers.dst.elements::<T>().to_vec());
    Ok(Box::new(comm.start(moving::<T, _, _>(o, (&send, &recv), src, dst)?)?))
}

/// Starts the operation on these buffers, for the member at `me` of `members`.
pub(crate) fn start_in_scope<'s>(
    scope: &'s Scope<'s, '_>,
    o: &Operation,
    (me, members): (usize, usize),
    buffers: &'s mut Buffers,
) -> Result<Box<dyn ScopedFlight + 's>> {
    if o.kind == OpKind::Barrier {
        return Ok(Box::new(scope.start(Call::barrier())?));
    }
    if o.kind.reduces() {
        return with_elem!(o.dtype, T => scoped_reducing::<T>(scope, o, me, buffers), else Err(not_offered(o)));
    }
    with_elem!(o.dtype, T => scoped_moving::<T>(scope, o, (me, members), buffers),
        else scoped_moving::<OpaqueElement>(scope, o, (me, members), buffers))
}

fn scoped_reducing<'s, T: Elem>(
    scope: &'s Scope<'s, '_>,
    o: &Operation,
    me: usize,
    Buffers { src, dst }: &'s mut Buffers,
) -> Result<Box<dyn ScopedFlight + 's>> {
    if has_one_buffer(o) {
        let frame = if o.kind == OpKind::ReduceScatter { src } else { dst };
        return Ok(Box::new(scope.start(reducing_in_place::<T, _>(o, frame.elements_mut::<T>())?)?));
    }
    let (has_src, has_dst) = sides(o, me);
    let (src, dst) = (has_src.then(|| src.elements::<T>()), has_dst.then(|| dst.elements_mut::<T>()));
    Ok(Box::new(scope.start(reducing::<T, _, _>(o, &o.counts, src, dst)?)?))
}

fn scoped_moving<'s, T: Pod>(
    scope: &'s Scope<'s, '_>,
    o: &Operation,
    (me, members): (usize, usize),
    Buffers { src, dst }: &'s mut Buffers,
) -> Result<Box<dyn ScopedFlight + 's>> {
    if has_one_buffer(o) {
        return Ok(Box::new(scope.start(moving_in_place::<T, _>(o, dst.elements_mut::<T>())?)?));
    }
    let (send, recv) = own_counts(o, me, members);
    let (has_src, has_dst) = sides(o, me);
    let (src, dst) = (has_src.then(|| src.elements::<T>()), has_dst.then(|| dst.elements_mut::<T>()));
    Ok(Box::new(scope.start(moving::<T, _, _>(o, (&send, &recv), src, dst)?)?))
}

/// The bytes of a finished flight as those of the two buffers that the operation has when it is run.
pub(crate) fn as_buffers(o: &Operation, (src, dst): (Vec<u8>, Vec<u8>), before: &Buffers) -> (Vec<u8>, Vec<u8>) {
    if o.kind == OpKind::ReduceScatter && o.in_place {
        return (dst, before.dst.bytes().to_vec());
    }
    let untouched = |bytes: Vec<u8>, frame: &crate::frame::Frame| {
        if bytes.len() == frame.bytes().len() { bytes } else { frame.bytes().to_vec() }
    };
    debug_assert!(dst.len() % elem_size(o.dtype) == 0);
    (untouched(src, &before.src), untouched(dst, &before.dst))
}
