//! What a server's `/metrics` said while a point was measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scrape {
    /// Whose: a URL, or a name such as `decode-0`.
    pub target: String,
    /// By metric's name with its labels; sampled about once a second.
    pub gauges: BTreeMap<String, Gauge>,
    /// By metric's name with its labels: how much it grew. Those that did not are left out.
    pub counters: BTreeMap<String, f64>,
    /// By metric's name with its labels: what it took in. Those that took in nothing are left out.
    pub histograms: BTreeMap<String, Histogram>,
    /// Samples that failed.
    pub failures: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gauge {
    pub mean: f64,
    pub max: f64,
    pub last: f64,
    /// `[seconds since the point began, value]`, thinned to 600 at most.
    pub samples: Vec<(f64, f64)>,
}

/// In the metric's own unit. Percentiles are as exact as the buckets are narrow: samples are taken to lie evenly in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Histogram {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}
