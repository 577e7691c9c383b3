//! A leg: one HTTP exchange of a request with one engine, from its start to its one end.

use std::fmt;
use std::time::Duration;

use baton_types::{LegKind, Time};

use crate::config::Limits;
use crate::engine_table::EngineKey;
use crate::event::Reason;
use crate::request::RequestId;

/// Counted up by the core, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegId(pub u64);

impl fmt::Debug for LegId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{}", self.0)
    }
}

/// What went wrong with a leg. What follows from it is in [`retry`](crate::retry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegFault {
    /// No connection.
    Connect,
    /// The connection broke before the answer was complete.
    Broken,
    /// The engine has no room: 429, or 503.
    Overloaded,
    /// As much KV is on its way to or from the engine as it takes (503, `kv_in_flight`): soon it has room again.
    KvInFlight,
    /// Any other 5xx.
    ServerError,
    /// Only a prefill leg: the engine that was to take its KV has given it up, and goes on without it or has failed itself.
    Unwanted,
    /// A 4xx: the request is at fault. The driver keeps the engine's answer.
    Refused,
    /// Status 200, but nothing in it: no choices, `finish_reason` "error", an error event, no handle, not JSON.
    BadAnswer,
    /// The core's own: a time limit has passed.
    TimedOut,
    /// The core's own: the engine that had this leg is gone, another incarnation answers in its place.
    Restarted,
}

/// How far a leg is; each phase has its own time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegPhase {
    Connecting,
    Waiting,
    Streaming,
    /// The client does not take what the stream has for it: the engine is not to blame.
    Blocked,
}

#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub request: RequestId,
    pub engine: EngineKey,
    pub kind: LegKind,
    pub streaming: bool,
    pub started: Time,
    pub phase: LegPhase,
    /// When the phase's limit passes.
    pub deadline: Time,
}

impl Leg {
    /// How long the phase that the leg is in may last.
    pub fn limit(&self, limits: &Limits) -> Duration {
        Duration::from_millis(match (self.phase, self.kind) {
            (LegPhase::Connecting, _) => limits.connect_ms,
            (LegPhase::Waiting, LegKind::Prefill) => limits.prefill_ms,
            (LegPhase::Waiting, _) if self.streaming => limits.first_byte_ms,
            (LegPhase::Waiting, _) => limits.answer_ms,
            (LegPhase::Streaming, _) => limits.idle_ms,
            (LegPhase::Blocked, _) => limits.client_stall_ms,
        })
    }

    pub fn reason(&self, id: LegId) -> Reason {
        match self.phase {
            LegPhase::Connecting => Reason::Connect(id),
            LegPhase::Waiting => Reason::Answer(id),
            LegPhase::Streaming => Reason::Idle(id),
            LegPhase::Blocked => Reason::ClientStall(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_own_limit() {
        let limits = Limits::default();
        let leg = |kind, streaming, phase| Leg {
            request: RequestId(1),
            engine: EngineKey(0),
            kind,
            streaming,
            started: Time::ZERO,
            phase,
            deadline: Time::ZERO,
        };
        let limit = |kind, streaming, phase| leg(kind, streaming, phase).limit(&limits).as_millis() as u64;
        assert_eq!(limit(LegKind::Decode, true, LegPhase::Connecting), limits.connect_ms);
        assert_eq!(limit(LegKind::Prefill, false, LegPhase::Waiting), limits.prefill_ms);
        assert_eq!(limit(LegKind::Decode, true, LegPhase::Waiting), limits.first_byte_ms);
        assert_eq!(limit(LegKind::Whole, false, LegPhase::Waiting), limits.answer_ms);
        assert_eq!(limit(LegKind::Whole, true, LegPhase::Streaming), limits.idle_ms);
    }
}
