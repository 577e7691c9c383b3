//! The core's invariants, asserted over its whole state. For tests and the simulator: it walks everything.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine_table::EngineKey;
use crate::request::{RequestId, RequestState};
use crate::router_core::RouterCore;

impl RouterCore {
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        self.check_legs();
        self.check_requests();
        self.check_bounds();
        self.check_timers();
        self.check_conversations();
    }

    fn check_legs(&self) {
        let mut live: BTreeMap<EngineKey, usize> = BTreeMap::new();
        for (id, leg) in &self.legs {
            let request = self.requests.get(&leg.request).unwrap_or_else(|| panic!("{id:?} has no request"));
            let attempt = request.attempt().unwrap_or_else(|| panic!("{id:?} has no attempt"));
            let step = attempt.step_of(*id).unwrap_or_else(|| panic!("{id:?} is no step of its attempt"));
            assert_eq!(attempt.plan.steps[step].kind, leg.kind, "{id:?}");
            *live.entry(leg.engine).or_default() += 1;
        }
        for (key, engine) in self.engines.iter() {
            assert_eq!(engine.live_legs, live.get(&key).copied().unwrap_or(0), "live legs of {key:?}");
        }
    }

    fn check_requests(&self) {
        for (id, request) in &self.requests {
            let Some(attempt) = request.attempt() else { continue };
            // I9: at most one live leg of a kind, and an attempt that runs has one.
            let mut kinds = BTreeSet::new();
            for leg in attempt.live_legs() {
                assert!(kinds.insert(self.legs[&leg].kind), "{id:?} has two legs of a kind");
            }
            assert!(!kinds.is_empty(), "{id:?} runs without a leg");
            assert!(request.attempts_counted() <= self.config.limits.attempts, "{id:?} tries too often");
            // I9: once it answers, the answering leg is live until the request is over.
            let answers = attempt.steps[attempt.plan.answers].leg();
            assert!(!attempt.answering || answers.is_some(), "{id:?} answers without a leg");
        }
    }

    // I11
    fn check_bounds(&self) {
        let limits = &self.config.limits;
        assert!(self.requests.len() <= limits.max_requests);
        assert!(self.legs.len() <= 2 * self.requests.len());
        assert!(self.queue.len() <= self.requests.len());
        let first_wait = |id: &&RequestId| self.requests[*id].attempts == 0;
        assert!(self.queue.iter().filter(first_wait).count() <= limits.max_queued);
    }

    fn check_conversations(&self) {
        self.conversations.check(self.now);
        for (key, entry) in self.conversations.iter() {
            let info = self.engines.get(entry.engine).info.as_ref();
            let current = info.map(|info| info.engine_id.incarnation);
            assert_eq!(current, Some(entry.incarnation), "{key:?} is of an engine that is no more");
        }
    }

    fn check_timers(&self) {
        let mut expected: BTreeSet<_> =
            self.legs.iter().map(|(id, leg)| (leg.deadline, leg.reason(*id))).collect();
        expected.extend(self.requests.iter().filter_map(|(id, request)| request.timer(*id)));
        assert_eq!(self.timers, expected, "one timer for each leg and each waiting request");
        let queued: BTreeSet<RequestId> = self.queue.iter().copied().collect();
        assert_eq!(queued.len(), self.queue.len(), "nobody waits twice");
        for (id, request) in &self.requests {
            let waits = matches!(request.state, RequestState::Queued { .. });
            assert_eq!(waits, queued.contains(id), "{id:?} is queued in one place only");
        }
    }
}
