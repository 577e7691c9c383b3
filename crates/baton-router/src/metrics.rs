//! What `/metrics` shows. The recorder belongs to one router, not to the process: several can live in one.

use std::fmt;
use std::time::Duration;

use baton_routing::{ConversationCounts, Dropped, RequestEnd};
use baton_types::LegKind;
use metrics::{counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

const REQUESTS: &str = "baton_router_requests_total";
const LIVE_REQUESTS: &str = "baton_router_live_requests";
const LEGS: &str = "baton_router_legs_total";
const LIVE_LEGS: &str = "baton_router_live_legs";
const RETRIES: &str = "baton_router_retries_total";
const TTFT: &str = "baton_router_ttft_seconds";
const ENGINE_FIT: &str = "baton_router_engine_fit";
const LOOKUPS: &str = "baton_router_conversation_lookups_total";
const FOUND: &str = "baton_router_conversations_found_total";
const STORED: &str = "baton_router_conversations_stored_total";
const DROPPED: &str = "baton_router_conversations_dropped_total";
const CONVERSATIONS: &str = "baton_router_conversations";
const CONVERSATION_BYTES: &str = "baton_router_conversation_bytes";

/// From 1 ms on, each 1.5 to 2 times the one before: TTFT spans four orders of magnitude.
const TTFT_BUCKETS_S: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(TTFT.to_owned()), &TTFT_BUCKETS_S)
            .expect("there are buckets")
            .build_recorder();
        let handle = recorder.handle();
        let metrics = Self { recorder, handle };
        metrics.describe();
        metrics
    }

    fn describe(&self) {
        with_local_recorder(&self.recorder, || {
            metrics::describe_counter!(REQUESTS, "Requests that are over, by outcome.");
            metrics::describe_gauge!(LIVE_REQUESTS, "Requests that are not over.");
            metrics::describe_counter!(LEGS, "Legs that are over, by engine, kind and outcome.");
            metrics::describe_gauge!(LIVE_LEGS, "Legs that are not over, by engine.");
            metrics::describe_counter!(RETRIES, "Attempts after a request's first.");
            metrics::describe_histogram!(TTFT, "From a request's arrival to its first byte of answer.");
            metrics::describe_gauge!(ENGINE_FIT, "1 if the engine is selected without reservations.");
            metrics::describe_counter!(LOOKUPS, "Turns for which an earlier one was looked for.");
            metrics::describe_counter!(FOUND, "Turns whose prefill was told where KV of an earlier one is.");
            metrics::describe_counter!(STORED, "Turns whose KV a decode engine has retained.");
            metrics::describe_counter!(DROPPED, "Turns that are no longer remembered, by reason.");
            metrics::describe_gauge!(CONVERSATIONS, "Turns that are remembered.");
            metrics::describe_gauge!(CONVERSATION_BYTES, "Memory of them, by estimate.");
        });
    }

    pub fn arrived(&self) {
        with_local_recorder(&self.recorder, || gauge!(LIVE_REQUESTS).increment(1.0));
    }

    pub fn finished(&self, end: RequestEnd) {
        let outcome = match end {
            RequestEnd::Answered => "answered".to_owned(),
            RequestEnd::ClientGone => "client_gone".to_owned(),
            RequestEnd::Failed(failure) => snake_case(failure),
        };
        with_local_recorder(&self.recorder, || {
            gauge!(LIVE_REQUESTS).decrement(1.0);
            counter!(REQUESTS, "outcome" => outcome).increment(1);
        });
    }

    pub fn leg_started(&self, engine: &str, kind: LegKind, attempt: u32) {
        with_local_recorder(&self.recorder, || {
            gauge!(LIVE_LEGS, "engine" => engine.to_owned()).increment(1.0);
            // An attempt is counted once, by the leg that answers.
            if attempt > 1 && kind != LegKind::Prefill {
                counter!(RETRIES).increment(1);
            }
        });
    }

    /// `fault`: none if it ended well or was dropped, which `outcome` then says.
    pub fn leg_over(&self, engine: &str, kind: LegKind, outcome: LegOutcome) {
        let outcome = match outcome {
            LegOutcome::Ended => "ended".to_owned(),
            LegOutcome::Dropped => "dropped".to_owned(),
            LegOutcome::Failed(fault) => snake_case(fault),
        };
        let labels = [("engine", engine.to_owned()), ("kind", snake_case(kind)), ("outcome", outcome)];
        with_local_recorder(&self.recorder, || {
            gauge!(LIVE_LEGS, "engine" => engine.to_owned()).decrement(1.0);
            counter!(LEGS, &labels).increment(1);
        });
    }

    pub fn first_byte(&self, after: Duration) {
        with_local_recorder(&self.recorder, || histogram!(TTFT).record(after.as_secs_f64()));
    }

    pub fn engine_fit(&self, engine: &str, fit: bool) {
        let fit = f64::from(u8::from(fit));
        with_local_recorder(&self.recorder, || gauge!(ENGINE_FIT, "engine" => engine.to_owned()).set(fit));
    }

    /// The core counts; this shows.
    pub fn conversations(&self, counts: &ConversationCounts) {
        with_local_recorder(&self.recorder, || {
            counter!(LOOKUPS).absolute(counts.lookups);
            counter!(FOUND).absolute(counts.found);
            counter!(STORED).absolute(counts.stored);
            for why in Dropped::ALL {
                let dropped = counts.dropped.get(&why).copied().unwrap_or(0);
                counter!(DROPPED, "reason" => snake_case(why)).absolute(dropped);
            }
            gauge!(CONVERSATIONS).set(counts.entries as f64);
            gauge!(CONVERSATION_BYTES).set(counts.bytes as f64);
        });
    }

    /// The exposition text.
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }
}

/// How a leg ended, for the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LegOutcome {
    Ended,
    Dropped,
    Failed(baton_routing::LegFault),
}

/// The name of a variant without its fields: `Refused { leg: l1 }` is "refused".
fn snake_case(variant: impl fmt::Debug) -> String {
    let name = format!("{variant:?}");
    let mut out = String::new();
    for c in name.chars().take_while(char::is_ascii_alphanumeric) {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use baton_routing::{Failure, LegFault, LegId};

    use super::*;

    #[test]
    fn names_of_variants() {
        assert_eq!(snake_case(LegFault::TimedOut), "timed_out");
        assert_eq!(snake_case(Failure::Refused { leg: LegId(1) }), "refused");
    }

    #[test]
    fn two_routers_do_not_share_numbers() {
        let (a, b) = (Metrics::new(), Metrics::new());
        a.arrived();
        a.finished(RequestEnd::Failed(Failure::Overloaded));
        a.first_byte(Duration::from_millis(7));
        assert!(a.render().contains(r#"baton_router_requests_total{outcome="overloaded"} 1"#));
        assert!(a.render().contains(r#"baton_router_ttft_seconds_bucket{le="0.01"} 1"#), "{}", a.render());
        assert!(!b.render().contains("overloaded"));
    }
}
