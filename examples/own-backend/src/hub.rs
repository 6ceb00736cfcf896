//! The hub: threads in the first member's process that hear every call, compare, and answer.

use crate::link::{Frame, Link, Say};
use rankwise_core::{Error, ErrorKind, Group};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kinds of failure that the hub tells, in the order of their numbers.
const KINDS: [ErrorKind; 5] =
    [ErrorKind::Mismatch, ErrorKind::Timeout, ErrorKind::PeerLost, ErrorKind::PeerLeft, ErrorKind::Aborted];

/// An error as a frame.
fn failed(error: &Error) -> Frame {
    let kind = KINDS.iter().position(|kind| kind == error.kind()).unwrap_or(0) as u8;
    let ranks = error.peers().iter().flat_map(|rank| (*rank as u32).to_le_bytes());
    let head: Vec<u8> = std::iter::once(kind).chain(ranks).collect();
    Frame::new(Say::Failed, 0, &head, error.message().as_bytes())
}

/// The error in a frame.
pub(crate) fn read_failed(frame: &Frame) -> Error {
    let (kind, ranks) = frame.head.split_first().map_or((0, &[][..]), |(kind, ranks)| (usize::from(*kind), ranks));
    let kind = KINDS.get(kind).cloned().unwrap_or(ErrorKind::PeerLost);
    let peers = ranks.as_chunks().0.iter().map(|rank| u32::from_le_bytes(*rank) as usize);
    Error::new(kind, String::from_utf8_lossy(&frame.data)).with_peers(peers)
}

/// What a member said at a sequence number.
#[derive(Clone)]
enum Post {
    Called {
        what: Arc<[u8]>,
        source: Arc<[u8]>,
    },
    Refused {
        why: Arc<[u8]>,
    },
    /// Called, and has its answer.
    Answered,
}

/// A communicator, as the hub sees it.
struct State {
    group: Group,
    /// `None` once the member is gone.
    links: Vec<Option<Link>>,
    rounds: BTreeMap<u64, Vec<Option<Post>>>,
    /// Why members will not come any more.
    gone: BTreeMap<usize, Error>,
    /// The first failure; never replaced.
    cause: Option<Error>,
}

/// Starts the hub over the far ends of all members. It ends when all of them are closed.
pub(crate) fn serve(group: &Group, ends: Vec<UnixStream>) -> io::Result<()> {
    let state =
        State { group: group.clone(), links: Vec::new(), rounds: BTreeMap::new(), gone: BTreeMap::new(), cause: None };
    let state = Arc::new(Mutex::new(state));
    // Nobody is heard before all are connected.
    let mut locked = lock(&state);
    for (position, end) in ends.into_iter().enumerate() {
        let shared = state.clone();
        let link = Link::new(end, 1, move |frame| lock(&shared).take(position, frame))?;
        locked.links.push(Some(link));
    }
    Ok(())
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn global(&self, position: usize) -> usize {
        self.group.global(position).unwrap_or(position)
    }

    fn send(&self, position: usize, frame: Frame) {
        if let Some(Some(link)) = self.links.get(position) {
            link.send(frame);
        }
    }

    /// A member said something, or is gone.
    fn take(&mut self, position: usize, frame: Option<Frame>) {
        let rank = self.global(position);
        let Some(frame) = frame else {
            self.links[position] = None;
            let text = format!("rank {rank} died; look at its output, then start again");
            self.gone.entry(position).or_insert(Error::new(ErrorKind::PeerLost, text).with_peers([rank]));
            return self.judge();
        };
        match frame.say {
            Say::Call => self.post(position, frame.seq, Post::Called { what: frame.head, source: frame.data }),
            Say::Refused => self.post(position, frame.seq, Post::Refused { why: frame.data }),
            Say::Late => self.late(frame.seq),
            Say::Abort => {
                let text = format!("rank {rank} aborted this communicator; make a new one to go on");
                self.fail(Error::new(ErrorKind::Aborted, text).with_peers([rank]));
            }
            Say::Leave => {
                let text = format!("rank {rank} left before this call; make it take part, or stop calling it");
                let left = Error::new(ErrorKind::PeerLeft, text).with_peers([rank]);
                if position == 0 {
                    // The hub may end with this rank's process: now is the time to say why.
                    self.fail(left.clone());
                }
                self.gone.insert(position, left);
                self.links[position] = None;
            }
            // What only the hub says.
            Say::Answer | Say::PeerRefused | Say::Failed => {}
        }
        self.judge();
    }

    fn post(&mut self, position: usize, seq: u64, post: Post) {
        let members = self.group.len();
        self.rounds.entry(seq).or_insert_with(|| vec![None; members])[position] = Some(post);
    }

    fn missing(&self, posts: &[Option<Post>]) -> Vec<usize> {
        (0..posts.len()).filter(|position| posts[*position].is_none()).collect()
    }

    /// A member's deadline has passed in a call.
    fn late(&mut self, seq: u64) {
        // What is complete has been answered, and the answer is on its way.
        let Some(posts) = self.rounds.get(&seq) else { return };
        let missing: Vec<usize> = self.missing(posts).into_iter().map(|position| self.global(position)).collect();
        let text = format!("ranks {missing:?} have not come to call {seq}; look at what they do");
        self.fail(Error::new(ErrorKind::Timeout, text).with_peers(missing));
    }

    /// The first failure counts, and everybody learns it.
    fn fail(&mut self, error: Error) {
        if self.cause.is_some() {
            return;
        }
        (0..self.group.len()).for_each(|position| self.send(position, failed(&error)));
        self.cause = Some(error);
    }

    /// Answers what can be answered, in the order of the calls.
    fn judge(&mut self) {
        let sequences: Vec<u64> = self.rounds.keys().copied().collect();
        for seq in sequences {
            if self.cause.is_some() {
                return;
            }
            let Some(posts) = self.rounds.get(&seq).cloned() else { continue };
            let missing = self.missing(&posts);
            if let Some(refused) = posts.iter().position(|post| matches!(post, Some(Post::Refused { .. }))) {
                self.tell_refusal(seq, refused, &posts);
                if missing.is_empty() {
                    self.rounds.remove(&seq);
                }
            } else if missing.is_empty() {
                // What is complete stays complete: this comes before the look at who is gone.
                match self.disagreement(&posts) {
                    Some(error) => self.fail(error),
                    None => self.answer(seq, &posts),
                }
                self.rounds.remove(&seq);
            } else if let Some(error) = missing.iter().find_map(|position| self.gone.get(position)).cloned() {
                self.fail(error);
            }
        }
    }

    /// A refused call does not wait for the others, and those who made it go on as if it had not been.
    fn tell_refusal(&mut self, seq: u64, refused: usize, posts: &[Option<Post>]) {
        let rank = self.global(refused);
        let Some(Some(Post::Refused { why })) = posts.get(refused) else { return };
        for (position, post) in posts.iter().enumerate() {
            if matches!(post, Some(Post::Called { .. })) {
                self.send(position, Frame::new(Say::PeerRefused, seq, &(rank as u32).to_le_bytes(), why));
                self.post(position, seq, Post::Answered);
            }
        }
    }

    /// The majority is right; on a tie the side of the lowest member.
    fn disagreement(&self, posts: &[Option<Post>]) -> Option<Error> {
        let called: Vec<&Arc<[u8]>> = posts
            .iter()
            .flatten()
            .filter_map(|post| if let Post::Called { what, .. } = post { Some(what) } else { None })
            .collect();
        let votes = |what: &Arc<[u8]>| called.iter().filter(|other| **other == what).count();
        let right = called.iter().rev().max_by_key(|what| votes(what))?;
        let is_odd = |position: &usize| called[*position] != *right;
        let odd: Vec<usize> = (0..called.len()).filter(is_odd).map(|position| self.global(position)).collect();
        let example = (0..called.len()).find(is_odd)?;
        let words = |what: &[u8]| String::from_utf8_lossy(what).into_owned();
        let (theirs, ours) = (words(called[example]), words(right));
        let text = format!("ranks {odd:?} called [{theirs}], the others [{ours}]; make the calls equal");
        Some(Error::new(ErrorKind::Mismatch, text).with_peers(odd))
    }

    /// Everybody gets everything, in group order.
    fn answer(&mut self, seq: u64, posts: &[Option<Post>]) {
        let mut all = Vec::new();
        for post in posts.iter().flatten() {
            if let Post::Called { source, .. } = post {
                all.extend((source.len() as u64).to_le_bytes());
                all.extend_from_slice(source);
            }
        }
        let answer = Frame::new(Say::Answer, seq, &[], &all);
        (0..posts.len()).for_each(|position| self.send(position, answer.clone()));
    }
}
