//! Leaving a communicator. Each member tells the others, on the communicator itself, when it will use it no more; MPI frees it when all have.
//!
//! Freed earlier, MPI may make its number that of another communicator while messages for it are under way, and give them to that one: Open
//! MPI 4.1 returned such data from a receive on the new communicator without an error. Messages of one sender on one communicator arrive in order,
//! so nothing of a member comes after its goodbye.

use crate::api::{Api, Comm, Named, Request, Status};
use crate::base::Base;
use crate::channel::lock;
use crate::library::Library;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::from_mut;
use std::time::Instant;

/// Tag of the messages.
const GOODBYE: c_int = 6;

/// A member that has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Its position in the group.
    pub(crate) member: usize,
    /// How many collective calls it has made.
    pub(crate) collectives: u64,
    /// When this rank heard of it.
    pub(crate) heard: Instant,
    /// MPI may still have calls of it, whose messages can come later: the communicator is not to be freed.
    keep: bool,
}

/// A goodbye as it is sent.
type Letter = [u64; 3];

/// A communicator that this rank has left, while others have not.
pub(crate) struct Retired<A: Api> {
    comm: Comm<A>,
    /// Positions of those who may still send.
    staying: Vec<usize>,
    /// Goodbyes under way, and what they say.
    sent: Vec<Request<A>>,
    letter: Box<Letter>,
    /// MPI may have requests on it that nobody waits for, here or elsewhere.
    keep: bool,
}

// SAFETY: handles are names that any thread may use.
unsafe impl<A: Api> Send for Retired<A> {}

/// Takes in the goodbyes that have come on a communicator.
pub(crate) fn hear<A: Api>(library: &Library<A>, comm: Comm<A>, mut left: impl FnMut(Left)) {
    let (api, any) = (&library.api, library.constants.any_source);
    loop {
        let (mut flag, mut message, mut status) = (0, MaybeUninit::uninit(), Status::default());
        let mut said: Letter = [0; 3];
        // SAFETY: a message that was found is received into a place of its length.
        unsafe {
            let code = api.improbe(any, GOODBYE, comm, &mut flag, message.as_mut_ptr(), &mut status);
            if code != 0 || flag == 0 {
                return;
            }
            let place = from_mut(&mut said).cast();
            api.mrecv(place, 3, library.named(Named::U64), message.as_mut_ptr(), &mut status);
        }
        left(Left { member: said[0] as usize, collectives: said[1], heard: Instant::now(), keep: said[2] != 0 });
    }
}

impl<A: Api> Base<A> {
    /// Tells the other members that this rank, `me` of `size`, has left after so many collective calls. The communicator is freed later, unless
    /// it is to be kept.
    pub(crate) fn retire(
        &self,
        comm: Comm<A>,
        (me, size): (usize, usize),
        collectives: u64,
        left: &[Left],
        keep: bool,
    ) {
        let (api, datatype) = (&self.library.api, self.library.named(Named::U64));
        let keep = keep || left.iter().any(|left| left.keep);
        let letter: Box<Letter> = Box::new([me as u64, collectives, u64::from(keep)]);
        let others = || (0..size).filter(|other| *other != me);
        let send = |to: usize| {
            let mut request = api.request_null();
            // SAFETY: the letter is kept until all have been sent.
            let code =
                unsafe { api.isend(letter.as_ptr().cast(), 3, datatype, to as c_int, GOODBYE, comm, &mut request) };
            (code == 0).then_some(request)
        };
        let Some(sent) = others().map(send).collect() else {
            // It can't be told, so others may still send: neither freed nor taken apart.
            std::mem::forget(letter);
            return;
        };
        let staying = others().filter(|other| left.iter().all(|left| left.member != *other)).collect();
        lock(&self.retired).push(Retired { comm, staying, sent, letter, keep });
        self.free_retired();
    }

    /// Frees the communicators that all members have left.
    pub(crate) fn free_retired(&self) {
        let Ok(mut retired) = self.retired.try_lock() else { return };
        retired.retain_mut(|retired| {
            hear(&self.library, retired.comm, |left| {
                retired.staying.retain(|other| *other != left.member);
                retired.keep |= left.keep;
            });
            let api = &self.library.api;
            retired.sent.retain_mut(|request| {
                let (mut flag, mut status) = (0, Status::default());
                // SAFETY: a request of ours that has not finished.
                unsafe { api.test(request, &mut flag, &mut status) == 0 && flag == 0 }
            });
            let is_over = retired.staying.is_empty() && retired.sent.is_empty();
            if is_over && !retired.keep {
                // SAFETY: nobody uses it any more, here or elsewhere.
                unsafe { api.comm_free(&mut retired.comm) };
            }
            !is_over
        });
    }
}

impl<A: Api> Base<A> {
    /// Whether all members of what this rank has left have left it too, or can't any more.
    pub(crate) fn has_left(&self) -> bool {
        self.free_retired();
        lock(&self.retired).iter().all(|retired| retired.staying.is_empty() && retired.sent.is_empty())
    }
}

impl<A: Api> Drop for Retired<A> {
    fn drop(&mut self) {
        if !self.sent.is_empty() {
            // MPI may still read it.
            std::mem::forget(std::mem::take(&mut self.letter));
        }
    }
}
