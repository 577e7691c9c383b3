//! What a Baton engine says about itself: the answer to `GET /baton/info`. A router reads it when it probes.

use serde::{Deserialize, Serialize};

use crate::ids::EngineId;
use crate::layout::KvDtype;
use crate::role::EngineRole;

/// One engine, as it is now. Unknown fields are skipped, so that newer engines can say more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Changes with every restart.
    pub engine_id: EngineId,
    pub role: EngineRole,
    /// The name that clients put into `model`.
    pub model: String,
    /// Where other engines reach this one.
    pub side_channel: SideChannel,
    /// How bytes can reach this engine's memory, best first: `memory`, `shm`, `tcp`, `nixl`.
    pub transports: Vec<String>,
    /// Most tokens of one sequence, prompt and answer together.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_tokens: u32,
    /// Tokens per unit of KV: engines exchange KV only if theirs are equal.
    pub unit_tokens: u32,
    /// The type of KV elements, if only engines of the same type may exchange KV with this one; none if it lets them be
    /// converted, with engines that do so too.
    pub kv_dtype: Option<KvDtype>,
    /// Whether it keeps the KV of prompts for later ones; none: it does not say. Nobody decides by it: it is a condition of
    /// every measurement.
    #[serde(default)]
    pub prefix_cache: Option<bool>,
    #[serde(default)]
    pub load: EngineLoad,
}

/// The address of an engine's side channel, over which KV hand-offs are agreed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideChannel {
    /// IPv6 without brackets. Where it is [unspecified](Self::is_unspecified), the reader puts the host that it dialled.
    pub host: String,
    pub port: u16,
}

impl SideChannel {
    /// Whether the host means something only to the engine itself.
    pub fn is_unspecified(&self) -> bool {
        matches!(self.host.as_str(), "" | "0.0.0.0" | "::" | "[::]" | "localhost")
    }
}

/// How busy an engine was when it answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineLoad {
    /// Sequences in the batch.
    pub running: u32,
    /// Sequences that wait for a place in it.
    pub waiting: u32,
    pub kv_blocks_total: u32,
    pub kv_blocks_free: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_reads_as_documented_and_back() {
        let text = r#"{"engine_id":"p0@00000000000000ff","role":"prefill","model":"tiny",
            "side_channel":{"host":"0.0.0.0","port":5600},"transports":["shm"],"max_model_len":8192,"block_tokens":64,"unit_tokens":16,
            "kv_dtype":"bf16",
            "load":{"running":1,"waiting":2,"kv_blocks_total":100,"kv_blocks_free":40},"later":true}"#;
        let info: EngineInfo = serde_json::from_str(text).unwrap();
        assert_eq!(info.engine_id.to_string(), "p0@00000000000000ff");
        assert!(info.side_channel.is_unspecified());
        assert_eq!(info.load.waiting, 2);
        assert_eq!((info.unit_tokens, info.kv_dtype), (16, Some(KvDtype::Bf16)));
        let again = serde_json::to_string(&info).unwrap();
        assert_eq!(serde_json::from_str::<EngineInfo>(&again).unwrap(), info);
    }
}
