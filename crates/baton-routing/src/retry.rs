//! What follows from a leg's fault: for the request, for the engine, and for the client.
//!
//! | fault | the request | the engine's record | the client, in the end |
//! |---|---|---|---|
//! | `Connect`, `Broken`, `ServerError`, `BadAnswer` | next attempt | a failure | engine failed |
//! | `Overloaded` | next attempt | a failure: one that is always full must not be first choice | overloaded |
//! | `KvInFlight` | waits for room: elsewhere, or here after a pause, for as long as one waits for a slot | nothing | overloaded |
//! | `TimedOut` | next attempt | a failure | timed out |
//! | `Restarted` | next attempt | nothing: the new one is innocent | engine failed |
//! | `Unwanted` | decode's leg decides; without one, next attempt | nothing | engine failed |
//! | `Refused` | ends | nothing | the engine's own words |
//!
//! "Next attempt" only while no byte has reached the client (I9) and attempts are left. It starts anew with a new
//! transfer id and all legs: a handle may have been consumed by the leg that failed, and is never used twice.

use std::time::Duration;

use crate::config::Limits;
use crate::event::Failure;
use crate::leg::{LegFault, LegId};

/// A wait for room lasts for `retry_pause_ms` at first, and at most for eight times as long.
pub(crate) const MAX_WAIT_DOUBLINGS: u32 = 4;

/// What becomes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Another attempt may go better; if there can be none, this is what the client is told.
    Again(Failure),
    /// Another attempt will go better soon.
    Later,
    /// No engine would answer otherwise.
    Final(Failure),
}

pub(crate) fn verdict(leg: LegId, fault: LegFault) -> Verdict {
    match fault {
        LegFault::Refused => Verdict::Final(Failure::Refused { leg }),
        LegFault::Overloaded => Verdict::Again(Failure::Overloaded),
        LegFault::KvInFlight => Verdict::Later,
        LegFault::TimedOut => Verdict::Again(Failure::TimedOut),
        LegFault::Connect
        | LegFault::Broken
        | LegFault::ServerError
        | LegFault::BadAnswer
        | LegFault::Unwanted
        | LegFault::Restarted => Verdict::Again(Failure::EngineFailed),
    }
}

/// Whether the fault speaks against the engine.
pub(crate) fn blames_engine(fault: LegFault) -> bool {
    use LegFault::{KvInFlight, Refused, Restarted, Unwanted};
    !matches!(fault, KvInFlight | Refused | Restarted | Unwanted)
}

/// How long to wait after `attempts` attempts when only engines are left that have failed already.
pub(crate) fn pause(limits: &Limits, attempts: u32) -> Duration {
    let ms = limits.retry_pause_ms.saturating_mul(1 << attempts.saturating_sub(1).min(10));
    Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_fault_is_final_and_blames_nobody() {
        let leg = LegId(4);
        assert_eq!(verdict(leg, LegFault::Refused), Verdict::Final(Failure::Refused { leg }));
        assert!(!blames_engine(LegFault::Refused));
        assert!(!blames_engine(LegFault::Restarted));
        assert!(blames_engine(LegFault::Overloaded));
        assert_eq!(verdict(leg, LegFault::Overloaded), Verdict::Again(Failure::Overloaded));
    }

    #[test]
    fn pauses_double_within_bounds() {
        let limits = Limits::default();
        let ms = |attempts| pause(&limits, attempts).as_millis() as u64;
        assert_eq!(ms(1), limits.retry_pause_ms);
        assert_eq!(ms(3), limits.retry_pause_ms * 4);
        assert_eq!(ms(u32::MAX), limits.retry_pause_ms * 1024);
    }
}
