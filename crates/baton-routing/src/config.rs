//! What an operator sets: which engines there are, and the limits that bound everything (I11).

use std::time::Duration;

use baton_types::EngineRole;

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
}

/// Every bound of the core. A limit that is reached is a defined output, never a surprise.
#[derive(Clone, Debug, PartialEq)]
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
    pub queue: Duration,
    /// From the start of a leg to its connection.
    pub connect: Duration,
    /// From the connection of a prefill leg to its complete answer.
    pub prefill: Duration,
    /// From the connection of a streaming leg to its first byte.
    pub first_byte: Duration,
    /// From the connection of a leg that does not stream to its complete answer.
    pub answer: Duration,
    /// Longest silence in a stream.
    pub idle: Duration,
    /// Before a retry that has no fresh engine to go to; doubles with every attempt.
    pub retry_pause: Duration,
    /// How long an engine is avoided after its second failure in a row; doubles with every further one.
    pub backoff: Duration,
    /// The longest that an engine is avoided.
    pub backoff_max: Duration,
    /// Failed probes or connections in a row that make an engine unhealthy.
    pub probe_failures: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            max_queued: 1024,
            max_legs_per_engine: 256,
            attempts: 3,
            queue: Duration::from_secs(30),
            connect: Duration::from_secs(2),
            prefill: Duration::from_secs(120),
            first_byte: Duration::from_secs(120),
            answer: Duration::from_secs(600),
            idle: Duration::from_secs(60),
            retry_pause: Duration::from_millis(100),
            backoff: Duration::from_millis(250),
            backoff_max: Duration::from_secs(5),
            probe_failures: 3,
        }
    }
}
