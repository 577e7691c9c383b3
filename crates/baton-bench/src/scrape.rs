//! Looks at servers' metrics while a point is measured.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_workload::result::{Gauge, Scrape};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::endpoint::Endpoint;
use crate::exposition::Exposition;
use crate::histogram::Buckets;

const INTERVAL: Duration = Duration::from_secs(1);
/// Samples of one gauge that are kept; then every second one goes.
const MOST_SAMPLES: usize = 600;
const METRICS: &str = "/metrics";

/// Somebody whose metrics are looked at.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub name: String,
    pub endpoint: Endpoint,
}

/// Looks at the targets until it is read.
#[derive(Debug)]
pub(crate) struct Scraper {
    end: watch::Sender<()>,
    tasks: Vec<JoinHandle<Scrape>>,
}

impl Scraper {
    /// Returns when all have been looked at once: what is sent from then on is counted.
    pub async fn start(targets: &[Target], clock: Clock) -> Self {
        let (end, watched) = watch::channel(());
        let mut tasks = Vec::new();
        for target in targets {
            let mut samples = Samples::default();
            samples.look_at(target, clock).await;
            tasks.push(tokio::spawn(go_on(samples, target.clone(), clock, watched.clone())));
        }
        Self { end, tasks }
    }

    /// Those that never answered are left out.
    pub async fn read(self) -> Vec<Scrape> {
        drop(self.end);
        let mut scrapes = Vec::new();
        for task in self.tasks {
            scrapes.extend(
                task.await
                    .ok()
                    .filter(|scrape: &Scrape| !scrape.gauges.is_empty() || !scrape.counters.is_empty()),
            );
        }
        scrapes
    }
}

async fn go_on(mut samples: Samples, target: Target, clock: Clock, mut end: watch::Receiver<()>) -> Scrape {
    loop {
        let over = tokio::select! {
            () = tokio::time::sleep(INTERVAL) => false,
            _ = end.changed() => true,
        };
        // At the end as well, for what the last requests made of the counters.
        samples.look_at(&target, clock).await;
        if over {
            return samples.into_scrape(target.name);
        }
    }
}

#[derive(Debug, Default)]
struct Samples {
    first_counters: Option<BTreeMap<String, f64>>,
    last_counters: BTreeMap<String, f64>,
    first_histograms: Option<BTreeMap<String, Buckets>>,
    last_histograms: BTreeMap<String, Buckets>,
    gauges: BTreeMap<String, GaugeSamples>,
    failures: u64,
}

#[derive(Debug, Default)]
struct GaugeSamples {
    sum: f64,
    count: u64,
    max: f64,
    last: f64,
    kept: Vec<(f64, f64)>,
    /// Samples for each that is kept.
    stride: u64,
}

impl Samples {
    async fn look_at(&mut self, target: &Target, clock: Clock) {
        let page = target.endpoint.get_text(METRICS).await;
        self.take(page.ok().as_deref(), clock.now_ms() / 1000.0);
    }

    fn take(&mut self, page: Option<&str>, at_s: f64) {
        let Some(page) = page else {
            self.failures += 1;
            return;
        };
        let Exposition { gauges, counters, histograms } = Exposition::read(page);
        for (name, value) in gauges {
            self.gauges.entry(name).or_default().take(at_s, value);
        }
        self.first_counters.get_or_insert_with(|| counters.clone());
        self.last_counters = counters;
        self.first_histograms.get_or_insert_with(|| histograms.clone());
        self.last_histograms = histograms;
    }

    fn into_scrape(self, target: String) -> Scrape {
        let first = self.first_counters.unwrap_or_default();
        let growth = |(name, last): (String, f64)| {
            // A counter that is new began at 0; one that fell belongs to a process that began anew.
            let before = first.get(&name).copied().filter(|before| *before <= last).unwrap_or(0.0);
            (last > before).then_some((name, last - before))
        };
        let counters = self.last_counters.into_iter().filter_map(growth).collect();
        let before = self.first_histograms.unwrap_or_default();
        let took_in = |(name, last): (String, Buckets)| {
            let histogram = last.since(before.get(&name))?;
            Some((name, histogram))
        };
        let histograms = self.last_histograms.into_iter().filter_map(took_in).collect();
        let gauges = self.gauges.into_iter().map(|(name, samples)| (name, samples.into_gauge())).collect();
        Scrape { target, gauges, counters, histograms, failures: self.failures }
    }
}

impl GaugeSamples {
    fn take(&mut self, at_s: f64, value: f64) {
        self.max = if self.count == 0 { value } else { self.max.max(value) };
        (self.sum, self.last) = (self.sum + value, value);
        if self.kept.len() == MOST_SAMPLES {
            let mut index = 0..;
            self.kept.retain(|_| index.next().is_some_and(|index: u32| index.is_multiple_of(2)));
            self.stride *= 2;
        }
        self.stride = self.stride.max(1);
        if self.count.is_multiple_of(self.stride) {
            self.kept.push(((at_s * 1000.0).round() / 1000.0, value));
        }
        self.count += 1;
    }

    fn into_gauge(self) -> Gauge {
        Gauge {
            mean: self.sum / self.count.max(1) as f64,
            max: self.max,
            last: self.last,
            samples: self.kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_and_gauges_are_followed() {
        let mut samples = Samples::default();
        let page = |n: u32| format!("# TYPE c counter\nc {n}\n# TYPE same counter\nsame 5\ng {n}\n");
        samples.take(Some(&page(10)), 0.0);
        samples.take(None, 1.0);
        samples.take(Some(&page(30)), 2.0);
        samples.take(Some(&page(20)), 3.0);
        let scrape = samples.into_scrape("decode-0".to_owned());
        assert_eq!(scrape.counters, BTreeMap::from([("c".to_owned(), 10.0)]));
        assert_eq!(scrape.failures, 1);
        let gauge = &scrape.gauges["g"];
        assert_eq!((gauge.mean, gauge.max, gauge.last), (20.0, 30.0, 20.0));
        assert_eq!(gauge.samples, [(0.0, 10.0), (2.0, 30.0), (3.0, 20.0)]);
    }

    #[test]
    fn a_long_run_is_thinned_and_not_cut() {
        let mut gauge = GaugeSamples::default();
        (0..5_000).for_each(|n| gauge.take(f64::from(n), f64::from(n)));
        let gauge = gauge.into_gauge();
        assert!(gauge.samples.len() <= MOST_SAMPLES && gauge.samples.len() > 200, "{}", gauge.samples.len());
        assert_eq!((gauge.samples[0].0, gauge.max, gauge.mean), (0.0, 4999.0, 2499.5));
        assert!(gauge.samples.last().unwrap().0 > 4_900.0);
    }
}
