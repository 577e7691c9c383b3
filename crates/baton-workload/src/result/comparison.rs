//! Two systems, request by request.

use serde::{Deserialize, Serialize};

use super::{Estimate, Load};

/// The same requests sent to both, in the same rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name of the system that is divided by.
    pub baseline: String,
    pub candidate: String,
    pub load: Load,
    pub rounds: u32,
    /// Requests that both answered; the others are in no ratio.
    pub pairs: u64,
    /// Requests of which at least one side has no answer.
    pub unpaired: u64,
    pub ratios: Vec<Ratio>,
}

/// Candidate by baseline: below 1 the candidate is quicker. Intervals come from resampling rounds, and pairs within them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// `ttft_ms`, `tpot_ms`, `e2e_ms`, or `output_tokens` per second, where above 1 is better.
    pub figure: String,
    /// Ratio of the sums: what the mean request sees. For a throughput, the ratio of the rates.
    pub mean: Estimate,
    /// Of percentiles of the two sides; none for a throughput.
    pub p50: Option<Estimate>,
    pub p90: Option<Estimate>,
    pub p99: Option<Estimate>,
    /// Median of the ratios of each pair; none for a throughput.
    pub pairwise: Option<Estimate>,
}
