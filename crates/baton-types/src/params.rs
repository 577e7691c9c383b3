//! `kv_transfer_params`: the JSON object by which a router tells an engine what a leg is for, and in which a prefill engine
//! answers with the handle that the decode leg needs. vLLM's field names and meanings, so that other routers drive Baton
//! engines; Baton needs few of them and adds none that vLLM would choke on.

use serde::{Deserialize, Serialize};

use crate::ids::TransferId;

/// Who moves the bytes of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferMode {
    /// Decode reads after prefill has finished.
    Pull,
    /// Decode reads while prefill computes.
    EarlyPull,
    /// Prefill writes while it computes.
    Push,
}

/// Request side: `do_remote_decode` alone asks for prefill; `do_remote_prefill` with the peer's identity asks for decode.
/// Response side, prefill: the handle, to be sent to the decode engine as it is. Response side, decode: what it retained, with
/// `do_remote_decode`, to be sent to the next turn's prefill engine as `reuse`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTransferParams {
    pub do_remote_prefill: bool,
    pub do_remote_decode: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_mode: Option<TransferMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_id: Option<TransferId>,
    /// vLLM's older name for what matches the two legs: from a Baton engine, the transfer id as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_request_id: Option<String>,
    /// `name@incarnation` of the engine that holds the KV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_engine_id: Option<String>,
    /// Host of its side channel; IPv6 without brackets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_port: Option<u16>,
    /// Its tensor-parallel ranks; 1 for a Baton engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tp_size: Option<u32>,
    /// Tokens whose KV it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_num_tokens: Option<u32>,
    /// Of them, how many came from its prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_prefill_cached_tokens: Option<u32>,
    /// For how long from now a decode engine retains the KV. A duration: vLLM's instant of expiry means nothing elsewhere (I6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_ttl_ms: Option<u64>,
    /// Request side, prefill: what a decode engine retained of the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Box<KvTransferParams>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefill_leg_and_its_handle_read_as_vllm_writes_them() {
        let ask: KvTransferParams =
            serde_json::from_str(r#"{"do_remote_decode":true,"do_remote_prefill":false,"tp_size":1}"#)
                .unwrap();
        assert!(ask.do_remote_decode && !ask.do_remote_prefill);
        let handle = KvTransferParams {
            do_remote_prefill: true,
            transfer_mode: Some(TransferMode::Pull),
            transfer_id: Some(TransferId(7)),
            remote_port: Some(5600),
            ..KvTransferParams::default()
        };
        let json = serde_json::to_string(&handle).unwrap();
        assert!(json.contains(r#""transfer_mode":"pull""#), "{json}");
        assert_eq!(serde_json::from_str::<KvTransferParams>(&json).unwrap(), handle);
    }
}
