//! What a turn may read of the ones before it, and what it leaves to the ones after it.
//!
//! A first attempt is given the best entry of its conversation whose engine still is what it was; it goes to the prefill
//! leg, and the engine that retains is preferred for decode, which then receives only what is new. A later attempt is given
//! nothing: what went wrong may have gone wrong because of it. For the same reason the entry is forgotten.

use baton_types::{LegKind, Mutant, Time};

use crate::conversation::{ConversationCounts, ConversationKey, Dropped, Entry};
use crate::engine_table::EngineKey;
use crate::event::{Retained, Reuse};
use crate::health::Standing;
use crate::leg::LegId;
use crate::plan::Plan;
use crate::request::RequestId;
use crate::router_core::RouterCore;

/// What was found for a turn, and where.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub key: ConversationKey,
    pub reuse: Reuse,
}

impl Found {
    /// The engine that retains it.
    pub fn holder(&self) -> EngineKey {
        self.reuse.holder.engine
    }
}

impl RouterCore {
    /// What has become of conversations so far.
    pub fn conversations(&self) -> ConversationCounts {
        self.conversations.counts()
    }

    /// Whether the next attempt of a request looks for an earlier turn.
    fn looks_up(&self, id: RequestId, plan: &Plan) -> bool {
        let request = self.request(id);
        let asks = request.turn.as_ref().is_some_and(|turn| !turn.find.is_empty());
        plan.reuse && asks && request.attempts == 0
    }

    /// The best of what an attempt that is about to begin could read. It may not begin yet, so nothing is counted.
    pub(crate) fn find_reuse(&self, now: Time, id: RequestId, plan: &Plan) -> Option<Found> {
        let turn = self.request(id).turn.as_ref().filter(|_| self.looks_up(id, plan))?;
        let keys = turn.find.iter().take(self.config.limits.conversations.lookups);
        keys.copied().find_map(|key| self.found(now, key))
    }

    /// What the attempt is given of it: nothing, if its prefill engine cannot exchange KV with the one that retains.
    pub(crate) fn settle_reuse(
        &mut self,
        id: RequestId,
        plan: &Plan,
        engines: &[(usize, EngineKey)],
        found: Option<Found>,
    ) -> Option<Found> {
        let reader = engines.iter().find(|(step, _)| plan.steps[*step].kind == LegKind::Prefill);
        let reader = reader.map(|(_, key)| self.engines.get(*key));
        let reads = |found: &Found| reader.is_some_and(|e| e.pairs_with(self.engines.get(found.holder())));
        let found = found.filter(reads);
        if self.looks_up(id, plan) {
            self.conversations.looked_up(found.is_some());
        }
        found
    }

    fn found(&self, now: Time, key: ConversationKey) -> Option<Found> {
        let entry = self.conversations.get(key)?;
        let holder = self.engines.peer(entry.engine)?;
        let survives = self.config.mutation.is(Mutant::ConversationSurvivesRestart);
        if holder.id.incarnation != entry.incarnation && !survives {
            return None;
        }
        let Entry { transfer, tokens, deadline, .. } = *entry;
        Some(Found { key, reuse: Reuse { holder, transfer, tokens, ttl: deadline.since(now) } })
    }

    /// The answering leg's engine says that it retains the conversation.
    pub(crate) fn leg_retained(&mut self, now: Time, id: LegId, retained: &Retained) {
        let Some(leg) = self.legs.get(&id) else { return };
        let (request, engine) = (self.request(leg.request), self.engines.get(leg.engine));
        let attempt = self.running_attempt(leg.request);
        let answers = attempt.plan.reuse && attempt.step_of(id) == Some(attempt.plan.answers);
        let Some(turn) = request.turn.as_ref().filter(|_| answers) else { return };
        // An engine speaks for itself only, and for its present incarnation.
        let is_own = engine.info.as_ref().is_some_and(|info| info.engine_id == retained.engine);
        let deadline = self.config.limits.conversations.deadline(leg.started, retained.ttl);
        let is_there = engine.standing(now) != Standing::Unhealthy && deadline > now && retained.tokens > 0;
        if is_own && is_there {
            let entry = Entry {
                engine: leg.engine,
                incarnation: retained.engine.incarnation,
                transfer: retained.transfer,
                tokens: retained.tokens,
                deadline,
            };
            self.conversations.store(turn.store, entry);
        }
    }

    /// Another incarnation answers: what its predecessor retained is void.
    pub(crate) fn forget_incarnation(&mut self, engine: EngineKey) {
        if !self.config.mutation.is(Mutant::ConversationSurvivesRestart) {
            self.conversations.forget_engine(engine, Dropped::Restarted);
        }
    }

    /// A probe or a connection has failed; so many of them, and the engine is gone, with what it retains.
    pub(crate) fn engine_not_reached(&mut self, now: Time, key: EngineKey) {
        let engine = self.engines.get_mut(key);
        let before = engine.standing(now);
        engine.health.not_reached(&self.config.limits);
        if before != Standing::Unhealthy && engine.standing(now) == Standing::Unhealthy {
            self.conversations.forget_engine(key, Dropped::Unreachable);
        }
    }
}
