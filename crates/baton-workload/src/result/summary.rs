//! One figure over many requests.

use serde::{Deserialize, Serialize};

/// A figure and the interval that holds it with 95 % confidence, if there are samples enough for one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub low: Option<f64>,
    pub high: Option<f64>,
}

/// What is told of a distribution; in milliseconds, where a name ends in `_ms`. Percentiles are exact: the smallest sample
/// with at least that share at or below it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub samples: u64,
    pub min: f64,
    pub max: f64,
    pub mean: Estimate,
    pub p50: Estimate,
    pub p90: Estimate,
    pub p99: Estimate,
}
