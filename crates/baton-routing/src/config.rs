//! What an operator sets: which engines there are, and the limits that bound everything (I11).

use std::time::Duration;

use baton_types::{EngineRole, Mutation, Time};
use serde::{Deserialize, Serialize};

use crate::plan::Strategy;
use crate::policy::PolicyKind;

/// The configuration of a [`RouterCore`](crate::RouterCore).
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingConfig {
    /// The role of each engine; [`EngineKey`](crate::EngineKey)s index this list.
    pub engines: Vec<EngineRole>,
    pub strategy: Strategy,
    pub policy: PolicyKind,
    pub limits: Limits,
    pub mutation: Mutation,
}

/// Every bound of the core. A limit that is reached is a defined output, never a surprise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Requests that the router holds, waiting ones included; the next one is refused as overload.
    pub max_requests: usize,
    /// Of them, how many may wait before their first attempt.
    pub max_queued: usize,
    /// Live legs per engine.
    pub max_legs_per_engine: usize,
    /// Attempts per request, the first one included.
    pub attempts: u32,
    /// Longest wait for a free slot.
    pub queue_ms: u64,
    /// From the start of a leg to its connection.
    pub connect_ms: u64,
    /// From the connection of a prefill leg to its complete answer.
    pub prefill_ms: u64,
    /// From the connection of a streaming leg to its first byte.
    pub first_byte_ms: u64,
    /// From the connection of a leg that does not stream to its complete answer.
    pub answer_ms: u64,
    /// Longest silence in a stream.
    pub idle_ms: u64,
    /// How long a client may take nothing of a stream that has something for it.
    pub client_stall_ms: u64,
    /// Before a retry that has no fresh engine to go to; doubles with every attempt.
    pub retry_pause_ms: u64,
    /// How long an engine is avoided after its second failure in a row; doubles with every further one.
    pub backoff_ms: u64,
    /// The longest that an engine is avoided.
    pub backoff_max_ms: u64,
    /// Failed probes or connections in a row that make an engine unhealthy.
    pub probe_failures: u32,
    pub conversations: ConversationLimits,
}

/// What is remembered of conversations, and what may be done for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConversationLimits {
    /// Most of them; the one that would be forgotten first goes first.
    pub entries: usize,
    /// Most memory for them, in bytes.
    pub bytes: usize,
    /// Keys that one request may look up.
    pub lookups: usize,
    /// How much earlier than its engine the router forgets a conversation, so that a claim still finds it there; a
    /// fifteenth of the time where that is less.
    pub margin_ms: u64,
    /// The longest that a conversation is remembered, whatever its engine says.
    pub ttl_ms: u64,
    /// How much more load than the least loaded one the decode engine that retains a conversation may have and still get
    /// its next turn: live legs and waiting sequences.
    pub slack: usize,
}

impl Limits {
    pub(crate) fn queue(&self) -> Duration {
        Duration::from_millis(self.queue_ms)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            max_queued: 1024,
            max_legs_per_engine: 256,
            attempts: 3,
            queue_ms: 30_000,
            connect_ms: 2_000,
            prefill_ms: 120_000,
            first_byte_ms: 120_000,
            answer_ms: 600_000,
            idle_ms: 60_000,
            client_stall_ms: 60_000,
            retry_pause_ms: 100,
            backoff_ms: 250,
            backoff_max_ms: 5_000,
            probe_failures: 3,
            conversations: ConversationLimits::default(),
        }
    }
}

impl ConversationLimits {
    /// When to forget what an engine retains for `ttl`, counted from the start of the leg that it answered. The engine counts
    /// from the leg's end, which is later, so whatever the answer's way took, its own end is never before this.
    pub(crate) fn deadline(&self, started: Time, ttl: Duration) -> Time {
        let ttl = ttl.min(Duration::from_millis(self.ttl_ms));
        started + (ttl - Duration::from_millis(self.margin_ms).min(ttl / 15))
    }
}

impl Default for ConversationLimits {
    fn default() -> Self {
        Self {
            entries: 65_536,
            bytes: 16 << 20,
            lookups: 16,
            margin_ms: 5_000,
            ttl_ms: 24 * 3_600_000,
            slack: 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_forgets_before_the_engine_does() {
        let limits = ConversationLimits::default();
        let ms = |ttl_ms| limits.deadline(Time::from_millis(7), Duration::from_millis(ttl_ms)).0 / 1_000_000;
        assert_eq!(ms(480_000), 7 + 475_000);
        assert_eq!(ms(15_000), 7 + 14_000, "most of a short time is kept");
        assert_eq!(ms(0), 7);
        assert_eq!(ms(u64::MAX), 7 + limits.ttl_ms - 5_000);
        let none = ConversationLimits { margin_ms: 0, ..limits };
        assert_eq!(none.deadline(Time::ZERO, Duration::from_secs(9)), Time::from_millis(9_000));
    }
}
