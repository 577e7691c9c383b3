//! `kv_transfer_params` as the engine core's words, and the core's handle as `kv_transfer_params`.

use baton_engine::{HandOff, Handle};
use baton_openai::ApiError;
use baton_proto::PeerAddress;
use baton_types::{EngineId, KvTransferParams, TransferId, TransferMode};

use crate::random::draw_u128;

const PARAM: &str = "kv_transfer_params";

/// Where other engines find this one.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub engine: EngineId,
    /// The side channel's host as peers should dial it.
    pub host: String,
    pub port: u16,
}

/// What a request's parameters ask of this engine.
///
/// # Errors
/// A 400 if they contradict each other, or say too little to find the KV.
pub(crate) fn read(params: Option<&KvTransferParams>) -> Result<HandOff, ApiError> {
    let Some(params) = params else { return Ok(HandOff::None) };
    let mode = params.transfer_mode.unwrap_or(TransferMode::Pull);
    match (params.do_remote_decode, params.do_remote_prefill) {
        (false, false) => Ok(HandOff::None),
        (true, true) => Err(wrong("do_remote_decode and do_remote_prefill exclude each other.")),
        (true, false) if params.remote_engine_id.is_some() => {
            Err(ApiError::unsupported(PARAM, "A prefill leg cannot take KV from another engine."))
        }
        (true, false) => {
            let transfer = transfer(params)?.unwrap_or_else(|| TransferId(draw_u128()));
            Ok(HandOff::ToPeer { transfer, mode })
        }
        (false, true) => {
            let transfer =
                transfer(params)?.ok_or_else(|| wrong("do_remote_prefill needs a transfer_id."))?;
            Ok(HandOff::FromPeer { transfer, mode, peer: peer(params)? })
        }
    }
}

/// `transfer_id`, or what a router that knows only vLLM's older name brings back.
fn transfer(params: &KvTransferParams) -> Result<Option<TransferId>, ApiError> {
    match (params.transfer_id, &params.remote_request_id) {
        (Some(transfer), _) => Ok(Some(transfer)),
        (None, None) => Ok(None),
        (None, Some(text)) => {
            text.parse().map(Some).map_err(|_| wrong("remote_request_id is no transfer id of this system."))
        }
    }
}

fn peer(params: &KvTransferParams) -> Result<PeerAddress, ApiError> {
    let (Some(engine), Some(host), Some(port)) =
        (&params.remote_engine_id, &params.remote_host, params.remote_port)
    else {
        return Err(wrong("do_remote_prefill needs remote_engine_id, remote_host and remote_port."));
    };
    let engine = engine.parse().map_err(|_| wrong("remote_engine_id is no engine id of this system."))?;
    // The longest name that DNS has.
    if host.is_empty() || host.len() > 253 || port == 0 {
        return Err(wrong("remote_host and remote_port are no address."));
    }
    Ok(PeerAddress { engine, host: host.clone(), port })
}

fn wrong(message: &str) -> ApiError {
    ApiError::bad_param(PARAM, message)
}

/// The handle as the decode leg must bring it.
pub(crate) fn answer(handle: &Handle, identity: &Identity) -> KvTransferParams {
    KvTransferParams {
        do_remote_prefill: true,
        do_remote_decode: false,
        transfer_mode: Some(handle.mode),
        transfer_id: Some(handle.transfer),
        remote_request_id: Some(handle.transfer.to_string()),
        remote_engine_id: Some(identity.engine.to_string()),
        remote_host: Some(identity.host.clone()),
        remote_port: Some(identity.port),
        tp_size: Some(1),
        remote_num_tokens: Some(handle.tokens),
        remote_prefill_cached_tokens: Some(handle.cached_tokens),
        ..KvTransferParams::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(json: &str) -> KvTransferParams {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_handle_becomes_the_decode_leg_of_the_same_transfer() {
        let identity =
            Identity { engine: "p@00000000000000ff".parse().unwrap(), host: "::1".into(), port: 5600 };
        let handle =
            Handle { transfer: TransferId(7), mode: TransferMode::Push, tokens: 100, cached_tokens: 64 };
        let text = serde_json::to_string(&answer(&handle, &identity)).unwrap();
        let peer = PeerAddress { engine: identity.engine, host: "::1".into(), port: 5600 };
        let want = HandOff::FromPeer { transfer: TransferId(7), mode: TransferMode::Push, peer };
        assert_eq!(read(Some(&params(&text))).unwrap(), want);
        // A router that knows only the older name.
        let older = KvTransferParams { transfer_id: None, ..params(&text) };
        assert_eq!(read(Some(&older)).unwrap(), want);
    }

    #[test]
    fn contradictory_and_incomplete_parameters_are_the_client_s_fault() {
        for bad in [
            r#"{"do_remote_prefill":true,"do_remote_decode":true}"#,
            r#"{"do_remote_prefill":true}"#,
            r#"{"do_remote_prefill":true,"transfer_id":"xfer-00000000000000000000000000000001"}"#,
            r#"{"do_remote_prefill":true,"transfer_id":"xfer-00000000000000000000000000000001",
                "remote_engine_id":"p","remote_host":"h","remote_port":1}"#,
            r#"{"do_remote_prefill":true,"remote_request_id":"cmpl-1","remote_engine_id":"p@00000000000000ff",
                "remote_host":"h","remote_port":1}"#,
            r#"{"do_remote_prefill":true,"transfer_id":"xfer-00000000000000000000000000000001",
                "remote_engine_id":"p@00000000000000ff","remote_host":"","remote_port":1}"#,
            r#"{"do_remote_decode":true,"remote_engine_id":"d@00000000000000ff"}"#,
        ] {
            assert_eq!(read(Some(&params(bad))).unwrap_err().status(), 400, "{bad}");
        }
        assert_eq!(read(Some(&params("{}"))).unwrap(), HandOff::None);
        assert_eq!(read(None).unwrap(), HandOff::None);
    }

    #[test]
    fn a_prefill_leg_without_an_id_gets_one_of_its_own() {
        let ask = params(r#"{"do_remote_decode":true}"#);
        let (a, b) = (read(Some(&ask)).unwrap(), read(Some(&ask)).unwrap());
        assert!(matches!(a, HandOff::ToPeer { mode: TransferMode::Pull, .. }));
        assert_ne!(a, b);
    }
}
