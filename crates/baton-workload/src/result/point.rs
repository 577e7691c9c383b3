//! One load on one system, measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Ending, Estimate, Scrape, Summary};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of a system in the conditions.
    pub system: String,
    /// `none`, `pull`, `push`, `bidirectional`, …, if it is known.
    #[serde(default)]
    pub strategy: Option<String>,
    pub load: Load,
    /// Which repetition of the same load, from 0.
    #[serde(default)]
    pub round: u32,
    /// Seconds after the run began.
    pub started_s: f64,
    /// From the first scheduled moment to the last answer's end.
    pub duration_s: f64,
    pub counts: Counts,
    /// None where no answer gave a sample. TPOT and ITL need answers of two tokens.
    #[serde(default)]
    pub ttft_ms: Option<Summary>,
    #[serde(default)]
    pub tpot_ms: Option<Summary>,
    #[serde(default)]
    pub itl_ms: Option<Summary>,
    #[serde(default)]
    pub e2e_ms: Option<Summary>,
    pub throughput: Throughput,
    /// None unless a service level was asked for.
    #[serde(default)]
    pub goodput: Option<Goodput>,
    pub client: ClientLoad,
    /// What servers said of themselves meanwhile.
    #[serde(default)]
    pub scrapes: Vec<Scrape>,
}

/// How requests came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Load {
    /// Arrivals that wait for nobody.
    Open {
        /// Requests per second.
        rate: f64,
        /// `poisson`, `gamma:SHAPE` or `constant`.
        arrivals: String,
    },
    /// Arrivals as a trace has them.
    Trace {
        /// 2 replays twice as fast.
        time_scale: f64,
        /// Requests per second that this comes to, if known before.
        #[serde(default)]
        rate: Option<f64>,
    },
    /// Clients that each wait for their answer.
    Closed { concurrency: u32 },
}

impl Load {
    /// The figure that a sweep goes along: requests per second, or clients.
    pub fn level(&self) -> Option<f64> {
        match self {
            Self::Open { rate, .. } => Some(*rate),
            Self::Trace { rate, .. } => *rate,
            Self::Closed { concurrency } => Some(f64::from(*concurrency)),
        }
    }
}

/// What became of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub scheduled: u64,
    /// They add up to `scheduled`; those that are zero are left out.
    pub endings: BTreeMap<Ending, u64>,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Tokens of prompts that nobody computed; none if no server said.
    #[serde(default)]
    pub cached_tokens: Option<u64>,
}

impl Counts {
    pub fn of(&self, ending: Ending) -> u64 {
        self.endings.get(&ending).copied().unwrap_or(0)
    }
}

/// Per second of the point's duration, of requests that were answered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    pub requests: Estimate,
    pub prompt_tokens: Estimate,
    pub output_tokens: Estimate,
}

/// Limits that an answer must keep to be good; at least one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slo {
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub e2e_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    pub slo: Slo,
    /// Share of all scheduled requests, 0 to 1: failed ones are not good.
    pub share: Estimate,
    /// Good requests per second.
    pub requests: Estimate,
}

/// Whether the client kept up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientLoad {
    /// From scheduled to sent.
    pub lag_ms: Option<Summary>,
    /// How late a timer of the client fired: its event loop's delay.
    pub loop_lag_ms: Option<Summary>,
    /// CPU that the client used, in cores.
    pub cpu_cores: Option<f64>,
    /// Most requests at once.
    pub peak_concurrency: u64,
}
