//! The reference for the router: of requests, attempts and legs only what must be true, whatever the router's reasons (I9).

use std::collections::{BTreeMap, BTreeSet};

use baton_routing::{LegId, LegStart, RequestId};
use baton_types::{LegKind, TransferId};

#[derive(Debug, Default)]
pub(crate) struct LegBook {
    stories: BTreeMap<RequestId, Story>,
    /// Every id that was ever given out, and the attempt that it belongs to.
    transfers: BTreeMap<TransferId, (RequestId, u32)>,
}

/// What is known of a request that is not over.
#[derive(Debug, Default)]
struct Story {
    attempt: u32,
    /// Attempts that an engine refused for the KV on its way to it: those are waits.
    waits: BTreeSet<u32>,
    live: BTreeMap<LegId, LegKind>,
    answered: bool,
}

impl LegBook {
    /// # Panics
    /// I9, I11: if this leg must not be.
    pub fn start(&mut self, start: &LegStart, most_attempts: u32) {
        let LegStart { leg, request, kind, transfer, attempt, .. } = start;
        let story = self.stories.entry(*request).or_default();
        assert!(!story.answered, "I9: {request:?} gets {leg:?} after its first byte");
        let waits = story.waits.len() as u32;
        assert!(*attempt <= most_attempts + waits, "I11: attempt {attempt} of {request:?}");
        if *attempt != story.attempt {
            assert!(*attempt > story.attempt && story.live.is_empty(), "I9: {request:?} has two attempts");
            story.attempt = *attempt;
        }
        assert!(story.live.values().all(|live| live != kind), "I9: {request:?} has two {kind:?} legs");
        assert!(story.live.insert(*leg, *kind).is_none(), "I9: {leg:?} starts twice");
        let owner = *self.transfers.entry(*transfer).or_insert((*request, *attempt));
        assert_eq!(owner, (*request, *attempt), "I4: {transfer} is named to two attempts");
    }

    /// From here on the client gets this leg's stream.
    pub fn answer(&mut self, request: RequestId, leg: LegId) {
        let story = self.stories.get_mut(&request).expect("I9: an answer to a request");
        assert!(story.live.contains_key(&leg), "I9: {leg:?} answers after its end");
        assert!(!std::mem::replace(&mut story.answered, true), "I9: {request:?} is answered twice");
    }

    /// Its engine has no room for it now.
    pub fn wait(&mut self, request: RequestId, leg: LegId) {
        if let Some(story) = self.stories.get_mut(&request).filter(|story| story.live.contains_key(&leg)) {
            story.waits.insert(story.attempt);
        }
    }

    /// It ended, failed, or was dropped.
    pub fn leg_over(&mut self, request: RequestId, leg: LegId) {
        if let Some(story) = self.stories.get_mut(&request) {
            story.live.remove(&leg);
        }
    }

    pub fn finish(&mut self, request: RequestId) {
        if let Some(story) = self.stories.remove(&request) {
            assert!(story.live.is_empty(), "I9: {request:?} is over, its legs {:?} are not", story.live);
        }
    }

    /// The router died: what it was doing nobody does any more. The ids that it gave out are still used.
    pub fn forget_requests(&mut self) {
        self.stories.clear();
    }
}

#[cfg(test)]
mod tests {
    use baton_routing::EngineKey;

    use super::*;

    fn start(leg: u64, kind: LegKind, transfer: u128, attempt: u32) -> LegStart {
        let (request, engine) = (RequestId(1), EngineKey(0));
        let transfer = TransferId(transfer);
        LegStart {
            leg: LegId(leg),
            request,
            engine,
            kind,
            mode: None,
            transfer,
            peer: None,
            reuse: None,
            attempt,
        }
    }

    #[test]
    fn an_attempt_has_a_pair_of_legs_and_a_transfer_of_its_own() {
        let mut book = LegBook::default();
        book.start(&start(1, LegKind::Prefill, 7, 1), 3);
        book.start(&start(2, LegKind::Decode, 7, 1), 3);
        book.leg_over(RequestId(1), LegId(1));
        book.leg_over(RequestId(1), LegId(2));
        book.start(&start(3, LegKind::Prefill, 8, 2), 3);
        book.leg_over(RequestId(1), LegId(3));
        book.finish(RequestId(1));
    }

    #[test]
    fn a_wait_for_room_is_no_attempt() {
        let mut book = LegBook::default();
        for attempt in 1..=3 {
            book.start(&start(attempt.into(), LegKind::Decode, attempt.into(), attempt), 1);
            book.wait(RequestId(1), LegId(attempt.into()));
            book.leg_over(RequestId(1), LegId(attempt.into()));
        }
    }

    #[test]
    #[should_panic(expected = "I11: attempt 2")]
    fn any_other_end_is() {
        let mut book = LegBook::default();
        book.start(&start(1, LegKind::Decode, 7, 1), 1);
        book.leg_over(RequestId(1), LegId(1));
        book.start(&start(2, LegKind::Decode, 8, 2), 1);
    }

    #[test]
    #[should_panic(expected = "is named to two attempts")]
    fn a_retry_with_the_old_transfer_is_seen() {
        let mut book = LegBook::default();
        book.start(&start(1, LegKind::Prefill, 7, 1), 3);
        book.leg_over(RequestId(1), LegId(1));
        book.start(&start(2, LegKind::Prefill, 7, 2), 3);
    }

    #[test]
    #[should_panic(expected = "I9: r1 gets l2 after its first byte")]
    fn a_leg_after_the_first_byte_is_seen() {
        let mut book = LegBook::default();
        book.start(&start(1, LegKind::Decode, 7, 1), 3);
        book.answer(RequestId(1), LegId(1));
        book.leg_over(RequestId(1), LegId(1));
        book.start(&start(2, LegKind::Decode, 8, 2), 3);
    }
}
