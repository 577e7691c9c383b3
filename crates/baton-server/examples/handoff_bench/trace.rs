//! What the engines' loops did and when, from their trace events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use baton_server::loop_trace::TARGET;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// One event of one engine.
#[derive(Clone, Debug, Default)]
struct Record {
    what: String,
    engine: String,
    post: u64,
    entries: u64,
    units: u64,
}

/// Everything since the last [`Trace::clear`].
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Vec<(Instant, Record)>>>);

#[derive(Debug)]
pub struct HandOff {
    /// From the end of the source's last step to the start of the destination's first.
    pub wait: Duration,
    /// Units whose bytes were not in place at the end of the source's last step.
    pub units_left: u64,
}

#[derive(Debug)]
pub struct Incoming {
    /// From the first post to the step that the new sequence joined.
    pub lasted: Duration,
    pub longest_gap: Duration,
}

impl Trace {
    pub fn install() -> Self {
        let trace = Self::default();
        tracing_subscriber::registry().with(trace.clone().with_filter(LevelFilter::TRACE)).init();
        trace
    }

    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    fn of(&self, engine: &str) -> Vec<(Instant, Record)> {
        let records = self.0.lock().unwrap();
        records.iter().filter(|(_, record)| record.engine == engine).cloned().collect()
    }

    /// The one hand-off since the last clear.
    pub fn hand_off(&self, source: &str, destination: &str) -> HandOff {
        let (source, destination) = (self.of(source), self.of(destination));
        let last = |(_, record): &&(Instant, Record)| record.what == "step ends";
        let computed = source.iter().rev().find(last).expect("prefill computed").0;
        let first = |(_, record): &&(Instant, Record)| record.what == "step starts";
        let begun = destination.iter().find(first).expect("decode computed").0;
        let mut landed = BTreeMap::new();
        let mut units_left = 0;
        for records in [&source, &destination] {
            landed.clear();
            landed.extend(records.iter().filter(|(_, r)| r.what == "moved").map(|(at, r)| (r.post, *at)));
            let late = records.iter().filter(|(_, r)| r.what == "posts" && landed[&r.post] > computed);
            units_left += late.map(|(_, r)| r.units).sum::<u64>();
        }
        HandOff { wait: begun.saturating_duration_since(computed), units_left }
    }

    /// While KV came in, until the sequence that it is for joined the one that runs.
    pub fn incoming(&self, engine: &str) -> Incoming {
        let records = self.of(engine);
        let begin = records.iter().find(|(_, r)| r.what == "posts").expect("KV came in").0;
        let joined = records.iter().find(|(_, r)| r.what == "step starts" && r.entries > 1);
        let end = joined.expect("it was decoded").0;
        let steps = records.iter().filter(|(at, r)| r.what == "step starts" && *at < end);
        let steps: Vec<Instant> = steps.map(|(at, _)| *at).collect();
        Incoming { lasted: end - begin, longest_gap: longest_gap(&steps) }
    }

    pub fn longest_gap(&self, engine: &str) -> Duration {
        let records = self.of(engine);
        let steps: Vec<Instant> =
            records.iter().filter(|(_, r)| r.what == "step starts").map(|(at, _)| *at).collect();
        longest_gap(&steps)
    }
}

fn longest_gap(steps: &[Instant]) -> Duration {
    steps.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

impl<S: tracing::Subscriber> Layer<S> for Trace {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == TARGET {
            let now = Instant::now();
            let mut record = Record::default();
            event.record(&mut record);
            self.0.lock().unwrap().push((now, record));
        }
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.what = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "engine" {
            self.engine = value.to_owned();
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "post" => self.post = value,
            "entries" => self.entries = value,
            "units" => self.units = value,
            _ => {}
        }
    }
}
