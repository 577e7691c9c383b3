//! The posts to one peer, cut into slices. A slice is one transfer of NIXL's.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;

use super::agent::{Agent, Piece, Progress, Request};
use super::library::NixlError;
use super::word::{AskedPiece, MAX_PIECES, Word};
use crate::copy::Run;
use crate::lists::Lists;
use crate::posts::{Moving, SLICE_BYTES};
use crate::transport::{Direction, Event, Post, PostId, TransportError};

/// Slices that a peer's network may have to do at once, at most.
pub(super) const MAX_SLICES: usize = 32;
/// Notifications that the peer has not heard yet, at most; further posts are done when it has heard some.
const MAX_UNHEARD: u32 = 256;

/// Where the two regions begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bases {
    pub local: usize,
    pub remote: usize,
}

/// Of a post that has bytes to move.
#[derive(Debug)]
struct Underway {
    id: PostId,
    notify: Option<Vec<u8>>,
    /// Of its slices, how many are in flight.
    slices: usize,
    /// All its bytes are in slices.
    is_cut: bool,
}

#[derive(Debug)]
struct Slice {
    post: u64,
    motion: Motion,
}

/// Who moves a slice.
#[derive(Debug)]
enum Motion {
    Ours(Request),
    /// The peer was asked to write it.
    Asked(u32),
    Given,
}

#[derive(Debug)]
pub(super) struct Postings {
    max_posts: usize,
    next_number: u64,
    underway: BTreeMap<u64, Underway>,
    /// Those that are not cut to the end, in the order of their next slices.
    to_cut: VecDeque<(u64, Moving)>,
    /// In flight, the oldest first.
    slices: VecDeque<Slice>,
    /// Posts whose bytes are in place, and whose notifications still have to be sent.
    moved: VecDeque<(PostId, Option<Vec<u8>>)>,
    unheard: u32,
    are_reads_asked: bool,
    next_ask: u32,
}

impl Motion {
    fn progress(&self, agent: &Agent) -> Progress {
        match self {
            Self::Ours(request) => agent.progress(request),
            Self::Asked(_) => Progress::Moving,
            Self::Given => Progress::Done,
        }
    }

    fn release(self, agent: &Agent) {
        if let Self::Ours(request) = self {
            agent.release(request);
        }
    }
}

impl Postings {
    pub fn new(max_posts: usize, are_reads_asked: bool) -> Self {
        Self {
            max_posts,
            next_number: 0,
            underway: BTreeMap::new(),
            to_cut: VecDeque::new(),
            slices: VecDeque::new(),
            moved: VecDeque::new(),
            unheard: 0,
            are_reads_asked,
            next_ask: 0,
        }
    }

    pub fn push(&mut self, post: Post, local: &Lists, remote: &Lists) -> Result<(), TransportError> {
        if self.underway.len() + self.moved.len() >= self.max_posts {
            return Err(TransportError::Limit("posts in flight to a peer"));
        }
        let id = post.id;
        let mut moving = Moving::new(post, local, remote)?;
        let number = self.next_number;
        self.next_number += 1;
        let notify = moving.notify.take();
        self.underway.insert(number, Underway { id, notify, slices: 0, is_cut: false });
        self.to_cut.push_back((number, moving));
        Ok(())
    }

    /// Whether bytes are in flight.
    pub fn is_moving(&self) -> bool {
        !self.slices.is_empty()
    }

    /// Whether a post has bytes that are not in place.
    pub fn is_busy(&self) -> bool {
        !self.underway.is_empty()
    }

    /// Whether there is a slice to be started at once.
    pub fn can_start(&self) -> bool {
        !self.to_cut.is_empty() && self.slices.len() < MAX_SLICES
    }

    /// Starts the next slice, or says what the peer is to be asked for. The post in front goes to the end afterwards,
    /// so that a long one delays a short one by a slice and not by its length.
    pub fn start_slice(
        &mut self,
        agent: &Agent,
        peer: &CStr,
        bases: Bases,
    ) -> Result<Option<Word>, NixlError> {
        if !self.can_start() {
            return Ok(None);
        }
        let Some((number, mut moving)) = self.to_cut.pop_front() else { return Ok(None) };
        let (mut runs, mut budget) = (Vec::new(), SLICE_BYTES);
        while runs.len() < MAX_PIECES
            && budget > 0
            && let Some(run) = moving.next_run(budget)
        {
            budget -= run.len;
            runs.push(run);
        }
        let (direction, is_cut) = (moving.direction, moving.is_finished());
        if !is_cut {
            self.to_cut.push_back((number, moving));
        }
        let post = self.underway.get_mut(&number).expect("what is to be cut is under way");
        post.is_cut = is_cut;
        if runs.is_empty() {
            self.end_if_moved(number);
            return Ok(None);
        }
        post.slices += 1;
        if direction == Direction::Read && self.are_reads_asked {
            let ask = self.next_ask;
            self.next_ask = ask.wrapping_add(1);
            self.slices.push_back(Slice { post: number, motion: Motion::Asked(ask) });
            let pieces =
                runs.iter().map(|run| AskedPiece { from: run.remote, to: run.local, len: run.len as u32 });
            return Ok(Some(Word::Ask { number: ask, pieces: pieces.collect() }));
        }
        let piece = |run: &Run| Piece {
            local: bases.local + run.local as usize,
            remote: bases.remote + run.remote as usize,
            len: run.len,
        };
        let pieces: Vec<_> = runs.iter().map(piece).collect();
        match agent.post(direction, peer, &pieces) {
            Ok(request) => {
                self.slices.push_back(Slice { post: number, motion: Motion::Ours(request) });
                Ok(None)
            }
            Err(error) => {
                post.slices -= 1;
                Err(error)
            }
        }
    }

    /// The peer has written what it was asked for; false if it was not.
    pub fn given(&mut self, number: u32) -> bool {
        let asked = |slice: &&mut Slice| matches!(slice.motion, Motion::Asked(asked) if asked == number);
        match self.slices.iter_mut().find(asked) {
            Some(slice) => slice.motion = Motion::Given,
            None => return false,
        }
        true
    }

    /// Whether the peer may be writing what it was asked for.
    pub fn awaits_gifts(&self) -> bool {
        self.slices.iter().any(|slice| matches!(slice.motion, Motion::Asked(_)))
    }

    /// The peer writes nothing any more. Only after [`Postings::give_up`].
    pub fn expect_no_gifts(&mut self) {
        for slice in &mut self.slices {
            if matches!(slice.motion, Motion::Asked(_)) {
                slice.motion = Motion::Given;
            }
        }
    }

    fn end_if_moved(&mut self, number: u64) {
        if self.underway.get(&number).is_some_and(|post| post.slices == 0 && post.is_cut)
            && let Some(post) = self.underway.remove(&number)
        {
            self.moved.push_back((post.id, post.notify));
        }
    }

    /// Takes what is done off the slices in flight, in the order in which they were started: so posts of one slice
    /// end in the order in which they were posted.
    pub fn collect(&mut self, agent: &Agent) -> Result<(), NixlError> {
        while let Some(slice) = self.slices.front() {
            match slice.motion.progress(agent) {
                Progress::Moving => return Ok(()),
                Progress::Failed(status) => return Err(NixlError::Call("a transfer", status)),
                Progress::Done => {}
            }
            let Some(Slice { post, motion }) = self.slices.pop_front() else { return Ok(()) };
            motion.release(agent);
            if let Some(post) = self.underway.get_mut(&post) {
                post.slices -= 1;
            }
            self.end_if_moved(post);
        }
        Ok(())
    }

    /// Sends the notifications of posts whose bytes are in place, and reports those posts as done. Returns how many it
    /// has sent.
    pub fn notify(
        &mut self,
        agent: &Agent,
        peer: &CStr,
        path: u64,
        events: &mut Vec<Event>,
    ) -> Result<u32, NixlError> {
        let unheard = self.unheard;
        while let Some((id, notify)) = self.moved.front() {
            if let Some(bytes) = notify {
                if self.unheard >= MAX_UNHEARD {
                    break;
                }
                agent.notify(peer, &[&path.to_le_bytes()[..], bytes].concat())?;
                self.unheard += 1;
            }
            events.push(Event::Done(*id));
            self.moved.pop_front();
        }
        Ok(self.unheard - unheard)
    }

    /// The peer has heard so many notifications; false if so many were not sent.
    pub fn heard(&mut self, count: u32) -> bool {
        match self.unheard.checked_sub(count) {
            Some(left) => self.unheard = left,
            None => return false,
        }
        true
    }

    /// Starts no slice any more, and ends the posts of which none is in flight. A post of which one is, ends in
    /// [`Postings::settle`]: until then the network may write into our memory, or read what it sends.
    pub fn give_up(&mut self, why: &TransportError, events: &mut Vec<Event>) {
        self.to_cut.clear();
        let moved = self.moved.drain(..).map(|(id, _)| id);
        let idle = self.underway.extract_if(.., |_, post| post.slices == 0).map(|(_, post)| post.id);
        events.extend(moved.chain(idle).map(|id| Event::Failed(id, why.clone())));
    }

    /// After [`Postings::give_up`]: lets go of slices that are over, whatever came of them, and ends their posts.
    pub fn settle(&mut self, agent: &Agent, why: &TransportError, events: &mut Vec<Event>) {
        let in_flight = std::mem::take(&mut self.slices);
        for slice in in_flight {
            if slice.motion.progress(agent) == Progress::Moving {
                self.slices.push_back(slice);
                continue;
            }
            slice.motion.release(agent);
            if let Some(post) = self.underway.get_mut(&slice.post) {
                post.slices -= 1;
                if post.slices == 0 {
                    events.push(Event::Failed(post.id, why.clone()));
                    self.underway.remove(&slice.post);
                }
            }
        }
    }
}
