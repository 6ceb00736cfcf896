//! Calls whose counts MPI's `int` can't hold.
//!
//! Every member has to come with calls that match those of its peers, and it knows its own arguments only. The rules:
//!
//! - *the library has the functions of MPI 4 that count in 64 bits* (`wide`): they are used. They and those with `int` are one procedure with
//!   two bindings, so a rank whose counts fit may meet one whose counts don't. Reductions with an operator of ours go in parts even so: such an
//!   operator is called with an `int`; and an even scatter goes as messages, since MPICH 4.0's (`MPI_Scatter_c`) crashes.
//! - *else, and all members know the counts* (reductions, broadcast): native calls on parts of at most `most` elements. A reduce-scatter becomes
//!   reductions to each member. All derive the same parts.
//! - *else* (data that moves): the native collective in larger units. MPI matches what is sent and received by the sequence of basic types, not
//!   by how it is described, so a rank may describe its bytes in larger units whatever its peers do. The unit is the largest that all its counts
//!   are multiples of; for the even forms that is a whole contribution.
//! - *else, where counts have no such unit*: an all-gather with a count per rank becomes broadcasts, gather and scatter become messages: all
//!   members are told all counts, and so decide alike. An all-to-all with a count per pair can't: a peer may have few elements and be in the native
//!   call. It is refused.
//!
//! A message of two is one of a type that has exactly its bytes.

use crate::api::{Api, Comm, Datatype, Named, Request, Status};
use crate::channel::PART;
use crate::library::Library;
use crate::native::{self, Arguments, Integers};
use crate::operators;
use crate::pieces::{blocks, common_unit, parts};
use crate::room::Room;
use crate::way::{self, After, Way, address};
use crate::wide::{self, Lists};
use rankwise_core::backend::{RawBuf, RawCall};
use rankwise_core::{Error, OpKind, ReduceOp, Result};
use std::ffi::c_int;
use std::sync::Arc;

/// The most that an `int` holds.
const MOST: usize = i32::MAX as usize;

/// For tests, which can't have gigabytes: counts above it are taken for large. The same on all ranks.
const SMALLER: &str = "RANKWISE_MPI_MOST_COUNT";

/// What counts may be without being large.
pub(crate) fn most() -> Result<usize> {
    let Ok(text) = std::env::var(SMALLER) else { return Ok(MOST) };
    text.parse().ok().filter(|most| (1..=MOST).contains(most)).ok_or_else(|| {
        Error::invalid(format!(
            "{SMALLER}={text:?} is no count from 1 to {MOST}; it is for tests alone, leave it unset"
        ))
    })
}

/// What the members have to have in common.
pub(crate) fn described<A: Api>(library: &Library<A>) -> String {
    let beyond = if library.wide.is_some() { "64 bits" } else { "parts" };
    format!("counts to {}, larger ones in {beyond}", library.most)
}

/// How a large call is carried out.
pub(crate) enum Plan {
    /// As one collective that counts in 64 bits.
    Wide(OpKind, Lists),
    /// As one collective in units of so many bytes.
    Units(OpKind, usize),
    /// As collectives on parts of what belongs to each member, or of the whole when that belongs to all.
    /// Of a reduce-scatter in place `own` is a copy of this rank's part, else null.
    Parts { kind: OpKind, counts: Vec<usize>, elem_size: usize, me: usize, own: *const u8 },
    /// As messages between the root and the others, of so many bytes.
    Messages { kind: OpKind, bytes: Vec<usize>, me: usize },
}

impl<A: Api> Way<A> {
    fn by(mut self, plan: Plan, ints: &mut Integers) -> Way<A> {
        self.kind = None;
        ints.plan = Some(plan);
        self
    }
}

/// Data that moves: `way` has its bytes, `ints` its counts in bytes.
#[cold]
pub(crate) fn movement<A: Api>(
    library: &Library<A>,
    call: &RawCall<'_>,
    (n, me): (usize, usize),
    mut way: Way<A>,
    ints: &mut Integers,
) -> Result<Way<A>> {
    let (kind, elem_size) = (call.kind, call.elem_size);
    if library.wide.is_some() {
        if kind == OpKind::Scatter {
            let bytes = vec![way.arguments.count; n];
            return Ok(way.by(Plan::Messages { kind, bytes, me }, ints));
        }
        return Ok(way.by(Plan::Wide(kind, Lists::new(call, elem_size)), ints));
    }
    if kind == OpKind::Broadcast {
        let counts = vec![way.arguments.count];
        return Ok(way.by(Plan::Parts { kind, counts, elem_size: 1, me, own: std::ptr::null() }, ints));
    }
    let (send, recv) = (call.counts.send, call.counts.recv);
    let is_even = send.is_empty() && recv.is_empty();
    let unit = if is_even { call.count.max(1) } else { common_unit(send.iter().chain(recv).copied()) };
    if is_even || ints.fill_by(call, |count| count / unit) <= library.most {
        let bytes = unit * elem_size;
        way.arguments.count /= bytes;
        return Ok(way.by(Plan::Units(kind, bytes), ints));
    }
    let bytes = |counts: &[usize]| counts.iter().map(|count| count * elem_size).collect();
    match kind {
        OpKind::AllGatherV => {
            Ok(way.by(Plan::Parts { kind, counts: bytes(recv), elem_size: 1, me, own: std::ptr::null() }, ints))
        }
        OpKind::GatherV => Ok(way.by(Plan::Messages { kind, bytes: bytes(recv), me }, ints)),
        OpKind::ScatterV => Ok(way.by(Plan::Messages { kind, bytes: bytes(send), me }, ints)),
        _ if ints.fill(call, elem_size) <= MOST => Ok(way),
        _ => Err(way::too_large()),
    }
}

/// A large reduction.
///
/// # Safety
///
/// As for `way::decide`.
#[cold]
pub(crate) unsafe fn reduction<A: Api>(
    library: &Library<A>,
    call: &RawCall<'_>,
    op: ReduceOp,
    (n, me): (usize, usize),
    fixed: bool,
    room: &mut Room,
    ints: &mut Integers,
) -> Result<Way<A>> {
    let kind = call.kind;
    // SAFETY: the caller's promise.
    let mut way = unsafe { way::reduction(library, call, op, (n, me), fixed, room, ints) }?;
    if way.kind != Some(kind) {
        // Contributions that move, to be folded.
        return Ok(way);
    }
    let pairwise = if matches!(op, ReduceOp::Avg | ReduceOp::PreMulSum(_)) { ReduceOp::Sum } else { op };
    if library.wide.is_some() && operators::builtin(call.dtype, pairwise).is_some() {
        return Ok(way.by(Plan::Wide(kind, Lists::new(call, 1)), ints));
    }
    let counts = match kind {
        OpKind::ReduceScatter => vec![call.count; n],
        OpKind::ReduceScatterV => call.counts.send.to_vec(),
        _ => vec![call.count],
    };
    let mut own = std::ptr::null();
    if matches!(way.after, After::Move { .. }) {
        // Each member's part is reduced to where it lies.
        way.arguments.dst = address(&call.dst, 1);
        way.arguments.in_place = false;
        way.after = After::Nothing;
        let (before, bytes) = (counts[..me].iter().sum::<usize>() * call.elem_size, counts[me] * call.elem_size);
        // SAFETY: the caller's promise: the part is in the source.
        own = unsafe { way::copied(call.src.ptr.add(before), bytes, room) }?;
    }
    Ok(way.by(Plan::Parts { kind, counts, elem_size: call.elem_size, me, own }, ints))
}

/// Runs or starts calls of MPI, one after the other.
struct Starter<'a, A: Api> {
    null: Request<A>,
    requests: Option<&'a mut Vec<Request<A>>>,
}

impl<A: Api> Starter<'_, A> {
    fn call(&mut self, call: impl FnOnce(Option<&mut Request<A>>) -> c_int) -> c_int {
        let Some(requests) = &mut self.requests else { return call(None) };
        let mut request = self.null;
        let code = call(Some(&mut request));
        if code == 0 {
            requests.push(request);
        }
        code
    }
}

/// Runs a large call, or starts it when there is a place for its requests. Returns MPI's code; of a started call those that were started before a
/// failure are in `requests`.
///
/// # Safety
///
/// As for `native::launch`.
#[cold]
pub(crate) unsafe fn launch<A: Api>(
    library: &Library<A>,
    comm: Comm<A>,
    root: usize,
    way: &Way<A>,
    ints: &Integers,
    requests: Option<&mut Vec<Request<A>>>,
) -> c_int {
    let mut starter = Starter { null: library.api.request_null(), requests };
    let run = |starter: &mut Starter<'_, A>, kind: OpKind, root: usize, arguments: Arguments<A>| {
        let way = Way { kind: Some(kind), arguments, after: After::Nothing };
        // SAFETY: the caller's promise: the arguments are a part of the call.
        starter.call(|request| unsafe { native::launch(library, comm, root, &way, ints, request) })
    };
    match (&ints.plan, &library.wide) {
        (Some(Plan::Wide(kind, lists)), Some(wide)) => {
            // SAFETY: the caller's promise.
            starter.call(|request| unsafe { wide::launch((library, wide), comm, (*kind, root), way, lists, request) })
        }
        (Some(Plan::Units(kind, bytes)), _) => with_type(library, *bytes, |datatype| {
            run(&mut starter, *kind, root, Arguments { datatype, ..way.arguments })
        }),
        (Some(Plan::Parts { kind, counts, elem_size, me, own }), _) => {
            let whole = &way.arguments;
            if *kind == OpKind::AllGatherV && !whole.in_place {
                let before: usize = counts[..*me].iter().sum();
                // SAFETY: the caller's promise: this rank's place in the destination.
                unsafe { std::ptr::copy(whole.src, whole.dst.add(before), counts[*me]) };
            }
            parts(counts, library.most)
                .map(|part| {
                    let (at, mine) = (part.at * elem_size, part.owner == *me);
                    let mut piece = Arguments { count: part.len, ..*whole };
                    piece.src = whole.src.wrapping_add(at);
                    piece.dst = whole.dst.wrapping_add(at);
                    let (kind, root) = match kind {
                        OpKind::ReduceScatter | OpKind::ReduceScatterV => {
                            piece.dst = whole.dst.wrapping_add(part.within * elem_size);
                            if !mine {
                                piece.dst = address(&RawBuf::NONE, 1);
                            } else if !own.is_null() {
                                piece.src = own.wrapping_add(part.within * elem_size);
                            }
                            (OpKind::Reduce, part.owner)
                        }
                        OpKind::AllGatherV => (OpKind::Broadcast, part.owner),
                        kind => (*kind, root),
                    };
                    run(&mut starter, kind, root, piece)
                })
                .find(|code| *code != 0)
                .unwrap_or(0)
        }
        (Some(Plan::Messages { kind, bytes, me }), _) => {
            let scatters = matches!(kind, OpKind::Scatter | OpKind::ScatterV);
            // SAFETY: the caller's promise.
            unsafe { messages(library, comm, (scatters, root, *me), bytes, &way.arguments, &mut starter) }
        }
        // A way without a kind comes with a plan, and a wide one with the functions.
        _ => 0,
    }
}

/// Parts that move between the root and the others; nothing is sent for empty ones.
///
/// # Safety
///
/// As for [`launch`].
unsafe fn messages<A: Api>(
    library: &Library<A>,
    comm: Comm<A>,
    (scatters, root, me): (bool, usize, usize),
    bytes: &[usize],
    arguments: &Arguments<A>,
    starter: &mut Starter<'_, A>,
) -> c_int {
    let api = &library.api;
    let (mut src, mut dst) = (arguments.src, arguments.dst);
    for (member, bytes) in bytes.iter().copied().enumerate() {
        // What is not this rank's: the root passes over nothing, the others over all but their own part.
        let concerns = me == root || me == member;
        if concerns && member == root && !arguments.in_place {
            // SAFETY: the caller's promise: both sides have this part.
            unsafe { std::ptr::copy(src, dst, bytes) };
        }
        if concerns && member != root && bytes > 0 {
            let peer = if me == root { member } else { root } as c_int;
            let code = with_type(library, bytes, |datatype| {
                // SAFETY: the caller's promise; the type has the bytes of the part.
                starter.call(|request| unsafe {
                    match (scatters == (me == root), request) {
                        (true, None) => api.send(src.cast(), 1, datatype, peer, PART, comm),
                        (true, Some(request)) => api.isend(src.cast(), 1, datatype, peer, PART, comm, request),
                        (false, None) => api.recv(dst.cast(), 1, datatype, peer, PART, comm, &mut Status::default()),
                        (false, Some(request)) => api.irecv(dst.cast(), 1, datatype, peer, PART, comm, request),
                    }
                })
            });
            if code != 0 {
                return code;
            }
        }
        if me == root {
            // SAFETY: the parts lie one after the other.
            unsafe {
                if scatters {
                    src = src.add(bytes);
                } else {
                    dst = dst.add(bytes);
                }
            }
        }
    }
    0
}

/// Uses a type of so many bytes; calls that are under way keep it.
fn with_type<A: Api>(library: &Library<A>, bytes: usize, then: impl FnOnce(Datatype<A>) -> c_int) -> c_int {
    match make_type(library, bytes) {
        Ok(mut datatype) => {
            let code = then(datatype);
            // SAFETY: made above, and not used by us any more.
            unsafe { library.api.type_free(&mut datatype) };
            code
        }
        Err(code) => code,
    }
}

/// A type of so many bytes, more than none, without gaps.
fn make_type<A: Api>(library: &Library<A>, bytes: usize) -> Result<Datatype<A>, c_int> {
    let api = &library.api;
    let byte = library.named(Named::U8);
    let succeeded = |code| if code == 0 { Ok(()) } else { Err(code) };
    let (whole, rest) = blocks(bytes, library.most);
    let (mut block, mut datatype) = (byte, byte);
    // SAFETY: types are made before they are used, and freed once; the counts fit: addresses have less than 62 bits.
    unsafe {
        if whole == 0 {
            succeeded(api.type_contiguous(rest as c_int, byte, &mut datatype))?;
        } else {
            succeeded(api.type_contiguous(library.most as c_int, byte, &mut block))?;
            let lengths = [whole as c_int, rest as c_int];
            let places = [0, (whole * library.most) as isize];
            let parts = if rest == 0 { 1 } else { 2 };
            let types = [block, byte];
            let code = api.type_create_struct(parts, lengths.as_ptr(), places.as_ptr(), types.as_ptr(), &mut datatype);
            api.type_free(&mut block);
            succeeded(code)?;
        }
        succeeded(api.type_commit(&mut datatype))?;
    }
    Ok(datatype)
}

/// The type of a message, kept until it is known what arrived.
pub(crate) struct OwnType<A: Api> {
    library: Arc<Library<A>>,
    pub(crate) datatype: Datatype<A>,
}

impl<A: Api> OwnType<A> {
    pub(crate) fn of(library: &Arc<Library<A>>, bytes: usize) -> Result<OwnType<A>> {
        let datatype = make_type(library, bytes).map_err(|code| library.failure(code))?;
        Ok(OwnType { library: library.clone(), datatype })
    }
}

impl<A: Api> Drop for OwnType<A> {
    fn drop(&mut self) {
        let mut finalized = 0;
        // SAFETY: may be asked at any time; a message that is under way keeps the type.
        unsafe {
            self.library.api.finalized(&mut finalized);
            if finalized == 0 {
                self.library.api.type_free(&mut self.datatype);
            }
        }
    }
}
