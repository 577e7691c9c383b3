//! Where, when and how: what must be equal for two results to be compared, and is shown where it is not.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// UTC, as RFC 3339.
    pub started_at: String,
    pub duration_s: f64,
    /// What the user called the run.
    pub label: Option<String>,
    /// The command line, without secrets.
    pub command: Vec<String>,
    pub seed: u64,
    pub client: Client,
    /// At least one; each has a name of its own.
    pub systems: Vec<System>,
}

/// The measuring side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    pub version: String,
    /// Of the source it was built from, with `-dirty` behind it if that was changed.
    pub commit: Option<String>,
    pub host: Host,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub cpu: String,
    /// That this process may use.
    pub cores: u32,
    pub memory_bytes: u64,
    pub os: String,
    pub gpus: Vec<String>,
}

/// The measured side: one endpoint, however many engines are behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct System {
    /// `push`, or what the user called it.
    pub name: String,
    pub strategy: Option<String>,
    /// Base address.
    pub endpoint: String,
    /// `/v1/completions` or `/v1/chat/completions`.
    pub api: String,
    pub model: String,
    /// Such as `baton 0.1.0` or `vllm 0.32.0`.
    pub server: Option<String>,
    pub commit: Option<String>,
    pub max_model_len: Option<u32>,
    /// The command line, if this run started it.
    pub flags: Vec<String>,
    /// Whether it runs on the client's machine, where both share the cores.
    pub same_host: bool,
    pub engines: Vec<EngineConditions>,
}

/// One engine behind the endpoint, as far as it can be seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineConditions {
    pub name: String,
    /// `prefill`, `decode` or `both`.
    pub role: Option<String>,
    pub url: String,
    pub prefix_cache: CacheState,
    pub block_tokens: Option<u32>,
    pub kv_blocks: Option<u64>,
    pub kv_dtype: Option<String>,
    pub transports: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    On,
    Off,
    #[default]
    Unknown,
}
