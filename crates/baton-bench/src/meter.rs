//! How hard the client works: its CPU, and how late its event loop runs timers.

use std::time::{Duration, Instant};

use baton_workload::measure::summarize;
use baton_workload::result::Summary;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;

use crate::clock::ms;

/// Between two looks at the event loop.
const INTERVAL: Duration = Duration::from_millis(20);
/// tokio's timers count whole milliseconds: so much is not the loop's delay.
const TIMER_GRAIN: Duration = Duration::from_millis(1);

/// Runs from its making to [`Meter::read`].
#[derive(Debug)]
pub(crate) struct Meter {
    started: Instant,
    cpu_s: f64,
    late: tokio::sync::watch::Sender<()>,
    ticker: JoinHandle<Vec<f64>>,
}

impl Meter {
    pub fn start() -> Self {
        let (late, mut end) = tokio::sync::watch::channel(());
        let ticker = tokio::spawn(async move {
            let mut lateness_ms = Vec::new();
            loop {
                let due = Instant::now() + INTERVAL;
                tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => {}
                    _ = end.changed() => return lateness_ms,
                }
                let late = Instant::now().saturating_duration_since(due);
                lateness_ms.push(ms(late.saturating_sub(TIMER_GRAIN)));
            }
        });
        Self { started: Instant::now(), cpu_s: process_cpu_s(), late, ticker }
    }

    /// The event loop's lag, and the cores that this process used.
    pub async fn read(self, seed: u64) -> (Option<Summary>, f64) {
        let cpu_s = process_cpu_s() - self.cpu_s;
        let cores = cpu_s / self.started.elapsed().as_secs_f64().max(1e-9);
        drop(self.late);
        // A panic in it would be this program's bug, and there is nothing to tell then.
        let lateness_ms = self.ticker.await.unwrap_or_default();
        (summarize(lateness_ms.into_iter().map(|late| vec![late]), seed), cores)
    }
}

fn process_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_that_is_held_up_is_seen() {
        let meter = Meter::start();
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            // What a client that is too slow does to itself.
            let until = Instant::now() + Duration::from_millis(60);
            while Instant::now() < until {}
        }
        let (lag, cores) = meter.read(1).await;
        let lag = lag.unwrap();
        assert!(lag.max >= 25.0, "{lag:?}");
        assert!(cores > 0.2, "{cores}");
    }
}
