//! The posts to one peer that are in flight: how each is taken apart, and their queue for transports whose
//! initiator copies the bytes itself.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::convert::Conversion;
use crate::copy::Run;
use crate::lists::Lists;
use crate::transport::{
    Descriptor, Direction, Event, MAX_NOTIFICATION, MAX_PAIRS, Post, PostId, TransportError,
};

/// How much is copied for one peer before the others, and whoever waits for the poll, get their turn: about
/// 0.1 ms.
pub(crate) const SLICE_BYTES: usize = 512 << 10;

/// A post of which bytes are still to be moved.
#[derive(Debug)]
pub(crate) struct Moving {
    id: PostId,
    pub direction: Direction,
    local: Arc<[Descriptor]>,
    remote: Arc<[Descriptor]>,
    pairs: Vec<(u32, u32)>,
    pub notify: Option<Vec<u8>>,
    conversion: Option<Conversion>,
    /// The first pair that is not wholly moved, and how many elements of it are. Without conversion an element is a byte.
    next_pair: usize,
    moved: u32,
}

impl Moving {
    pub fn new(post: Post, local: &Lists, remote: &Lists) -> Result<Self, TransportError> {
        Self::converting(post, local, remote, None)
    }

    /// The same where the peer's elements may have another type: a pair has equally many of them.
    pub fn converting(
        post: Post,
        local: &Lists,
        remote: &Lists,
        conversion: Option<Conversion>,
    ) -> Result<Self, TransportError> {
        if post.pairs.len() > MAX_PAIRS {
            return Err(TransportError::Limit("pairs of a post"));
        }
        if post.notify.as_ref().is_some_and(|bytes| bytes.len() > MAX_NOTIFICATION) {
            return Err(TransportError::Limit("bytes of a notification"));
        }
        let (local, remote) = (local.get(post.local)?, remote.get(post.remote)?);
        let (local_bytes, remote_bytes) = element_bytes(conversion);
        let fit = |l: &Descriptor, r: &Descriptor| {
            let whole = l.len.is_multiple_of(local_bytes) && r.len.is_multiple_of(remote_bytes);
            whole && l.len / local_bytes == r.len / remote_bytes
        };
        for &(l, r) in &post.pairs {
            match (local.get(l as usize), remote.get(r as usize)) {
                (Some(l), Some(r)) if fit(l, r) => {}
                _ => return Err(TransportError::OutOfBounds),
            }
        }
        Ok(Self {
            id: post.id,
            direction: post.direction,
            local: local.clone(),
            remote: remote.clone(),
            pairs: post.pairs,
            notify: post.notify,
            conversion,
            next_pair: 0,
            moved: 0,
        })
    }

    pub fn is_finished(&self) -> bool {
        self.next_pair == self.pairs.len()
    }

    /// The next elements to move, at most `max_bytes` (enough for one) on either side: neighbouring pairs become one run. None
    /// when nothing is left.
    pub fn next_run(&mut self, max_bytes: usize) -> Option<Run> {
        let (local_bytes, remote_bytes) = element_bytes(self.conversion);
        let max_len = max_bytes / local_bytes.max(remote_bytes) as usize;
        let mut run: Option<Run> = None;
        while let Some(&(l, r)) = self.pairs.get(self.next_pair) {
            let (l, r) = (self.local[l as usize], self.remote[r as usize]);
            let left = (l.len / local_bytes - self.moved) as usize;
            if left == 0 {
                (self.next_pair, self.moved) = (self.next_pair + 1, 0);
                continue;
            }
            let local = l.offset + u64::from(self.moved) * u64::from(local_bytes);
            let remote = r.offset + u64::from(self.moved) * u64::from(remote_bytes);
            let (direction, conversion) = (self.direction, self.conversion);
            let run = run.get_or_insert(Run { direction, local, remote, len: 0, conversion });
            if run.len == max_len || run.local_end() != local || run.remote_end() != remote {
                break;
            }
            let taken = left.min(max_len - run.len);
            run.len += taken;
            self.moved += taken as u32;
        }
        run
    }
}

/// Bytes of one element of ours and of the peer's.
pub(crate) fn element_bytes(conversion: Option<Conversion>) -> (u32, u32) {
    conversion.map_or((1, 1), |c| (c.local().bytes() as u32, c.remote().bytes() as u32))
}

/// A post whose bytes are in place, and whose notification still has to be sent.
#[derive(Debug)]
struct Copied {
    id: PostId,
    notify: Option<Vec<u8>>,
}

/// Whether a notification went out.
pub(crate) enum Sent {
    Yes,
    /// The way to the peer is full; the notification stays, and with it the post.
    Later,
    /// The peer is gone.
    Gone,
}

/// Posts to one peer: first they copy, by turns, then they notify, in the order in which they finished.
#[derive(Debug)]
pub(crate) struct PostQueue {
    max_posts: usize,
    pub conversion: Option<Conversion>,
    copying: VecDeque<Moving>,
    copied: VecDeque<Copied>,
    /// Those that touch what the peer does not permit.
    refused: Vec<PostId>,
}

impl PostQueue {
    pub fn new(max_posts: usize) -> Self {
        Self {
            max_posts,
            conversion: None,
            copying: VecDeque::new(),
            copied: VecDeque::new(),
            refused: Vec::new(),
        }
    }

    pub fn push(&mut self, post: Post, local: &Lists, remote: &Lists) -> Result<(), TransportError> {
        if self.copying.len() + self.copied.len() + self.refused.len() >= self.max_posts {
            return Err(TransportError::Limit("posts in flight to a peer"));
        }
        self.copying.push_back(Moving::converting(post, local, remote, self.conversion)?);
        Ok(())
    }

    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Copies at most [`SLICE_BYTES`]. The post in front goes to the end afterwards, so that a long one
    /// delays a short one by a slice and not by its length. `copy` says whether the peer permits the run, and
    /// copies it if so; a post that is not permitted is over.
    pub fn copy_slice(&mut self, mut copy: impl FnMut(Run) -> bool) {
        let mut budget = SLICE_BYTES;
        while budget > 0 {
            let Some(post) = self.copying.front_mut() else { return };
            let mut is_permitted = true;
            while budget > 0
                && is_permitted
                && let Some(run) = post.next_run(budget)
            {
                is_permitted = copy(run);
                budget -= run.bytes();
            }
            let Some(post) = self.copying.pop_front() else { return };
            if !is_permitted {
                self.refused.push(post.id);
            } else if post.is_finished() {
                self.copied.push_back(Copied { id: post.id, notify: post.notify });
            } else {
                self.copying.push_back(post);
            }
        }
    }

    /// Sends the notifications of posts that are copied, and reports those posts as done; those that were not
    /// permitted as failed.
    pub fn notify(&mut self, events: &mut Vec<Event>, mut send: impl FnMut(&[u8]) -> Sent) -> Sent {
        let refused = self.refused.drain(..);
        events.extend(refused.map(|id| Event::Failed(id, TransportError::NotPermitted)));
        while let Some(post) = self.copied.front() {
            if let Some(bytes) = &post.notify {
                match send(bytes) {
                    Sent::Yes => {}
                    stuck => return stuck,
                }
            }
            events.push(Event::Done(post.id));
            self.copied.pop_front();
        }
        Sent::Yes
    }

    /// Ends every post.
    pub fn fail_all(&mut self, error: &TransportError, events: &mut Vec<Event>) {
        let copied = self.copied.drain(..).map(|post| post.id);
        let copying = self.copying.drain(..).map(|post| post.id);
        let all = copied.chain(copying).chain(self.refused.drain(..));
        events.extend(all.map(|id| Event::Failed(id, error.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{ListId, TransportLimits};
    use baton_types::{EngineId, EngineName};

    fn lists(len: u32, blocks: u64) -> Lists {
        let limits = TransportLimits::default();
        let mut lists = Lists::new(u64::from(len) * blocks, &limits);
        let all: Vec<_> = (0..blocks).map(|i| Descriptor { offset: i * u64::from(len), len }).collect();
        lists.prepare(ListId(0), &all).unwrap();
        lists
    }

    fn post(id: u64, pairs: &[(u32, u32)]) -> Post {
        Post {
            id: PostId(id),
            direction: Direction::Write,
            peer: EngineId::new(EngineName::new("peer").unwrap(), 1),
            local: ListId(0),
            remote: ListId(0),
            pairs: pairs.to_vec(),
            notify: None,
        }
    }

    #[test]
    fn neighbours_on_both_sides_become_one_run() {
        let lists = lists(10, 16);
        let mut post =
            Moving::new(post(0, &[(0, 4), (1, 5), (2, 6), (3, 8), (5, 9), (4, 10)]), &lists, &lists).unwrap();
        let runs: Vec<_> =
            std::iter::from_fn(|| post.next_run(1000)).map(|r| (r.local, r.remote, r.len)).collect();
        assert_eq!(runs, [(0, 40, 30), (30, 80, 10), (50, 90, 10), (40, 100, 10)]);
        assert!(post.is_finished());
    }

    #[test]
    fn a_run_stops_at_the_slice_and_goes_on_there() {
        let lists = lists(10, 16);
        let mut post = Moving::new(post(0, &[(0, 4), (1, 5)]), &lists, &lists).unwrap();
        let runs: Vec<_> =
            std::iter::from_fn(|| post.next_run(7)).map(|r| (r.local, r.remote, r.len)).collect();
        assert_eq!(runs, [(0, 40, 7), (7, 47, 7), (14, 54, 6)]);
    }

    #[test]
    fn a_long_post_does_not_hold_up_a_short_one() {
        let half = (SLICE_BYTES / 2) as u32;
        let lists = lists(half, 8);
        let mut queue = PostQueue::new(2);
        queue.push(post(1, &[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]), &lists, &lists).unwrap();
        queue.push(post(2, &[(5, 5)]), &lists, &lists).unwrap();
        assert!(matches!(queue.push(post(3, &[]), &lists, &lists), Err(TransportError::Limit(_))));
        let mut events = Vec::new();
        let mut slices = 0;
        while queue.is_copying() {
            slices += 1;
            queue.copy_slice(|_| true);
            queue.notify(&mut events, |_| Sent::Yes);
            if slices == 2 {
                assert_eq!(events, [Event::Done(PostId(2))]);
            }
        }
        assert_eq!((slices, events.len()), (3, 2));
    }
}
