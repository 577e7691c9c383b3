//! What `/metrics` tells, as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_engine::Stats;

/// Upper bounds in seconds.
const LATENCY_BOUNDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0];
const TOKEN_BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0];

/// What happens between two steps may be as short as some microseconds and as long as many steps.
const STEP_BOUNDS: [f64; 61] = quarter_octaves(0.000_01);

/// From `first` on, four to each doubling.
const fn quarter_octaves<const N: usize>(first: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut i = 1;
    while i < N {
        bounds[i] = if i >= 4 { 2.0 * bounds[i - 4] } else { 1.189_207 * bounds[i - 1] };
        i += 1;
    }
    bounds
}

/// What an engine's loop did with its time while sequences ran.
#[derive(Debug)]
pub(crate) struct StepMetrics {
    /// From a step's beginning to its end, as the runner saw it.
    pub computing: Histogram,
    /// From a step's end to the beginning of the one that follows: what running sequences wait for the loop.
    pub between: Histogram,
}

impl Default for StepMetrics {
    fn default() -> Self {
        Self { computing: Histogram::new(&STEP_BOUNDS), between: Histogram::new(&STEP_BOUNDS) }
    }
}

impl StepMetrics {
    pub fn write(&self, page: &mut Page) {
        self.computing.write(page, "baton_step_seconds", "From a step's beginning to its end.");
        let help = "From a step's end to the next one's beginning, while sequences run: the loop's stall.";
        self.between.write(page, "baton_between_steps_seconds", help);
    }
}

/// What HTTP handlers saw.
#[derive(Debug)]
pub(crate) struct HttpMetrics {
    /// From a request's arrival to its first token.
    pub time_to_first_token: Histogram,
    /// Between two tokens.
    pub inter_token: Histogram,
    /// Mean of an answer's time per token behind the first.
    pub time_per_output_token: Histogram,
    /// From a request's arrival to its end.
    pub end_to_end: Histogram,
    /// By path and status; both come from short lists.
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        Self {
            time_to_first_token: Histogram::new(&LATENCY_BOUNDS),
            inter_token: Histogram::new(&TOKEN_BOUNDS),
            time_per_output_token: Histogram::new(&TOKEN_BOUNDS),
            end_to_end: Histogram::new(&LATENCY_BOUNDS),
            answers: Mutex::default(),
        }
    }
}

impl HttpMetrics {
    pub fn count_answer(&self, path: &'static str, status: u16) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry((path, status)).or_default() += 1;
    }

    pub fn write(&self, page: &mut Page) {
        page.head("baton_http_answers_total", "counter", "Answers by path and status.");
        for ((path, status), count) in self.answers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.line(
                "baton_http_answers_total",
                &format!("path=\"{path}\",status=\"{status}\""),
                *count as f64,
            );
        }
        let histograms = [
            ("baton_time_to_first_token_seconds", &self.time_to_first_token, "Arrival to first token."),
            ("baton_inter_token_seconds", &self.inter_token, "Between two tokens of an answer."),
            (
                "baton_time_per_output_token_seconds",
                &self.time_per_output_token,
                "Mean per answer, first token apart.",
            ),
            ("baton_request_seconds", &self.end_to_end, "Arrival to the end of the answer."),
        ];
        for (name, histogram, help) in histograms {
            histogram.write(page, name, help);
        }
    }
}

/// Counts of durations below fixed bounds.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one above.
    counts: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_ns: AtomicU64::new(0) }
    }

    pub fn record(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn write(&self, page: &mut Page, name: &str, help: &str) {
        page.head(name, "histogram", help);
        let mut below = 0;
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            below += count.load(Ordering::Relaxed);
            page.line(&format!("{name}_bucket"), &format!("le=\"{bound}\""), below as f64);
        }
        page.line(&format!("{name}_sum"), "", self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9);
        page.line(&format!("{name}_count"), "", below as f64);
    }
}

/// A page in Prometheus' text format.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    pub fn into_text(self) -> String {
        self.0
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail, here and below.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.line(name, "", value);
    }
}

/// The engine's numbers, and by vLLM's names those that other routers scrape.
pub(crate) fn write_stats(page: &mut Page, stats: &Stats, model: &str, sizes: KvSizes) {
    let blocks = stats.blocks;
    let gauges = [
        ("baton_sequences_running", "Sequences in the batch.", stats.running),
        ("baton_sequences_waiting", "Sequences that wait for a place.", stats.waiting),
        ("baton_sequences_receiving", "Sequences whose KV is on its way from a peer.", stats.receiving),
        ("baton_transfers", "Transfers that hold or will hold blocks here.", stats.transfers),
    ];
    for (name, help, value) in gauges {
        page.single(name, "gauge", help, value as f64);
    }
    page.head("baton_kv_blocks", "gauge", "KV blocks by state; they add up to the pool.");
    for (state, count) in [
        ("free", blocks.free),
        ("active", blocks.active),
        ("leased", blocks.leased),
        ("receiving", blocks.receiving),
        ("quarantined", blocks.quarantined),
    ] {
        page.line("baton_kv_blocks", &format!("state=\"{state}\""), count as f64);
    }
    write_counters(page, stats);
    write_conversations(page, stats, sizes);
    let label = format!("model_name=\"{}\"", escape(model));
    // What is kept for conversations gives way: it is as good as free.
    let used = (blocks.total() - blocks.free - blocks.retained) as f64 / blocks.total().max(1) as f64;
    for (name, help, value) in [
        ("vllm:num_requests_running", "Sequences in the batch.", stats.running as f64),
        ("vllm:num_requests_waiting", "Sequences that wait.", (stats.waiting + stats.receiving) as f64),
        ("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", used),
    ] {
        page.head(name, "gauge", help);
        page.line(name, &label, value);
    }
}

fn write_counters(page: &mut Page, stats: &Stats) {
    let c = &stats.counters;
    let name = "baton_kv_in_flight_refusals_total";
    page.head(name, "counter", "Of the refused requests, those refused for KV in flight, by the limit.");
    for (limit, value) in
        [("receiving", c.refused_receiving), ("inbound", c.refused_inbound), ("pool", c.refused_pool)]
    {
        page.line(name, &format!("limit=\"{limit}\""), value as f64);
    }
    for (name, help, value) in [
        ("baton_requests_total", "Requests submitted.", c.requests),
        ("baton_requests_refused_total", "Requests not queued.", c.refused),
        ("baton_requests_finished_stop_total", "Answers ended by a stop token or string.", c.finished_stop),
        ("baton_requests_finished_length_total", "Answers ended by their length.", c.finished_length),
        ("baton_requests_aborted_total", "Requests whose client left.", c.aborted),
        ("baton_requests_failed_total", "Requests that failed.", c.failed),
        ("baton_steps_total", "Steps computed.", c.steps),
        ("baton_computed_tokens_total", "Tokens whose KV was computed here.", c.computed_tokens),
        ("baton_generated_tokens_total", "Tokens generated.", c.generated_tokens),
        ("baton_prompt_tokens_total", "Prompt tokens of admitted requests.", c.prompt_tokens),
        (
            "baton_prefix_queried_tokens_total",
            "Tokens looked up in the prefix cache.",
            c.prefix_queried_tokens,
        ),
        ("baton_prefix_hit_tokens_total", "Tokens found in the prefix cache.", c.prefix_hit_tokens),
        ("baton_preemptions_total", "Sequences that lost their blocks.", c.preemptions),
        ("baton_received_tokens_total", "Prompt tokens whose KV came from a peer.", c.received_tokens),
        ("baton_transfers_received_total", "Transfers in that ended with KV.", c.transfers_received),
        ("baton_transfers_lost_total", "Transfers in that ended without KV.", c.transfers_lost),
        ("baton_transfers_sent_total", "Transfers out that were handed over.", c.transfers_sent),
        ("baton_transfers_unsent_total", "Transfers out that were not.", c.transfers_unsent),
        ("baton_recomputed_total", "Requests computed here because their KV did not come.", c.recomputed),
    ] {
        page.single(name, "counter", help, value as f64);
    }
}

/// What is kept for next turns, and what was read of it.
fn write_conversations(page: &mut Page, stats: &Stats, sizes: KvSizes) {
    let (c, kept) = (&stats.counters, stats.blocks.retained);
    for (name, help, value) in [
        ("baton_retained_conversations", "Conversations kept for their next turn.", stats.retentions),
        ("baton_retained_blocks", "KV blocks kept for conversations alone; part of the leased ones.", kept),
        ("baton_retained_bytes", "Their bytes.", kept * sizes.block_bytes),
    ] {
        page.single(name, "gauge", help, value as f64);
    }
    for (name, help, value) in [
        ("baton_retained_total", "Conversations kept.", c.retained),
        ("baton_retained_expired_total", "Of them, ended by time.", c.retained_expired),
        (
            "baton_retained_revoked_total",
            "Of them, gave way to sequences or conversations.",
            c.retained_revoked,
        ),
        ("baton_lent_tokens_total", "Tokens granted to readers.", c.lent_tokens),
        ("baton_lent_total", "Readings of what is kept that were completed.", c.lent_done),
        ("baton_lent_unfinished_total", "Readings that were not.", c.lent_unfinished),
        ("baton_reuse_requests_total", "Requests that said where KV is kept.", c.reuse_requests),
        (
            "baton_reuse_unused_total",
            "Of them, not worth it or not possible: nothing was asked for.",
            c.reuse_unused,
        ),
        ("baton_readbacks_total", "Readings begun.", c.readbacks),
        ("baton_readbacks_done_total", "Readings done.", c.readbacks_done),
        ("baton_readback_tokens_total", "Prompt tokens read back.", c.readback_tokens),
        ("baton_readback_bytes_total", "Their bytes.", c.readback_tokens * sizes.token_bytes as u64),
    ] {
        page.single(name, "counter", help, value as f64);
    }
    let waited = c.readback_us as f64 / 1e6;
    page.single("baton_readback_seconds_total", "counter", "Time that requests waited for them.", waited);
    page.head(
        "baton_readbacks_lost_total",
        "counter",
        "Readings that came to nothing: the prompt was computed.",
    );
    for (reason, count) in
        [("declined", c.readbacks_declined), ("expired", c.readbacks_expired), ("failed", c.readbacks_failed)]
    {
        page.line("baton_readbacks_lost_total", &format!("reason=\"{reason}\""), count as f64);
    }
    page.head(
        "baton_cached_tokens_total",
        "counter",
        "Prompt tokens that nobody computed, by where they were.",
    );
    for (source, count) in [("prefix_cache", c.prefix_hit_tokens), ("readback", c.readback_tokens)] {
        page.line("baton_cached_tokens_total", &format!("source=\"{source}\""), count as f64);
    }
}

/// Bytes of KV of a block, and of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvSizes {
    pub block_bytes: usize,
    pub token_bytes: usize,
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_upwards() {
        let histogram = Histogram::new(&TOKEN_BOUNDS);
        for ms in [1, 2, 3, 9_000] {
            histogram.record(Duration::from_millis(ms));
        }
        let mut page = Page::default();
        histogram.write(&mut page, "h", "help");
        let text = page.into_text();
        for line in ["h_bucket{le=\"0.001\"} 1\n", "h_bucket{le=\"0.005\"} 3\n", "h_bucket{le=\"5\"} 3\n"] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.contains("h_bucket{le=\"+Inf\"} 4\nh_sum 9.006\nh_count 4\n"), "{text}");
    }

    #[test]
    fn bounds_of_steps_grow_from_microseconds_to_a_third_of_a_second() {
        assert!(STEP_BOUNDS.windows(2).all(|pair| (1.18..1.2).contains(&(pair[1] / pair[0]))));
        assert!((STEP_BOUNDS[60] / 0.327_68 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn other_routers_find_their_names() {
        let mut page = Page::default();
        let mut stats = Stats { running: 3, ..Stats::default() };
        stats.blocks.free = 3;
        stats.blocks.active = 1;
        write_stats(&mut page, &stats, "a \"b\"", KvSizes { block_bytes: 64, token_bytes: 4 });
        let text = page.into_text();
        assert!(text.contains("vllm:num_requests_running{model_name=\"a \\\"b\\\"\"} 3\n"), "{text}");
        assert!(text.contains("vllm:kv_cache_usage_perc{model_name=\"a \\\"b\\\"\"} 0.25\n"), "{text}");
    }
}
