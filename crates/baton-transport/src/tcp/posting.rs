//! Our posts to one peer, cut into chunks that any lane may carry.

use std::collections::{BTreeMap, VecDeque};

use super::frame::{Fault, Frame, MAX_CHUNK, MAX_OPEN_POSTS, MAX_RUNS, Outcome};
use crate::convert::Conversion;
use crate::lists::Lists;
use crate::posts::Moving;
use crate::transport::{Descriptor, Direction, Event, Post, PostId, TransportError};

/// A post that has not ended.
#[derive(Debug)]
struct Posting {
    id: PostId,
    moving: Moving,
    /// Whether chunks are left to cut.
    is_cut: bool,
    writes: u32,
    /// Reads asked for whose bytes are not here.
    awaited: u32,
    /// Whether the peer was told that it is over, and has to answer.
    is_finished: bool,
    error: Option<TransportError>,
}

/// Part of a post: as many neighbouring bytes as one frame takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub post: u64,
    pub direction: Direction,
    pub local: Vec<Descriptor>,
    pub remote: Vec<Descriptor>,
}

#[derive(Debug)]
pub(super) struct Postings {
    max_posts: usize,
    pub conversion: Option<Conversion>,
    next_number: u64,
    /// Not begun: the peer takes no more at once.
    waiting: VecDeque<Posting>,
    begun: BTreeMap<u64, Posting>,
    /// Those that have chunks left to cut, in their turn: a long post delays a short one by a chunk.
    turns: VecDeque<u64>,
    /// To be said on the first lane, in this order.
    finishes: VecDeque<Frame>,
}

impl Postings {
    pub fn new(max_posts: usize) -> Self {
        Self {
            max_posts,
            conversion: None,
            next_number: 0,
            waiting: VecDeque::new(),
            begun: BTreeMap::new(),
            turns: VecDeque::new(),
            finishes: VecDeque::new(),
        }
    }

    pub fn push(&mut self, post: Post, local: &Lists, remote: &Lists) -> Result<(), TransportError> {
        if self.waiting.len() + self.begun.len() >= self.max_posts {
            return Err(TransportError::Limit("posts in flight to a peer"));
        }
        let (id, moving) = (post.id, Moving::converting(post, local, remote, self.conversion)?);
        self.waiting.push_back(Posting {
            id,
            moving,
            is_cut: false,
            writes: 0,
            awaited: 0,
            is_finished: false,
            error: None,
        });
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.begun.is_empty()
    }

    /// Whether [`Postings::next_chunk`] may have one.
    pub fn has_chunks(&self) -> bool {
        !self.turns.is_empty() || (!self.waiting.is_empty() && self.begun.len() < MAX_OPEN_POSTS)
    }

    /// The next chunk; of posts that write only, unless `may_read`.
    pub fn next_chunk(&mut self, may_read: bool, events: &mut Vec<Event>) -> Option<Chunk> {
        while self.begun.len() < MAX_OPEN_POSTS
            && let Some(posting) = self.waiting.pop_front()
        {
            self.begun.insert(self.next_number, posting);
            self.turns.push_back(self.next_number);
            self.next_number += 1;
        }
        for _ in 0..self.turns.len() {
            let number = self.turns.pop_front()?;
            let Some(posting) = self.begun.get_mut(&number) else { continue };
            if posting.moving.direction == Direction::Read && !may_read {
                self.turns.push_back(number);
                continue;
            }
            let chunk = posting.cut(number);
            if posting.moving.is_finished() {
                posting.is_cut = true;
                self.conclude(number, events);
            } else {
                self.turns.push_back(number);
            }
            if chunk.is_some() {
                return chunk;
            }
        }
        None
    }

    /// What is to be said on the first lane next.
    pub fn next_finish(&mut self) -> Option<Frame> {
        self.finishes.pop_front()
    }

    /// A chunk of a read is here, or will not come.
    pub fn landed(&mut self, number: u64, outcome: Outcome, events: &mut Vec<Event>) -> Result<(), Fault> {
        let posting = self.begun.get_mut(&number).ok_or(Fault)?;
        posting.awaited = posting.awaited.checked_sub(1).ok_or(Fault)?;
        if let Some(error) = outcome.error() {
            posting.error.get_or_insert(error);
            posting.is_cut = true;
            self.turns.retain(|&turn| turn != number);
        }
        self.conclude(number, events);
        Ok(())
    }

    /// Goes on with a post that is wholly cut: tells the peer, or ends it.
    fn conclude(&mut self, number: u64, events: &mut Vec<Event>) {
        let Some(posting) = self.begun.get_mut(&number) else { return };
        if !posting.is_cut || posting.awaited > 0 || posting.is_finished {
            return;
        }
        let is_read = posting.moving.direction == Direction::Read;
        if is_read && (posting.error.is_some() || posting.moving.notify.is_none()) {
            let event = posting.ended(Outcome::Moved);
            self.begun.remove(&number);
            events.push(event);
            return;
        }
        posting.is_finished = true;
        let (writes, notify) = (posting.writes, posting.moving.notify.take());
        self.finishes.push_back(Frame::Finish { post: number, writes, notify });
    }

    /// The peer's word that a post is over.
    pub fn ended(&mut self, number: u64, outcome: Outcome, events: &mut Vec<Event>) -> Result<(), Fault> {
        if !self.begun.get(&number).is_some_and(|posting| posting.is_finished) {
            return Err(Fault);
        }
        if let Some(mut posting) = self.begun.remove(&number) {
            events.push(posting.ended(outcome));
        }
        Ok(())
    }

    /// Ends every post.
    pub fn fail_all(&mut self, error: &TransportError, events: &mut Vec<Event>) {
        let begun = std::mem::take(&mut self.begun).into_values();
        let ids = begun.chain(self.waiting.drain(..)).map(|posting| posting.id);
        events.extend(ids.map(|id| Event::Failed(id, error.clone())));
        self.turns.clear();
        self.finishes.clear();
    }
}

impl Posting {
    fn cut(&mut self, number: u64) -> Option<Chunk> {
        let (mut local, mut remote, mut left) = (Vec::new(), Vec::new(), MAX_CHUNK);
        while left > 0
            && local.len() < MAX_RUNS
            && let Some(run) = self.moving.next_run(left)
        {
            local.push(Descriptor { offset: run.local, len: (run.local_end() - run.local) as u32 });
            remote.push(run.remote_range());
            left -= run.bytes();
        }
        if local.is_empty() {
            return None;
        }
        match self.moving.direction {
            Direction::Read => self.awaited += 1,
            Direction::Write => self.writes += 1,
        }
        Some(Chunk { post: number, direction: self.moving.direction, local, remote })
    }

    fn ended(&mut self, outcome: Outcome) -> Event {
        match self.error.take().or(outcome.error()) {
            None => Event::Done(self.id),
            Some(error) => Event::Failed(self.id, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{ListId, TransportLimits};
    use baton_types::{EngineId, EngineName};

    const BLOCK: u32 = 256 << 10;

    fn postings(posts: &[(u64, Direction, u32, Option<Vec<u8>>)]) -> Postings {
        let mut lists = Lists::new(64 * u64::from(BLOCK), &TransportLimits::default());
        let all: Vec<_> = (0..64).map(|i| Descriptor { offset: i * u64::from(BLOCK), len: BLOCK }).collect();
        lists.prepare(ListId(0), &all).unwrap();
        let mut postings = Postings::new(8);
        for (id, direction, blocks, notify) in posts.iter().cloned() {
            let post = Post {
                id: PostId(id),
                direction,
                peer: EngineId::new(EngineName::new("peer").unwrap(), 1),
                local: ListId(0),
                remote: ListId(0),
                pairs: (0..blocks).map(|i| (i, i)).collect(),
                notify,
            };
            postings.push(post, &lists, &lists).unwrap();
        }
        postings
    }

    #[test]
    fn posts_take_turns_and_are_finished_when_they_are_cut() {
        let (write, events) = (Direction::Write, &mut Vec::new());
        let mut postings =
            postings(&[(7, write, 6, None), (8, write, 1, Some(vec![1])), (9, write, 0, None)]);
        let cut: Vec<_> =
            std::iter::from_fn(|| postings.next_chunk(false, events)).map(|chunk| chunk.post).collect();
        assert_eq!(cut, [0, 1, 0, 0]);
        let finishes: Vec<_> = std::iter::from_fn(|| postings.next_finish()).collect();
        let finish = |post, writes, notify| Frame::Finish { post, writes, notify };
        assert_eq!(finishes, [finish(1, 1, Some(vec![1])), finish(2, 0, None), finish(0, 3, None)]);
        assert_eq!(postings.ended(3, Outcome::Moved, events), Err(Fault));
        assert_eq!(postings.landed(0, Outcome::Moved, events), Err(Fault), "it is no read");
        postings.ended(0, Outcome::Moved, events).unwrap();
        postings.ended(1, Outcome::NotPermitted, events).unwrap();
        postings.ended(2, Outcome::Moved, events).unwrap();
        assert_eq!(
            *events,
            [
                Event::Done(PostId(7)),
                Event::Failed(PostId(8), TransportError::NotPermitted),
                Event::Done(PostId(9))
            ]
        );
        assert!(postings.is_empty());
    }

    #[test]
    fn a_read_ends_when_every_chunk_is_here() {
        let (read, events) = (Direction::Read, &mut Vec::new());
        let mut postings = postings(&[(7, read, 4, None), (8, read, 2, Some(vec![1]))]);
        assert_eq!(postings.next_chunk(false, events), None);
        let cut: Vec<_> =
            std::iter::from_fn(|| postings.next_chunk(true, events)).map(|chunk| chunk.post).collect();
        assert_eq!(cut, [0, 1, 0]);
        assert_eq!(postings.ended(0, Outcome::Moved, events), Err(Fault), "the peer was not asked");
        for post in [0, 1, 0] {
            assert!(events.is_empty());
            postings.landed(post, Outcome::Moved, events).unwrap();
        }
        assert_eq!(*events, [Event::Done(PostId(7))]);
        assert!(matches!(postings.next_finish(), Some(Frame::Finish { post: 1, writes: 0, .. })));
        postings.ended(1, Outcome::Moved, events).unwrap();
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn a_read_that_fails_waits_for_what_is_under_way() {
        let events = &mut Vec::new();
        let mut postings = postings(&[(7, Direction::Read, 64, Some(vec![1]))]);
        postings.next_chunk(true, events).unwrap();
        postings.next_chunk(true, events).unwrap();
        postings.landed(0, Outcome::Damaged, events).unwrap();
        assert!(events.is_empty(), "its other chunk may still land");
        assert_eq!(postings.next_chunk(true, events), None, "nothing more is asked for");
        postings.landed(0, Outcome::Moved, events).unwrap();
        assert_eq!(*events, [Event::Failed(PostId(7), TransportError::Damaged)]);
        assert!(postings.is_empty() && postings.next_finish().is_none());
    }
}
