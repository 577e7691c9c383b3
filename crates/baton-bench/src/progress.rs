//! What is shown in the terminal while a point is measured, and what it is counted from.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use baton_workload::quantile::select;
use baton_workload::result::RequestRecord;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const DRAW_INTERVAL: Duration = Duration::from_millis(500);
/// First tokens that the shown percentiles are of.
const LATEST: usize = 256;

/// Counts of one point. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    running: AtomicU64,
    peak: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    tokens: AtomicU64,
    latest_ttft_ms: Mutex<VecDeque<f64>>,
}

impl Progress {
    pub fn sent(&self) {
        self.0.sent.fetch_add(1, Ordering::Relaxed);
        let running = self.0.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.peak.fetch_max(running, Ordering::Relaxed);
    }

    /// `had`: chunks with tokens that the record had before.
    pub fn tokens(&self, had: usize, record: &RequestRecord) {
        let new = record.token_ms.len() - had;
        self.0.tokens.fetch_add(new as u64, Ordering::Relaxed);
        if let Some(ttft_ms) = record.ttft_ms().filter(|_| had == 0 && new > 0) {
            let mut latest = self.0.latest_ttft_ms.lock().unwrap_or_else(PoisonError::into_inner);
            if latest.len() == LATEST {
                latest.pop_front();
            }
            latest.push_back(ttft_ms);
        }
    }

    pub fn over(&self, record: &RequestRecord) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        let counter = if record.ending.is_answer() { &self.0.answered } else { &self.0.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    fn ttft_ms(&self, share: f64) -> Option<f64> {
        let latest = self.0.latest_ttft_ms.lock().unwrap_or_else(PoisonError::into_inner);
        select(&mut latest.iter().copied().collect::<Vec<_>>(), share)
    }
}

/// Standard error: a line that changes, if it is a terminal, and lines that stay.
#[derive(Clone, Debug)]
pub(crate) struct Screen(ProgressBar);

impl Screen {
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub fn line(&self, text: &str) {
        // Nobody is left to be told that standard error is closed.
        self.0.suspend(|| drop(writeln!(std::io::stderr(), "{text}")));
    }

    pub fn settled(&self) {
        self.0.finish_and_clear();
    }

    pub fn working(&self, what: &str) {
        self.0.reset();
        self.0.set_message(what.to_owned());
        self.0.enable_steady_tick(DRAW_INTERVAL / 4);
    }

    /// Draws how a point goes, for ever.
    pub async fn follow(self, name: String, scheduled: Option<u64>, progress: Progress) {
        if self.0.is_hidden() {
            return std::future::pending().await;
        }
        self.working(&name);
        let (mut before, mut tokens_before) = (Instant::now(), 0);
        loop {
            tokio::time::sleep(DRAW_INTERVAL).await;
            let tokens = progress.0.tokens.load(Ordering::Relaxed);
            let rate = (tokens - tokens_before) as f64 / before.elapsed().as_secs_f64();
            (before, tokens_before) = (Instant::now(), tokens);
            self.0.set_message(format!("{name}  {}", progress.line(scheduled, rate)));
        }
    }
}

impl Progress {
    fn line(&self, scheduled: Option<u64>, tokens_per_s: f64) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.0;
        let of = scheduled.map_or_else(String::new, |scheduled| format!(" of {scheduled}"));
        let mut line = format!(
            "{}{of} sent, {} running, {} answered",
            count(&c.sent),
            count(&c.running),
            count(&c.answered)
        );
        if count(&c.failed) > 0 {
            line += &format!(", {} failed", count(&c.failed));
        }
        line += &format!("  {tokens_per_s:.0} tokens/s");
        if let (Some(p50), Some(p99)) = (self.ttft_ms(0.5), self.ttft_ms(0.99)) {
            line += &format!("  TTFT p50 {p50:.0} ms, p99 {p99:.0} ms");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use baton_workload::result::Ending;

    use super::*;

    #[test]
    fn the_line_says_how_it_goes() {
        let progress = Progress::default();
        let mut record =
            RequestRecord { scheduled_ms: 10.0, token_ms: vec![52.0], ..RequestRecord::default() };
        progress.sent();
        progress.tokens(0, &record);
        record.token_ms.push(60.0);
        progress.tokens(1, &record);
        progress.sent();
        progress.over(&RequestRecord { ending: Ending::Cut, ..RequestRecord::default() });
        let line = "2 of 9 sent, 1 running, 0 answered, 1 failed  3 tokens/s  TTFT p50 42 ms, p99 42 ms";
        assert_eq!(progress.line(Some(9), 3.2), line);
        assert_eq!(progress.peak(), 2);
    }
}
