//! The posts to one peer, cut into slices. A slice is one transfer of NIXL's.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;

use super::agent::{Agent, Piece, Progress, Request};
use super::library::NixlError;
use crate::lists::Lists;
use crate::posts::{Moving, SLICE_BYTES};
use crate::transport::{Event, Post, PostId, TransportError};

/// Pieces of a slice, at most. Where NIXL copies, it does so while it is called: about 0.4 ms for so many of 4 KiB.
const MAX_PIECES: usize = 256;
/// Slices that a peer's network may have to do at once, at most.
const MAX_SLICES: usize = 32;
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
    request: Request,
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
}

impl Postings {
    pub fn new(max_posts: usize) -> Self {
        Self {
            max_posts,
            next_number: 0,
            underway: BTreeMap::new(),
            to_cut: VecDeque::new(),
            slices: VecDeque::new(),
            moved: VecDeque::new(),
            unheard: 0,
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

    /// Starts the next slice. The post in front goes to the end afterwards, so that a long one delays a short one
    /// by a slice and not by its length.
    pub fn start_slice(&mut self, agent: &Agent, peer: &CStr, bases: Bases) -> Result<(), NixlError> {
        if !self.can_start() {
            return Ok(());
        }
        let Some((number, mut moving)) = self.to_cut.pop_front() else { return Ok(()) };
        let (mut pieces, mut budget) = (Vec::new(), SLICE_BYTES);
        while pieces.len() < MAX_PIECES
            && budget > 0
            && let Some(run) = moving.next_run(budget)
        {
            let (local, remote) = (bases.local + run.local as usize, bases.remote + run.remote as usize);
            pieces.push(Piece { local, remote, len: run.len });
            budget -= run.len;
        }
        let (direction, is_cut) = (moving.direction, moving.is_finished());
        if !is_cut {
            self.to_cut.push_back((number, moving));
        }
        let post = self.underway.get_mut(&number).expect("what is to be cut is under way");
        post.is_cut = is_cut;
        if pieces.is_empty() {
            self.end_if_moved(number);
            return Ok(());
        }
        let (request, progress) = agent.post(direction, peer, &pieces)?;
        post.slices += 1;
        self.slices.push_back(Slice { post: number, request });
        match progress {
            Progress::Failed(status) => Err(NixlError::Call("a transfer", status)),
            Progress::Done | Progress::Moving => Ok(()),
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
            match agent.progress(&slice.request) {
                Progress::Moving => return Ok(()),
                Progress::Failed(status) => return Err(NixlError::Call("a transfer", status)),
                Progress::Done => {}
            }
            let Some(Slice { post, request }) = self.slices.pop_front() else { return Ok(()) };
            agent.release(request);
            if let Some(post) = self.underway.get_mut(&post) {
                post.slices -= 1;
            }
            self.end_if_moved(post);
        }
        Ok(())
    }

    /// Sends the notifications of posts whose bytes are in place, and reports those posts as done.
    pub fn notify(
        &mut self,
        agent: &Agent,
        peer: &CStr,
        path: u64,
        events: &mut Vec<Event>,
    ) -> Result<(), NixlError> {
        while let Some((id, notify)) = self.moved.front() {
            if let Some(bytes) = notify {
                if self.unheard >= MAX_UNHEARD {
                    return Ok(());
                }
                agent.notify(peer, &[&path.to_le_bytes()[..], bytes].concat())?;
                self.unheard += 1;
            }
            events.push(Event::Done(*id));
            self.moved.pop_front();
        }
        Ok(())
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
            if agent.progress(&slice.request) == Progress::Moving {
                self.slices.push_back(slice);
                continue;
            }
            agent.release(slice.request);
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
