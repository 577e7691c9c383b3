//! Conversations in `kv_transfer_params`: what a decode engine kept, and what a prefill engine may read of it.

use baton_engine::{HandOff, Retained, Reuse};
use baton_openai::ApiError;
use baton_types::{KvTransferParams, TransferId};

use crate::app::Serving;
use crate::hand_off::{peer, transfer, wrong};
use crate::random::draw_u128;

/// A retention's own handle in the place of a prefill leg's parameters: how vLLM's routers bring it back.
pub(crate) fn is_handle(params: &KvTransferParams) -> bool {
    params.do_remote_decode && params.remote_engine_id.is_some()
}

/// Where the KV of the turn before may be, for a prefill leg.
///
/// # Errors
/// A 400 if it says too little to find it.
pub(crate) fn read(params: Option<&KvTransferParams>, hand_off: &HandOff) -> Result<Option<Reuse>, ApiError> {
    let HandOff::ToPeer { .. } = hand_off else { return Ok(None) };
    let Some(params) = params else { return Ok(None) };
    let Some(handle) = params.reuse.as_deref().or_else(|| is_handle(params).then_some(params)) else {
        return Ok(None);
    };
    let retention = transfer(handle)?.ok_or_else(|| wrong("reuse needs a transfer_id."))?;
    let tokens = handle.remote_num_tokens.ok_or_else(|| wrong("reuse needs remote_num_tokens."))?;
    Ok(Some(Reuse { transfer: TransferId(draw_u128()), retention, peer: peer(handle)?, tokens }))
}

/// What to keep the KV of prompt and answer by, where any is kept.
pub(crate) fn retention(serving: &Serving) -> Option<TransferId> {
    serving.retain_ttl.map(|_| TransferId(draw_u128()))
}

/// The handle as the next turn's prefill leg must bring it.
pub(crate) fn answer(retained: &Retained, serving: &Serving) -> KvTransferParams {
    let identity = &serving.identity;
    let ttl = serving.retain_ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    KvTransferParams {
        do_remote_decode: true,
        transfer_id: Some(retained.retention),
        remote_engine_id: Some(identity.engine.to_string()),
        remote_host: Some(identity.host.clone()),
        remote_port: Some(identity.port),
        tp_size: Some(1),
        remote_num_tokens: Some(retained.tokens),
        remote_ttl_ms: ttl,
        ..KvTransferParams::default()
    }
}

#[cfg(test)]
mod tests {
    use baton_types::TransferMode;

    use super::*;
    use crate::hand_off;

    const HANDLE: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,
        "transfer_id":"xfer-00000000000000000000000000000007","remote_engine_id":"d@00000000000000ff",
        "remote_host":"::1","remote_port":5600,"remote_num_tokens":640,"remote_ttl_ms":480000}"#;

    fn both(json: &str) -> Result<(HandOff, Option<Reuse>), ApiError> {
        let params: KvTransferParams = serde_json::from_str(json).unwrap();
        let hand_off = hand_off::read(Some(&params))?;
        let reuse = read(Some(&params), &hand_off)?;
        Ok((hand_off, reuse))
    }

    #[test]
    fn a_retention_comes_back_in_a_prefill_leg() {
        let leg = format!(
            r#"{{"do_remote_decode":true,"transfer_mode":"push",
                "transfer_id":"xfer-00000000000000000000000000000001","reuse":{HANDLE}}}"#
        );
        let (hand_off, reuse) = both(&leg).unwrap();
        assert_eq!(hand_off, HandOff::ToPeer { transfer: TransferId(1), mode: TransferMode::Push });
        let reuse = reuse.unwrap();
        assert_eq!((reuse.retention, reuse.tokens, reuse.peer.port), (TransferId(7), 640, 5600));
        assert_ne!(
            reuse.transfer,
            both(&leg).unwrap().1.unwrap().transfer,
            "each reading has an id of its own"
        );
    }

    #[test]
    fn a_handle_that_is_sent_back_as_it_came_is_one_too() {
        let (hand_off, reuse) = both(HANDLE).unwrap();
        assert_eq!(reuse.unwrap().retention, TransferId(7));
        let HandOff::ToPeer { transfer, mode: TransferMode::Pull } = hand_off else { panic!("{hand_off:?}") };
        assert_ne!(transfer, TransferId(7), "the hand-over is another transfer");
    }

    #[test]
    fn what_cannot_be_found_is_the_client_s_fault_and_other_legs_read_nothing() {
        for missing in ["remote_host", "transfer_id", "remote_num_tokens"] {
            let handle = HANDLE.replace(missing, "else");
            let leg = format!(r#"{{"do_remote_decode":true,"reuse":{handle}}}"#);
            assert_eq!(both(&leg).unwrap_err().status(), 400, "{missing}");
        }
        let whole = format!(r#"{{"reuse":{HANDLE}}}"#);
        assert_eq!(both(&whole).unwrap(), (HandOff::None, None));
    }
}
