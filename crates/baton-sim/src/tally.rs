//! What happened in a run, or in many, in numbers: above all, whether the faults really happened.

use std::fmt;

use baton_engine::Counters;

use crate::fault::Fault;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub events: u64,
    pub steps: u64,
    pub requests: u64,
    pub answered: u64,
    pub failed: u64,
    pub gone: u64,
    pub legs: u64,
    pub posts: u64,
    pub posts_done: u64,
    pub posts_failed: u64,
    pub received: u64,
    pub lost: u64,
    pub sent: u64,
    pub unsent: u64,
    pub recomputed: u64,
    pub preemptions: u64,
    pub hit_tokens: u64,
    pub computed_tokens: u64,
    /// Conversations that were retained; how many of them ended with time, and how many gave way.
    pub retained: u64,
    pub expired: u64,
    pub revoked: u64,
    /// Legs that said where KV may be, and what came of them.
    pub references: u64,
    pub readbacks: u64,
    pub readbacks_done: u64,
    pub declined: u64,
    pub readbacks_expired: u64,
    pub readbacks_failed: u64,
    pub readback_tokens: u64,
    faults: [u64; Fault::ALL.len()],
}

impl Tally {
    pub(crate) fn count(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// What one life of an engine did.
    pub(crate) fn add(&mut self, engine: Counters) {
        self.received += engine.transfers_received;
        self.lost += engine.transfers_lost;
        self.sent += engine.transfers_sent;
        self.unsent += engine.transfers_unsent;
        self.recomputed += engine.recomputed;
        self.preemptions += engine.preemptions;
        self.hit_tokens += engine.prefix_hit_tokens;
        self.computed_tokens += engine.computed_tokens;
        self.retained += engine.retained;
        self.expired += engine.retained_expired;
        self.revoked += engine.retained_revoked;
        self.references += engine.reuse_requests;
        self.readbacks += engine.readbacks;
        self.readbacks_done += engine.readbacks_done;
        self.declined += engine.readbacks_declined;
        self.readbacks_expired += engine.readbacks_expired;
        self.readbacks_failed += engine.readbacks_failed;
        self.readback_tokens += engine.readback_tokens;
    }

    /// How often faults of this kind happened.
    pub fn faults(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// Adds another run's.
    pub fn merge(&mut self, other: &Self) {
        let pairs = [
            (&mut self.events, other.events),
            (&mut self.steps, other.steps),
            (&mut self.requests, other.requests),
            (&mut self.answered, other.answered),
            (&mut self.failed, other.failed),
            (&mut self.gone, other.gone),
            (&mut self.legs, other.legs),
            (&mut self.posts, other.posts),
            (&mut self.posts_done, other.posts_done),
            (&mut self.posts_failed, other.posts_failed),
            (&mut self.received, other.received),
            (&mut self.lost, other.lost),
            (&mut self.sent, other.sent),
            (&mut self.unsent, other.unsent),
            (&mut self.recomputed, other.recomputed),
            (&mut self.preemptions, other.preemptions),
            (&mut self.hit_tokens, other.hit_tokens),
            (&mut self.computed_tokens, other.computed_tokens),
            (&mut self.retained, other.retained),
            (&mut self.expired, other.expired),
            (&mut self.revoked, other.revoked),
            (&mut self.references, other.references),
            (&mut self.readbacks, other.readbacks),
            (&mut self.readbacks_done, other.readbacks_done),
            (&mut self.declined, other.declined),
            (&mut self.readbacks_expired, other.readbacks_expired),
            (&mut self.readbacks_failed, other.readbacks_failed),
            (&mut self.readback_tokens, other.readback_tokens),
        ];
        for (ours, theirs) in pairs.into_iter().chain(self.faults.iter_mut().zip(other.faults)) {
            *ours += theirs;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, steps, requests, answered, failed, gone, legs, .. } = self;
        writeln!(f, "events     {events}, of them steps {steps}")?;
        writeln!(f, "requests   {requests}: {answered} answered, {failed} failed, {gone} left; {legs} legs")?;
        let Self { posts, posts_done, posts_failed, received, lost, sent, unsent, .. } = self;
        writeln!(f, "transfers  in: {received} received, {lost} lost; out: {sent} sent, {unsent} not sent")?;
        writeln!(f, "posts      {posts}: {posts_done} done, {posts_failed} failed")?;
        let Self { recomputed, preemptions, hit_tokens, computed_tokens, .. } = self;
        writeln!(f, "sequences  {recomputed} recomputed, {preemptions} preemptions")?;
        writeln!(f, "tokens     {computed_tokens} computed, {hit_tokens} prefix hits")?;
        let Self { retained, expired, revoked, references, readbacks, readbacks_done, declined, .. } = self;
        writeln!(f, "retained   {retained}: {expired} expired, {revoked} revoked")?;
        write!(
            f,
            "references {references}: {readbacks} readbacks, {readbacks_done} done, {declined} declined, "
        )?;
        writeln!(f, "{} tokens", self.readback_tokens)?;
        write!(f, "faults    ")?;
        for fault in Fault::ALL {
            write!(f, " {fault} {}", self.faults(fault))?;
        }
        Ok(())
    }
}
