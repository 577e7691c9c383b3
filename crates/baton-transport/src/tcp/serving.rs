//! A peer's posts into our memory: what has landed, and whom to tell.

use std::collections::{BTreeMap, VecDeque};

use baton_types::EngineId;

use super::frame::{Fault, Frame, MAX_OPEN_POSTS, Outcome};
use crate::transport::Event;

/// A post of which chunks have landed, or whose end was announced: these come on different lanes, in any order.
#[derive(Debug)]
struct Landing {
    writes: u32,
    finish: Option<Finish>,
    /// The first that went wrong, if any did.
    outcome: Outcome,
}

#[derive(Debug)]
struct Finish {
    writes: u32,
    notify: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(super) struct Serving {
    landings: BTreeMap<u64, Landing>,
    /// Posts whose end was announced, in that order, which is the order in which they are told of.
    finished: VecDeque<u64>,
}

impl Serving {
    fn landing(&mut self, post: u64) -> Result<&mut Landing, Fault> {
        if self.landings.len() >= MAX_OPEN_POSTS && !self.landings.contains_key(&post) {
            return Err(Fault);
        }
        Ok(self.landings.entry(post).or_insert(Landing { writes: 0, finish: None, outcome: Outcome::Moved }))
    }

    /// A chunk is in place, or was dropped.
    pub fn write_landed(&mut self, post: u64, outcome: Outcome) -> Result<(), Fault> {
        let landing = self.landing(post)?;
        landing.writes = landing.writes.checked_add(1).ok_or(Fault)?;
        if landing.outcome == Outcome::Moved {
            landing.outcome = outcome;
        }
        Ok(())
    }

    /// The peer says that a post has so many chunks, which may have landed or not.
    pub fn finish(&mut self, post: u64, writes: u32, notify: Option<Vec<u8>>) -> Result<(), Fault> {
        let landing = self.landing(post)?;
        if landing.finish.replace(Finish { writes, notify }).is_some() {
            return Err(Fault);
        }
        self.finished.push_back(post);
        Ok(())
    }

    /// Ends the posts that are complete: tells of them here, and gives what to tell the peer.
    pub fn settle(&mut self, peer: &EngineId, events: &mut Vec<Event>) -> Result<Vec<Frame>, Fault> {
        let mut ended = Vec::new();
        while let Some(&post) = self.finished.front() {
            let landing = self.landings.get_mut(&post).ok_or(Fault)?;
            let finish = landing.finish.as_mut().ok_or(Fault)?;
            if landing.writes < finish.writes {
                break;
            }
            if landing.writes > finish.writes {
                return Err(Fault);
            }
            if landing.outcome == Outcome::Moved
                && let Some(bytes) = finish.notify.take()
            {
                events.push(Event::Notified { peer: peer.clone(), bytes });
            }
            ended.push(Frame::Ended { post, outcome: landing.outcome });
            self.landings.remove(&post);
            self.finished.pop_front();
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::EngineName;

    fn settled(serving: &mut Serving) -> Result<(Vec<Event>, Vec<Frame>), Fault> {
        let (peer, mut events) = (EngineId::new(EngineName::new("p").unwrap(), 1), Vec::new());
        let frames = serving.settle(&peer, &mut events)?;
        Ok((events, frames))
    }

    #[test]
    fn a_post_is_told_of_when_all_of_it_has_landed() {
        let mut serving = Serving::default();
        serving.finish(1, 2, Some(vec![1])).unwrap();
        serving.finish(2, 0, Some(vec![2])).unwrap();
        serving.write_landed(1, Outcome::Moved).unwrap();
        assert_eq!(settled(&mut serving), Ok((vec![], vec![])), "in the order in which they were finished");
        serving.write_landed(1, Outcome::Moved).unwrap();
        let (events, frames) = settled(&mut serving).unwrap();
        assert_eq!((events.len(), frames.len()), (2, 2));
        assert!(matches!(&events[0], Event::Notified { bytes, .. } if bytes == &[1]));
        assert!(serving.landings.is_empty());
    }

    #[test]
    fn a_post_that_went_wrong_is_told_to_the_peer_only() {
        let mut serving = Serving::default();
        serving.write_landed(1, Outcome::Moved).unwrap();
        serving.write_landed(1, Outcome::NotPermitted).unwrap();
        serving.write_landed(1, Outcome::Damaged).unwrap();
        serving.finish(1, 3, Some(vec![1])).unwrap();
        let ended = Frame::Ended { post: 1, outcome: Outcome::NotPermitted };
        assert_eq!(settled(&mut serving), Ok((vec![], vec![ended])));
    }

    #[test]
    fn what_no_agent_does_is_a_fault() {
        let mut serving = Serving::default();
        serving.finish(1, 1, None).unwrap();
        assert_eq!(serving.finish(1, 1, None), Err(Fault), "twice");
        serving.write_landed(1, Outcome::Moved).unwrap();
        serving.write_landed(1, Outcome::Moved).unwrap();
        assert_eq!(settled(&mut serving), Err(Fault), "one too many");
        let mut serving = Serving::default();
        for post in 0..MAX_OPEN_POSTS as u64 {
            serving.write_landed(post, Outcome::Moved).unwrap();
        }
        assert_eq!(serving.write_landed(5000, Outcome::Moved), Err(Fault), "too many at once");
    }
}
