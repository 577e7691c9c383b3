//! Single requests as the page draws them: a bar each, phase after phase.

use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Timeline {
    pub id: String,
    /// What the reader may choose; a request's `load` points here.
    pub loads: Vec<String>,
    pub requests: Vec<Shown>,
}

/// One request. Instants are milliseconds since it should have been sent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shown {
    #[serde(rename = "s")]
    pub series: usize,
    #[serde(rename = "l")]
    pub load: usize,
    #[serde(rename = "i")]
    pub index: u64,
    /// Since the point began.
    #[serde(rename = "at")]
    pub scheduled_ms: f64,
    /// What the tooltip says besides: lengths, ending.
    #[serde(rename = "n")]
    pub note: String,
    #[serde(rename = "ph")]
    pub phases: Vec<(Phase, f64, f64)>,
    /// Some of the moments at which tokens came.
    #[serde(rename = "t")]
    pub tokens: Vec<f64>,
    /// One of the slowest.
    #[serde(rename = "slow")]
    pub slowest: bool,
    #[serde(rename = "few")]
    pub sampled: bool,
    /// Ended without an answer.
    #[serde(rename = "bad", skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// Where a request's time went, in the order in which it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Due, but not yet sent: the client's fault.
    Client,
    /// Sent, and no token yet. What the servers say of this time lies upon it.
    Server,
    Queue,
    Prefill,
    Transfer,
    /// Decode's first step with the KV that came.
    FirstStep,
    Tokens,
}

impl Phase {
    /// Whether only servers can tell it.
    pub const fn is_servers(self) -> bool {
        matches!(self, Self::Queue | Self::Prefill | Self::Transfer | Self::FirstStep)
    }
}
